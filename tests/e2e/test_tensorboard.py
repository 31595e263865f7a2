"""A real browser opens TensorBoard and draws the curve of a run.

The test writes a screenshot to `tests/e2e/artefacts/`, which git ignores.
"""

import io
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from hack.cluster import packages
from tests.e2e.releases import Release, wait

ARTEFACTS = Path(__file__).parent / "artefacts"
QUIET = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run")
OFFLINE = ("--disable-background-networking", "--disable-component-update", "--disable-sync")


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    """Headless Chromium from Debian's packages."""
    packages.ensure(packages.BROWSER)
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for option in (*QUIET, *OFFLINE, "--window-size=1400,1000", f"--user-data-dir={tmp_path / 'browser'}"):
        options.add_argument(option)
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    yield driver
    driver.quit()


@pytest.fixture
def address(release: Release) -> Iterator[str]:
    """The address of TensorBoard of a finished run, through `kubectl port-forward`."""
    release.install({"train": {"train_steps": 1000, "report_steps": 20}})
    release.wait_for_result(1000)
    release.kubectl("wait", "--for=condition=available", "deployment/mnist-tensorboard", "--timeout=90s")
    command = ["kubectl", "--namespace", release.namespace, "port-forward", "service/mnist-tensorboard", ":80"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as forwarding:
        assert forwarding.stdout
        yield forwarding.stdout.readline().split()[2]  # "Forwarding from 127.0.0.1:PORT -> 6006"
        forwarding.terminate()


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
