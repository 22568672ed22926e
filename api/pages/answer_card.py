"""One question and its answer: text as it is written, markers that open passages, sources, figures, a verdict."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from html import escape
from typing import Any

from nicegui import ui
from nicegui.element import Element

from api.answering import AnswerRun
from api.pages.controls import button, field, select, set_attributes, tag, text_box, toast
from api.pages.frame import Visit, show_problem
from api.pages.markup import Markers, answer_html
from api.pages.source_panel import SourcePanel, page_of, place_of
from api.pages.texts import Texts
from evals.exam import MAX_ANSWER_CHARACTERS
from evals.questions import own_question
from indexes.errors import CoalesceError, InvalidInput
from indexes.messages import msg
from indexes.types import Document
from indexes.words import stem
from rag.citations import MARKER
from rag.evidence import without_nearest
from rag.explanation import Explanation, NodeRanks
from rag.question import prose_of, whole_number
from rag.reading import Suggestion
from rag.types import Answer, Citation, Passage

REDRAW_S = 0.04
"""Least time between two drawings of a growing answer: smooth to the eye, cheap for the browser."""
LONG_CHARS, LONG_LINES = 500, 8
"""A longer question, as of pasted code, is shown in part."""
THINKING = '<p class="thinking"><i></i><i></i><i></i></p>'
_MARKER = MARKER.pattern + r"(?!\()"
"""A marker of a citation, not the text of a link."""
_OPEN_CITATION = (
    "(e) => { const b = e.target.closest('.cite');"
    " if (b) { coalesce.remember(b); emit(b.dataset.cite, +b.dataset.passage); } }"
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
        self._numbers: dict[int, int] = {}
        self._note = tag("p", "", "note", role="note")
        self._note.set_visibility(False)
        self._body = ui.html(html, sanitize=False).classes("answer")
        self._body.on("click", lambda event: self._open_marker(*event.args), js_handler=_OPEN_CITATION)
        self._cut_off = tag("p", t("ask.cut_off"), "note", role="note")
        self._cut_off.set_visibility(False)

    def draw(self, text: str) -> None:
        """Shows the text so far."""
        markers = Markers(self.citations, len(self.passages), self._t("ask.open_source"))
        self._body.set_content(answer_html(text, markers))
        self._numbers = {marker: markers.shown(marker) for marker in markers.seen or {}}

    def finish(self, answer: Answer, text: str | None = None) -> None:
        """Shows the whole answer with its note, or `text` in its place, and says so if it was cut off."""
        self.citations, self.passages = answer.citations, answer.passages
        self.draw(answer.answer if text is None else text)
        self.set_note(answer.note)
        self._cut_off.set_visibility(answer.usage.finish == "length")

    def set_note(self, note: str | None) -> None:
        """Shows what a reader should know beside the answer, above it."""
        self._note.set_text(note or "")
        self._note.set_visibility(note is not None)

    def set_html(self, html: str) -> None:
        """Shows something else in the answer's place."""
        self._body.set_content(html)

    def open(self, indices: Sequence[int], number: int) -> None:
        """Opens citations of one passage, or passage `number` (from 1) if there are none."""
        found = [self.citations[index] for index in indices if 0 <= index < len(self.citations)]
        if not 1 <= number <= len(self.passages):
            return
        if found:
            self._source.open_citations(found, self.passages[number - 1], self.number_of(number))
        else:
            self._source.open_passage(self.number_of(number), self.passages[number - 1])

    def number_of(self, marker: int) -> int:
        """What the reader sees for a marker."""
        return self._numbers.get(marker, marker)

    def _open_marker(self, cited: str, number: int) -> None:
        self.open([int(index) for index in str(cited).split(",")], number)


QUOTING = "extractive"
"""The generator that only quotes: its tokens per second mean nothing."""


Ask = Callable[..., Awaitable[None]]
"""Asks a question; with `answer_anyway=True` it is answered from the nearest passages."""


