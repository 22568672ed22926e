"""`/compare`: one question answered in several ways side by side, and a vote that does not know which is which."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing, suppress
from functools import partial
from operator import setitem

from fastapi import Request
from nicegui import ui

from api.answering import AnswerRun
from api.chosen_generator import GeneratorChoice
from api.jobs import Job
from api.pages.answer_card import QUOTING, REDRAW_S, THINKING, MarkedAnswer
from api.pages.controls import button, check, field, link, select, set_attributes, tag, toast
from api.pages.filter_bar import FilterBar
from api.pages.frame import Visit, open_view, show_problem
from api.pages.job_row import JobSlot
from api.pages.markup import plain_html
from api.pages.source_panel import SourcePanel
from api.pages.study_page import question_text
from api.pages.tune_adapter import TuneAdapter
from evals.questions import BankQuestion
from indexes.errors import Cancelled, CoalesceError
from indexes.types import Filters
from rag.generators.prompts import CHOICE_LETTERS
from rag.models.fetching import KNOWN_MODELS
from rag.question import check_question
from rag.types import ARMS, Answer, Arm, Question, Variant

ARMS_KIND = "arms"
CHOICE_KIND = "choice"
KINDS: dict[str, tuple[Variant, ...]] = {
    "search": (Variant(retrieval="hybrid"), Variant(retrieval="dense"), Variant(retrieval="lexical")),
    "passages": (Variant(top_k=3), Variant(top_k=10)),
    "books": (),
}
"""What is compared besides arms."""
MODEL = "qwen2.5-coder-1.5b"
MEBIBYTE = 2**20


@ui.page("/compare")
def compare(request: Request) -> None:
    open_view(request, "compare", lambda visit: _CompareView(visit).build())


def name_of(visit: Visit, name: str) -> str:
    """An arm or variant in the reader's words."""
    arm, *varied = name.split(" ")
    if not varied:
        return visit.t.either(f"arm.{arm}", arm)
    return " · ".join(_varied(visit, *part.partition("=")[::2]) for part in varied)


def _varied(visit: Visit, what: str, value: str) -> str:
    if what == "book":
        titles = {document.document_id: document.title for document in visit.services.library.documents()}
        return titles.get(value, value)
    if what == "retrieval":
        return visit.t.either(f"compare.retrieval.{value}", value)
    return visit.t("compare.passages", n=value) if what == "top_k" else f"{what} {value}"


