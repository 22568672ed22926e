"""`/library`: the books, adding some with their progress, what reading them lost, removing one."""

from __future__ import annotations

import asyncio
import json
from functools import partial

from fastapi import Request
from nicegui import ui
from nicegui.elements.mixins.text_element import TextElement

from api.job_store import Job
from api.pages.book_card import show_book
from api.pages.controls import button, confirm, set_attributes, tag, toast
from api.pages.frame import PageServices, Visit, empty_state, open_view
from api.time_left import as_clock
from indexes.errors import CoalesceError
from indexes.types import Document

BUSY_POLL_S = 0.25
IDLE_POLL_S = 2.0
FAILURES_SHOWN = 3


def register(page: PageServices) -> None:
    """Adds the view to NiceGUI's own application."""

    @ui.page("/library")
    def library(request: Request) -> None:
        open_view(page, request, "library", lambda visit: _LibraryView(visit).build())


class _LibraryView:
    """One tab's look at the library; other tabs' and the command line's changes are seen too."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._t = visit.t
        self._shown: tuple[Document, ...] | None = None
        self._jobs_shown: list[Job] = []
        self._rows: list[tuple[TextElement, TextElement]] = []
        self._dismissed: set[str] = set()
        self._stopping: set[str] = set()

    def build(self) -> None:
        """Draws the view."""
        tag("h1", self._t("nav.library"))
        if self._visit.owner is None:
            self._drop_zone()
        tag("div", "", "uploads", id="uploads")
        self._jobs = tag("div", "", "uploads", aria_live="polite")
        self._books = tag("section", "", "books", aria_label=self._t("library.books"))
        known = self._visit.page.services.jobs.list()
        self._dismissed = {job.id for job in known if job.final}
        self._timer = ui.timer(BUSY_POLL_S, self._look)
        self._look()

    def _drop_zone(self) -> None:
        from indexes.readers import readable_endings

        names = ("sending", "cancel", "dismiss", "there", "failed")
        texts = json.dumps({name: self._t(f"upload.{name}") for name in names})
        endings = readable_endings().replace(" ", ",")
        with tag("section", "", "drop", data_texts=texts):
            tag("p", self._t("library.drop"), "drop-title")
            with tag("label", "", "button primary"):
                tag("span", self._t("library.choose"))
                picker = tag("input", "", "sr-only", type="file", multiple=True, accept=endings)
            picker.on("change", js_handler=f"(e) => coalesce.upload(e.target, {texts})")
            tag("p", self._t("library.formats", formats=readable_endings()), "soft")
            tag("p", self._t("library.folders"), "soft")

    def _look(self) -> None:
        services = self._visit.page.services
        jobs = [
            job
            for job in services.jobs.list()
            if not job.final or (job.state == "failed" and job.id not in self._dismissed)
        ]
        self._timer.interval = BUSY_POLL_S if any(not job.final for job in jobs) else IDLE_POLL_S / 2
        if jobs != self._jobs_shown:
            self._draw_jobs(jobs)
        documents = services.library.documents()
        if documents != self._shown:
            self._shown = documents
            self._draw_books(documents)

    def _draw_jobs(self, jobs: list[Job]) -> None:
        same = [job.id for job in jobs] == [job.id for job in self._jobs_shown] and [job.state for job in jobs] == [
            job.state for job in self._jobs_shown
        ]
        self._jobs_shown = jobs
        if same:
            for job, (state, bar) in zip(jobs, self._rows, strict=True):
                state.set_text(self._say(job))
                set_attributes(bar, max=max(job.total, 1), value=job.done)
            return
        self._rows = []
        self._jobs.clear()
        with self._jobs:
            for job in jobs:
                with tag("div", "", "upload failed" if job.state == "failed" else "upload"):
                    tag("span", self._t(f"library.job.{job.kind}") if job.kind == "add" else job.kind, "upload-name")
                    state = tag("span", self._say(job), "upload-state")
                    bar = tag("progress", "", "bar", max=max(job.total, 1), value=job.done, aria_label=self._say(job))
                    bar.set_visibility(not job.final)
                    self._rows.append((state, bar))
                    if job.final:
                        button(self._t("upload.dismiss"), partial(self._dismiss, job), kind="quiet")
                    elif self._visit.owner is None:
                        button(self._t("cancel"), partial(self._cancel, job), kind="quiet")

    def _say(self, job: Job) -> str:
        if job.error:
            hint = job.error.get("hint")
            return f"{job.error['message']}. {hint}." if hint else str(job.error["message"])
        if job.id in self._stopping:
            return self._t("library.stopping")
        stage = self._t.either(f"stage.{job.message}", job.message)
        left = f" (≈ {as_clock(job.seconds_left)})" if job.seconds_left is not None and not job.final else ""
        return f"{stage} {job.done:,} / {job.total:,}{left}" if job.total > 1 else stage

    def _dismiss(self, job: Job) -> None:
        self._dismissed.add(job.id)
        self._look()

    async def _cancel(self, job: Job) -> None:
        try:
            await asyncio.to_thread(self._visit.page.services.jobs.cancel, job.id)
        except CoalesceError as error:
            toast(self._t.error(error), bad=True)
            return
        self._stopping.add(job.id)
        self._jobs_shown = []
        self._look()

    def _draw_books(self, documents: tuple[Document, ...]) -> None:
        self._books.clear()
        with self._books:
            if not documents:
                text = "library.empty" if self._visit.owner is None else "library.empty_for_learner"
                empty_state(self._t("ask.empty.title"), self._t(text))
            for document in documents:
                # A learner's key reads the library and does not change it.
                remove = partial(self._ask_remove, document) if self._visit.owner is None else None
                show_book(self._visit, document, remove)

    def _ask_remove(self, document: Document) -> None:
        async def remove() -> None:
            try:
                await asyncio.to_thread(self._visit.page.books.remove, document.document_id)
            except CoalesceError as error:
                toast(self._t.error(error), bad=True)
            self._look()

        confirm(
            self._t("library.remove_question", title=document.title),
            self._t("library.remove"),
            self._t("keep"),
            remove,
            detail=self._t("library.remove_detail"),
        )