class AnswerCard:
    """A turn of a conversation. `show` draws a kept answer; `begin`, `write`, `finish` one that is being written.

    Args:
        ask: what a refusal's buttons do.
        edit: puts the last question back to be changed; None offers neither that nor asking it again.
    """

    def __init__(
        self, visit: Visit, source: SourcePanel, ask: Ask, edit: Callable[[Answer], None] | None = None
    ) -> None:
        self._ask = ask
        self._edit = edit
        self._visit = visit
        self._t = visit.t
        self._source = source

    @property
    def body_slot(self) -> Element:
        """Where notes about the answer go."""
        return self._notes

    def show(self, answer: Answer, rating: str | None = None, *, last: bool = False) -> None:
        """Draws a finished answer; after the last one, what to ask next."""
        self.begin(answer.question, reveal=False)
        self.finish(answer, rating, last=last)

    def begin(self, question: str, *, reveal: bool = True) -> None:
        """Draws the question and an empty answer."""
        with tag("article", "", "turn") as self.turn:
            self._asked(question)
            self._text = MarkedAnswer(self._t, self._source)
            self._notes = tag("div", "", "answer-notes")
        if reveal:
            ui.run_javascript(f"coalesce.reveal('c{self.turn.id}')")

    def _asked(self, question: str) -> None:
        """The question; a few lines of a long one, and the button that shows the rest."""
        kind = "asked with-code" if prose_of(question) != question.strip() else "asked"
        if len(question) <= LONG_CHARS and question.count("\n") < LONG_LINES:
            tag("h2", question, kind)
            return
        tag("h2", question, f"{kind} long")
        more = button(self._t("ask.whole"), kind="quiet")
        set_attributes(more, aria_expanded="false", data_other=self._t("ask.less"))
        more.on("click", js_handler="(e) => coalesce.showWhole(e.currentTarget)")

    async def write(self, run: AnswerRun) -> None:
        """Follows a run to its end."""
        drawn = ""
        async for _ in run.follow():
            self._text.passages = run.passages
            self._text.set_note(run.note)
            if run.thinking or run.before is not None:
                self._text.set_html(f'{THINKING}<p class="note" role="status">{escape(self._state(run))}</p>')
            if run.text != drawn and run.done is None:
                drawn = run.text
                self._text.draw(drawn)
                await asyncio.sleep(REDRAW_S)
        if not run.text and run.done is None:
            self._text.set_html("")

    def _state(self, run: AnswerRun) -> str:
        """What the reader waits for: the place in line, or that the model thinks."""
        if run.before is None:
            return self._t("ask.thinking")
        return self._t("ask.waiting", n=run.before) if run.before else self._t("ask.waiting.next")

    def finish(self, answer: Answer, rating: str | None = None, *, last: bool = True) -> None:
        """Draws the whole answer with its sources, figures and buttons."""
        # A refusal's passages are listed below it.
        self._text.finish(answer, without_nearest(answer.answer) if answer.refused and answer.passages else None)
        with self._notes:
            if answer.refused and answer.passages:
                self._nearest(answer)
            self._sources(answer)
            self._tools(answer, rating)
            if last:
                suggestions = partial(self._visit.services.reading.suggest_next, answer)
                Suggestions(self._visit, suggestions, self._ask, "ask.next").build()

    def _sources(self, answer: Answer) -> None:
        first: dict[int, int] = {}
        for index, citation in enumerate(answer.citations):
            first.setdefault(citation.marker, index)
        if not first:
            return
        with tag("ol", "", "sources", aria_label=self._t("ask.sources")):
            for marker, index in sorted(first.items(), key=lambda item: self._text.number_of(item[0])):
                citation = answer.citations[index]
                with tag("li"):
                    with tag("button", "", "source-link", type="button") as opener:
                        tag("span", str(self._text.number_of(marker)), "number")
                        tag("span", place_of(self._t, citation))
                        if citation.verdict != "supported":
                            tag("span", self._t(f"verdict.{citation.verdict}"), f"verdict {citation.verdict}")
                    every = [at for at, one in enumerate(answer.citations) if one.marker == marker]
                    self._opens(opener, every, marker)

    def _nearest(self, answer: Answer) -> None:
        """The places that a refusal names, to open, and the same question again."""
        if answer.evidence == "none":
            button(self._t("ask.anyway"), partial(self._ask, answer.question, answer_anyway=True))
        tag("h3", self._t("ask.nearest"), "small-heading")
        with tag("ol", "", "sources"):
            for number, passage in enumerate(answer.passages, 1):
                with tag("li"), tag("button", "", "source-link", type="button") as opener:
                    tag("span", str(number), "number")
                    tag("span", place_of(self._t, passage))
                self._opens(opener, (), number)

    def _opens(self, opener: Element, indices: Sequence[int], number: int) -> None:
        opener.on(
            "click",
            lambda: self._text.open(indices, number),
            js_handler="(e) => { coalesce.remember(e.target); emit(); }",
        )

    def _tools(self, answer: Answer, rating: str | None) -> None:
        with tag("div", "", "answer-tools"):
            copy = button("", kind="quiet", icon_name="copy", label=self._t("ask.copy"))
            set_attributes(copy, data_copy=with_sources(self._t, answer), data_copied=self._t("copied"))
            if self._edit is not None:
                with tag("span", "", "redo"):
                    again = partial(self._ask, answer.question, replaces=answer.id)
                    button("", again, kind="quiet", icon_name="again", label=self._t("ask.again"))
                    edit = partial(self._edit, answer)
                    button("", edit, kind="quiet", icon_name="edit", label=self._t("ask.edit"))
            _Thumbs(self._visit, answer.id, rating).build()
            if answer.citations:
                button(self._t("ask.save_card"), partial(self._save_card, answer), kind="quiet", icon_name="new")
            with tag("details", "", "figures"):
                tag("summary", self._t("ask.figures"))
                tag("span", figures(self._t, answer))
        if self._visit.services.library.documents():
            ExplainPanel(self._visit, answer.question, answer.id).build()

    async def _save_card(self, answer: Answer) -> None:
        """Makes the question a card, with the answer and its first quote."""
        first = answer.citations[0]
        said = re.sub(rf"\s*{_MARKER}", "", answer.answer).strip()[:MAX_ANSWER_CHARACTERS]
        study, section = self._visit.study, first.section[-1] if first.section else ""
        try:
            question = own_question(
                answer.question, said, first.quote, title=first.title, document_id=first.document_id, section=section
            )
            await asyncio.to_thread(study.save_card, question, self._visit.learner)
        except CoalesceError as error:
            toast(self._t.error(error), bad=True)
            return
        toast(self._t("ask.card_saved"))


