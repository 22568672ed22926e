"""Wire forms of the question bank, exams, cards, progress and reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Literal, Self
from urllib.parse import quote as url_quote

from pydantic import BeforeValidator, Field, model_validator

from api.schemas.answers import PassageOut
from api.schemas.base import Id, Seed, WireIn, WireOut
from evals.exam import MAX_ANSWER_CHARACTERS, MAX_QUESTIONS, USUAL_COUNT, ExamPlan, Mark, Result
from evals.learners import MAX_LEARNER_CHARACTERS
from evals.marking import By
from evals.questions import MOST_BY_DEFAULT, NUM_CHOICES, BankQuestion, Gold, QuestionType, own_question
from evals.study import MAX_LEARNERS, ChapterProgress, Progress
from evals.study_guide import GuideChapter
from evals.study_store import StoredCard, StoredExam

Learner = Annotated[str, Field(min_length=1, max_length=MAX_LEARNER_CHARACTERS)]
CardText = Annotated[str, Field(min_length=1, max_length=MAX_ANSWER_CHARACTERS)]
MadeType = Literal["choice", "short"]
ChapterNumber = Annotated[int, Field(ge=0, le=1_000_000)]


ANSWER_FIELDS = ("answer", "answer_index", "key_facts", "gold")


class QuestionOut(WireOut):
    """A question of the bank; the answer's fields are there only when they are asked for."""

    id: str
    chapter: int
    type: str
    kind: str = ""
    question: str
    question_zh: str
    choices: Annotated[list[str] | None, BeforeValidator(lambda choices: choices or None)] = None
    difficulty: int
    split: str
    section: str | None
    answerable: bool
    made_by: str = Field("", description="of a made question: `rules`, or the language model that wrote it")
    checked: bool = Field(True, description="false where a made question did not pass every check against its book")
    accepted: bool = Field(False, description="a person has accepted or changed it: it stays")
    answer: str | None = None
    answer_index: int | None = None
    key_facts: list[str] | None = None
    gold: list[Gold] | None = None
    passage: str | None = Field(None, description="of a made question, with its answer: the text that proves it")

    @classmethod
    def of(cls, value: BankQuestion, *, with_answer: bool) -> Self:
        """From the bank's question."""
        shown = cls.model_validate(value)
        return shown if with_answer else shown.model_copy(update=dict.fromkeys(ANSWER_FIELDS))


class QuestionChangeIn(WireIn):
    """Body of `PATCH /v1/questions/{id}`; what is left out stays. Whatever is changed, the question is accepted."""

    question: CardText | None = None
    answer: CardText | None = None
    choices: list[CardText] | None = Field(default=None, min_length=NUM_CHOICES, max_length=NUM_CHOICES)
    answer_index: Annotated[int, Field(ge=0, lt=NUM_CHOICES)] | None = None
    key_facts: list[CardText] | None = Field(default=None, max_length=50)
    chapter: ChapterNumber | None = None
    accepted: Literal[True] | None = None


class QuestionsOut(WireOut):
    """Questions of the bank."""

    questions: list[QuestionOut]
    next_cursor: str | None = None


class QuestionChapterOut(WireOut):
    """A chapter and how many of its questions an exam can ask."""

    chapter: int
    title: str
    questions: int


class QuestionChaptersOut(WireOut):
    """What an exam can be drawn from: the chapters, and the kinds of questions that there are."""

    chapters: list[QuestionChapterOut]
    types: list[QuestionType]


class QuestionFileOut(WireOut):
    """A question file of the home and how many questions are in it."""

    name: str
    questions: int


class QuestionFilesOut(WireOut):
    """Names of the question files of the home."""

    files: list[str]


class MakeIn(WireIn):
    """Body of `POST /v1/documents/{id}/questions`."""

    count: Annotated[int, Field(ge=1, le=MAX_QUESTIONS)] | None = Field(
        default=None, description=f"what the book holds, up to {MOST_BY_DEFAULT}, if left out"
    )
    types: list[MadeType] | None = Field(default=None, max_length=10, description="all if left out")


