"""`/compare`: one question through several arms side by side, and a vote that does not know which is which."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

from fastapi import Request
from nicegui import ui

from api.pages.arm_answer import ArmAnswer
from api.pages.controls import button, check, link, set_attributes, tag, toast
from api.pages.filter_bar import FilterBar
from api.pages.frame import PageServices, Visit, open_view
from api.pages.markup import plain_html
from api.pages.source_panel import SourcePanel
from api.text_input import refuse_controls
from indexes.errors import CoalesceError
from rag.question_checks import check_question
from rag.types import ARMS, Answer, Arm, Question
from rag.votes import VoteStore

LETTERS = "ABCD"


def register(page: PageServices) -> None:
    """Adds the view to NiceGUI's own application."""

    @ui.page("/compare")
    def compare(request: Request) -> None:
        open_view(page, request, "compare", lambda visit: _CompareView(visit).build())


def _votes(page: PageServices) -> VoteStore:
    return VoteStore(page.services.settings.rag.conversations_path)


class _CompareView:
    """One tab's comparison."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._t = visit.t
        self._engine = visit.page.services.engine
        self._chosen: set[Arm] = set(self._engine.arms)
        self._blind = True
        self._running: ArmAnswer | None = None
        self._busy = False

    def build(self) -> None:
        """Draws the view."""
        tag("h1", self._t("nav.compare"))
        tag("p", self._t("compare.lead"), "lead")
        with tag("section", "", "card"):
            with tag("label", "", "field"):
                tag("span", self._t("compare.question"), "field-label")
                box = tag("textarea", "", "box", id="question", rows="2", maxlength="100000")
            box.on(
                "keydown.enter", lambda event: self._run(event.args), js_handler="(e) => coalesce.sendOnEnter(e, emit)"
            )
            with tag("fieldset", "", "arms"):
                tag("legend", self._t("compare.arms"))
                for arm in ARMS:
                    self._arm_choice(arm)
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
        self._source = SourcePanel(self._visit)
        self._draw_tally()

    def _arm_choice(self, arm: Arm) -> None:
        available = arm in self._engine.arms
        with tag("div", "", "arm"):
            box = check(self._t(f"arm.{arm}"), lambda on: self._choose(arm, on), checked=available)
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

    async def _run(self, text: str) -> None:
        if self._busy or not text.strip():
            return
        arms = [arm for arm in ARMS if arm in self._chosen]
        if not arms:
            toast(self._t("compare.choose"), bad=True)
            return
        try:
            filters = self._filters.value()
            question = check_question(Question(refuse_controls(text.strip(), "question"), filters=filters))
        except CoalesceError as error:
            toast(self._t.error(error), bad=True)
            return
        self._set_busy(True)
        try:
            await self._answer(question, arms)
        finally:
            with suppress(RuntimeError):  # the tab has gone meanwhile
                self._set_busy(False)

    async def _answer(self, question: Question, arms: list[Arm]) -> None:
        blind = self._blind and len(arms) > 1
        if blind:
            random.shuffle(arms)
        self._ballot.clear()
        self._columns.clear()
        with self._columns:
            columns = [
                ArmAnswer(self._visit, self._source, arm, LETTERS[place] if blind else "")
                for place, arm in enumerate(arms)
            ]
        answers: list[Answer] = []
        for column in columns:
            self._running = column
            answer = await column.run(question)
            if answer is None:
                return
            answers.append(answer)
        if len(answers) > 1:
            with self._ballot:
                self._ask_vote(answers, columns, blind=blind)
        else:
            columns[0].reveal()

    def _ask_vote(self, answers: list[Answer], columns: list[ArmAnswer], *, blind: bool) -> None:
        tag("h2", self._t("compare.vote"))
        with tag("div", "", "row"):
            for answer, column in zip(answers, columns, strict=True):
                button(column.name, lambda arm=answer.arm: self._vote(answers, columns, arm, blind=blind))
            button(self._t("compare.none_better"), lambda: self._vote(answers, columns, "", blind=blind), kind="quiet")

    async def _vote(self, answers: list[Answer], columns: list[ArmAnswer], winner: str, *, blind: bool) -> None:
        try:
            await asyncio.to_thread(_votes(self._visit.page).keep, answers, winner, blind=blind)
        except CoalesceError as error:
            toast(self._t.error(error), bad=True)
            return
        self._ballot.clear()
        with self._ballot:
            tag(
                "p", self._t("compare.voted", arm=self._t(f"arm.{winner}")) if winner else self._t("compare.voted_none")
            )
        for column in columns:
            column.reveal()
        self._draw_tally()

    def _draw_tally(self) -> None:
        tally = _votes(self._visit.page).tally()
        self._tally.clear()
        if not tally:
            return
        with self._tally, tag("section", "", "card"):
            tag("h2", self._t("compare.tally"))
            total = sum(tally.values())
            with tag("ul", "", "tally-list"):
                for arm in (*ARMS, ""):
                    if arm in tally:
                        name = self._t(f"arm.{arm}") if arm else self._t("compare.none_better")
                        self._tally_row(name, tally[arm], total)
            if self._visit.owner is None:
                link(self._t("compare.download"), "/v1/compare/votes.jsonl", download=True)

    def _tally_row(self, name: str, number: int, total: int) -> None:
        with tag("li"):
            tag("span", name)
            tag("progress", "", "bar", max=total, value=number, aria_label=name)
            tag("span", f"{number} / {total}", "soft")

    def _stop_run(self) -> None:
        if self._running is not None:
            self._running.stop()

    def _set_busy(self, busy: bool) -> None:
        self._busy = busy
        self._go.set_visibility(not busy)
        self._stop.set_visibility(busy)