class Suggestions:
    """Questions from the books' headings, as buttons; they are looked up once the view is drawn.

    Args:
        find: looks them up.
        heading: the key of their heading.
    """

    def __init__(
        self,
        visit: Visit,
        find: Callable[[], Sequence[Suggestion]],
        ask: Ask,
        heading: str,
        kind: str = "next-questions",
    ) -> None:
        self._visit = visit
        self._find = find
        self._ask = ask
        self._heading = heading
        self._kind = kind

    def build(self) -> None:
        """Draws the empty list and begins to look."""
        self._list = tag("ul", "", f"examples {self._kind}", aria_label=self._visit.t(self._heading))
        self._list.set_visibility(False)
        with self._list:
            ui.timer(0, self._fill, once=True)

    async def _fill(self) -> None:
        t = self._visit.t
        try:
            found = await asyncio.to_thread(self._find)
        except CoalesceError:  # the book has gone meanwhile
            return
        if not found:
            return
        self._list.set_visibility(True)
        with self._list:
            for suggestion in found:
                name = suggestion.heading
                text = name if name.endswith(("?", "？")) else t("ask.section", section=name)
                with tag("li"):
                    button(text, partial(self._ask, text), kind="example")


class _Thumbs:
    """Thumbs up and down; a thumb down may say what was wrong."""

    def __init__(self, visit: Visit, answer_id: str, rating: str | None) -> None:
        self._visit = visit
        self._answer_id = answer_id
        self._rating = rating

    def build(self) -> None:
        t = self._visit.t
        self._up = button("", lambda: self._give("up"), kind="quiet", icon_name="up", label=t("ask.good"))
        self._down = button("", lambda: self._give("down"), kind="quiet", icon_name="down", label=t("ask.bad"))
        with tag("span", "", "comment") as self._comment:
            text_box(
                lambda text: self._give("down", text),
                placeholder=t("ask.what_was_wrong"),
                aria_label=t("ask.what_was_wrong"),
                maxlength="4000",
            )
        self._comment.set_visibility(False)
        self._mark()

    async def _give(self, rating: str, comment: str = "") -> None:
        give = self._visit.services.give_feedback
        try:
            await asyncio.to_thread(give, self._answer_id, rating, comment, self._visit.owner)
        except CoalesceError as error:
            toast(self._visit.t.error(error), bad=True)
            return
        self._rating = rating
        self._mark()
        self._comment.set_visibility(rating == "down" and not comment)
        toast(self._visit.t("ask.rated"))

    def _mark(self) -> None:
        set_attributes(self._up, aria_pressed="true" if self._rating == "up" else "false")
        set_attributes(self._down, aria_pressed="true" if self._rating == "down" else "false")


def figures(t: Texts, answer: Answer) -> str:
    """What answered, and how quickly."""
    name = answer.generator if answer.generator == answer.model else f"{answer.generator} · {answer.model}"
    parts = [t.either(f"generator.{answer.generator}", name)]
    if answer.generator != QUOTING:
        parts = [name]
    if answer.arm != "rag":
        parts.append(t(f"arm.{answer.arm}"))
    parts.append(t("ask.seconds", total=f"{answer.timings.total_s:.2f}", first=f"{answer.timings.ttft_s:.2f}"))
    if answer.tokens_per_s and answer.generator != QUOTING:
        parts.append(t("ask.speed", n=f"{answer.tokens_per_s:,.0f}"))
    return " · ".join(parts)


