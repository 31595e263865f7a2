"""A real browser opens TensorBoard and draws the curve of a run.

The test writes a screenshot to `tests/e2e/artefacts/`, which git ignores.
"""

import contextlib
import io
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from selenium.common.exceptions import JavascriptException, StaleElementReferenceException
from selenium.webdriver.common.by import By

from tests.e2e.releases import Release, wait

ARTEFACTS = Path(__file__).parent / "artefacts"


@pytest.fixture
def address(release: Release) -> Iterator[str]:
    """The address of TensorBoard of a finished run, through `kubectl port-forward`."""
    release.install({"train": {"train_steps": 1000, "report_steps": 20}})
    release.wait_for_result(1000)
    release.kubectl("wait", "--for=condition=available", "deployment/mnist-tensorboard", "--timeout=90s")
    command = ["kubectl", "--namespace", release.namespace, "port-forward", "service/mnist-tensorboard", ":80"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as forwarding:
        assert forwarding.stdout
        address = forwarding.stdout.readline().split()[2]  # "Forwarding from 127.0.0.1:PORT -> 6006"
        # A page that is opened before TensorBoard has read the files stays empty: it loads its list of runs once.
        wait(lambda: '"train"' in answer(f"http://{address}/data/runs"), 90, release.describe)
        yield address
        forwarding.terminate()


def answer(url: str) -> str:
    with urllib.request.urlopen(url) as response:
        return str(response.read().decode())


def test_a_browser_shows_the_curve_of_the_loss(address: str, browser: Any) -> None:
    ARTEFACTS.mkdir(exist_ok=True)
    browser.get(f"http://{address}/?darkMode=false&tagFilter=loss#timeseries")
    try:
        wait(lambda: curve_pixels(browser) > 100, 90, lambda: f"see {ARTEFACTS}")
    finally:
        browser.save_screenshot(ARTEFACTS / "tensorboard.png")
    assert "loss" in browser.find_element(By.TAG_NAME, "card-view").text


def curve_pixels(browser: Any) -> int:
    """The number of pixels of the first chart that have the colour of the run `train`."""
    with contextlib.suppress(StaleElementReferenceException, JavascriptException):  # the page draws itself anew
        return _curve_pixels(browser)
    return 0


def _curve_pixels(browser: Any) -> int:
    charts = browser.find_elements(By.CSS_SELECTOR, "card-view line-chart")
    rows = [row for row in browser.find_elements(By.CSS_SELECTOR, "tb-data-table-content-row") if "train" in row.text]
    if not charts or not rows:
        return 0
    colour = browser.execute_script(
        "return getComputedStyle(arguments[0].querySelector('.run-color-swatch')).backgroundColor", rows[0]
    )
    expected = tuple(int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(","))
    picture = Image.open(io.BytesIO(charts[0].screenshot_as_png)).convert("RGB")
    return sum(count for count, pixel in picture.getcolors(2**24) or [] if pixel == expected)


def test_tensorboard_ends_some_time_after_the_run(release: Release) -> None:
    release.install({"train": {"train_steps": 300}, "tensorboard": {"ttlSecondsAfterFinished": 5}})
    release.finish()
    wait(lambda: not release.get("deployment", "mnist-tensorboard")["spec"]["replicas"], 90, release.describe)
    scaled = release.kubectl("get", "events", "--field-selector=reason=ScalingReplicaSet")
    assert "from 0 to 1" in scaled, "it has run"
