"""The passage behind a marker: beside the answer, its quote marked, with heading path, printed page and page image."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote as url_quote

from nicegui import ui

from api.pages.controls import button, link, set_attributes, tag
from api.pages.frame import Visit, book_path
from api.pages.markup import Spans, passage_html
from api.pages.texts import Texts
from api.uploads import page_source
from rag.generators.extractive import PLAIN_FORMATS
from rag.types import Citation, Passage

QUOTE_IN_URL = 600
VERDICTS = ("supported", "partial", "unsupported")


class SourcePanel:
    """The view's one panel; every marker opens in it."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._t = visit.t
        with tag("aside", "", "source", id="source", aria_label=self._t("source.title"), tabindex="-1") as self._panel:
            with tag("div", "", "source-head"):
                self._number = tag("span", "", "number")
                self._title = tag("h2", "")
                close = button("", self._close, kind="quiet", icon_name="close", label=self._t("close"))
                close.on("click", js_handler="() => coalesce.returnFocus()")
            self._place = tag("p", "", "place")
            self._verdict = tag("p", "", "verdict")
            self._read_on = link(self._t("source.read_on"), "", "read-on")
            self._image = tag("div", "", "page-image")
            self._text = ui.html("", sanitize=False).classes("passage")
        self._panel.set_visibility(False)
        self._panel.on("keydown.escape", self._close, args=[], js_handler="() => { emit(); coalesce.returnFocus(); }")

    def open_citations(self, citations: Sequence[Citation], passage: Passage, number: int) -> None:
        """Shows a passage with the quotes of citations marked in it; the first one's place, the weakest verdict."""
        citation = citations[0]
        verdict = max((one.verdict for one in citations), key=VERDICTS.index)
        self._verdict.set_text(self._t(f"source.{verdict}"))
        self._verdict.classes(replace=f"verdict {verdict}")
        self._verdict.set_visibility(True)
        self._lead(citation.document_id, citation.node_id, citation.page_start, citation.quote)
        spans = [(one.char_start, one.char_end) for one in citations]
        self._show(number, passage, place_of(self._t, citation, title=False), spans)
        self._show_page(citation.document_id, citation.page_start, citation.quote)

    def open_passage(self, number: int, passage: Passage) -> None:
        """Shows a passage as it is."""
        self._verdict.set_visibility(False)
        self._lead(passage.document_id, passage.node_id, passage.page_start, "")
        self._show(number, passage, place_of(self._t, passage, title=False), ())
        self._show_page(passage.document_id, passage.page_start, "")

    def _show(self, number: int, passage: Passage, place: str, spans: Spans) -> None:
        self._number.set_text(str(number))
        self._title.set_text(passage.title)
        self._place.set_text(place)
        self._text.set_content(passage_html(passage.text, also=spans, plain=passage.format in PLAIN_FORMATS))
        self._panel.set_visibility(True)
        ui.run_javascript(f"coalesce.showSource('c{self._text.id}')")

    def _lead(self, document_id: str, node_id: str, page: int | None, quote: str) -> None:
        """Leads the link to the place in the book, unless the book is gone."""
        there = any(document.document_id == document_id for document in self._visit.services.library.documents())
        place: dict[str, int | str | None] = {"node": node_id, "quote": quote[:QUOTE_IN_URL], "page": page}
        set_attributes(self._read_on, href=book_path(document_id, **{k: v for k, v in place.items() if v}))
        self._read_on.set_visibility(there)

    def _show_page(self, document_id: str, page: int | None, quote: str) -> None:
        self._image.clear()
        services = self._visit.services
        if page is None or page_source(services.settings.home, services.library, document_id) is None:
            return
        with self._image, tag("details"):
            tag("summary", self._t("source.page_image"))
            image = tag("img", loading="lazy", src=page_image_path(document_id, page, quote))
            set_attributes(image, alt=self._t("source.page_alt", page=page))

    def _close(self) -> None:
        self._panel.set_visibility(False)


def page_image_path(document_id: str, page: int, quote: str) -> str:
    """The address of a page's picture with a quote marked on it."""
    return f"/page-image/{url_quote(document_id)}/{page}.png?quote={url_quote(quote[:QUOTE_IN_URL])}"


def place_of(t: Texts, source: Citation | Passage, *, title: bool = True) -> str:
    """Book, heading path and page, as far as they are known."""
    path = [part for part in source.section if part]
    if title and source.title:
        path = [source.title, *(part for part in path if part != source.title)]
    text = " › ".join(path)
    page = page_of(t, source.page_label, source.page_start, source.page_end)
    return f"{text}{t('page.join')}{page}" if page and text else text or page


def page_of(t: Texts, label: str | None, start: int | None, end: int | None) -> str:
    """The printed page where there is one, with the file's page where the two differ."""
    if start is None:
        return ""
    if label and label != str(start):
        return t("page.printed", label=label, page=start)
    return t("page.range", first=start, last=end) if end is not None and end != start else t("page.one", page=start)
