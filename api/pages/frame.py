"""What every view shares: the head with its links, what the server is doing, and errors in words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from nicegui import ui

from api.answering import Answering
from api.books import Books
from api.errors import describe
from api.services import Services

TITLE = "Coalesce"
LINKS = (("Ask", "/"), ("Library", "/library"), ("API", "/docs"))
READY_POLL_S = 0.3


@dataclass(frozen=True, slots=True)
class PageServices:
    """What the views drive: the same objects as the routes."""

    services: Services
    answering: Answering
    books: Books


@contextmanager
def frame(page: PageServices) -> Iterator[None]:
    """The page's head and a column for its content."""
    with ui.header().classes("bg-transparent text-inherit items-center gap-6 px-6 border-b"), ui.row().classes("gap-6"):
        ui.label(TITLE).classes("text-lg font-semibold")
        for name, target in LINKS:
            ui.link(name, target).classes("text-inherit no-underline")
    with ui.column().classes("w-full max-w-6xl mx-auto px-4 gap-4"):
        _waiting_note(page)
        yield


def show_error(error: BaseException) -> None:
    """Says what went wrong and what mends it."""
    reply = describe(error)
    ui.notify(f"{reply.message}. {reply.hint}" if reply.hint else reply.message, type="negative", multi_line=True)


def _waiting_note(page: PageServices) -> None:
    preparation = page.services.preparation
    if preparation.ready:
        return
    with ui.row().classes("items-center gap-3") as note:
        ui.spinner(size="sm")
        text = ui.label(preparation.step)

    def look() -> None:
        counted = f" ({preparation.done} of {preparation.total})" if preparation.total else ""
        text.set_text(f"{preparation.step}{counted}")
        if preparation.ready:
            note.delete()
            timer.deactivate()

    timer = ui.timer(READY_POLL_S, look)
