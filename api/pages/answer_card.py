"""One question and its answer: text as it is written, markers that open passages, sources, figures, a verdict."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from nicegui import ui
from nicegui.element import Element

from api.pages.controls import button, set_attributes, tag, text_box, toast
from api.pages.explain_panel import ExplainPanel
from api.pages.frame import Visit
from api.pages.marked_answer import REDRAW_S, MarkedAnswer
from api.pages.runs import AnswerRun
from api.pages.source_panel import SourcePanel, place_of
from api.pages.texts import Texts
from indexes.errors import CoalesceError
from rag.types import Answer, Passage

QUOTING = "extractive"
"""The generator that quotes and writes nothing: tokens a second say nothing of it."""


class AnswerCard:
    """A turn of a conversation. `show` draws a kept answer; `begin`, `write`, `finish` one that is being written."""

    def __init__(self, visit: Visit, source: SourcePanel) -> None:
        self._visit = visit
        self._t = visit.t
        self._source = source

    @property
    def body_slot(self) -> Element:
        """Where notes about the answer go."""
        return self._notes

    def show(self, answer: Answer, rating: str | None = None) -> None:
        """Draws a finished answer."""
        self.begin(answer.question, reveal=False)
        self.finish(answer, rating)

    def begin(self, question: str, *, reveal: bool = True) -> None:
        """Draws the question and an empty answer."""
        with tag("article", "", "turn") as turn:
            tag("h2", question, "asked")
            self._text = MarkedAnswer(self._t, self._source)
            self._notes = tag("div", "", "answer-notes")
        if reveal:
            ui.run_javascript(f"coalesce.reveal('c{turn.id}')")

    async def write(self, run: AnswerRun) -> None:
        """Follows a run to its end."""
        drawn = ""
        async for _ in run.follow():
            self._text.passages = run.passages
            if run.text != drawn and run.done is None:
                drawn = run.text
                self._text.draw(drawn)
                await asyncio.sleep(REDRAW_S)
        if not run.text and run.done is None:
            self._text.set_html("")

    def finish(self, answer: Answer, rating: str | None = None) -> None:
        """Draws the whole answer with its sources, figures and buttons."""
        self._text.citations, self._text.passages = answer.citations, answer.passages
        self._text.draw(answer.answer)
        with self._notes:
            if answer.refused:
                self._nearest(answer.passages)
            self._sources(answer)
            self._tools(answer, rating)

    def _sources(self, answer: Answer) -> None:
        first: dict[int, int] = {}
        for index, citation in enumerate(answer.citations):
            first.setdefault(citation.marker, index)
        if not first:
            return
        with tag("ol", "", "sources", aria_label=self._t("ask.sources")):
            for marker, index in sorted(first.items()):
                citation = answer.citations[index]
                with tag("li"):
                    with tag("button", "", "source-link", type="button") as opener:
                        tag("span", str(marker), "number")
                        tag("span", place_of(self._t, citation))
                        if citation.verdict != "supported":
                            tag("span", self._t(f"verdict.{citation.verdict}"), f"verdict {citation.verdict}")
                    self._opens(opener, index, marker)

    def _nearest(self, passages: Sequence[Passage]) -> None:
        if not passages:
            return
        tag("h3", self._t("ask.nearest"), "small-heading")
        with tag("ol", "", "sources"):
            for number, passage in enumerate(passages, 1):
                with tag("li"), tag("button", "", "source-link", type="button") as opener:
                    tag("span", str(number), "number")
                    tag("span", place_of(self._t, passage))
                self._opens(opener, -1, number)

    def _opens(self, opener: Element, index: int, number: int) -> None:
        opener.on(
            "click",
            lambda: self._text.open(index, number),
            js_handler="(e) => { coalesce.remember(e.target); emit(); }",
        )

    def _tools(self, answer: Answer, rating: str | None) -> None:
        with tag("div", "", "answer-tools"):
            copy = button("", kind="quiet", icon_name="copy", label=self._t("ask.copy"))
            set_attributes(copy, data_copy=with_sources(self._t, answer), data_copied=self._t("copied"))
            _Thumbs(self._visit, answer.id, rating).build()
            tag("span", figures(self._t, answer), "figures")
        if self._visit.page.services.library.documents():
            ExplainPanel(self._visit, answer.question, answer.id).build()


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
        store = self._visit.conversations
        try:
            await asyncio.to_thread(store.give_feedback, self._answer_id, rating, comment.strip())
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
    text = re.sub(r"\[(\d{1,3})\](?!\()", r"[^\1]", answer.answer) if answer.citations else answer.answer
    seen: set[int] = set()
    notes = []
    for citation in answer.citations:
        if citation.marker not in seen:
            seen.add(citation.marker)
            quote = " ".join(citation.quote.split())
            notes.append(f"[^{citation.marker}]: {place_of(t, citation)}: “{quote}”")
    return "\n\n".join((text, "\n".join(notes))) if notes else text
