"""`/study/exam/{id}`: an exam being taken, one question at a time or as a list; its marks once it is handed in.

`/study/class/{id}`: an exam given to a class: a link for every learner, who has handed in, and the marks as CSV.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from urllib.parse import quote

from fastapi import Request
from nicegui import ui

from api.pages.controls import button, confirm, link, set_attributes, tag, text_area, toast
from api.pages.frame import Visit, empty_state, open_view
from api.pages.markup import passage_html, plain_html
from api.pages.source_panel import page_of
from api.pages.study_page import points, question_text, study_head
from api.schemas.study import evidence_place, exam_link
from api.security import Caller
from evals.exam import MAX_ANSWER_CHARACTERS, Given, Mark
from evals.questions import BankQuestion
from evals.study_store import StoredExam
from indexes.errors import CoalesceError
from rag.generators.prompts import CHOICE_LETTERS
from rag.types import Passage

LITTLE_TIME_S = 60


@ui.page("/study/exam/{exam_id}")
def exam(request: Request, exam_id: str, learner: str = "") -> None:
    def build(visit: Visit) -> None:
        if learner and visit.owner is None and learner != visit.learner:
            visit = _as_learner(visit, exam_id, learner)
        count_cards = study_head(visit, "exam")
        kept = visit.study.exam(exam_id, visit.learner)
        if kept.waits:
            _invite(visit, kept)
        elif kept.result is not None:
            _show_marks(visit, kept, count_cards)
        else:
            _Sitting(visit, kept).build()

    open_view(request, "study", build)


def _invite(visit: Visit, exam: StoredExam) -> None:
    """An exam whose time begins with a press: a program that looks at the link must not begin it."""
    t = visit.t

    def begin() -> None:
        visit.study.open_exam(exam.id, visit.learner)
        ui.navigate.to(f"/study/exam/{exam.id}")

    minutes = f"{(exam.time_limit_s or 0) / 60:g}"
    title = t.count("exam.invited", len(exam.questions), name=exam.learner)
    with empty_state(title, t("exam.invited_text", minutes=minutes)):
        button(t("exam.begin"), begin, kind="primary")


def _as_learner(visit: Visit, exam_id: str, learner: str) -> Visit:
    """The visit of the learner whose link this is: the browser goes on under that name. Raises NotFound."""
    visit.study.exam(exam_id, learner)
    name = json.dumps(quote(learner))
    ui.run_javascript(f"document.cookie = 'coalesce_learner=' + {name} + ';path=/;max-age=31536000;samesite=lax'")
    return replace(visit, learner=learner)


class _Sitting:
    """One tab in which an exam is taken."""

    def __init__(self, visit: Visit, exam: StoredExam) -> None:
        self._visit = visit
        self._t = visit.t
        self._study = visit.study
        self._exam = exam
        self._answers = self._study.draft(exam.id)
        self._saving = asyncio.Lock()  # answers are kept in the order in which they were given
        self._place = 0
        self._as_list = False
        self._warned = False

    def build(self) -> None:
        """Draws the exam."""
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
            self._timer = ui.timer(1.0, self._tick)

    def _tick(self) -> None:
        left = self._study.time_left_s(self._exam)
        if left < 0:
            self._timer.deactivate()
            self._show_result()
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
        question = self._exam.questions[place]
        given = self._answers.get(question.id)
        with tag("article", "", "card question", id=f"question-{place}", tabindex="-1"):
            number = self._t("exam.number", n=place + 1, most=len(self._exam.questions))
            tag("p", f"{number} · {self._t('type.' + question.type)}", "soft")
            if question.type == "choice":
                with tag("fieldset", "", "choices"):
                    with tag("legend"):
                        _rich(question_text(self._visit, question))
                    for index, choice in enumerate(question.choices):
                        self._choice(question.id, place, index, choice, given == index)
            else:
                label = f"answer-{place}"
                with tag("label", "", for_=label):
                    _rich(question_text(self._visit, question))
                box = text_area(
                    lambda text: self._keep(question.id, text.strip() or None),
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
        self._answered.set_text(self._t("exam.answered", n=len(self._answers), most=len(self._exam.questions)))
        self._steps.set_visibility(not self._as_list)
        self._steps.clear()
        with self._steps:
            for place, question in enumerate(self._exam.questions):
                done = question.id in self._answers
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

    async def _keep(self, question_id: str, answer: Given) -> None:
        before = len(self._answers)
        async with self._saving:
            try:
                keep = self._study.keep_answer
                self._answers = await asyncio.to_thread(keep, self._exam, question_id, answer)
            except CoalesceError as error:
                with self._visit.client:
                    toast(self._t.error(error), bad=True)
        if len(self._answers) != before:
            self._say()

    def _ask_hand_in(self) -> None:
        missing = len(self._exam.questions) - len(self._answers)
        detail = self._t.count("exam.missing", missing) if missing else ""
        confirm(
            self._t("exam.hand_in_question"), self._t("exam.hand_in"), self._t("cancel"), self._hand_in, detail=detail
        )

    async def _hand_in(self) -> None:
        async with self._saving:
            try:
                answers = await asyncio.to_thread(self._study.draft, self._exam.id)
                await asyncio.to_thread(self._study.hand_in, self._exam.id, answers, self._visit.learner)
            except CoalesceError as error:
                toast(self._t.error(error), bad=True)
        self._show_result()

    def _show_result(self) -> None:
        with self._visit.client:
            ui.navigate.to(f"/study/exam/{self._exam.id}")


def _rich(text: str) -> None:
    ui.html(plain_html(text), sanitize=False).classes("rich")


def _show_marks(visit: Visit, exam: StoredExam, count_cards: Callable[[], None]) -> None:
    """Draws the result of an exam that was handed in: each mark with what was right, and the passage that proves it."""
    if exam.result is None:
        return
    head = tag("div")

    def decided() -> None:
        """Draws the total again."""
        head.clear()
        with head:
            _show_total(visit, visit.study.exam(exam.id, visit.learner))
        count_cards()

    decided()
    marks = {mark.question_id: mark for mark in exam.result.marks}
    for number, question in enumerate(exam.questions, 1):
        if question.id in marks:  # those that the learner's class is asked now have none
            card = _MarkCard(visit, exam.id, number, question, decided, own=exam.class_id is None)
            card.draw(marks[question.id])


def _show_total(visit: Visit, exam: StoredExam) -> None:
    t, result = visit.t, exam.result
    if result is None:
        return
    missed = sum(not mark.passed for mark in result.marks)
    unsure = sum(mark.needs_check for mark in result.marks)
    with tag("section", "", "card result"):
        tag("h2", t("exam.result"))
        tag("p", t("exam.score", score=points(result.score), most=points(result.max_score)), "big")
        share = result.score / result.max_score if result.max_score else 0.0
        tag("progress", "", "bar", max=1, value=round(share, 3), aria_label=t("exam.result"))
        if exam.closed_by_deadline:
            tag("p", t("exam.handed_in_late"), "note")
        if unsure and exam.class_id is None:
            tag("p", t.count("exam.to_check", unsure), "note")
        tag("p", t.count("exam.became_cards", missed) if missed else t("exam.all_right"), "soft")
        with tag("div", "", "row"):
            if missed:
                link(t("exam.review"), "/study/cards", "button primary")
            link(t("exam.another"), "/study", "button")
            link(t("study.progress"), "/study/progress", "button")


class _MarkCard:
    """The mark of one question, and the learner's own verdict on it."""

    def __init__(
        self,
        visit: Visit,
        exam_id: str,
        number: int,
        question: BankQuestion,
        decided: Callable[[], None],
        *,
        own: bool,
    ) -> None:
        self._visit = visit
        self._t = visit.t
        self._exam_id = exam_id
        self._number = number
        self._question = question
        self._decided = decided
        self._own = own
        self._holder = tag("div")

    def draw(self, mark: Mark) -> None:
        """Draws the mark in place of the one before."""
        self._holder.clear()
        with self._holder:
            self._draw(mark)

    def _draw(self, mark: Mark) -> None:
        t, question = self._t, self._question
        state = "right" if mark.passed else "wrong" if mark.score <= 0 else "part"
        with tag("article", "", f"card mark {state}"):
            with tag("div", "", "mark-head"):
                tag("span", t(f"mark.{state}"), f"badge {state}")
                tag("span", t("exam.score", score=points(mark.score), most=points(mark.max_score)), "soft")
                if mark.by in ("similarity", "judge", "self"):
                    tag("span", t(f"mark.by_{mark.by}"), "soft")
            with tag("h3", "", "mark-question"):
                tag("span", f"{self._number}. ")
                shown = plain_html(question_text(self._visit, question))
                ui.html(shown, sanitize=False, tag="span").classes("rich inline")
            with tag("dl"):
                _labelled(t("mark.yours"), _given(self._visit, mark.answer, question))
                if state != "right" or question.type != "choice":
                    right = mark.answer_index if mark.answer_index is not None else mark.reference_answer
                    _labelled(t("mark.reference"), _given(self._visit, right, question))
            if mark.by == "key_facts":
                _show_facts(self._visit, "met", mark.facts_met)
                _show_facts(self._visit, "missed", mark.facts_missed)
            if self._own and question.type != "choice" and mark.answer is not None:
                self._ask(mark)
            if mark.passage is not None:
                _show_passage(self._visit, mark.passage, question, opened=state != "right")

    def _ask(self, mark: Mark) -> None:
        if mark.needs_check:
            tag("p", self._t("mark.check"), "note")
        with tag("div", "", "row verdict", role="group", aria_label=self._t("mark.verdict")):
            for name, share in (("right", 1.0), ("part", 0.5), ("wrong", 0.0)):
                pressed = mark.by == "self" and mark.share == share
                more = {"aria_pressed": "true" if pressed else "false"}
                button(self._t(f"mark.was_{name}"), partial(self._decide, share), kind="quiet", **more)

    async def _decide(self, share: float) -> None:
        study = self._visit.study
        try:
            mark = await asyncio.to_thread(study.decide, self._exam_id, self._question.id, share, self._visit.learner)
        except CoalesceError as error:
            toast(self._t.error(error), bad=True)
            return
        self.draw(mark)
        self._decided()


