"""Where to look, and what answers: books, chapter, pages, arm and adapter."""

from __future__ import annotations

from functools import partial

from api.pages.controls import button, check, field, icon, select, set_attributes, tag, text_box
from api.pages.frame import Visit
from indexes.errors import InvalidInput
from indexes.messages import msg
from indexes.types import Filters
from rag.question import whole_number
from rag.types import ARMS, TUNED_ARMS, Arm

MOST_PAGES = 1_000_000


class FilterBar:
    """The filters of a question, folded away; a summary shows what they restrict.

    Args:
        chosen: what is chosen at first; books that have gone are left out.

    Attributes:
        arm: the arm that was chosen.
    """

    def __init__(self, visit: Visit, *, arms: bool = True, chosen: Filters | None = None) -> None:
        self._visit = visit
        self._t = visit.t
        chosen = chosen or Filters()
        titles = {document.document_id: document.title for document in visit.services.library.documents()}
        self._books = {book: titles[book] for book in chosen.document_ids if book in titles}
        self._chapter, self._pages = "", ["", ""]
        if len(self._books) == 1:
            self._chapter = next((str(one) for one in chosen.chapters if isinstance(one, int)), "")
            self._pages = [str(page) for page in chosen.pages or ("", "")]
        self.arm: Arm = "rag"
        adapters = visit.services.engine.generator.adapters
        self._adapter = adapters[0] if len(adapters) > 1 else None
        with tag("details", "", "filters"):
            with tag("summary"):
                icon("filter")
                self._summary = tag("span", self._t("filters.none"))
            with tag("fieldset", "", "filter-books"):
                tag("legend", self._t("filters.books"), "field-label")
                self._list = tag("div", "", "filter-list")
            self._fields = tag("div", "", "filter-fields")
        self._arms = arms
        self._draw_books()
        self._draw()
        self._say()

    def value(self) -> Filters:
        """The filters that were chosen; raises InvalidInput for pages that are not numbers or go backwards."""
        chapters = (int(self._chapter),) if self._chapter else ()
        return Filters(tuple(self._books), chapters, self._page_range())

    @property
    def adapter(self) -> str | None:
        """The adapter that was chosen, None where only one is loaded or the arm uses none."""
        return self._adapter if not self._arms or self.arm in TUNED_ARMS else None

    def _page_range(self) -> tuple[int, int] | None:
        first, last = (text.strip() for text in self._pages)
        if not first and not last:
            return None
        low = whole_number(first or "1")
        high = whole_number(last or str(MOST_PAGES))
        if low is None or high is None:
            raise InvalidInput(
                msg("pages {} to {} are not numbers", f"{first!r:.40}", f"{last!r:.40}"),
                hint="Give page numbers of the file.",
            )
        if not 1 <= low <= high:
            raise InvalidInput(msg("pages go from {} to {}", low, high), hint="Give the first page first.")
        return low, high

    def _draw_books(self) -> None:
        self._list.clear()
        with self._list:
            for one in self._visit.services.library.documents():
                tick = partial(self._tick, one.document_id, one.title)
                check(one.title, tick, checked=one.document_id in self._books)

    def _draw(self) -> None:
        services = self._visit.services
        documents = services.library.documents()
        # Chapters and pages are those of one book.
        chosen = next((one for one in documents if list(self._books) == [one.document_id]), None)
        self._fields.clear()
        with self._fields:
            if chosen is not None:
                chapters = services.library.chapters(chosen.document_id)
                with field(self._t("filters.chapter")):
                    listed = [(str(item.ordinal), f"{item.ordinal}. {item.title}") for item in chapters]
                    select([("", self._t("filters.all_chapters")), *listed], self._set_chapter, value=self._chapter)
                if chosen.pages:
                    self._page_box(0, self._t("filters.from_page"), chosen.pages)
                    self._page_box(1, self._t("filters.to_page"), chosen.pages)
            available = [arm for arm in ARMS if arm in services.engine.arms]
            if self._arms and len(available) > 1:
                with field(self._t("filters.arm")):
                    select([(arm, self._t(f"arm.{arm}")) for arm in available], self._set_arm, value=self.arm)
            if self._adapter is not None:
                with field(self._t("filters.adapter")):
                    names = services.engine.generator.adapters
                    select([(name, name) for name in names], self._set_adapter, value=self._adapter)
            if self._books:
                button(self._t("filters.clear"), self._clear, kind="quiet")

    def _page_box(self, index: int, label: str, pages: int) -> None:
        def keep(text: str) -> None:
            self._pages[index] = text
            self._say()

        with field(label):
            box = text_box(keep, value=self._pages[index], kind="number", event="input", min="1", max=str(pages))
            set_attributes(box, placeholder="1" if index == 0 else str(pages), inputmode="numeric")

    def _tick(self, document_id: str, title: str, on: bool) -> None:
        if on:
            self._books[document_id] = title
        else:
            self._books.pop(document_id, None)
        self._chapter, self._pages = "", ["", ""]
        self._draw()
        self._say()

    def _clear(self) -> None:
        self._books.clear()
        self._chapter, self._pages = "", ["", ""]
        self._draw_books()
        self._draw()
        self._say()

    def _set_chapter(self, chapter: str) -> None:
        self._chapter = chapter
        self._say()

    def _set_arm(self, arm: str) -> None:
        self.arm = next((known for known in ARMS if known == arm), "rag")

    def _set_adapter(self, name: str) -> None:
        self._adapter = name

    def _say(self) -> None:
        parts = []
        if self._books:
            titles = list(self._books.values())
            parts.append(titles[0] if len(titles) == 1 else self._t.count("library.books_count", len(titles)))
        if self._chapter:
            parts.append(self._t("filters.in_chapter", n=self._chapter))
        if any(self._pages):
            parts.append(self._t("filters.in_pages", first=self._pages[0] or "1", last=self._pages[1] or "…"))
        self._summary.set_text(" · ".join(parts) or self._t("filters.none"))
