"""`/study`: put an exam together, or go on with an earlier one."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import quote as url_quote
from urllib.parse import urlencode

from fastapi import Request
from nicegui import ui

from api.jobs import Job
from api.pages.controls import button, check, field, link, select, set_attributes, tag, text_area, text_box, toast
from api.pages.frame import Visit, open_view, show_problem, sign_out
from api.pages.job_row import JobRow
from api.questions import MAKING
from evals.exam import MAX_QUESTIONS, USUAL_COUNT, ExamPlan
from evals.learners import DEFAULT_LEARNER
from evals.questions import FILE_ENDINGS, TYPES, BankQuestion, chapter_titles
from evals.study_store import StoredExam
from indexes.errors import CoalesceError, Conflict, InvalidInput
from indexes.messages import msg
from indexes.types import Document
from rag.question import whole_number

Item = TypeVar("Item", int, str)
BOOK = "book:"
"""Begins a source that is a book, before its id."""
EARLIER_SHOWN = 12
MOST_WEIGHT = 1_000_000
SECONDS_A_MINUTE = 60
FILE_EXAMPLE = (
    '{"question": "How many threads are in a warp?", "answer": "32.", "key_facts": ["32"]}\n'
    '{"question": "What do the threads of a block share?", "type": "choice", "answer": "Shared memory", '
    '"answer_index": 1, "choices": ["Registers", "Shared memory", "Local memory", "A program counter"]}'
)

TABLE_EXAMPLE = (
    "question,option_a,option_b,option_c,option_d,right,answer,key_facts\n"
    "How many threads are in a warp?,,,,,,32.,32\n"
    "What do the threads of a block share?,Registers,Shared memory,Local memory,A program counter,B,Shared memory,"
)


@ui.page("/study")
def study(request: Request, chapter: str = "", file: str = "", book: str = "") -> None:
    open_view(request, "study", lambda visit: _ExamView(visit, whole_number(chapter) or 0, file, book).build())


def study_head(visit: Visit, current: str) -> Callable[[], None]:
    """Heading, learner and the three parts of the study view; what it gives counts the due cards again."""
    t = visit.t
    with tag("div", "", "study-head"):
        tag("h1", t("nav.study"))
        with tag("details", "", "learner"):
            tag("summary", t("study.learner", name=_shown_name(visit)))
            if visit.owner is None:
                with field(t("study.learner_name")):
                    shown = "" if visit.learner == DEFAULT_LEARNER else visit.learner
                    box = text_box(lambda _: None, value=shown, maxlength="100")
                    set_attributes(box, placeholder=t("study.default_learner"))
                box.on("change", js_handler="(e) => coalesce.prefer('learner', e.target.value.trim() || 'default')")
                tag("p", t("study.learner_note"), "soft")
            else:
                tag("p", t("study.own_key_note"), "soft")
                sign_out(visit)
    parts = tag("nav", "", "subnav", aria_label=t("nav.study"))

    def count() -> None:
        due = visit.study.count_due(visit.learner)
        parts.clear()
        with parts:
            for name, path in (("exam", "/study"), ("cards", "/study/cards"), ("progress", "/study/progress")):
                text = t(f"study.{name}")
                shown = f"{text} ({due:,})" if name == "cards" and due else text
                link(shown, path, aria_current="page" if name == current else None)

    count()
    return count


def question_text(visit: Visit, question: BankQuestion) -> str:
    """The question in the reader's language where there is one in it."""
    return question.question_zh if visit.t.language == "zh" and question.question_zh else question.question


def chapters_of(visit: Visit, book: Document) -> dict[int, str]:
    """Titles of a book's chapters, by number."""
    return {chapter.ordinal: chapter.title for chapter in visit.services.library.chapters(book.document_id)}


def _shown_name(visit: Visit) -> str:
    return visit.t("study.default_learner") if visit.learner == DEFAULT_LEARNER else visit.learner


