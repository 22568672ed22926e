"""`/library`: the books, adding one with its progress, removing one."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from nicegui import events, ui

from api.pages.frame import PageServices, frame, show_error
from indexes.types import Document

POLL_S = 0.3


def register(page: PageServices) -> None:
    """Adds the view to NiceGUI's own application."""

    @ui.page("/library")
    def show() -> None:
        with frame(page):
            _LibraryView(page).build()


class _LibraryView:
    """One browser tab's list of books."""

    def __init__(self, page: PageServices) -> None:
        self._page = page

    def build(self) -> None:
        """Draws the view."""
        upload = ui.upload(label="Add a book", auto_upload=True, multiple=True, on_upload=self._take)
        upload.props('flat bordered aria-label="Add a book"').classes("w-full")
        self._jobs = ui.column().classes("w-full gap-1")
        self._books = ui.column().classes("w-full gap-0")
        self._shown: tuple[Document, ...] | None = None
        ui.timer(POLL_S, self._look)

    async def _take(self, event: events.UploadEventArguments) -> None:
        try:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "upload"
                await event.file.save(path)
                await asyncio.to_thread(self._queue, path, event.file.name)
        except Exception as error:  # noqa: BLE001  shown to the reader in words
            show_error(error)

    def _queue(self, path: Path, name: str) -> None:
        with path.open("rb") as file:
            self._page.books.upload(file, name)

    def _look(self) -> None:
        services = self._page.services
        if not services.preparation.ready:
            return
        self._jobs.clear()
        with self._jobs:
            for job in services.jobs.list()[:5]:
                if job.state in ("queued", "running", "failed"):
                    counted = f" {job.done} of {job.total}" if job.total else ""
                    ui.label(f"{job.kind}: {job.state}, {job.message}{counted}").classes("text-sm")
        documents = services.library.documents()
        if documents != self._shown:
            self._shown = documents
            self._show(documents)

    def _show(self, documents: tuple[Document, ...]) -> None:
        self._books.clear()
        with self._books:
            if not documents:
                ui.label("The library is empty. Add a book above, or with: coalesce add PATH")
            for document in documents:
                self._row(document)

    def _row(self, document: Document) -> None:
        with ui.row().classes("w-full items-center border-b py-2 no-wrap"):
            with ui.column().classes("gap-0 grow"):
                ui.label(document.title).classes("font-medium")
                extent = f"{document.pages} pages" if document.pages else f"{document.sections} sections"
                ui.label(f"{document.format} · {extent} · {document.nodes} nodes").classes("text-sm opacity-70")
            button = ui.button("Remove", on_click=lambda: self._confirm(document)).props("flat no-caps")
            button.props["aria-label"] = f"Remove {document.title}"

    async def _confirm(self, document: Document) -> None:
        with ui.dialog() as dialog, ui.card():
            ui.label(f"Remove {document.title}? Nothing of it will be found afterwards.")
            with ui.row():
                ui.button("Remove", on_click=lambda: dialog.submit(True)).props("unelevated no-caps")
                ui.button("Keep", on_click=lambda: dialog.submit(False)).props("flat no-caps")
        if await dialog:
            try:
                await asyncio.to_thread(self._page.books.remove, document.document_id)
            except Exception as error:  # noqa: BLE001  shown to the reader in words
                show_error(error)
        dialog.delete()
