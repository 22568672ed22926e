"""What the page's tests share beside their fixtures."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

Open = Callable[..., "Page"]
"""Opens a path of the page in a browser: the fixture `open_page`."""


def ask(page: Page, text: str) -> None:
    """Asks, and waits for the finished answer."""
    before = page.locator(".answer-tools").count()
    page.fill("#question", text)
    page.press("#question", "Enter")
    page.locator(".answer-tools").nth(before).wait_for()
