"""Headless Chromium from Debian's packages, which are installed if they are missing: for pictures and for tests."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from hack.cluster import packages

OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextlib.contextmanager
def chromium(profile: Path, *options: str, logs: bool = False) -> Iterator[webdriver.Chrome]:
    """Start Chromium, and end it.

    Args:
        profile: The folder of its data.
        options: More options of its command line.
        logs: Whether the driver keeps what pages log and request.

    Raises:
        UsageError: it is missing and cannot be installed.
    """
    packages.ensure(packages.BROWSER)
    settings = webdriver.ChromeOptions()
    settings.binary_location = "/usr/bin/chromium"
    for option in (*OPTIONS, *options, f"--user-data-dir={profile}"):
        settings.add_argument(option)
    if logs:
        settings.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=settings, service=Service("/usr/bin/chromedriver"))
    try:
        yield driver
    finally:
        driver.quit()
