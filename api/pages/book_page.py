"""`/book/{document_id}`: a book to read on in, at a quote, a chapter or its beginning, and a search inside it.

`/study/guide/{document_id}`: what each chapter of it defines, counts and names, to read and to export.
"""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Sequence
from functools import partial
from urllib.parse import quote

from fastapi import Request
from nicegui import ui

from api.pages.controls import button, link, set_attributes, tag, text_box, toast
from api.pages.frame import Visit, book_path, open_view, show_problem
from api.pages.markup import passage_html, plain_html, without_fences
from api.pages.source_panel import page_image_path, page_of
from api.pages.study_page import study_head
from api.uploads import page_source
from evals.study_guide import GuideChapter, GuideEntry
from indexes.errors import CoalesceError
from indexes.types import Document, Filters
from rag.generators.extractive import PLAIN_FORMATS
from rag.question import whole_number
from rag.reading import Part, Place, find_part
from rag.types import Passage

FOUND = 8
SNIPPET_CHARS = 160
MOST_QUOTED = 300
"""Characters of a quote in an address."""
FOLD_WHERE_NARROW = """
document.querySelectorAll('.book-page').forEach((e) => { e.open = innerWidth > 1100; });
document.querySelectorAll('.book-contents > details').forEach((e) => { e.open = innerWidth > 800; });
"""


@ui.page("/book/{document_id}")
def book(request: Request, document_id: str) -> None:
    asked = dict(request.query_params)
    open_view(request, "library", lambda visit: _BookView(visit, document_id, asked).build())


