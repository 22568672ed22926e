"""`/study/exam/{id}`: an exam being taken, one question at a time or as a list; its marks once it is handed in."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from fastapi import Request
from nicegui import ui

from api.pages.controls import button, confirm, link, set_attributes, tag, text_area, toast
from api.pages.exam_end import HAND_IN_BEFORE_S
from api.pages.exam_marks import show_marks
from api.pages.frame import PageServices, Visit, empty_state, open_view
from api.pages.markup import plain_html
from api.pages.study_page import study_head
from evals.marking import MAX_ANSWER_CHARACTERS
from evals.study_store import StoredExam
from indexes.errors import CoalesceError

LITTLE_TIME_S = 60


def register(page: PageServices) -> None:
    """Adds the view to NiceGUI's own application."""

    @ui.page("/study/exam/{exam_id}")
    def exam(request: Request, exam_id: str) -> None:
        def build(visit: Visit) -> None:
            study_head(visit, "exam")
            kept = page.studying.study.exam(exam_id, visit.learner)
            if kept.result is not None:
                show_marks(visit, kept)
            else:
                _Sitting(visit, kept).build()

        open_view(page, request, "study", build)


def question_text(visit: Visit, record: Mapping[str, Any]) -> str:
    """The question in the reader's language where there is one in it."""
    chinese = record.get("question_zh") if visit.t.language == "zh" else ""
    return str(chinese or record["question"])


