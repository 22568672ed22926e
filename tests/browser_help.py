"""What the page's tests share beside their fixtures."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from api_fakes import PATIENCE_S, Live

if TYPE_CHECKING:
    from playwright.sync_api import Page

Open = Callable[..., "Page"]
"""Opens a path of the page in a browser: the fixture `open_page`."""


QUESTION = "How many threads are in a warp?"
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}}


def ask(page: Page, text: str) -> None:
    """Asks, and waits for the finished answer."""
    before = page.locator(".answer-tools").count()
    page.fill("#question", text)
    page.press("#question", "Enter")
    page.locator(".answer-tools").nth(before).wait_for()


class Gate:
    """Holds the generator back before a piece until it is opened."""

    def __init__(self, live: Live, at: int) -> None:
        self._open = threading.Event()
        live.generator.before_piece = lambda index: index == at and self._open.wait(PATIENCE_S) and None

    def open(self) -> None:
        self._open.set()


def begin(page: Page, text: str = QUESTION) -> None:
    page.fill("#question", text)
    page.press("#question", "Enter")
