"""Debian's Chromium through Selenium: one browser, with the console and the network watched."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
]
WHY_NOT = "needs Chromium and its driver (apt-get install chromium chromium-driver) and selenium (pip install selenium)"


def installed() -> bool:
    try:
        import selenium  # noqa: F401
    except ImportError:
        return False
    return bool(shutil.which("chromium") and shutil.which("chromedriver"))


needs_browser = pytest.mark.skipif(not installed(), reason=WHY_NOT)


class Browser:
    """``errors`` and ``requests`` tell what happened since they were last asked."""

    def __init__(self) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        self.profile = tempfile.mkdtemp(prefix="sage-browser-")
        options = webdriver.ChromeOptions()
        for flag in [*FLAGS, f"--user-data-dir={self.profile}"]:
            options.add_argument(flag)
        options.binary_location = shutil.which("chromium") or ""
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        self.driver.set_script_timeout(120)

    def close(self) -> None:
        self.driver.quit()
        shutil.rmtree(self.profile, ignore_errors=True)

    def size(self, width: int, height: int = 900, dark: bool = False) -> None:
        """The page's own pixels: a window cannot be narrower than 500."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def open(self, where: str | Path) -> None:
        self.errors(), self.requests()
        self.driver.get(where if isinstance(where, str) else where.resolve().as_uri())
        self.wait("return document.documentElement.dataset.ready === 'true'")

    def js(self, script: str, *args: Any) -> Any:
        return self.driver.execute_script(script, *args)

    def wait(self, script: str, seconds: float = 60) -> Any:
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.driver, seconds, 0.05).until(lambda d: d.execute_script(script), message=script)

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def click(self, selector: str) -> None:
        """In the middle of the window, where nothing that sticks to its edges lies above."""
        self.js("document.querySelector(arguments[0]).scrollIntoView({behavior: 'instant', block: 'center'})", selector)
        self.find(selector).click()

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements("css selector", selector)

    def text(self, selector: str) -> str:
        return self.js("return document.querySelector(arguments[0])?.textContent ?? ''", selector)

    def show(self, section: str) -> None:
        """Scrolls a section into view and waits until it has drawn itself."""
        self.js("document.getElementById(arguments[0]).scrollIntoView({behavior: 'instant'})", section)
        drawn = {
            "curves": "#curves canvas",
            "training": "#training canvas",
            "support": "#support canvas[style]",
            "explorer": "#explorer .detail > *",
        }.get(section, f"#{section} .body > *")
        self.wait(f"return document.querySelector('{drawn}') !== null")

    def errors(self) -> list[str]:
        return [e["message"] for e in self.driver.get_log("browser") if e["level"] in ("SEVERE", "WARNING")]

    def requests(self) -> list[str]:
        """Every address that was asked for."""
        out = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                out.append(message["params"]["request"]["url"])
        return out

    def picture(self, path: Path) -> Path:
        self.driver.save_screenshot(str(path))
        return path