def _show_facts(visit: Visit, name: str, facts: tuple[str, ...]) -> None:
    if facts:
        with tag("ul", "", f"facts {name}", aria_label=visit.t(f"mark.{name}")):
            for fact in facts:
                tag("li", f"{'✓' if name == 'met' else '✗'} {fact}")


def _labelled(name: str, text: str) -> None:
    tag("dt", name)
    with tag("dd"):
        _rich(text)


def _given(visit: Visit, answer: Given, question: BankQuestion) -> str:
    """An answer as text; an option with its letter."""
    if answer is None:
        return visit.t("mark.nothing")
    return f"{CHOICE_LETTERS[answer]}. {question.choices[answer]}" if isinstance(answer, int) else answer


def _show_passage(visit: Visit, passage: Passage, question: BankQuestion, *, opened: bool) -> None:
    start, end = evidence_place(passage.text, question) or (0, 0)
    place = " › ".join(part for part in (passage.title, *passage.section) if part)
    page = page_of(visit.t, passage.page_label, passage.page_start, passage.page_end)
    with tag("details", "", "proof", open=opened):
        tag("summary", visit.t("mark.proof", place=f"{place}{visit.t('page.join')}{page}" if page else place))
        ui.html(passage_html(passage.text, start, end), sanitize=False).classes("passage")


