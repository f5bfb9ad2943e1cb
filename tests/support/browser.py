"""A headless Chromium for tests of pages, or the reason why there is none."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)


class Browser:
    """A page in a window of a given size and colour scheme."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(
        self, page: Path, width: int, height: int = 800, *, dark: bool = False, script: bool = True
    ) -> None:
        """Load a page."""
        command = self.driver.execute_cdp_cmd
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        command("Emulation.setEmulatedMedia", {"media": "", "features": [scheme]})
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        command("Emulation.setDeviceMetricsOverride", size)
        command("Emulation.setScriptExecutionDisabled", {"value": not script})
        self.driver.get(page.as_uri())

    def run(self, script: str, *arguments: object) -> Any:
        """Run JavaScript in the page, and return what it returns."""
        return self.driver.execute_script(script, *arguments)

    def errors(self) -> list[str]:
        """Return what the console has complained about since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def hover(self, selector: str, x: float, y: float) -> None:
        """Move the pointer over an element, to a share of its width and height."""
        box = self.run(
            "const e = document.querySelector(arguments[0]); e.scrollIntoView({block: 'center'});"
            "const b = e.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]",
            selector,
        )
        place = {"x": box[0] + x * box[2], "y": box[1] + y * box[3]}
        self.driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", **place})


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Start Debian's Chromium; skip the test, with the reason, where there is none."""
    binary = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("there is no chromium with chromedriver: apt install chromium chromium-driver")
    from selenium import webdriver
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = binary
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for argument in ARGUMENTS:
        options.add_argument(argument)
    try:
        started = webdriver.Chrome(options=options, service=Service(driver))
    except WebDriverException as error:
        pytest.skip(f"chromium does not start here: {error.msg}")
    try:
        yield Browser(started)
    finally:
        started.quit()
