"""A headless Chromium that looks at the page, and what is to be true of whatever it shows."""

import base64
import json
import os
import shutil
import time
from pathlib import Path

import pytest

PATIENCE_S = 60.0
FAULTS = (Path(__file__).parent / "page_faults.js").read_text()


def open_browser():
    """Skips the test where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("no browser: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("headless=new", "disable-gpu", "disable-dev-shm-usage", "hide-scrollbars", "disable-extensions"):
        options.add_argument(f"--{argument}")
    options.add_argument("--js-flags=--expose-gc")
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return Browser(webdriver.Chrome(options=options, service=webdriver.ChromeService(driver)))


class Browser:
    """One window. Every wait has a condition and a generous end."""

    def __init__(self, driver):
        self.driver = driver

    def close(self):
        self.driver.quit()

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def dress(self, theme):
        features = [("prefers-color-scheme", theme), ("prefers-reduced-motion", "reduce")]
        told = [{"name": name, "value": value} for name, value in features]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": told})

    def size(self, width, height):
        given = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", given)

    def go(self, url):
        self.driver.get(url)

    def show(self, view):
        """By its link, as a person does; the page stays."""
        self.run("document.querySelector(`nav a[href='/${arguments[0]}']`).click()", "" if view == "mesh" else view)
        assert self.until(lambda: self.run("return document.documentElement.dataset.ready") == view), view

    def until(self, claim, patience_s=PATIENCE_S):
        give_up_at = time.monotonic() + patience_s
        while not (found := claim()) and time.monotonic() < give_up_at:
            # The browser's own clock: it goes on drawing meanwhile.
            self.driver.execute_async_script("setTimeout(arguments[0], 30)")
        return found

    def text(self, selector="main"):
        """Of all that match, as a reader sees it."""
        script = "return [...document.querySelectorAll(arguments[0])].map((node) => node.innerText).join('\\n')"
        return self.run(script, selector)

    def says(self, words, selector="body"):
        return self.until(lambda: words in self.text(selector))

    def complaints(self):
        """What the console has said since this was asked last, but for a member that has gone."""
        return [line["message"] for line in self.driver.get_log("browser") if line["level"] in ("SEVERE", "WARNING")]

    def asked(self):
        """Every address that was asked for since this was asked last."""
        found = []
        for line in self.driver.get_log("performance"):
            event = json.loads(line["message"])["message"]
            if event["method"] == "Network.requestWillBeSent":
                found.append(event["params"]["request"]["url"])
        return found

    def picture(self, path, most=2400):
        """path: .png or .webp. most: pixels from its top."""
        height = min(most, self.run("return document.documentElement.scrollHeight"))
        width = self.run("return innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        given = {"captureBeyondViewport": True, "clip": clip, "format": path.suffix[1:]}
        given |= {"quality": 80} if path.suffix == ".webp" else {}
        taken = self.driver.execute_cdp_cmd("Page.captureScreenshot", given)
        path.write_bytes(base64.b64decode(taken["data"]))

    def heap_bytes(self):
        self.driver.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
        return self.driver.execute_cdp_cmd("Runtime.getHeapUsage", {})["usedSize"]

    def faults(self):
        """What is cut, lies on something else, or cannot be read, in words; [] if nothing."""
        return self.run(FAULTS)