class ExamIn(WireIn):
    """Body of `POST /v1/exams`."""

    document_ids: list[Id] | None = Field(default=None, max_length=100, description="books; by default the bundled one")
    chapters: list[ChapterNumber] | None = Field(default=None, max_length=1000)
    types: list[QuestionType] | None = Field(default=None, max_length=10)
    count: Annotated[int, Field(ge=1, le=MAX_QUESTIONS)] | None = Field(
        default=None, description=f"{USUAL_COUNT} if left out, or all where there are fewer"
    )
    seed: Seed | None = None
    weights: dict[str, Annotated[float, Field(gt=0, le=1e6)]] | None = Field(
        default=None, max_length=1000, description="share of each chapter, by its number"
    )
    time_limit_s: Annotated[float, Field(gt=0, le=30 * 86_400)] | None = None
    learner: Learner | None = None
    question_file: Id | None = Field(default=None, description="name of a file in the home's `questions/` folder")
    question_ids: list[Id] | None = Field(
        default=None, max_length=MAX_QUESTIONS, description="exactly these, in this order, whatever else is asked for"
    )

    def plan(self, random_seed: int) -> ExamPlan:
        """The exam as `evals` draws it; `random_seed` where none is given."""
        return ExamPlan(
            count=self.count,
            chapters=tuple(self.chapters or ()),
            types=tuple(self.types or ()),
            seed=random_seed if self.seed is None else self.seed,
            weights={int(chapter): weight for chapter, weight in (self.weights or {}).items()},
            time_limit_s=self.time_limit_s,
            ids=tuple(self.question_ids or ()),
        )


class ClassExamIn(ExamIn):
    """Body of `POST /v1/class-exams`: an exam's, and who takes it instead of one learner."""

    learner: None = None
    learners: list[Learner] = Field(min_length=1, max_length=MAX_LEARNERS)
    assistant: bool = Field(False, description="whether the learners' questions are answered while the exam is open")


class LearnersExamOut(WireOut):
    """One learner's exam of a class; `link` is the page's address of it, below that of the server."""

    id: str
    learner: str
    link: str
    deadline: datetime | None
    handed_in_at: datetime | None
    waits: bool = Field(description="the learner has not begun it yet")
    score: float | None = None
    max_score: float | None = None
    needs_check: int = Field(0, description="uncertain marks, which the teacher should look at")
    requests: int = Field(0, description="marks that the learner asks to have changed")


class ClassExamOut(WireOut):
    """An exam given to a class: each learner's own, by name."""

    id: str
    created_at: datetime
    questions: int
    assistant: bool = Field(description="whether the learners' questions are answered while the exam is open")
    exams: list[LearnersExamOut]

    @classmethod
    def of(cls, exams: Sequence[StoredExam]) -> Self:
        """From the exams of one class."""
        first = exams[0]
        return cls(
            id=first.class_id or "",
            created_at=first.created_at,
            questions=len(first.questions),
            assistant=first.assistant,
            exams=[
                LearnersExamOut(
                    id=exam.id,
                    learner=exam.learner,
                    link=exam_link(exam),
                    deadline=exam.deadline,
                    handed_in_at=exam.handed_in_at,
                    waits=exam.waits,
                    score=exam.result.score if exam.result else None,
                    max_score=exam.result.max_score if exam.result else None,
                    needs_check=sum(mark.needs_check for mark in exam.result.marks) if exam.result else 0,
                    requests=sum(mark.requested is not None for mark in exam.result.marks) if exam.result else 0,
                )
                for exam in exams
            ],
        )


class ClassExamsOut(WireOut):
    """Exams given to classes, newest first."""

    classes: list[ClassExamOut]
    next_cursor: str | None = None


def exam_link(exam: StoredExam) -> str:
    """The page's address of a learner's exam."""
    return f"/study/exam/{exam.id}?learner={url_quote(exam.learner, safe='')}"


class ExamQuestionOut(WireOut):
    """A question as it is asked, never with its answer; only a choice question has choices."""

    id: str
    type: str
    question: str
    question_zh: str = ""
    chapter: int = 0
    choices: list[str] | None = None

    @model_validator(mode="after")
    def _hide_choices_of_open_questions(self) -> Self:
        if self.type != "choice":
            self.choices = None
        return self


