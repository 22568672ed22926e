"""`/library`: the books, adding some with their progress, what reading them lost, removing one."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from urllib.parse import quote

from fastapi import Request
from nicegui import ui
from nicegui.element import Element
from nicegui.elements.mixins.text_element import TextElement

from api.jobs import Job
from api.pages.controls import button, confirm, field, link, set_attributes, tag, toast
from api.pages.frame import Visit, book_path, empty_state, open_view
from api.pages.job_row import job_name, say_job
from api.pages.texts import Texts
from api.questions import MAKING
from api.uploads import Taken
from indexes.errors import CoalesceError
from indexes.types import BookHealth, Document

BUSY_POLL_S = 0.25
IDLE_POLL_S = 2.0
MOST_PASTED = 2_000_000
NAME_CHARS = 60


@ui.page("/library")
def library(request: Request) -> None:
    open_view(request, "library", lambda visit: _LibraryView(visit).build())


class _LibraryView:
    """The library in one tab; other tabs' and the command line's changes are seen too."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._t = visit.t
        self._shown: tuple[tuple[Document, ...], dict[tuple[str, str], int]] | None = None
        self._making: set[str] = set()
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
        known = self._visit.services.jobs.list()
        self._dismissed = {job.id for job in known if job.final}
        self._timer = ui.timer(BUSY_POLL_S, self._look)
        self._look()

    def _drop_zone(self) -> None:
        names = ("sending", "cancel", "dismiss", "there", "failed")
        from indexes.readers import TEXT_FORMATS

        endings = self._visit.services.library.readable_endings()
        said: dict[str, object] = {name: self._t(f"upload.{name}") for name in names}
        texts = json.dumps(said | {"chapters": sorted(TEXT_FORMATS), "books": endings.split()})
        with tag("section", "", "drop", data_texts=texts):
            tag("p", self._t("library.drop"), "drop-title")
            with tag("div", "", "row"):
                for name, kind, given in (
                    ("choose", "primary", {"multiple": True, "accept": endings.replace(" ", ",")}),
                    ("choose_folder", "", {"webkitdirectory": True}),
                ):
                    with tag("label", "", f"button {kind}"):
                        tag("span", self._t(f"library.{name}"))
                        picker = tag("input", "", "sr-only", type="file", **given)
                    picker.on("change", js_handler=f"(e) => coalesce.upload(e.target, {texts})")
            tag("p", self._t("library.formats", formats=endings), "soft")
            tag("p", self._t("library.folders"), "soft")
            _AddBook(self._visit)

    def _look(self) -> None:
        services = self._visit.services
        jobs = [
            job
            for job in services.jobs.list()
            if not job.final or (job.state == "failed" and job.id not in self._dismissed)
        ]
        self._timer.interval = BUSY_POLL_S if any(not job.final for job in jobs) else IDLE_POLL_S / 2
        if jobs != self._jobs_shown:
            self._draw_jobs(jobs)
        self._tell_made()
        shown = services.library.documents(), services.questions.made.counts()
        if shown != self._shown:
            self._shown = shown
            self._draw_books(*shown)

    def _tell_made(self) -> None:
        """Says how many questions were made in the jobs that this tab saw end."""
        jobs = {job.id: job for job in self._visit.services.jobs.list() if job.kind == MAKING}
        for job_id in [job_id for job_id in self._making if job_id in jobs and jobs[job_id].final]:
            self._making.discard(job_id)
            if jobs[job_id].state == "done":
                toast(self._t.said(jobs[job_id].message))
        self._making.update(job_id for job_id, job in jobs.items() if not job.final)

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
                    tag("span", job_name(self._t, job), "upload-name")
                    state = tag("span", self._say(job), "upload-state")
                    bar = tag("progress", "", "bar", max=max(job.total, 1), value=job.done, aria_label=self._say(job))
                    bar.set_visibility(not job.final)
                    self._rows.append((state, bar))
                    if job.final:
                        button(self._t("upload.dismiss"), partial(self._dismiss, job), kind="quiet")
                    elif self._visit.owner is None:
                        button(self._t("cancel"), partial(self._cancel, job), kind="quiet")

    def _say(self, job: Job) -> str:
        return self._t("library.stopping") if job.id in self._stopping and not job.error else say_job(self._t, job)

    def _dismiss(self, job: Job) -> None:
        self._dismissed.add(job.id)
        self._look()

    async def _cancel(self, job: Job) -> None:
        try:
            await asyncio.to_thread(self._visit.services.jobs.cancel, job.id)
        except CoalesceError as error:
            toast(self._t.error(error), bad=True)
            return
        self._stopping.add(job.id)
        self._jobs_shown = []
        self._look()

    def _draw_books(self, documents: tuple[Document, ...], made: dict[tuple[str, str], int]) -> None:
        self._books.clear()
        with self._books:
            if not documents:
                text = "library.empty" if self._visit.owner is None else "library.empty_for_learner"
                empty_state(self._t("ask.empty.title"), self._t(text))
            for document in documents:
                # A learner's key reads the library and does not change it.
                remove = partial(self._ask_remove, document) if self._visit.owner is None else None
                book = show_book(self._visit, document, remove)
                with book:
                    self._questions(document, made.get((document.document_id, document.sha256), 0))

    def _questions(self, document: Document, made: int) -> None:
        """What can be studied of a book: an exam, or the button that makes questions for one."""
        with tag("div", "", "row book-study"):
            link(self._t("guide.title"), f"/study/guide/{quote(document.document_id, safe='')}", "button")
            if document.sample or made:
                if made:
                    tag("span", self._t.count("exam.questions", made), "soft")
                link(self._t("library.exam"), f"/study?book={document.document_id}", "button")
            if not document.sample and self._visit.owner is None:
                name = "library.make_again" if made else "library.make"
                label = f"{self._t(name)}: {document.title}"
                button(self._t(name), partial(self._make, document), kind="quiet" if made else "", label=label)

    async def _make(self, document: Document) -> None:
        try:
            await asyncio.to_thread(self._visit.services.questions.make, document.document_id, None, ())
        except CoalesceError as error:
            toast(self._t.error(error), bad=True)
        self._look()

    def _ask_remove(self, document: Document) -> None:
        async def remove() -> None:
            try:
                await asyncio.to_thread(self._visit.services.books.remove, document.document_id)
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