class _BookView:
    """One part of a book in one tab. `asked` holds `part` or `chapter`, or `node` with the `quote` to show."""

    def __init__(self, visit: Visit, document_id: str, asked: dict[str, str]) -> None:
        self._visit = visit
        self._t = visit.t
        self._asked = asked
        self._document: Document = visit.services.library.document(document_id)
        self._parts = visit.services.reading.parts(document_id)
        self._page = 1

    def build(self) -> None:
        """Draws the view."""
        ui.page_title(f"{self._document.title} · Coalesce")
        with tag("div", "", "row"):
            link(self._t("book.all"), "/library")
        tag("h1", self._document.title)
        self._search_form()
        place, problem = self._place()
        if problem is not None:
            show_problem(self._visit, problem)
        if not self._parts:
            tag("p", self._t("book.empty"), "soft")
            return
        try:
            part = find_part(
                self._parts,
                number=place.part if place else whole_number(self._asked.get("part", "")),
                chapter=whole_number(self._asked.get("chapter", "")),
            )
        except CoalesceError as error:
            show_problem(self._visit, error)
            return
        services = self._visit.services
        printed = page_source(services.settings.home, services.library, self._document.document_id) is not None
        with tag("div", "", "book-layout printed" if printed else "book-layout"):
            self._contents(part)
            with tag("article", "", "book-text"):
                self._text(part, place, printed)
            if printed:
                self._printed_page(part, place)
        ui.run_javascript(FOLD_WHERE_NARROW)
        if place is not None:
            ui.run_javascript("coalesce.showMark()")

    def _place(self) -> tuple[Place | None, CoalesceError | None]:
        node, quote = self._asked.get("node", ""), self._asked.get("quote", "")
        if not node:
            return None, None
        try:
            return self._visit.services.reading.place(self._document.document_id, node, quote), None
        except CoalesceError as error:
            return None, error

    def _contents(self, current: Part) -> None:
        with tag("nav", "", "book-contents", aria_label=self._t("book.contents")), tag("details", open=True):
            tag("summary", self._t("book.contents"), "small-heading")
            with tag("ol"):
                for part in self._parts:
                    with tag("li"):
                        here = part.number == current.number
                        link(part.title, self._address(part=part.number), aria_current="page" if here else None)
                        if here:
                            self._headings(part)

    def _headings(self, part: Part) -> None:
        with tag("ul"):
            for number, stretch in enumerate(part.sections):
                if stretch.begins and len(stretch.section) > 1:
                    with tag("li"):
                        link(stretch.section[-1], f"#s{number}", f"level-{min(len(stretch.section), 4)}")

    def _text(self, part: Part, place: Place | None, printed: bool) -> None:
        plain = self._document.format in PLAIN_FORMATS
        tag("h2", part.title)
        for number, stretch in enumerate(part.sections):
            if stretch.begins and len(stretch.section) > 1:
                with tag("div", "", "book-heading"):
                    tag("h3" if len(stretch.section) == 2 else "h4", stretch.section[-1], id=f"s{number}")
                    self._page_mark(stretch.page_start, stretch.page_label, printed)
            here = place is not None and place.section == number
            span = (place.char_start, place.char_end) if place is not None and here else (0, 0)
            ui.html(passage_html(stretch.text, *span, plain=plain), sanitize=False).classes("passage")
        self._neighbours(part)

    def _page_mark(self, page: int | None, label: str | None, printed: bool) -> None:
        if page is None:
            return
        text = page_of(self._t, label, page, page)
        if printed:
            button(text, partial(self._show_page, page), kind="quiet")
        else:
            tag("span", text, "soft")

    def _neighbours(self, part: Part) -> None:
        with tag("nav", "", "book-turn", aria_label=self._t("book.turn")):
            for step, rel in ((-1, "prev"), (1, "next")):
                number = part.number + step
                if 1 <= number <= len(self._parts):
                    title = self._parts[number - 1].title
                    with link("", self._address(part=number), f"turn-{rel}", rel=rel):
                        tag("span", self._t(f"book.{rel}"), "soft")
                        tag("span", title)

    def _printed_page(self, part: Part, place: Place | None) -> None:
        section = part.sections[place.section if place is not None else 0]
        with tag("details", "", "book-page page-image"):
            tag("summary", self._t("source.page_image"))
            with tag("div", "", "row"):
                button(
                    "", partial(self._turn_page, -1), kind="quiet", icon_name="back", label=self._t("book.page_back")
                )
                self._page_name = tag("span", "", "soft")
                button("", partial(self._turn_page, 1), kind="quiet", icon_name="send", label=self._t("book.page_on"))
            self._image = tag("img", loading="lazy")
        self._show_page(self._quoted_page(place) or section.page_start or 1)

    def _quoted_page(self, place: Place | None) -> int | None:
        """The page of the quote, where the link names it."""
        page = whole_number(self._asked.get("page", "")) if place is not None else None
        return page if page and page <= (self._document.pages or 0) else None

    def _turn_page(self, step: int) -> None:
        self._show_page(min(max(self._page + step, 1), self._document.pages or 1))

    def _show_page(self, page: int) -> None:
        self._page = page
        self._page_name.set_text(self._t("page.one", page=page))
        address = page_image_path(self._document.document_id, page, self._asked.get("quote", ""))
        set_attributes(self._image, src=address, alt=self._t("source.page_alt", page=page))

    def _address(self, **place: int | str) -> str:
        return book_path(self._document.document_id, **place)

    # --- search

    def _search_form(self) -> None:
        with tag("form", "", "row book-search", role="search") as form:
            box = text_box(self._keep, event="input", kind="search", id="book-search", maxlength="1000")
            set_attributes(box, placeholder=self._t("book.search"), aria_label=self._t("book.search"))
            button(self._t("book.find"), self._search, icon_name="search")
        self._query = ""
        form.on("submit.prevent", self._search, args=[])
        self._found = tag("div", "", "book-found", aria_live="polite")

    def _keep(self, text: str) -> None:
        self._query = text

    async def _search(self) -> None:
        services, filters = self._visit.services, Filters((self._document.document_id,))
        if not self._query.strip():
            return
        try:
            engine = services.engine
            passages = await services.answering.run(
                partial(engine.search, self._query, FOUND, filters), self._visit.asker
            )
        except CoalesceError as error:
            toast(self._t.error(error), bad=True)
            return
        self._found.clear()
        with self._found:
            self._list(passages)

    def _list(self, passages: Sequence[Passage]) -> None:
        if not passages:
            tag("p", self._t("book.nothing"), "soft")
            return
        with tag("ol", "", "sources"):
            for passage in passages:
                part = next((part for part in passage.parts if part.node_id == passage.node_id), None)
                text = passage.text[part.start : part.end] if part is not None else passage.text
                with tag("li"), link("", self._address(node=passage.node_id), "source-link found-link"):
                    tag("span", " › ".join(passage.section) or passage.title)
                    tag("span", textwrap.shorten(without_fences(text), SNIPPET_CHARS, placeholder=" …"), "soft")


# --- what there is to learn in it


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
            chapters = await asyncio.to_thread(self._visit.services.questions.guide, self._document.document_id)
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
