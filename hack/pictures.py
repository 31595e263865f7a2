"""Makes the pictures of README for `make pictures`: the launcher's table, the page of `trainer report`, TensorBoard.

It trains a real run in a temporary directory, installs Debian's Chromium if it is missing, and writes `docs/pictures/`.
"""

import contextlib
import io
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.text import Text
from selenium import webdriver
from selenium.webdriver.common.by import By

from hack.browser import chromium
from hack.cluster.errors import UsageError
from hack.ports import free_ports

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
COLUMNS = 110
TRAINER = (sys.executable, "-m", "trainer")
CLUSTER = ("--ps", "1", "--workers", "2")
CURVES = ("--train_steps", "6000", "--learning_rate", "0.0003", "--eval_seconds", "1", "--report_steps", "50")
RUN_DIRECTORY = "runs/digits"
FRAME = re.compile(r"(?:\r?\x1b\[(?:2K|1A))+")
"""What Rich prints before it draws its table again: it erases the lines of the last one."""

FONT_FACE = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
PATIENCE = 120.0
STILL = 4
"""How many screenshots, a second apart, a page is the same in when it is drawn."""


def main() -> int:
    """Make all pictures; return the exit code."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, chromium(Path(folder) / "browser", "--hide-scrollbars") as driver:
        frames = train(Path(folder))
        (PICTURES / "launch.svg").write_text(draw(frames[len(frames) // 2]))
        subprocess.run([*TRAINER, "report", RUN_DIRECTORY], check=True, stdout=subprocess.DEVNULL, cwd=folder)
        run = Path(folder) / RUN_DIRECTORY
        open_page(driver, (run / "report.html").as_uri(), 1000, 680)
        save(driver, "report.png")
        with tensorboard(run) as address:
            open_page(driver, f"{address}?darkMode=false#timeseries", 820, 640)
            wait(lambda: bool(driver.find_elements(By.CSS_SELECTOR, "line-chart canvas")))
            driver.find_element(By.CSS_SELECTOR, ".settings-button").click()  # closes the settings
            wait_until_still(driver)
            save(driver, "tensorboard.png")
    for picture in sorted(PICTURES.iterdir()):
        print(f"{picture.relative_to(Path.cwd())}: {picture.stat().st_size / 1000:.0f} kB")
    return 0


def train(folder: Path) -> list[str]:
    """Train a run in the folder, on a terminal. Return the launcher's tables while all replicas train."""
    terminal, end = pty.openpty()
    environment = os.environ | {"COLUMNS": str(COLUMNS), "LINES": "30", "TERM": "xterm-256color"}
    command = [*TRAINER, "launch", *CLUSTER, *CURVES, "--train_dir", RUN_DIRECTORY]
    output = b""
    with subprocess.Popen(command, cwd=folder, env=environment, stdin=end, stdout=end, stderr=end) as process:
        os.close(end)
        with contextlib.suppress(OSError):  # so ends the output of a terminal that no process has open
            while chunk := os.read(terminal, 65536):
                output += chunk
    os.close(terminal)
    if process.returncode:
        sys.exit(f"pictures: trainer launch has failed:\n{output.decode()[-3000:]}")
    frames = [frame for frame in FRAME.split(output.decode()) if frame.count("training\x1b") == 2]
    return frames or sys.exit("pictures: trainer launch has shown no table with two workers that train")


def draw(frame: str) -> str:
    """A table of the launcher as an SVG file without fonts of its own, which a page on GitHub does not load."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text.from_ansi(frame.replace("\r\n", "\n").strip()))
    return FONT_FACE.sub("", console.export_svg(title="trainer launch"))


@contextlib.contextmanager
def tensorboard(run: Path) -> Iterator[str]:
    """The address of TensorBoard on a run."""
    (port,) = free_ports(1)
    address = f"http://localhost:{port}/"
    command = [*TRAINER, "tensorboard", "--logdir", str(run), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as board:
        try:
            wait(lambda: b"test" in fetch(f"{address}data/runs"))
            yield address
        finally:
            board.send_signal(signal.SIGTERM)


def open_page(driver: webdriver.Chrome, address: str, width: int, height: int) -> None:
    """Open a page in a window of this size."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.get(address)


def fetch(address: str) -> bytes:
    """The content of a page; nothing if no server responds."""
    try:
        with urllib.request.urlopen(address, timeout=PATIENCE) as answer:  # noqa: S310 - an address on this machine
            content: bytes = answer.read()
            return content
    except urllib.error.URLError:
        return b""


def wait(is_ready: Callable[[], bool]) -> None:
    """Wait until a page is ready."""
    deadline = time.monotonic() + PATIENCE
    while not is_ready():
        if time.monotonic() > deadline:
            sys.exit(f"pictures: a page was not ready after {PATIENCE:.0f} s")
        time.sleep(0.5)


def wait_until_still(driver: webdriver.Chrome) -> None:
    """Wait until a page looks the same for some seconds. Nothing else says that TensorBoard has drawn its charts."""
    shown: list[bytes] = []

    def is_still() -> bool:
        shown.append(driver.get_screenshot_as_png())
        time.sleep(1)
        return len(shown) > STILL and len(set(shown[-STILL:])) == 1

    wait(is_still)


def save(driver: webdriver.Chrome, name: str) -> None:
    """Save what the browser shows, with 64 colours, so that the file is small."""
    shown = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")
    shown.quantize(64, dither=Image.Dither.NONE).save(PICTURES / name, optimize=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UsageError as error:
        sys.exit(f"pictures: {error}")
