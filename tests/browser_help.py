"""What the page's tests share beside their fixtures."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

Open = Callable[..., "Page"]
"""Opens a path of the page in a browser: the fixture `open_page`."""


def drawn(page: Page) -> None:
    """Waits until the page is connected to the server and shows its view."""
    page.wait_for_function("window.did_handshake === true && document.querySelector('main > *') !== null")


NOTICES = """
window.notices = [];
new MutationObserver(() => {
  for (const notice of document.querySelectorAll('.q-notification')) window.notices.push(notice.textContent);
}).observe(document, {childList: true, subtree: true});
"""
"""Remembers what the page said in passing: a busy machine may look for it when it has gone."""


def noticed(page: Page, text: str) -> None:
    """Waits until the page has said this in passing."""
    page.wait_for_function("(text) => window.notices.some((notice) => notice.includes(text))", arg=text)


def ask(page: Page, text: str) -> None:
    """Asks, and waits for the finished answer."""
    before = page.locator(".answer-tools").count()
    page.fill("#question", text)
    page.press("#question", "Enter")
    page.locator(".answer-tools").nth(before).wait_for()
