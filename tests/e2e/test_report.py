"""A real browser opens the pages of `trainer report` and `trainer models compare`; TensorBoard serves its pictures.

It needs no cluster. Screenshots are in `tests/e2e/artefacts/`, which git ignores.
"""

import contextlib
import io
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from selenium.webdriver.common.by import By

from hack.ports import free_ports
from tests.e2e.releases import wait

ARTEFACTS = Path(__file__).parent / "artefacts"
PATIENCE = 600.0


def trainer(*words: str | Path) -> str:
    command = [sys.executable, "-m", "trainer", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    directory = tmp_path_factory.mktemp("run")
    trainer("train", "--train_dir", directory, "--train_steps", "300", "--report_steps", "10", "--hidden_units", "20")
    return directory


def open_offline(browser: Any, page: Path, width: int) -> list[str]:
    """Open a page; return what the browser has requested or complained about."""
    ARTEFACTS.mkdir(exist_ok=True)
    browser.get_log("performance")
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(page.as_uri())
    browser.save_screenshot(ARTEFACTS / f"{page.stem}-{width}.png")
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [each["params"]["request"]["url"] for each in events if each["method"] == "Network.requestWillBeSent"]
    found = [url for url in urls if not url.startswith("data:") and url != page.as_uri()]
    return found + [entry["message"] for entry in browser.get_log("browser")]


@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_shows_the_page_of_a_run_without_a_network(run: Path, browser: Any, width: int) -> None:
    from tests.unit.test_results_of_runs import served

    trainer("report", run)
    assert open_offline(browser, run / "report.html", width) == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width

    labels, predicted = served(run)
    expected = np.zeros((10, 10), int)
    np.add.at(expected, (labels, predicted), 1)
    rows = browser.find_elements(By.CSS_SELECTOR, "table.confusion tbody tr")[:10]
    cells = [[cell.text for cell in row.find_elements(By.TAG_NAME, "td")][:10] for row in rows]
    assert [[0 if cell == "·" else int(cell) for cell in row] for row in cells] == expected.tolist()

    pictures = browser.find_elements(By.CSS_SELECTOR, ".pictures img")
    assert len(pictures) == int((labels != predicted).sum()) > 0
    assert browser.execute_script("return arguments[0].naturalWidth", pictures[0]) == 28
    chart = browser.find_element(By.CSS_SELECTOR, "svg.chart")
    assert count_pixels(browser, chart, ".line.train") > 100
    readout = chart.find_element(By.XPATH, "..").find_element(By.CLASS_NAME, "readout")
    browser.execute_script(
        "const box = arguments[0].getBoundingClientRect();"
        "arguments[0].dispatchEvent(new PointerEvent('pointermove', {clientX: box.right - 10, clientY: box.top + 9}));",
        chart,
    )
    assert readout.text.startswith("step 300: ")


def count_pixels(browser: Any, element: Any, line: str) -> int:
    """The number of pixels of an element that have the colour of one of its lines."""
    colour = browser.execute_script("return getComputedStyle(document.querySelector(arguments[0])).stroke", line)
    expected = tuple(int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(","))
    picture = Image.open(io.BytesIO(element.screenshot_as_png)).convert("RGB")
    return sum(count for count, pixel in picture.getcolors(2**24) or [] if pixel == expected)


def test_a_browser_shows_a_comparison(run: Path, browser: Any, tmp_path: Path) -> None:
    other, page = tmp_path / "other", tmp_path / "comparison.html"
    trainer("train", "--train_dir", other, "--train_steps", "100", "--hidden_units", "5")
    found = json.loads(trainer("models", "compare", run, other, "--html", page, "--json"))
    assert open_offline(browser, page, 1280) == []
    assert len(browser.find_elements(By.CSS_SELECTOR, ".pictures img")) == min(found["different_predictions"], 120) > 0


@pytest.fixture
def tensorboard(run: Path) -> Iterator[str]:
    """The address of TensorBoard on the run."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "trainer", "tensorboard", "--logdir", str(run), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as board:
        yield f"http://localhost:{port}/"
        board.terminate()


def test_tensorboard_serves_the_misread_digits_and_the_projector(tensorboard: str) -> None:
    def ask(path: str) -> Any:
        with urllib.request.urlopen(f"{tensorboard}data/plugin/{path}", timeout=30) as answer:
            return answer.read()

    def is_ready() -> bool:
        with contextlib.suppress(OSError):
            return "test" in json.loads(ask("projector/runs"))
        return False

    wait(is_ready, 300, lambda: "TensorBoard does not serve the run")
    embeddings = json.loads(ask("projector/info?run=test"))["embeddings"]
    assert embeddings[0]["tensorName"] == "last hidden layer"
    assert embeddings[0]["tensorShape"] == [360, 20]
    tensor = ask("projector/tensor?run=test&name=last%20hidden%20layer&num_rows=360")
    assert np.frombuffer(tensor, np.float32).shape == (360 * 20,)
    assert Image.open(io.BytesIO(ask("projector/sprite_image?run=test&name=last%20hidden%20layer"))).size == (532, 532)
    assert "misread" in json.loads(ask("images/tags"))["test"]