class _CompareView:
    """One tab's comparison."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._t = visit.t
        self._engine = visit.services.engine
        self._chosen: set[Arm] = set(self._engine.arms)
        self._books = [document.document_id for document in visit.services.library.documents()][:2]
        self._kind = ARMS_KIND if len(self._engine.arms) > 1 else "search"
        self._blind = True
        self._running: AnswerRun | None = None
        self._busy = False
        self._question: BankQuestion | None = None

    def build(self) -> None:
        """Draws the view."""
        tag("h1", self._t("nav.compare"))
        tag("p", self._t("compare.lead"), "lead")
        if len(self._engine.arms) < 2:
            self._offer_model()
        with tag("section", "", "card"):
            with tag("label", "", "field") as self._asked:
                tag("span", self._t("compare.question"), "field-label")
                box = tag("textarea", "", "box", id="question", rows="2", maxlength="100000")
            box.on(
                "keydown.enter", lambda event: self._run(event.args), js_handler="(e) => coalesce.sendOnEnter(e, emit)"
            )
            kinds = [kind for kind in (ARMS_KIND, *KINDS) if kind != "books" or len(self._books) > 1]
            if self._visit.owner is None:  # its answer is shown: a learner may meet it in an exam
                kinds.append(CHOICE_KIND)
            with field(self._t("compare.what")):
                listed = [(kind, self._t(f"compare.kind.{kind}")) for kind in kinds]
                select(listed, self._choose_kind, value=self._kind, id="compare-kind")
            self._options = tag("div", "")
            self._draw_options()
            self._own = tag("div", "")
            with self._own:
                self._filters = FilterBar(self._visit, arms=False)
                check(self._t("compare.blind"), self._set_blind, checked=True)
            with tag("div", "", "row"):
                self._go = button(self._t("compare.run"), kind="primary")
                self._go.on(
                    "click",
                    lambda event: self._run(event.args),
                    js_handler="() => emit(document.getElementById('question').value)",
                )
                self._stop = button(self._t("ask.stop"), self._stop_run, icon_name="stop")
                self._stop.set_visibility(False)
        self._ballot = tag("section", "", "ballot", aria_live="polite")
        self._columns = tag("section", "", "arm-columns", aria_label=self._t("compare.answers"))
        self._tally = tag("section", "", "tally")
        if self._visit.owner is None:
            TuneAdapter(self._visit).build()
        self._source = SourcePanel(self._visit)
        self._draw_tally()

    def _offer_model(self) -> None:
        """Says that only one arm runs, and what opens the others."""
        with tag("section", "", "card offer"):
            tag("p", self._t("compare.one_arm"))
            if self._visit.owner is None:
                with tag("div", "", "row"):
                    size = f"{KNOWN_MODELS[MODEL].download_bytes / 1e6:,.0f}"
                    button(self._t("compare.get_model", size=size), self._get_model, kind="primary")
                    link(self._t("compare.other_model"), "/settings")
                self._slot = JobSlot(self._visit, "generator", self._got_model)

    async def _get_model(self) -> None:
        choice = GeneratorChoice(generator="local", model=MODEL)
        await self._slot.start(partial(self._visit.services.generators.switch, choice))

    async def _got_model(self, _: Job) -> None:
        ui.navigate.to("/compare")

    def _choose_kind(self, kind: str) -> None:
        self._kind = kind
        self._asked.set_visibility(kind != CHOICE_KIND)
        self._own.set_visibility(kind != CHOICE_KIND)
        self._draw_options()

    def _draw_options(self) -> None:
        """What there is to choose for the kind of comparison."""
        self._options.clear()
        with self._options:
            if self._kind == CHOICE_KIND:
                self._draw_choice()
            elif self._kind == ARMS_KIND:
                with tag("fieldset", "", "arms"):
                    tag("legend", self._t("compare.arms"))
                    for arm in ARMS:
                        self._arm_choice(arm)
            elif self._kind == "books":
                with tag("div", "", "grid"):
                    for place in range(2):
                        with field(self._t("compare.book", letter=CHOICE_LETTERS[place])):
                            listed = [(d.document_id, d.title) for d in self._visit.services.library.documents()]
                            select(listed, partial(setitem, self._books, place), value=self._books[place])
            else:
                tag("p", self._t(f"compare.about.{self._kind}"), "soft")

    def _draw_choice(self) -> None:
        """A choice question of the books, and a button for another one."""
        self._question = self._visit.services.questions.draw_choice(self._visit.study.asked_now())
        tag("p", self._t("compare.about.choice"), "soft")
        if self._question is None:
            tag("p", self._t("compare.no_choice"), "soft")
            return
        asked = question_text(self._visit, self._question)
        ui.html(plain_html(asked), sanitize=False).classes("choice-question rich")
        with tag("ol", "", "choice-options"):
            for letter, option in zip(CHOICE_LETTERS, self._question.choices, strict=False):
                with tag("li"):
                    self._option(letter, option)
        button(self._t("compare.another"), self._draw_options, kind="quiet", icon_name="again")

    def _option(self, letter: str, text: str) -> None:
        ui.html(plain_html(f"{letter}. {text}"), sanitize=False).classes("rich")

    async def _run_choice(self) -> None:
        """Draws what each arm picks, and whether it is right."""
        question = self._question
        if self._busy or question is None:
            return
        self._set_busy(True)
        self._stop.set_visibility(False)
        services = self._visit.services
        try:
            named = self._filters.adapter
            adapter = named if named in services.engine.chooser.adapters else None
            choose = partial(services.answering.choose, question.question, question.choices, adapter=adapter)
            picks = await services.answering.run(choose, self._visit.asker)
            self._ballot.clear()
            self._columns.clear()
            with self._columns:
                for pick in picks:
                    right = pick.picked == question.answer_index
                    with tag("article", "", "card arm-answer"):
                        tag("h2", name_of(self._visit, pick.arm))
                        self._option(CHOICE_LETTERS[pick.picked], question.choices[pick.picked])
                        with tag("p"):
                            said = "mark.right" if right else "mark.wrong"
                            tag("span", self._t(said), "badge right" if right else "badge")
            with self._ballot:
                answer = question.answer_index or 0
                tag("h2", self._t("compare.right"))
                self._option(CHOICE_LETTERS[answer], question.choices[answer])
                tag("p", self._t("compare.chosen_by", model=services.engine.chooser.model_name), "soft")
        except CoalesceError as error:
            toast(self._t.error(error), bad=True)
        finally:
            with suppress(RuntimeError):  # the tab has gone meanwhile
                self._set_busy(False)

    def _arm_choice(self, arm: Arm) -> None:
        available = arm in self._engine.arms
        with tag("div", "", "arm"):
            box = check(self._t(f"arm.{arm}"), lambda on: self._choose(arm, on), checked=arm in self._chosen)
            if not available:
                box.classes("unavailable")
                for child in box:
                    if child.tag == "input":
                        set_attributes(child, disabled=True)
                needs = plain_html(self._t(f"compare.needs.{arm}"))
                ui.html(needs, sanitize=False).classes("soft rich")

    def _choose(self, arm: Arm, on: bool) -> None:
        (self._chosen.add if on else self._chosen.discard)(arm)

    def _set_blind(self, on: bool) -> None:
        self._blind = on

    def _ways(self) -> list[Variant]:
        """What is compared, in the order shown."""
        if self._kind == "books":
            return [Variant(filters=Filters((book,))) for book in dict.fromkeys(self._books)]
        return list(KINDS.get(self._kind) or [Variant(arm) for arm in ARMS if arm in self._chosen])

    async def _run(self, text: str) -> None:
        if self._kind == CHOICE_KIND:
            await self._run_choice()
            return
        if self._busy:
            return
        ways = self._ways()
        if not ways:
            toast(self._t("compare.choose"), bad=True)
            return
        self._set_busy(True)
        try:
            question = Question(
                text, adapter=self._filters.adapter, filters=self._filters.value(), owner=self._visit.owner
            )
            await self._answer(check_question(question), ways)
        except CoalesceError as error:
            toast(self._t.error(error), bad=True)
        finally:
            with suppress(RuntimeError):  # the tab has gone meanwhile
                self._set_busy(False)

    async def _answer(self, question: Question, ways: list[Variant]) -> None:
        """Draws the answer of each way in turn, then the vote; raises what refuses the whole comparison."""
        blind = self._blind and len(ways) > 1
        if blind:
            random.shuffle(ways)
        arms = [way.arm for way in ways] if self._kind == ARMS_KIND else []
        answers: list[Answer] = []
        columns: list[ArmAnswer] = []
        comparing = self._visit.services.answering.compare(question, arms, self._visit.asker, () if arms else ways)
        async with aclosing(comparing) as runs:
            async for run in runs:
                columns = columns or self._draw_columns(ways, blind=blind)
                self._running = run
                answer = await columns[len(answers)].write(run)
                if answer is None:
                    for column in columns[len(answers) + 1 :]:
                        column.leave_out()
                    return
                answers.append(answer)
        if len(answers) > 1:
            with self._ballot:
                self._ask_vote(answers, columns, blind=blind)
        else:
            columns[0].reveal()

    def _draw_columns(self, ways: list[Variant], *, blind: bool) -> list[ArmAnswer]:
        self._ballot.clear()
        self._columns.clear()
        with self._columns:
            return [
                ArmAnswer(
                    self._visit, self._source, name_of(self._visit, way.name), CHOICE_LETTERS[place] if blind else ""
                )
                for place, way in enumerate(ways)
            ]

    def _ask_vote(self, answers: list[Answer], columns: list[ArmAnswer], *, blind: bool) -> None:
        tag("h2", self._t("compare.vote"))
        with tag("div", "", "row"):
            for answer, column in zip(answers, columns, strict=True):
                button(column.name, lambda best=answer: self._vote(answers, columns, best, blind=blind))
            nobody = button(self._t("compare.none_better"), kind="quiet")
            nobody.on("click", lambda: self._vote(answers, columns, None, blind=blind), args=[])

    async def _vote(self, answers: list[Answer], columns: list[ArmAnswer], best: Answer | None, *, blind: bool) -> None:
        ids = [answer.id for answer in answers]
        vote = partial(
            self._visit.services.answering.vote, ids, best.id if best else None, self._visit.owner, blind=blind
        )
        try:
            await asyncio.to_thread(vote)
        except CoalesceError as error:
            toast(self._t.error(error), bad=True)
            return
        self._ballot.clear()
        with self._ballot:
            tag(
                "p",
                self._t("compare.voted", arm=name_of(self._visit, best.name))
                if best
                else self._t("compare.voted_none"),
            )
        for column in columns:
            column.reveal()
        self._draw_tally()

    def _draw_tally(self) -> None:
        table = self._engine.conversations.wins()
        self._tally.clear()
        if not table.votes:
            return
        with self._tally, tag("section", "", "card"):
            tag("h2", self._t("compare.tally"))
            with tag("ul", "", "tally-list"):
                for row in table.wins:
                    self._tally_row(name_of(self._visit, row.name), row.won, row.shown)
                if table.undecided:
                    self._tally_row(self._t("compare.none_better"), table.undecided, table.votes)
            if self._visit.owner is None:
                link(self._t("compare.download"), "/v1/compare/votes.jsonl", download=True)

    def _tally_row(self, name: str, number: int, of: int) -> None:
        with tag("li"):
            tag("span", name)
            tag("progress", "", "bar", max=of, value=number, aria_label=name)
            tag("span", self._t("compare.won", won=number, shown=of), "soft")

    def _stop_run(self) -> None:
        if self._running is not None:
            self._running.stop()

    def _set_busy(self, busy: bool) -> None:
        self._busy = busy
        self._go.set_visibility(not busy)
        self._stop.set_visibility(busy)


class ArmAnswer:
    """A column: its answer as it is written, then its time. With a `letter`, what answered (`title`) is hidden."""

    def __init__(self, visit: Visit, source: SourcePanel, title: str, letter: str) -> None:
        self._visit = visit
        self._t = visit.t
        self._hidden = title
        self._answer: Answer | None = None
        self.name = visit.t("compare.answer", letter=letter) if letter else title
        with tag("article", "", "card arm-answer"):
            self._title = tag("h2", self.name)
            self._text = MarkedAnswer(visit.t, source, f'<p class="soft">{visit.t("compare.waits")}</p>')
            self._figures = tag("dl", "", "arm-figures")

    async def write(self, run: AnswerRun) -> Answer | None:
        """Draws a run to its end; None when it was stopped or failed, which the column says."""
        self._text.set_html(THINKING)
        async for _ in run.follow():
            self._text.passages = run.passages
            self._text.set_note(run.note)
            if run.text:
                self._text.draw(run.text)
                await asyncio.sleep(REDRAW_S)
        if run.done is None:
            self._fail(run)
            return None
        self._answer = run.done
        self._text.finish(run.done)
        return run.done

    def leave_out(self) -> None:
        """Says that the answer was not begun, because one before it stopped or failed."""
        self._text.set_html(f'<p class="soft">{self._t("compare.not_asked")}</p>')

    def reveal(self) -> None:
        """Shows the arm and its figures."""
        self._title.set_text(self._hidden)
        answer = self._answer
        if answer is None:
            return
        supported = sum(citation.verdict == "supported" for citation in answer.citations)
        rows = [
            ("first", self._t("compare.ms", n=f"{1000 * answer.timings.ttft_s:,.0f}")),
            ("total", self._t("compare.ms", n=f"{1000 * answer.timings.total_s:,.0f}")),
            ("speed", f"{answer.tokens_per_s:,.1f}" if answer.tokens_per_s and answer.generator != QUOTING else "–"),
            ("memory", f"{answer.peak_memory_bytes / MEBIBYTE:,.0f} MiB" if answer.peak_memory_bytes else "–"),
            ("citations", self._t("compare.supported", n=len(answer.citations), supported=supported)),
            ("model", answer.model if answer.adapter is None else f"{answer.model} + {answer.adapter}"),
        ]
        self._figures.clear()
        with self._figures:
            for name, value in rows:
                tag("dt", self._t(f"compare.{name}"))
                tag("dd", value)

    def _fail(self, run: AnswerRun) -> None:
        if not run.text:
            self._text.set_html("")
        with self._figures:
            if run.error is None or isinstance(run.error, Cancelled):
                tag("p", self._t("compare.stopped"), "note")
            else:
                show_problem(self._visit, run.error)
