"""The text of an answer on the page: drawn as it grows, its markers open the passages that they name."""

from __future__ import annotations

from collections.abc import Sequence

from nicegui import ui

from api.pages.markup import Markers, answer_html
from api.pages.source_panel import SourcePanel
from api.pages.texts import Texts
from rag.types import Citation, Passage

REDRAW_S = 0.04
"""Least time between two drawings of a growing answer: smooth to the eye, cheap for the browser."""
THINKING = '<p class="thinking"><i></i><i></i><i></i></p>'
_OPEN_CITATION = (
    "(e) => { const b = e.target.closest('.cite');"
    " if (b) { coalesce.remember(b); emit(+b.dataset.cite, +b.dataset.passage); } }"
)


class MarkedAnswer:
    """Drawn where it is made, with `html` until the first text comes.

    Attributes:
        citations, passages: what the markers stand for; set them before `draw`.
    """

    def __init__(self, t: Texts, source: SourcePanel, html: str = THINKING) -> None:
        self._t = t
        self._source = source
        self.citations: Sequence[Citation] = ()
        self.passages: Sequence[Passage] = ()
        self._body = ui.html(html, sanitize=False).classes("answer")
        self._body.on("click", lambda event: self.open(*event.args), js_handler=_OPEN_CITATION)

    def draw(self, text: str) -> None:
        """Shows the text so far."""
        markers = Markers(self.citations, len(self.passages), self._t("ask.open_source"))
        self._body.set_content(answer_html(text, markers))

    def set_html(self, html: str) -> None:
        """Shows something else in the answer's place."""
        self._body.set_content(html)

    def open(self, index: int, number: int) -> None:
        """Opens citation `index`, or passage `number` (from 1) where there is no such citation."""
        if 0 <= index < len(self.citations):
            self._source.open_citation(self.citations[index], self.passages[number - 1])
        elif 1 <= number <= len(self.passages):
            self._source.open_passage(number, self.passages[number - 1])