def with_sources(t: Texts, answer: Answer) -> str:
    """The answer as Markdown with its sources as footnotes."""
    text = re.sub(_MARKER, r"[^\1]", answer.answer) if answer.citations else answer.answer
    seen: set[int] = set()
    notes = []
    for citation in answer.citations:
        if citation.marker not in seen:
            seen.add(citation.marker)
            quote = " ".join(citation.quote.split())
            notes.append(f"[^{citation.marker}]: {place_of(t, citation)}: “{quote}”")
    return "\n\n".join((text, "\n".join(notes))) if notes else text


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
        self._page = ""
        self._place: tuple[str, ...] = ()

    def build(self) -> None:
        """Draws the closed panel."""
        with tag("details", "", "explain") as details:
            tag("summary", self._t("explain.title"))
            self._form = tag("div", "", "explain-form")
            self._result = tag("div", "", "explain-result", aria_live="polite")
        details.on("toggle", self._draw, js_handler="(e) => e.target.open && emit()")

    def _draw(self) -> None:
        documents = self._visit.services.library.documents()
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
                text_box(self._set_page, kind="number", event="input", min="1", max=str(document.pages))
            return
        paths = self._sections(document.document_id)
        self._place = paths[0] if paths else ()
        with field(self._t("explain.section")):
            options = [(str(number), " › ".join(path)) for number, path in enumerate(paths)]
            select(options, lambda chosen: self._set_section(paths[int(chosen)]))

    def _sections(self, document_id: str) -> list[tuple[str, ...]]:
        """The heading paths of a book, in its order."""
        return list(dict.fromkeys(node.heading_path for node in self._visit.services.library.nodes_of(document_id)))

    def _set_book(self, document_id: str) -> None:
        self._book, self._page, self._place = document_id, "", ()
        self._draw()

    def _set_page(self, page: str) -> None:
        self._page = page

    def _set_section(self, path: tuple[str, ...]) -> None:
        self._place = path

    async def _explain(self) -> None:
        self._result.clear()
        services = self._visit.services
        try:
            document = services.library.document(self._book)
            place = self._page_asked(document) if document.pages else {"section": self._place}
            explain = partial(services.answering.explain, self._question, self._book, **place)
            found = await services.answering.run(explain, self._visit.asker)
        except CoalesceError as error:
            with self._result:
                show_problem(self._visit, error)
            return
        with self._result:
            self._show(found, document)

    def _page_asked(self, document: Document) -> dict[str, Any]:
        page = whole_number(self._page)
        if page is None:
            raise InvalidInput(
                msg("page {} is not a number", f"{self._page!r:.40}"),
                hint=msg("Give a page from 1 to {}.", document.pages),
            )
        return {"page": page}

    def _show(self, found: Explanation, document: Document) -> None:
        tag("p", self._verdict(found), "explain-verdict")
        with tag("div", "", "table-box stacked"), tag("table", "", "ranks"):
            with tag("thead"), tag("tr"):
                for name in ("place", "meaning", "words", "together", "missing"):
                    tag("th", self._t(f"explain.{name}"), scope="col")
            with tag("tbody"):
                for node in found.nodes[:MOST_SHOWN]:
                    self._row(found, node)
        button(self._t("explain.keep"), lambda: self._keep(document), kind="")

    def _row(self, found: Explanation, node: NodeRanks) -> None:
        page = page_of(self._t, None, node.page_start, node.page_end)
        with tag("tr"):
            tag("th", page or (node.section[-1] if node.section else ""), scope="row")
            for name, text in (
                ("meaning", self._rank(node.dense_rank, found.candidates_dense)),
                ("words", self._rank(node.lexical_rank, found.candidates_lexical)),
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

    def _verdict(self, found: Explanation) -> str:
        best = found.nodes[0]
        if best.fused_rank is not None:
            return self._t("explain.ranked", n=best.fused_rank)
        if best.missing:
            return self._t("explain.words_missing", words=self._as_asked(best.missing))
        return self._t("explain.not_found", n=found.candidates_dense)

    async def _keep(self, document: Document) -> None:
        place = f"page {self._page}" if document.pages else " › ".join(self._place)
        comment = f"expected: {document.title}, {place}"
        give = self._visit.services.give_feedback
        try:
            await asyncio.to_thread(give, self._answer_id, "down", comment, self._visit.owner)
        except CoalesceError as error:
            toast(self._t.error(error), bad=True)
            return
        toast(self._t("explain.kept"))