class _ExamView:
    """The form for a new exam, and the list of earlier ones."""

    def __init__(self, visit: Visit, chapter: int, file: str, book: str) -> None:
        self._visit = visit
        self._t = visit.t
        self._files = visit.services.questions.files.names()
        self._books = {document.document_id: document for document in visit.services.library.documents()}
        known = book in self._books and not self._books[book].sample
        self._source = f"{BOOK}{book}" if known else file if file in self._files else ""
        self._chapters: set[int] = {chapter} if chapter else set()
        self._weighed = False
        self._weights: dict[int, str] = {}
        self._types: set[str] = set()
        self._count = str(USUAL_COUNT)
        self._minutes = ""
        self._names = "\n".join(visit.services.settings.learner_keys)

    def build(self) -> None:
        """Draws the view."""
        study_head(self._visit, "exam")
        with tag("section", "", "card exam-plan"):
            tag("h2", self._t("exam.new"))
            self._file_fields()
            self._chapter_box = tag("div")
            with tag("div", "", "grid"):
                self._type_box = tag("fieldset")
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
            if self._visit.owner is None:
                self._class_form()
        self._draw_chapters()
        self._earlier()
        if self._visit.owner is None:
            self._given()

    def _file_fields(self) -> None:
        t = self._t
        with tag("div", "", "row question-files"):
            with field(t("exam.questions_from")):
                books = [(f"{BOOK}{key}", book.title) for key, book in self._books.items() if not book.sample]
                options = [("", t("exam.bank")), *books, *((name, name) for name in self._files)]
                select(options, self._set_source, value=self._source)
            with tag("label", "", "button"):
                tag("span", t("exam.add_file"))
                picker = tag("input", "", "sr-only", type="file", accept=",".join(FILE_ENDINGS))
            picker.on("change", js_handler="(e) => coalesce.addQuestions(e.target)")
        said = tag("p", "", "problem", role="alert", id="question-file-problem", hidden=True)
        set_attributes(said, data_failed=t("upload.failed"))
        with tag("details", "", "file-form"):
            tag("summary", t("exam.file_form"))
            tag("p", t("exam.file_form_text"), "soft")
            for example in (FILE_EXAMPLE, TABLE_EXAMPLE):
                with tag("pre", "", "command", tabindex="0"):
                    tag("code", example)

    def _draw_types(self, held: set[str]) -> None:
        """The kinds of questions to choose from, where there are several."""
        self._types &= held
        self._type_box.clear()
        self._type_box.set_visibility(len(held) > 1)
        with self._type_box:
            tag("legend", self._t("exam.types"))
            for kind in TYPES:
                if kind in held:
                    on = kind in self._types
                    check(self._t(f"type.{kind}"), lambda on, kind=kind: _flip(self._types, kind, on), checked=on)

    def _draw_chapters(self) -> None:
        self._chapter_box.clear()
        try:
            questions = self._questions()
        except CoalesceError as error:
            with self._chapter_box:
                show_problem(self._visit, error)
            return
        if self._book is not None and not questions:
            with self._chapter_box:
                self._offer_making(self._book)
            return
        titles = {} if self._source else chapter_titles()
        if self._book is not None:
            titles = chapters_of(self._visit, self._book)
        counts = Counter(question.chapter for question in questions if question.answerable)
        self._chapters &= set(counts)
        self._draw_types({question.type for question in questions})
        with self._chapter_box:
            if len(counts) > 1:
                with tag("fieldset", "", "chapters weighed" if self._weighed else "chapters"):
                    tag("legend", self._t("exam.chapters"))
                    for chapter in sorted(counts):
                        self._chapter_row(chapter, titles.get(chapter, ""), counts[chapter])
                check(self._t("exam.weigh"), self._set_weighed, checked=self._weighed)
            if self._weighed:
                tag("p", self._t("exam.weigh_note"), "soft")
            if self._book is not None:
                address = f"/study/guide/{url_quote(self._book.document_id, safe='')}"
                link(self._t("guide.title"), address)
            if self._visit.owner is None:
                self._downloads()

    def _downloads(self) -> None:
        """The questions to take away, with their answers."""
        name = "document_id" if self._book is not None else "question_file"
        which = self._source.removeprefix(BOOK)
        asked = f"?{urlencode({name: which})}" if which else ""
        with tag("div", "", "row soft"):
            tag("span", self._t("exam.take_away"))
            for ending in FILE_ENDINGS:
                link(ending[1:].upper(), f"/v1/questions/export{ending}{asked}", download=True)

    def _chapter_row(self, chapter: int, title: str, questions: int) -> None:
        name = f"{chapter}. {title}" if title else self._t("filters.in_chapter", n=chapter)
        with tag("div", "", "chapter-row"):
            check(
                f"{name} ({questions})",
                lambda on: _flip(self._chapters, chapter, on),
                checked=chapter in self._chapters,
            )
            if self._weighed:
                text_box(
                    lambda text: self._weights.__setitem__(chapter, text),
                    value=self._weights.get(chapter, "1"),
                    kind="number",
                    event="input",
                    min="0",
                    step="any",
                    aria_label=self._t("exam.weight_of", name=name),
                )

    def _questions(self) -> tuple[BankQuestion, ...]:
        services = self._visit.services
        if self._book is not None:
            return services.questions.made.of(self._book)
        return services.questions.files.load(self._source or None)

    @property
    def _book(self) -> Document | None:
        return self._books.get(self._source.removeprefix(BOOK)) if self._source.startswith(BOOK) else None

    def _set_source(self, name: str) -> None:
        self._source = name
        self._draw_chapters()

    def _offer_making(self, book: Document) -> None:
        """Says that a book has no questions yet, with the button that makes them."""
        tag("p", self._t("exam.none_made"), "soft")
        if self._visit.owner is not None:
            return
        running = self._visit.services.jobs.unfinished(MAKING, book.document_id)
        if running is None:
            button(self._t("library.make"), lambda: self._make(book), kind="primary")
        else:
            JobRow(self._visit, running, self._made)

    async def _make(self, book: Document) -> None:
        try:
            await asyncio.to_thread(self._visit.services.questions.make, book.document_id, None, ())
        except CoalesceError as error:
            toast(self._t.error(error), bad=True)
        self._draw_chapters()

    async def _made(self, job: Job) -> None:
        if job.state == "done":
            toast(self._t.said(job.message))
        if job.state != "failed":
            self._draw_chapters()

    def _set_weighed(self, on: bool) -> None:
        self._weighed = on
        self._draw_chapters()

    def _set_count(self, text: str) -> None:
        self._count = text

    def _set_minutes(self, text: str) -> None:
        self._minutes = text

    def _plan(self, questions: tuple[BankQuestion, ...]) -> ExamPlan:
        asked = self._chapters or {question.chapter for question in questions if question.answerable}
        return ExamPlan(
            count=None if self._count == str(USUAL_COUNT) else _number(self._count, self._t("exam.count")),
            chapters=tuple(sorted(self._chapters)),
            types=tuple(kind for kind in TYPES if kind in self._types),
            seed=secrets.randbelow(2**31),
            weights={chapter: self._weight(chapter) for chapter in sorted(asked)} if self._weighed else {},
            time_limit_s=_number(self._minutes, self._t("exam.minutes")) * SECONDS_A_MINUTE
            if self._minutes.strip()
            else None,
        )

    def _weight(self, chapter: int) -> float:
        text = self._weights.get(chapter, "1").strip()
        try:
            weight = float(text)
        except ValueError:
            weight = 0.0
        if not 0 < weight <= MOST_WEIGHT:
            raise InvalidInput(
                msg("the weight of chapter {} is {}", chapter, f"{text!r:.20}"),
                hint=msg("give a number above 0, at most {}, or leave the chapter out", f"{MOST_WEIGHT:,}"),
            )
        return weight

    def _class_form(self) -> None:
        """Names of learners, and the button that gives each of them this exam."""
        t = self._t
        with tag("details", "", "class-form"):
            tag("summary", t("class.give"))
            with field(t("class.names")):
                text_area(self._set_names, value=self._names, event="input", rows="6")
            tag("p", t("class.note"), "soft")
            button(t("class.make"), self._give, kind="primary")

    def _set_names(self, text: str) -> None:
        self._names = text

    def _drawn_from(self) -> tuple[BankQuestion, ...]:
        questions = self._questions()
        if self._book is not None and not questions:
            raise Conflict(self._t("exam.none_made"))
        return questions

    async def _start(self) -> None:
        study = self._visit.study
        try:
            questions = self._drawn_from()
            exam = await asyncio.to_thread(study.start_exam, self._plan(questions), self._visit.learner, questions)
        except CoalesceError as error:
            toast(self._t.error(error), bad=True)
            return
        ui.navigate.to(f"/study/exam/{exam.id}")

    async def _give(self) -> None:
        study = self._visit.study
        names = [name for name in self._names.splitlines() if name.strip()]
        try:
            questions = self._drawn_from()
            exams = await asyncio.to_thread(study.start_class_exam, self._plan(questions), names, questions)
        except CoalesceError as error:
            toast(self._t.error(error), bad=True)
            return
        ui.navigate.to(f"/study/class/{exams[0].class_id}")

    def _given(self) -> None:
        """The exams given to classes."""
        study = self._visit.study
        given = [study.class_exam(class_id) for class_id in study.class_ids(EARLIER_SHOWN)]
        if not given:
            return
        with tag("section", "", "card"):
            tag("h2", self._t("class.given"))
            with tag("ul", "", "exam-list"):
                for exams in given:
                    done = sum(exam.result is not None for exam in exams)
                    with tag("li"), link("", f"/study/class/{exams[0].class_id}"):
                        tag("span", exams[0].created_at.astimezone().strftime("%Y-%m-%d %H:%M"))
                        tag("span", self._t.count("exam.questions", len(exams[0].questions)), "soft")
                        tag("span", self._t("class.handed_in", n=done, most=len(exams)), "exam-state")

    def _earlier(self) -> None:
        exams = self._visit.study.exams(self._visit.learner, EARLIER_SHOWN)
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
        return self._t("exam.score", score=points(exam.result.score), most=points(exam.result.max_score))


def points(score: float) -> str:
    """A score without needless zeros."""
    return f"{score:.2f}".rstrip("0").rstrip(".")


def _flip(chosen: set[Item], item: Item, on: bool) -> None:
    (chosen.add if on else chosen.discard)(item)


def _number(text: str, name: str) -> int:
    number = whole_number(text)
    if not number:
        raise InvalidInput(f"{name} is {text!r:.20}", hint="give a whole number above 0")
    return number
