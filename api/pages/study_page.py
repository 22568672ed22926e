"""`/study`: put an exam together, or go on with an earlier one."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from typing import TypeVar

from fastapi import Request
from nicegui import ui

from api.pages.controls import button, check, field, link, select, set_attributes, tag, text_box, toast
from api.pages.frame import PageServices, Visit, open_view, sign_out
from evals.book_sections import chapter_titles
from evals.errors import MalformedQuestions
from evals.exam import MAX_QUESTIONS, ExamPlan
from evals.questions import TYPES, BankQuestion
from evals.study_store import StoredExam
from indexes.errors import CoalesceError, InvalidInput

Item = TypeVar("Item", int, str)
DEFAULT_COUNT = 10
EARLIER_SHOWN = 12
SECONDS_A_MINUTE = 60


def register(page: PageServices) -> None:
    """Adds the view to NiceGUI's own application."""

    @ui.page("/study")
    def study(request: Request, chapter: int = 0) -> None:
        open_view(page, request, "study", lambda visit: _ExamDesk(visit, chapter).build())


def study_head(visit: Visit, current: str) -> None:
    """Heading, learner and the three parts of the study view."""
    t = visit.t
    with tag("div", "", "study-head"):
        tag("h1", t("nav.study"))
        with tag("details", "", "learner"):
            tag("summary", t("study.learner", name=_shown_name(visit)))
            if visit.owner is None:
                with field(t("study.learner_name")):
                    box = text_box(lambda _: None, value=visit.learner, maxlength="100")
                box.on("change", js_handler="(e) => coalesce.prefer('learner', e.target.value.trim() || 'default')")
                tag("p", t("study.learner_note"), "soft")
            else:
                tag("p", t("study.own_key_note"), "soft")
                sign_out(visit)
    due = len(visit.page.studying.study.due_cards(visit.learner, 1000))
    with tag("nav", "", "subnav", aria_label=t("nav.study")):
        for name, path in (("exam", "/study"), ("cards", "/study/cards"), ("progress", "/study/progress")):
            text = t(f"study.{name}")
            shown = f"{text} ({due})" if name == "cards" and due else text
            link(shown, path, aria_current="page" if name == current else None)


def _shown_name(visit: Visit) -> str:
    return visit.t("study.default_learner") if visit.learner == "default" else visit.learner


class _ExamDesk:
    """What an exam is made of, and the exams there were."""

    def __init__(self, visit: Visit, chapter: int) -> None:
        self._visit = visit
        self._t = visit.t
        self._chapters: set[int] = {chapter} if chapter else set()
        self._types: set[str] = set()
        self._count = str(DEFAULT_COUNT)
        self._minutes = ""
        self._file = ""

    def build(self) -> None:
        """Draws the view."""
        study_head(self._visit, "exam")
        with tag("section", "", "card exam-plan"):
            tag("h2", self._t("exam.new"))
            self._file_field()
            self._chapter_fields()
            with tag("div", "", "grid"):
                with tag("fieldset"):
                    tag("legend", self._t("exam.types"))
                    for kind in TYPES:
                        check(self._t(f"type.{kind}"), lambda on, kind=kind: _flip(self._types, kind, on))
                with field(self._t("exam.count")):
                    text_box(
                        self._set_count, value=self._count, kind="number", event="input", min="1", max=MAX_QUESTIONS
                    )
                with field(self._t("exam.minutes")):
                    box = text_box(self._set_minutes, kind="number", event="input", min="1")
                    set_attributes(box, placeholder=self._t("exam.no_limit"))
            with tag("div", "", "row"):
                button(self._t("exam.start"), self._start, kind="primary")
                tag("span", self._t("exam.note"), "soft")
        self._earlier()

    def _file_field(self) -> None:
        folder = self._visit.page.services.settings.home / "questions"
        files = sorted(path.name for path in folder.glob("*.jsonl")) if folder.is_dir() else []
        if files:
            with field(self._t("exam.questions_from")):
                select([("", self._t("exam.bank")), *((name, name) for name in files)], self._set_file)

    def _chapter_fields(self) -> None:
        titles = chapter_titles()
        counts = Counter(question.chapter for question in self._questions() if question.answerable)
        with tag("fieldset", "", "chapters"):
            tag("legend", self._t("exam.chapters"))
            for chapter in sorted(counts):
                title = titles.get(chapter, self._t("filters.in_chapter", n=chapter))
                check(
                    f"{chapter}. {title} ({counts[chapter]})",
                    lambda on, chapter=chapter: _flip(self._chapters, chapter, on),
                    checked=chapter in self._chapters,
                )

    def _questions(self) -> tuple[BankQuestion, ...]:
        return self._visit.page.studying.questions(self._file or None)

    def _set_file(self, name: str) -> None:
        self._file = name

    def _set_count(self, text: str) -> None:
        self._count = text

    def _set_minutes(self, text: str) -> None:
        self._minutes = text

    async def _start(self) -> None:
        study = self._visit.page.studying.study
        try:
            plan = ExamPlan(
                count=_number(self._count, "count"),
                chapters=tuple(sorted(self._chapters)),
                types=tuple(kind for kind in TYPES if kind in self._types),
                seed=secrets.randbelow(2**31),
                time_limit_s=_number(self._minutes, "minutes") * SECONDS_A_MINUTE if self._minutes.strip() else None,
            )
            exam = await asyncio.to_thread(study.start_exam, plan, self._visit.learner, self._questions())
        except (CoalesceError, MalformedQuestions) as error:
            toast(self._t.error(error), bad=True)
            return
        ui.navigate.to(f"/study/exam/{exam.id}")

    def _earlier(self) -> None:
        exams = self._visit.page.studying.study.exams(self._visit.learner, EARLIER_SHOWN)
        if not exams:
            return
        with tag("section", "", "card"):
            tag("h2", self._t("exam.earlier"))
            with tag("ul", "", "exam-list"):
                for exam in exams:
                    with tag("li"), link("", f"/study/exam/{exam.id}"):
                        tag("span", exam.created_at.astimezone().strftime("%Y-%m-%d %H:%M"))
                        tag("span", self._t.count("exam.questions", len(exam.questions)), "soft")
                        tag("span", self._state(exam), "exam-state")

    def _state(self, exam: StoredExam) -> str:
        if exam.result is None:
            return self._t("exam.open")
        return self._t("exam.score", score=points(exam.result["score"]), most=points(exam.result["max_score"]))


def points(score: float) -> str:
    """A score without needless zeros."""
    return f"{score:.2f}".rstrip("0").rstrip(".")


def _flip(chosen: set[Item], item: Item, on: bool) -> None:
    (chosen.add if on else chosen.discard)(item)


def _number(text: str, name: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise InvalidInput(f"{name} is {text!r:.20}", hint="give a whole number above 0")
    return int(text)