class MarkOut(WireOut):
    """The mark of one question, with the passage that justifies it."""

    question_id: str
    score: float
    max_score: float
    passed: bool
    answer: int | str | None
    answer_index: int | None = None
    reference_answer: str
    by: By = Field(description="`similarity`: compared with the reference; `self`: the learner's own verdict")
    needs_check: bool = Field(description="uncertain: the learner, or a class's teacher, decides with POST …/marks")
    requested: float | None = Field(None, description="the share that the learner of a class asks for instead")
    facts_met: list[str] = Field(default_factory=list)
    facts_missed: list[str] = Field(default_factory=list)
    passage: PassageOut | None
    evidence: list[int] | None = Field(None, description="where in the passage's text the proof stands, [start, end]")

    @classmethod
    def of(cls, mark: Mark, question: BankQuestion) -> Self:
        """From a mark, with the place of the proof."""
        shown = cls.model_validate(mark)
        place = evidence_place(shown.passage.text, question) if shown.passage is not None else None
        shown.evidence = list(place) if place is not None else None
        return shown


def evidence_place(text: str, question: BankQuestion) -> tuple[int, int] | None:
    """Where the gold evidence is in the passage, white space aside; None when it is not there."""
    places = [index for index, character in enumerate(text) if not character.isspace()]
    bare = "".join(text[index] for index in places)
    for gold in question.gold:
        wanted = "".join(gold.evidence.split())
        found = bare.find(wanted) if wanted else -1
        if found >= 0:
            return places[found], places[found + len(wanted) - 1] + 1
    return None


class ResultOut(WireOut):
    """The marks of an exam."""

    score: float
    max_score: float
    marks: list[MarkOut]

    @classmethod
    def of(cls, result: Result, questions: Sequence[BankQuestion]) -> Self:
        """From a result, with the places of the proofs."""
        by_id = {question.id: question for question in questions}
        marks = [MarkOut.of(mark, by_id[mark.question_id]) for mark in result.marks]
        return cls(score=result.score, max_score=result.max_score, marks=marks)


class ExamOut(WireOut):
    """An exam; `result` once it was handed in."""

    id: str
    learner: str
    created_at: datetime
    deadline: datetime | None
    waits: bool = Field(
        description="its time runs once POST …/begin was called; a learner's key sees no question before"
    )
    time_limit_s: float | None = Field(description="of an exam that waits")
    count: int = Field(0, description="how many questions it has")
    questions: list[ExamQuestionOut]
    handed_in_at: datetime | None
    class_id: str | None = Field(description="what the exams of a class have in common")
    closed_by_deadline: bool
    result: ResultOut | None

    @classmethod
    def of(cls, exam: StoredExam, *, to_learner: bool) -> Self:
        """From the exam as it is kept; `to_learner`: as the key of its learner sees it."""
        shown = cls.model_validate(exam)
        shown.count = len(exam.questions)
        if exam.waits and to_learner:
            shown.questions = []
        shown.result = ResultOut.of(exam.result, exam.questions) if exam.result is not None else None
        return shown


class ExamsOut(WireOut):
    """Exams of a learner."""

    exams: list[ExamOut]
    next_cursor: str | None = None


class AnswersIn(WireIn):
    """Body of handing in and of keeping a draft: an option's index or a text, by question id."""

    answers: dict[str, int | str | None] = Field(max_length=MAX_QUESTIONS)
    learner: Learner | None = None


class DraftOut(WireOut):
    """Answers kept for an open exam, as `AnswersIn` takes them."""

    answers: dict[str, int | str | None]


class VerdictIn(WireIn):
    """Body of `POST /v1/exams/{id}/marks`: the learner's own verdict on an answer, as a share of its points."""

    question_id: Id
    share: Annotated[float, Field(ge=0, le=1, description="1 right, 0.5 in part, 0 wrong")]
    learner: Learner | None = None


class CardOut(WireOut):
    """A card and when it is due."""

    id: str
    question_id: str
    question: str
    question_zh: str
    type: str
    choices: list[str] | None
    answer: str
    answer_index: int | None = None
    quotes: list[str] = Field(default_factory=list)
    document_id: str = Field("", description="the book, where questions were made from it")
    section: str = ""
    chapter: int = 0
    due: datetime
    state: str


def card_out(card: StoredCard) -> CardOut:
    """A card's wire form, not validated again: a list may hold thousands."""
    question = card.question
    return CardOut.model_construct(
        id=card.id,
        question_id=card.question_id,
        question=question.question,
        question_zh=question.question_zh,
        type=question.type,
        choices=list(question.choices) if question.type == "choice" else None,
        answer=question.answer,
        answer_index=question.answer_index if question.type == "choice" else None,
        quotes=[gold.evidence for gold in question.gold if gold.evidence],
        document_id=question.book,
        section=(question.section or "").rpartition("#")[2],
        chapter=question.chapter,
        due=card.due,
        state=card.state,
    )


