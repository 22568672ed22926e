"""Why a page was not found: the reader names it, the panel says where it stands in each ranking."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from api.pages.controls import button, field, select, tag, text_box, toast
from api.pages.frame import Visit, show_problem
from api.pages.source_panel import page_of
from api.text_input import whole_number
from indexes.errors import CoalesceError, InvalidInput
from indexes.types import Document
from rag.explanation import Explanation, NodeRanks
from rag.wording import stem

MOST_SHOWN = 6
MOST_WORDS = 12


class ExplainPanel:
    """Closed until it is wanted. `build` draws it; nothing is searched before the reader asks."""

    def __init__(self, visit: Visit, question: str, answer_id: str) -> None:
        self._visit = visit
        self._t = visit.t
        self._question = question
        self._answer_id = answer_id
        self._book = ""
        self._place = ""

    def build(self) -> None:
        """Draws the closed panel."""
        with tag("details", "", "explain") as details:
            tag("summary", self._t("explain.title"))
            self._form = tag("div", "", "explain-form")
            self._result = tag("div", "", "explain-result", aria_live="polite")
        details.on("toggle", self._draw, js_handler="(e) => e.target.open && emit()")

    def _draw(self) -> None:
        documents = self._visit.page.services.library.documents()
        if not documents:
            return
        if not self._book:
            self._book = documents[0].document_id
        chosen = next((d for d in documents if d.document_id == self._book), documents[0])
        self._form.clear()
        with self._form:
            with field(self._t("filters.book")):
                select([(d.document_id, d.title) for d in documents], self._set_book, value=self._book)
            self._place_field(chosen)
            button(self._t("explain.show"), self._explain, kind="primary")

    def _place_field(self, document: Document) -> None:
        if document.pages:
            with field(self._t("explain.page")):
                text_box(self._set_place, kind="number", event="input", min="1", max=str(document.pages))
            return
        headings = list(self._sections(document.document_id))
        self._place = headings[0] if headings else ""
        with field(self._t("explain.section")):
            select([(heading, heading) for heading in headings], self._set_place, value=self._place)

    def _sections(self, document_id: str) -> dict[str, list[str]]:
        """Node ids by heading path, in the book's order."""
        found: dict[str, list[str]] = {}
        for node in self._visit.page.services.library.nodes_of(document_id):
            found.setdefault(" › ".join(node.heading_path), []).append(node.node_id)
        return found

    def _set_book(self, document_id: str) -> None:
        self._book, self._place = document_id, ""
        self._draw()

    def _set_place(self, place: str) -> None:
        self._place = place

    async def _explain(self) -> None:
        self._result.clear()
        try:
            document = self._visit.page.services.library.document(self._book)
            with self._visit.page.answering.gate.place():
                found = await asyncio.to_thread(self._look, document)
        except CoalesceError as error:
            with self._result:
                show_problem(self._visit, error)
            return
        with self._result:
            self._show(found, document)

    def _look(self, document: Document) -> list[Explanation]:
        engine = self._visit.page.services.engine
        if document.pages:
            page = whole_number(self._place)
            if page is None:
                hint = f"give a page from 1 to {document.pages}"
                raise InvalidInput(f"page {self._place!r:.40} is no number", hint=hint)
            return [engine.explain(self._question, self._book, page=page)]
        node_ids = self._sections(self._book).get(self._place, [])[:MOST_SHOWN]
        return [engine.explain(self._question, self._book, node_id=node_id) for node_id in node_ids]

    def _show(self, found: Sequence[Explanation], document: Document) -> None:
        nodes = [(item, node) for item in found for node in item.nodes]
        nodes.sort(key=lambda pair: pair[1].fused_rank or 10**6)
        if not nodes:
            tag("p", self._t("explain.nothing"), "note")
            return
        tag("p", self._verdict(*nodes[0]), "explain-verdict")
        with tag("div", "", "table-box stacked"), tag("table", "", "ranks"):
            with tag("thead"), tag("tr"):
                for name in ("place", "meaning", "words", "together", "missing"):
                    tag("th", self._t(f"explain.{name}"), scope="col")
            with tag("tbody"):
                for item, node in nodes[:MOST_SHOWN]:
                    self._row(item, node)
        button(self._t("explain.keep"), lambda: self._keep(document), kind="")

    def _row(self, item: Explanation, node: NodeRanks) -> None:
        page = page_of(self._t, None, node.page_start, node.page_end)
        with tag("tr"):
            tag("th", page or (node.section[-1] if node.section else ""), scope="row")
            for name, text in (
                ("meaning", self._rank(node.dense_rank, item.candidates_dense)),
                ("words", self._rank(node.lexical_rank, item.candidates_lexical)),
                ("together", self._rank(node.fused_rank, 0)),
                ("missing", self._as_asked(node.missing) or "–"),
            ):
                tag("td", text, data_label=self._t(f"explain.{name}"))

    def _as_asked(self, pieces: Sequence[str]) -> str:
        """Pieces of the question's wording, which are stems, as the reader wrote them."""
        written = {stem(word.lower()): word for word in re.findall(r"\w+", self._question)}
        return ", ".join(dict.fromkeys(written.get(piece, piece) for piece in pieces[:MOST_WORDS]))

    def _rank(self, rank: int | None, depth: int) -> str:
        if rank is not None:
            return str(rank)
        return self._t("explain.beyond", n=depth) if depth else "–"

    def _verdict(self, item: Explanation, node: NodeRanks) -> str:
        if node.fused_rank is not None:
            return self._t("explain.ranked", n=node.fused_rank)
        if node.missing:
            return self._t("explain.words_missing", words=self._as_asked(node.missing))
        return self._t("explain.not_found", n=item.candidates_dense)

    async def _keep(self, document: Document) -> None:
        comment = f"expected: {document.title}, {self._place}"
        store = self._visit.conversations
        try:
            await asyncio.to_thread(store.give_feedback, self._answer_id, "down", comment)
        except CoalesceError as error:
            toast(self._t.error(error), bad=True)
            return
        toast(self._t("explain.kept"))