class _Sitting:
    """One tab in which an exam is taken."""

    def __init__(self, visit: Visit, exam: StoredExam) -> None:
        self._visit = visit
        self._t = visit.t
        self._exam = exam
        self._place = 0
        self._as_list = False
        self._warned = False

    def build(self) -> None:
        """Draws the exam, or says that its time is over."""
        if self._left_s() <= 0:
            with empty_state(self._t("exam.over"), self._t("exam.over_text")):
                link(self._t("exam.new"), "/study", "button primary")
            return
        with tag("section", "", "sitting"):
            with tag("div", "", "sitting-head"):
                self._clock = tag("span", "", "clock", role="timer")
                self._answered = tag("span", "", "soft")
                self._mode = button("", self._switch, kind="quiet")
            self._said = tag("p", "", "sr-only", role="status")
            self._steps = tag("nav", "", "steps", aria_label=self._t("exam.steps"))
            self._sheet = tag("div", "", "sheet")
        self._draw()
        if self._exam.deadline is not None:
            self._visit.page.ends.watch(self._exam)
            self._timer = ui.timer(1.0, self._tick)

    def _left_s(self) -> float:
        deadline = self._exam.deadline
        return (deadline - datetime.now(UTC)).total_seconds() if deadline is not None else float("inf")

    async def _tick(self) -> None:
        left = self._left_s()
        if left <= HAND_IN_BEFORE_S:
            self._timer.deactivate()
            self._clock.set_text(self._t("exam.over"))
            await self._visit.page.ends.ended(self._exam.id)
            self._show_marks()
            return
        minutes, seconds = divmod(int(left), 60)
        self._clock.set_text(self._t("exam.left", time=f"{minutes}:{seconds:02}"))
        if left < LITTLE_TIME_S and not self._warned:
            self._warned = True
            self._clock.classes("little")
            self._said.set_text(self._t("exam.minute_left"))

    def _draw(self) -> None:
        self._mode.clear()
        with self._mode:
            tag("span", self._t("exam.one" if self._as_list else "exam.list"))
        self._sheet.clear()
        with self._sheet:
            if self._as_list:
                for place in range(len(self._exam.questions)):
                    self._question(place)
            else:
                self._question(self._place)
            self._buttons()
        self._say()

    def _question(self, place: int) -> None:
        record = self._exam.questions[place]
        given = self._visit.page.drafts.of(self._exam.id).get(record["id"])
        with tag("article", "", "card question", id=f"question-{place}", tabindex="-1"):
            number = self._t("exam.number", n=place + 1, most=len(self._exam.questions))
            tag("p", f"{number} · {self._t('type.' + record['type'])}", "soft")
            if record["type"] == "choice":
                with tag("fieldset", "", "choices"):
                    with tag("legend"):
                        ui.html(plain_html(question_text(self._visit, record)), sanitize=False).classes("rich")
                    for index, choice in enumerate(record["choices"]):
                        self._choice(record["id"], place, index, choice, given == index)
            else:
                label = f"answer-{place}"
                with tag("label", "", for_=label):
                    ui.html(plain_html(question_text(self._visit, record)), sanitize=False).classes("rich")
                box = text_area(
                    lambda text: self._keep(record["id"], text),
                    value=given if isinstance(given, str) else "",
                    event="input",
                    rows="5",
                )
                set_attributes(box, id=label, maxlength=MAX_ANSWER_CHARACTERS, placeholder=self._t("exam.write"))

    def _choice(self, question_id: str, place: int, index: int, choice: str, chosen: bool) -> None:
        with tag("label", "", "check choice"):
            box = tag("input", type="radio", name=f"q{place}", defaultChecked=chosen, checked=chosen)
            ui.html(plain_html(choice), sanitize=False, tag="span").classes("rich")
        box.on("change", lambda: self._keep(question_id, index), args=[])

    def _buttons(self) -> None:
        last = len(self._exam.questions) - 1
        with tag("div", "", "row"):
            if not self._as_list:
                button(self._t("exam.back"), lambda: self._go(self._place - 1), disabled=self._place == 0)
                if self._place < last:
                    button(self._t("exam.next"), lambda: self._go(self._place + 1), kind="primary")
            if self._as_list or self._place == last:
                button(self._t("exam.hand_in"), self._ask_hand_in, kind="primary")
            else:
                button(self._t("exam.hand_in"), self._ask_hand_in, kind="quiet")

    def _say(self) -> None:
        answers = self._visit.page.drafts.of(self._exam.id)
        self._answered.set_text(self._t("exam.answered", n=len(answers), most=len(self._exam.questions)))
        self._steps.set_visibility(not self._as_list)
        self._steps.clear()
        with self._steps:
            for place, record in enumerate(self._exam.questions):
                done = record["id"] in answers
                step = button(str(place + 1), lambda place=place: self._go(place), kind="step done" if done else "step")
                state = "exam.step_done" if done else "exam.step_open"
                set_attributes(step, aria_label=self._t(state, n=place + 1))
                set_attributes(step, aria_current="step" if place == self._place else None)

    def _go(self, place: int) -> None:
        self._place = max(0, min(place, len(self._exam.questions) - 1))
        self._draw()
        with self._visit.client:  # what was clicked is gone: the reader goes on at the question itself
            ui.run_javascript(f"coalesce.focusOn('#question-{self._place}')")

    def _switch(self) -> None:
        self._as_list = not self._as_list
        self._draw()

    def _keep(self, question_id: str, answer: int | str) -> None:
        before = len(self._visit.page.drafts.of(self._exam.id))
        self._visit.page.drafts.keep(self._exam.id, question_id, answer.strip() if isinstance(answer, str) else answer)
        if len(self._visit.page.drafts.of(self._exam.id)) != before:
            self._say()

    def _ask_hand_in(self) -> None:
        missing = len(self._exam.questions) - len(self._visit.page.drafts.of(self._exam.id))
        detail = self._t.count("exam.missing", missing) if missing else ""
        confirm(
            self._t("exam.hand_in_question"), self._t("exam.hand_in"), self._t("cancel"), self._hand_in, detail=detail
        )

    async def _hand_in(self) -> None:
        drafts = self._visit.page.drafts
        study = self._visit.page.studying.study
        try:
            await asyncio.to_thread(study.hand_in, self._exam.id, drafts.of(self._exam.id), self._visit.learner)
            drafts.forget(self._exam.id)
        except CoalesceError as error:
            toast(self._t.error(error), bad=True)
        self._show_marks()

    def _show_marks(self) -> None:
        ui.navigate.to(f"/study/exam/{self._exam.id}")
