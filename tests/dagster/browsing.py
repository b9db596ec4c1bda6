"""A browser for tests: the system's Chromium, driven by Playwright; what it shows is kept as pictures."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import HttpCredentials, Page, expect, sync_playwright

PICTURES = Path(os.environ.get("FLOWCORE_PICTURES") or Path(__file__).parents[2] / ".pictures")
TIMEOUT_MS = 60_000
DRAWN = """
() => [...document.querySelectorAll("canvas")].filter(canvas => {
    const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    return pixels.some((value, index) => index % 4 === 3 && value > 0);
}).length
"""


def chromium() -> str | None:
    """The system's Chromium; in CI it is there, or tests that need it fail."""
    found = (
        os.environ.get("FLOWCORE_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    )
    return found or ("chromium" if os.environ.get("CI") else None)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a page showed.

    Attributes:
        text: The text that was rendered.
        drawn: Plots with something drawn in them.
    """

    text: str
    drawn: int

    @property
    def lines(self) -> list[str]:
        return [line.strip() for line in self.text.splitlines()]


@dataclass(frozen=True, slots=True)
class Browser:
    """One page of a browser at the UI."""

    page: Page
    address: str

    def open(self, path: str) -> None:
        """Go to a page of the UI."""
        self.page.goto(self.address + path)

    def press(self, name: str) -> None:
        """Press a button."""
        self.page.get_by_role("button", name=name).first.click()

    def wait_for(self, text: str) -> None:
        """Wait until the page shows a text."""
        expect(self.page.get_by_text(text).first).to_be_visible(timeout=TIMEOUT_MS)

    def keep(self, name: str) -> Seen:
        """A picture of the page, and what it shows."""
        PICTURES.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=PICTURES / f"{name}.png", full_page=True, animations="disabled")
        return Seen(self.page.inner_text("body"), self.page.evaluate(DRAWN))


@contextmanager
def browsing(port: int, login: tuple[str, str] | None = None) -> Iterator[Browser]:
    """A browser at the UI at a port of this machine; it logs in when asked to."""
    # Chromium's own sandbox needs rights that root in a container does not have; the pages are our own.
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"]) as browser,
    ):
        credentials: HttpCredentials | None = {"username": login[0], "password": login[1]} if login else None
        page = browser.new_page(viewport={"width": 1600, "height": 1200}, http_credentials=credentials)
        page.set_default_timeout(TIMEOUT_MS)
        greeting = page.get_by_role("button", name="Skip")  # to a newcomer, sooner or later
        page.add_locator_handler(greeting, lambda button: button.click())
        yield Browser(page, f"http://127.0.0.1:{port}")
