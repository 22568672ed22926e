"""`/study/guide/{document_id}`: what each chapter of a book defines, counts and names, to read and to export."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from urllib.parse import quote

from fastapi import Request
from nicegui import ui

from api.pages.controls import link, tag
from api.pages.frame import Visit, book_path, open_view, show_problem
from api.pages.markup import plain_html
from api.pages.study_page import study_head
from evals.study_guide import GuideChapter, GuideEntry
from indexes.errors import CoalesceError
from rag.question import whole_number

MOST_QUOTED = 300
"""Characters of a quote in an address."""


@ui.page("/study/guide/{document_id}")
def guide(request: Request, document_id: str, chapter: str = "") -> None:
    open_view(request, "study", lambda visit: _GuideView(visit, document_id, whole_number(chapter)).build())


class _GuideView:
    """The guide of one book; the chapter that was asked for stands open, else the first."""

    def __init__(self, visit: Visit, document_id: str, chapter: int | None) -> None:
        self._visit = visit
        self._t = visit.t
        self._document = visit.services.library.document(document_id)
        self._chapter = chapter

    def build(self) -> None:
        """Draws the view; the chapters come when they are found."""
        t, document = self._t, self._document
        study_head(self._visit, "guide")
        with tag("section", "", "card guide"):
            tag("h2", f"{document.title}: {t('guide.title')}")
            tag("p", t("guide.about"), "soft")
            with tag("div", "", "row"):
                link(t("library.exam"), f"/study?book={quote(document.document_id, safe='')}", "button")
                address = f"/v1/documents/{quote(document.document_id, safe='')}/guide.md"
                link(t("guide.export"), address, "button", download=True)
            with tag("div", "", "", aria_live="polite") as self._chapters:
                self._wait = tag("p", t("guide.reading"), "soft")
                ui.timer(0, self._fill, once=True)

    async def _fill(self) -> None:
        try:
            chapters = await asyncio.to_thread(self._visit.services.guide, self._document.document_id)
        except CoalesceError as error:  # the book has gone meanwhile
            self._wait.delete()
            with self._chapters:
                show_problem(self._visit, error)
            return
        self._wait.delete()
        with self._chapters:
            if not chapters:
                tag("p", self._t("guide.empty"))
            for place, chapter in enumerate(chapters):
                self._draw(chapter, opened=chapter.chapter == self._chapter if self._chapter else place == 0)

    def _draw(self, chapter: GuideChapter, *, opened: bool) -> None:
        groups = list(chapter.groups)
        total = sum(len(entries) for _, entries in groups)
        with tag("details", "", "guide-chapter", open=opened):
            name = f"{chapter.chapter}. {chapter.title}" if chapter.title else f"{chapter.chapter}."
            tag("summary", f"{name} ({total})")
            for kind, entries in groups:
                tag("h3", self._t(f"guide.{kind}"))
                self._list(entries)

    def _list(self, entries: Sequence[GuideEntry]) -> None:
        with tag("dl", "", "guide-list"):
            for entry in entries:
                with tag("dt"):
                    ui.html(plain_html(entry.term), sanitize=False, tag="span").classes("rich inline")
                with tag("dd"):
                    ui.html(plain_html(entry.text), sanitize=False).classes("rich")
                    where = entry.section[-1] if entry.section else self._document.title
                    address = book_path(self._document.document_id, node=entry.node_id, quote=entry.quote[:MOST_QUOTED])
                    link(where, address, "soft")