class BookPlaceOut(WireOut):
    """A place to read on: `GET /v1/documents/{document_id}/place`."""

    document_id: str
    node_id: str
    quote: str


class CardDetailOut(WireOut):
    """A card, when each rating (1 again, 2 hard, 3 good, 4 easy) would make it due, and its place in the book."""

    card: CardOut
    title: str = Field(description="of the book")
    next_due: dict[str, datetime]
    place: BookPlaceOut | None


class CardsOut(WireOut):
    """Cards that are due; `due` counts all of them, `kept` all that may come due, `next_due` is when the next will."""

    cards: list[CardOut]
    due: int
    kept: int
    next_due: datetime | None


class NewCardIn(WireIn):
    """Body of `POST /v1/cards`: a question and answer, and where a book says so."""

    question: CardText
    answer: CardText
    quote: Annotated[str, Field(max_length=MAX_ANSWER_CHARACTERS)] = ""
    title: Annotated[str, Field(max_length=500)] = Field("", description="of the book")
    document_id: Annotated[str, Field(max_length=200)] = ""
    section: Annotated[str, Field(max_length=500)] = ""
    learner: Learner | None = None

    def bank_question(self) -> BankQuestion:
        """The card's question; the same text has the same id."""
        return own_question(
            self.question, self.answer, self.quote, title=self.title, document_id=self.document_id, section=self.section
        )


class CardChangeIn(WireIn):
    """Body of `PATCH /v1/cards/{id}`; what is left out stays."""

    question: CardText | None = None
    answer: CardText | None = None
    suspended: bool | None = None
    learner: Learner | None = None


class ReviewIn(WireIn):
    """Body of `POST /v1/cards/{id}/review`: 1 again, 2 hard, 3 good, 4 easy."""

    rating: Annotated[int, Field(ge=1, le=4)]
    learner: Learner | None = None
    reviewed_at: datetime | None = Field(default=None, strict=False, description="when; now if left out")


class ChapterProgressOut(WireOut):
    """Progress in one chapter; `forecast` counts cards coming due on each of the next seven days."""

    document_id: str | None = Field(description="the book, where the questions were made from one")
    chapter: int
    title: str
    questions: int
    seen: int
    right: int
    due: int
    forecast: list[int]

    @classmethod
    def of(cls, value: ChapterProgress, title: str) -> Self:
        """From the learner's progress."""
        values = asdict(value)
        return cls(title=title, document_id=values.pop("book") or None, **{**values, "forecast": list(value.forecast)})


class WeakSectionOut(WireOut):
    """A section whose questions were missed."""

    section: str
    missed: int
    seen: int


class ProgressOut(WireOut):
    """A learner's progress by chapter, and the sections missed most."""

    learner: str
    chapters: list[ChapterProgressOut]
    weak_sections: list[WeakSectionOut]

    @classmethod
    def of(cls, value: Progress, titles: Mapping[tuple[str, int], str]) -> Self:
        """From the learner's progress; `titles` by book and chapter number."""
        return cls(
            learner=value.learner,
            chapters=[
                ChapterProgressOut.of(item, titles.get((item.book, item.chapter), "")) for item in value.chapters
            ],
            weak_sections=[WeakSectionOut(section=s, missed=m, seen=n) for s, m, n in value.weak_sections],
        )


class GuideOut(WireOut):
    """A study guide of a book; chapters without an entry are left out."""

    document_id: str
    title: str
    chapters: list[GuideChapter]


class StepOut(WireOut):
    """What one arm gains over another in accuracy: shares from -1 to 1, with a 95 % interval."""

    control: str
    treatment: str
    difference: float | None
    low: float | None
    high: float | None
    verdict: str


class ReportSummaryOut(WireOut):
    """A comparison that was run."""

    id: str
    created_at: str
    verdict: str
    generator: str
    model: str
    arms: list[str]
    choice_questions: int
    questions: str = Field(description="where they came from: `bank:test`, `book:ID` or a file")
    comparisons: list[StepOut]


class ReportsOut(WireOut):
    """Comparisons that were run, newest first."""

    reports: list[ReportSummaryOut]
    next_cursor: str | None = None