# --- an exam given to a class


@ui.page("/study/class/{class_id}")
def class_exam(request: Request, class_id: str) -> None:
    server = str(request.base_url).rstrip("/")

    def build(visit: Visit) -> None:
        Caller(visit.owner).need_open_key("see the exams of a class")
        study_head(visit, "exam")
        exams = visit.study.class_exam(class_id)
        links = {exam.id: f"{server}{exam_link(exam)}" for exam in exams}
        with tag("section", "", "card class-exam"):
            tag("h2", visit.t.count("class.title", len(exams[0].questions)))
            tag("p", visit.t("class.how"), "soft")
            with tag("div", "", "row"):
                lines = "\n".join(f"{exam.learner}: {links[exam.id]}" for exam in exams)
                _copier(visit, lines, visit.t("class.copy_all"), visit.t("class.copy_all"), "primary")
                address = f"/v1/class-exams/{class_id}/marks.csv"
                link(visit.t("class.marks"), address, "button", download=True)
            with (
                tag("div", "", "table-box stacked", tabindex="0", role="region", aria_label=visit.t("class.learners")),
                tag("table"),
            ):
                with tag("thead"), tag("tr"):
                    for name in ("learner", "state", "link"):
                        tag("th", visit.t(f"class.{name}"), scope="col")
                with tag("tbody"):
                    for exam in exams:
                        _learner_row(visit, exam, links[exam.id])

    open_view(request, "study", build)


def _learner_row(visit: Visit, exam: StoredExam, address: str) -> None:
    t = visit.t
    with tag("tr"):
        tag("th", exam.learner, scope="row")
        with tag("td"):
            if exam.result is None:
                tag("span", t("class.waiting" if exam.waits else "class.open"), "soft")
            else:
                score = t("exam.score", score=points(exam.result.score), most=points(exam.result.max_score))
                link(score, f"/study/exam/{exam.id}?learner={exam_link(exam).rpartition('=')[2]}")
        with tag("td"):
            _copier(visit, address, t("class.copy"), t("class.copy_of", name=exam.learner))


def _copier(visit: Visit, text: str, name: str, label: str, kind: str = "") -> None:
    copy = button(name, kind=kind, icon_name="copy", label=label)
    set_attributes(copy, data_copy=text, data_copied=visit.t("copied"))