MOST_LISTED = 60


_TYPED = "(e) => emit([...e.target.closest('.add-form').querySelectorAll('.box')].map((box) => box.value))"
"""What stands in a form's boxes, sent with the press: what was sent while it was typed may be lost on the way."""


class _AddBook:
    """Adds a web page or a sitemap by its address, or pasted text. Drawn where it is made, folded away."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._t = visit.t
        self._busy = False
        with tag("details", "", "add-other"):
            tag("summary", self._t("library.other"))
            with tag("form", "", "add-form", novalidate=True) as by_url:
                with field(self._t("library.url")):
                    tag("input", "", "box", type="url", autocomplete="off", maxlength="2000", placeholder="https://")
                tag("button", self._t("library.fetch"), "button", type="submit")
                self._fetching = tag("p", "", "soft", role="status")
            by_url.on("submit.prevent", lambda event: self._fetch(*event.args), js_handler=_TYPED)
            with tag("div", "", "add-form"):
                with field(self._t("library.paste_title")):
                    tag("input", "", "box", autocomplete="off", maxlength=str(NAME_CHARS), data_draft="title")
                with field(self._t("library.paste")):
                    tag(
                        "textarea",
                        "",
                        "box",
                        autocomplete="off",
                        rows="4",
                        maxlength=str(MOST_PASTED),
                        data_draft="text",
                    )
                add = button(self._t("library.add_text"))
                add.on("click", lambda event: self._add_text(*event.args), js_handler=_TYPED)

    async def _fetch(self, url: str) -> None:
        if url.strip() and not self._busy:
            self._busy = True
            self._fetching.set_text(self._t("library.fetching"))
            await self._add(lambda: self._visit.services.fetch_book(url.strip()))
            self._busy = False
            self._fetching.set_text("")

    async def _add_text(self, title: str, text: str) -> None:
        if text.strip():
            name = "".join(c if c.isalnum() or c in " -_" else " " for c in title).strip() or "text"
            content = io.BytesIO(text.encode())
            if await self._add(lambda: self._visit.services.books.upload(content, f"{name}.md")):
                ui.run_javascript("coalesce.dropDrafts()")

    async def _add(self, add: Callable[[], Taken]) -> bool:
        """Whether it is on its way, or there already."""
        try:
            taken = await asyncio.to_thread(add)
        except CoalesceError as error:
            toast(self._t.error(error), bad=True)
            return False
        if not taken.new:
            toast(self._t("upload.there"))
        return True


def show_book(visit: Visit, document: Document, on_remove: Callable[[], None] | None) -> Element:
    """Draws one book into the current slot and returns it; with `on_remove`, also the button that asks for it."""
    t = visit.t
    with tag("article", "", "card book") as card:
        with tag("div", "", "book-head"):
            with tag("div"):
                with tag("h2"):
                    link(document.title, book_path(document.document_id))
                tag("p", _extent(t, document), "soft")
                tag("p", t("library.sample") if document.sample else document.source, "soft source-name")
            if on_remove is not None:
                label = t("library.remove_book", title=document.title)
                button("", on_remove, kind="quiet", icon_name="trash", label=label)
        _health(t, document.health)
        with tag("details", "", "chapters-of") as details:
            tag("summary", t("library.chapters"))
            tree = tag("ol", "", "chapter-tree")
        details.on("toggle", lambda: _chapters(visit, document, tree), js_handler="(e) => e.target.open && emit()")
    return card


def _extent(t: Texts, document: Document) -> str:
    extent = (
        t.count("library.pages", document.pages) if document.pages else t.count("library.sections", document.sections)
    )
    added = document.added_at[:10]
    return " · ".join(
        (
            t.either(f"format.{document.format}", document.format),
            extent,
            t.count("library.nodes", document.nodes),
            t("library.added", day=added),
        )
    )


def _health(t: Texts, health: BookHealth) -> None:
    found = {name: items for name, items in asdict(health).items() if items}
    if not found:
        tag("p", f"✓ {t('health.good')}", "health good")
        return
    with tag("details", "", "health doubtful"):
        tag("summary", t.count("health.doubts", sum(len(items) for items in found.values())))
        with tag("ul"):
            for name, items in found.items():
                tag("li", f"{t(f'health.{name}')}: {_listed(items)}")


def _listed(items: Sequence[object]) -> str:
    """Items on one line; neighbouring numbers become ranges, and a long list is cut short."""
    parts: list[str] = []
    numbers = [item for item in items if isinstance(item, int)]
    if len(numbers) == len(items):
        start = last = None
        for number in [*sorted(numbers), None]:
            if last is not None and number == last + 1:
                last = number
                continue
            if start is not None:
                parts.append(str(start) if start == last else f"{start}–{last}")
            start = last = number
    else:
        parts = [str(item) for item in items]
    return ", ".join(parts[:MOST_LISTED]) + (" …" if len(parts) > MOST_LISTED else "")


def _chapters(visit: Visit, document: Document, tree: Element) -> None:
    """Chapters and the headings below them, fetched when they are first looked at."""
    if list(tree):
        return
    library = visit.services.library
    try:
        headings: dict[int, list[tuple[str, ...]]] = {}
        for node in library.nodes_of(document.document_id):
            below = headings.setdefault(node.chapter, [])
            path = tuple(node.heading_path[1:3])
            if path and path not in below:
                below.append(path)
        chapters = library.chapters(document.document_id)
    except CoalesceError:
        return
    with tree:
        for chapter in chapters:
            with tag("li"):
                link(f"{chapter.ordinal}. {chapter.title}", book_path(document.document_id, chapter=chapter.ordinal))
                tag("span", visit.t.count("library.nodes", chapter.nodes), "soft")
                if paths := headings.get(chapter.ordinal):
                    with tag("ul"):
                        for path in paths:
                            tag("li", path[-1], f"level-{len(path)}")
