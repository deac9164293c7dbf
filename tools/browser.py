"""A real headless Chromium, where there is one (Debian: apt-get install chromium)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LEFT_OUT = f"no Chromium is found on this machine ({', '.join(NAMES)})"


def chromium() -> str | None:
    """The program, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def launched() -> Iterator[Any]:
    """A playwright browser. Raises RuntimeError where there is no Chromium."""
    from playwright.sync_api import sync_playwright

    program = chromium()
    if program is None:
        raise RuntimeError(LEFT_OUT)
    with sync_playwright() as playwright:
        # Containers give neither a sandbox nor much shared memory.
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage", "--force-color-profile=srgb"]
        )
        try:
            yield browser
        finally:
            browser.close()


class Witness:
    """What a page logs and requests: console lines, errors, requests beyond its own address."""

    def __init__(self, page: Any, address: str) -> None:
        self.console: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.console.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.console.append(f"error: {error}"))
        page.on("request", lambda request: self._record(request.url, address))
        page.on("dialog", lambda dialog: (self.console.append(f"dialog: {dialog.message}"), dialog.dismiss()))

    def _record(self, url: str, address: str) -> None:
        if url != address and not url.startswith("data:"):
            self.requests.append(url)

    def silent(self) -> bool:
        """Whether nothing was logged or requested."""
        return not self.console and not self.requests


def scroll(page: Any) -> None:
    """Down to the end and up again, so that every section is drawn."""
    page.evaluate(
        """async () => {
            for (let y = 0; y < document.documentElement.scrollHeight; y += 500) {
                scrollTo({ top: y, behavior: "instant" });
                await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 5)));
            }
            scrollTo({ top: 0, behavior: "instant" });
        }"""
    )
    drawn(page)


def drawn(page: Any) -> None:
    """Wait until every section is drawn, which needs no scrolling. The page's policy forbids `wait_for_function`."""
    for _ in range(500):
        if page.locator(".waiting").count() == 0:
            return
        page.wait_for_timeout(20)
    raise AssertionError("some sections are not drawn after ten seconds")


def resting_box(page: Any, selector: str) -> dict[str, float]:
    """Where an element is once the page no longer scrolls."""
    before, box = None, page.locator(selector).bounding_box()
    while box != before:
        page.wait_for_timeout(50)
        before, box = box, page.locator(selector).bounding_box()
    return box


def address(path: Path) -> str:
    """A file's address."""
    return path.absolute().as_uri()
