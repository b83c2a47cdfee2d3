"""A headless browser for tests of pages: Debian's chromium, driven by selenium."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

_PROGRAMS = ("chromium", "chromedriver")
_MISSING = [name for name in _PROGRAMS if shutil.which(name) is None]
_PAGE_SECONDS = 60
_LOOK_SECONDS = 0.05

needs_browser = pytest.mark.skipif(
    bool(_MISSING), reason=f"{', '.join(_MISSING)} not installed (Debian: chromium, chromium-driver)"
)


class Browser:
    """A headless browser window; errors of a page's scripts fail the test."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self._driver = driver

    def text(self, url: str, *, once_it_says: str) -> str:
        """Text of a page, once its scripts have put `once_it_says` on it."""
        self._driver.get(url)
        WebDriverWait(self._driver, _PAGE_SECONDS).until(
            lambda _: once_it_says in self._said(), f"{url} never said {once_it_says!r}"
        )
        self.require_quiet()
        return self._said()

    def require_quiet(self) -> None:
        """Fails where a script of the page has logged an error since the last call."""
        assert [entry for entry in self._driver.get_log("browser") if entry["level"] == "SEVERE"] == []

    def show(self, *, width: int, scheme: str) -> None:
        """Sets the window's width in pixels, its height to the page's, and the light or dark `scheme`."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        for height in (1400, None):  # a page is as high as its width makes it
            metrics = {"width": width, "height": height or self.run("return document.body.scrollHeight")}
            self._driver.execute_cdp_cmd(
                "Emulation.setDeviceMetricsOverride", {**metrics, "deviceScaleFactor": 1, "mobile": False}
            )

    def await_true(self, script: str) -> None:
        """Waits until `script` returns true, since a page reacts to its window with a delay."""
        waiting = WebDriverWait(self._driver, _PAGE_SECONDS, poll_frequency=_LOOK_SECONDS)
        waiting.until(lambda _: self.run(script), f"never true: {script}")

    def run(self, script: str) -> Any:
        """Runs a script in the page; returns its value."""
        return self._driver.execute_script(script)

    def run_with(self, script: str, *arguments: str) -> Any:
        """Runs a script in the page, which gets `arguments`; returns its value."""
        return self._driver.execute_script(script, *arguments)

    def click(self, selector: str) -> None:
        self._driver.find_element(By.CSS_SELECTOR, selector).click()

    def save(self, picture: Path) -> None:
        assert self._driver.save_screenshot(str(picture))

    def _said(self) -> str:
        return self._driver.find_element(By.TAG_NAME, "body").text


@contextmanager
def browsing(home: Path) -> Iterator[Browser]:
    """Starts a browser whose own files are in a folder; ends it with the block.

    Args:
        home: the folder, which must exist.
    """
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for argument in (
        "--headless=new",
        "--no-sandbox",  # which root cannot have
        "--disable-dev-shm-usage",  # containers have little of it
        "--disable-background-networking",
        "--disable-gpu",  # to imitate one takes as long as all else that a page does
        "--window-size=1600,1400",
        f"--user-data-dir={home / 'profile'}",
    ):
        options.add_argument(argument)
    service = webdriver.ChromeService(shutil.which("chromedriver"), env={**os.environ, "HOME": str(home)})
    with webdriver.Chrome(options=options, service=service) as driver:
        yield Browser(driver)
