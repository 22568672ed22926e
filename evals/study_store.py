"""The database of studying: exams with their drafts and marks, attempts, cards, reviews.

Questions are kept as they were asked, so that marks stay readable when a question file changes. Every row names its
learner, and every list is of one learner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self, TypeVar

from sqlalchemy import (
    DOUBLE_PRECISION,
    REAL,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Row,
    Select,
    Table,
    Text,
    UniqueConstraint,
    delete,
    func,
    insert,
    select,
    update,
)

from evals.errors import ExamClosed
from evals.exam import Given, Mark, Result
from evals.marking import By
from evals.questions import BankQuestion, parse_question
from evals.schedule import SUSPENDED, Scheduled, make_due, new_card, stored_schedule
from indexes.database import IsoTime, JsonText, Schema, stored_values
from indexes.errors import Conflict, NotFound
from indexes.messages import msg
from indexes.postgres import store_at
from rag.types import Passage

Value = TypeVar("Value")
_REAL: REAL[float] = REAL().with_variant(DOUBLE_PRECISION(), "postgresql")  # whose own has 32 bits
_TABLES = MetaData()
_exams = Table(
    "exams",
    _TABLES,
    Column("id", Text, primary_key=True),
    Column("learner", Text, nullable=False),
    Column("created_at", IsoTime, nullable=False),
    Column("deadline", IsoTime),
    Column("questions", JsonText, nullable=False),
    Column("handed_in_at", IsoTime),
    Column("result", JsonText),
    Column("class_id", Text),
    Column("time_limit_s", _REAL),  # of an exam whose time begins with its learner
    Column("assistant", Boolean, nullable=False, server_default="0"),
    Index("exams_of", "learner", "created_at"),
    Index("exams_of_class", "class_id"),
)
_drafts = Table(
    "drafts",
    _TABLES,
    Column("exam_id", Text, ForeignKey("exams.id", ondelete="CASCADE"), primary_key=True),
    Column("answers", JsonText, nullable=False),
    Column("updated_at", IsoTime, nullable=False),
)
_attempts = Table(
    "attempts",
    _TABLES,
    Column("number", Integer, primary_key=True),
    Column("learner", Text, nullable=False),
    Column("question_id", Text, nullable=False),
    Column("chapter", Integer, nullable=False),
    Column("section", Text),
    Column("score", _REAL, nullable=False),
    Column("at", IsoTime, nullable=False),
    Index("attempts_of", "learner", "question_id", "number"),
)
_cards = Table(
    "cards",
    _TABLES,
    Column("number", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("learner", Text, nullable=False),
    Column("question_id", Text, nullable=False),
    Column("question", JsonText, nullable=False),
    Column("fsrs", Text, nullable=False),
    Column("due", IsoTime, nullable=False),
    Column("state", Text, nullable=False),
    UniqueConstraint("learner", "question_id"),
    Index("cards_due", "learner", "due"),
)
_reviews = Table(
    "reviews",
    _TABLES,
    Column("number", Integer, primary_key=True),
    Column("card_id", Text, nullable=False),
    Column("rating", Integer, nullable=False),
    Column("at", IsoTime, nullable=False),
    Column("fsrs", Text, nullable=False),
)
TWICE_S = 3.0
"""A second review so soon after the first is the same one sent twice."""
STUDY = Schema("study_3", _TABLES)
_PASSAGE_FIELDS = (
    "node_id", "document_id", "title", "section", "page_label", "page_start", "page_end", "text", "score",
)  # fmt: skip
"""Fields of a passage that are kept with a mark."""


@dataclass(frozen=True, slots=True)
class StoredExam:
    """An exam as it was set; `result` is there once it was handed in.

    Attributes:
        class_id: what the exams of one class have in common.
        time_limit_s: seconds from when its learner begins it, where they count from then.
        assistant: whether questions are answered for its learner meanwhile, where it is a class's.
    """

    id: str
    learner: str
    created_at: datetime
    deadline: datetime | None
    questions: tuple[BankQuestion, ...]
    handed_in_at: datetime | None = None
    result: Result | None = None
    class_id: str | None = None
    time_limit_s: float | None = None
    assistant: bool = False

    @property
    def waits(self) -> bool:
        """Whether its learner has not begun it yet; until then its time does not run."""
        return self.time_limit_s is not None and self.deadline is None

    @property
    def closed_by_deadline(self) -> bool:
        """Whether its time ran out before it was handed in."""
        return self.deadline is not None and self.handed_in_at == self.deadline


@dataclass(frozen=True, slots=True)
class StoredCard:
    """A card: its question and its schedule."""

    id: str
    learner: str
    question_id: str
    question: BankQuestion
    fsrs_json: str
    due: datetime
    state: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """One marked answer: `score` from 0.0 to 1.0."""

    question_id: str
    chapter: int
    section: str | None
    score: float
    at: datetime

    @classmethod
    def of(cls, question: BankQuestion, score: float, at: datetime) -> Self:
        """The attempt at a question."""
        return cls(question.id, question.chapter, question.section, score, at)


class StudyStore:
    """Exams, attempts and cards of every learner, in a file or the shared database with an address. Light to make;
    threads may share it."""

    def __init__(self, place: Path | str) -> None:
        self._database = store_at(place, STUDY)

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        self._database.close()

    def _list(self, wanted: Select[Any], made: Callable[[Row[Any]], Value]) -> tuple[Value, ...]:
        with self._database.reading() as connection:
            return tuple(made(row) for row in connection.execute(wanted))

    # --- exams

    def add_exams(self, exams: Sequence[StoredExam]) -> None:
        """Keep new exams, all or none."""
        rows = [
            {
                "id": exam.id,
                "learner": exam.learner,
                "created_at": exam.created_at,
                "deadline": exam.deadline,
                "questions": [asdict(question) for question in exam.questions],
                "class_id": exam.class_id,
                "time_limit_s": exam.time_limit_s,
                "assistant": exam.assistant,
            }
            for exam in exams
        ]
        with self._database.writing() as connection:
            connection.execute(insert(_exams), rows)

    def begin(self, exam: StoredExam, now: datetime) -> None:
        """Let the time of an exam run from `now`, unless it runs already."""
        deadline = now + timedelta(seconds=exam.time_limit_s or 0)
        waiting = (_exams.c.id == exam.id, _exams.c.deadline.is_(None))
        with self._database.writing() as connection:
            connection.execute(update(_exams).where(*waiting).values(deadline=deadline))

    def exam(self, exam_id: str, learner: str | None) -> StoredExam:
        """One exam of a learner, or of any when None is named. Raises NotFound, also for another learner's."""
        with self._database.reading() as connection:
            row = connection.execute(select(_exams).where(_exams.c.id == exam_id)).one_or_none()
            if row is None or learner not in (None, row.learner):
                raise _not_found("exam", exam_id, learner, hint="start one with POST /v1/exams")
            return _exam(row)

    def exams(self, learner: str, limit: int | None, among: Sequence[str] | None = None) -> tuple[StoredExam, ...]:
        """The newest exams of a learner, newest first; of those with these ids, where they are given."""
        own = select(_exams).where(_exams.c.learner == learner)
        if among is not None:
            own = own.where(_exams.c.id.in_(among))
        return self._list(own.order_by(_exams.c.created_at.desc(), _exams.c.id).limit(limit), _exam)

    def exam_ids(self, learner: str) -> tuple[str, ...]:
        """The ids of a learner's exams, newest first."""
        own = select(_exams.c.id).where(_exams.c.learner == learner)
        return self._list(own.order_by(_exams.c.created_at.desc(), _exams.c.id), lambda row: str(row.id))

    def class_exams(self, class_id: str) -> tuple[StoredExam, ...]:
        """The exams of one class, by learner."""
        return self._list(select(_exams).where(_exams.c.class_id == class_id).order_by(_exams.c.learner), _exam)

    def class_ids(self, limit: int | None) -> tuple[str, ...]:
        """The classes that were given an exam, newest first."""
        newest = func.max(_exams.c.created_at)
        wanted = select(_exams.c.class_id).where(_exams.c.class_id.is_not(None)).group_by(_exams.c.class_id)
        with self._database.reading() as connection:
            return tuple(connection.scalars(wanted.order_by(newest.desc()).limit(limit)))

    def open_exams(self, learner: str) -> tuple[StoredExam, ...]:
        """A learner's exams that are not handed in."""
        return self._list(select(_exams).where(*_open(learner)), _exam)

    def overdue(self, now: datetime, learner: str) -> tuple[StoredExam, ...]:
        """A learner's open exams past their deadline."""
        return self._list(select(_exams).where(*_open(learner), _exams.c.deadline < now), _exam)

    def draft(self, exam_id: str) -> dict[str, Given]:
        """The answers given so far in an open exam, by question id."""
        with self._database.reading() as connection:
            return _draft(connection, exam_id)

    def keep_draft(
        self, exam_id: str, answers: Mapping[str, Given], now: datetime, *, beside: bool = False
    ) -> dict[str, Given]:
        """Keep these answers in place of those given before, or beside them, and return all; None takes one back.

        Raises:
            NotFound: no exam has this id.
            ExamClosed: it was handed in.
        """
        with self._database.writing() as connection:
            found = connection.execute(select(_exams.c.handed_in_at).where(_exams.c.id == exam_id)).one_or_none()
            if found is None:
                raise _not_found("exam", exam_id, None, hint="start one with POST /v1/exams")
            if found.handed_in_at is not None:
                raise _closed(exam_id)
            changed = (_draft(connection, exam_id) if beside else {}) | dict(answers)
            given: dict[str, Given] = {
                question_id: answer for question_id, answer in changed.items() if answer is not None
            }
            connection.execute(delete(_drafts).where(_drafts.c.exam_id == exam_id))
            connection.execute(insert(_drafts), {"exam_id": exam_id, "answers": given, "updated_at": now})
            return given

    def close_exam(
        self,
        exam: StoredExam,
        result: Result,
        attempts: Sequence[Attempt],
        missed: Sequence[BankQuestion],
        now: datetime,
    ) -> None:
        """Keep marks and attempts, and make cards of the missed questions, due at `now`, in one transaction.

        Raises:
            ExamClosed: it was handed in meanwhile.
        """
        is_open = (_exams.c.id == exam.id, _exams.c.handed_in_at.is_(None))
        with self._database.writing() as connection:
            new = {"handed_in_at": now, "result": _result_record(result)}
            closed = connection.execute(update(_exams).where(*is_open).values(new))
            if closed.rowcount == 0:
                raise _closed(exam.id)
            connection.execute(delete(_drafts).where(_drafts.c.exam_id == exam.id))
            _keep_attempts(connection, exam.learner, attempts)
            for question in missed:
                _make_card(connection, exam.learner, question, now)

    def keep_request(self, exam: StoredExam, question: BankQuestion, share: float) -> Mark:
        """Keep beside a mark what its learner asks for."""
        with self._database.writing() as connection:
            return _change_mark(connection, exam, question, requested=share)[1]

    def keep_verdict(self, exam: StoredExam, question: BankQuestion, attempt: Attempt, by: By) -> Mark:
        """Keep somebody's own verdict in place of a mark, in one transaction; cards are as if it had been the mark.

        A verdict that is there already changes nothing.
        """
        with self._database.writing() as connection:
            before, mark = _change_mark(
                connection, exam, question, share=attempt.score, by=by, needs_check=False, requested=None
            )
            if mark == before:
                return before
            _keep_attempts(connection, exam.learner, [attempt])
            if mark.passed:
                _forget_miss(connection, exam, question)
            else:
                _make_card(connection, exam.learner, question, exam.handed_in_at or attempt.at)
            return mark

    # --- cards

    def due_cards(self, learner: str, now: datetime, limit: int | None) -> tuple[StoredCard, ...]:
        """Cards due at `now`, the longest overdue first; all of them without a limit."""
        due = select(_cards).where(_cards.c.learner == learner, _cards.c.due <= now, _cards.c.state != SUSPENDED)
        return self._list(due.order_by(_cards.c.due, _cards.c.number).limit(limit), _card)

    def cards(self, learner: str) -> tuple[StoredCard, ...]:
        """All cards of a learner, by due time."""
        own = select(_cards).where(_cards.c.learner == learner)
        return self._list(own.order_by(_cards.c.due, _cards.c.number), _card)

    def due_times(self, learner: str) -> tuple[tuple[str, datetime], ...]:
        """`(question_id, due)` of every card that comes due, without reading the questions."""
        own = select(_cards.c.question_id, _cards.c.due).where(_cards.c.learner == learner)
        return self._list(own.where(_cards.c.state != SUSPENDED), lambda row: (row.question_id, row.due))

    def card(self, card_id: str, learner: str | None) -> StoredCard:
        """One card of a learner, or of any when None is named. Raises NotFound, also for another learner's."""
        with self._database.reading() as connection:
            row = connection.execute(select(_cards).where(_cards.c.id == card_id)).one_or_none()
            if row is None or learner not in (None, row.learner):
                raise _not_found("card", card_id, learner, hint="list them with GET /v1/cards/due")
            return _card(row)

    def keep_review(self, card: StoredCard, schedule: Scheduled, rating: int, attempt: Attempt) -> StoredCard:
        """Keep a review: the card's new schedule, the review itself, and the attempt that it is.

        Raises:
            Conflict: the card was reviewed since it was read, or within `TWICE_S` of this time.
        """
        of_card = select(_reviews.c.at).where(_reviews.c.card_id == card.id).order_by(_reviews.c.number.desc())
        as_read = (_cards.c.id == card.id, _cards.c.fsrs == card.fsrs_json)
        new = {"fsrs": schedule.fsrs_json, "due": schedule.due, "state": schedule.state}
        row = {"card_id": card.id, "rating": rating, "at": attempt.at, "fsrs": schedule.fsrs_json}
        with self._database.writing() as connection:
            last = connection.scalars(of_card.limit(1)).one_or_none()
            twice = last is not None and abs((attempt.at - last).total_seconds()) < TWICE_S
            if twice or connection.execute(update(_cards).where(*as_read).values(new)).rowcount == 0:
                raise Conflict(msg("card {} was just reviewed", repr(card.id)), hint="read it again, then rate it")
            connection.execute(insert(_reviews), row)
            _keep_attempts(connection, card.learner, [attempt])
        return self.card(card.id, card.learner)

    def undo_review(self, card: StoredCard) -> StoredCard:
        """Take the newest review of a card back: it is due again, as it was before, and the attempt is gone.

        Raises:
            Conflict: the card was not reviewed yet.
        """
        of_card = select(_reviews).where(_reviews.c.card_id == card.id).order_by(_reviews.c.number.desc()).limit(2)
        with self._database.writing() as connection:
            reviews = connection.execute(of_card).all()
            if not reviews:
                raise Conflict(
                    msg("card {} was not reviewed yet", repr(card.id)), hint="undo a card that was just rated"
                )
            number = int(card.id.rpartition("-")[2])
            at = reviews[0].at
            before = make_due(reviews[1].fsrs, at) if len(reviews) > 1 else new_card(number, at)
            connection.execute(delete(_reviews).where(_reviews.c.number == reviews[0].number))
            attempt = (_attempts.c.learner == card.learner, _attempts.c.question_id == card.question_id)
            connection.execute(delete(_attempts).where(*attempt, _attempts.c.at == at))
            new = {"fsrs": before.fsrs_json, "due": before.due, "state": before.state}
            connection.execute(update(_cards).where(_cards.c.id == card.id).values(new))
        return self.card(card.id, card.learner)

    def suspend(self, card: StoredCard, *, on: bool) -> StoredCard:
        """Keep a card from coming due, or let it come due again as scheduled."""
        return self._change(card, state=SUSPENDED if on else stored_schedule(card.fsrs_json).state)

    def change_card(self, card: StoredCard, question: BankQuestion) -> StoredCard:
        """Keep another wording of a card's question; its schedule stays."""
        return self._change(card, question=asdict(question))

    def _change(self, card: StoredCard, **new: object) -> StoredCard:
        with self._database.writing() as connection:
            connection.execute(update(_cards).where(_cards.c.id == card.id).values(new))
        return self.card(card.id, card.learner)

    def add_card(self, learner: str, question: BankQuestion, now: datetime) -> StoredCard:
        """A card for a question, due at `now`; one that is there becomes due."""
        own = (_cards.c.learner == learner, _cards.c.question_id == question.id)
        with self._database.writing() as connection:
            _make_card(connection, learner, question, now)
            return _card(connection.execute(select(_cards).where(*own)).one())

    def delete_card(self, card: StoredCard) -> None:
        """Remove a card and its reviews."""
        with self._database.writing() as connection:
            connection.execute(delete(_reviews).where(_reviews.c.card_id == card.id))
            connection.execute(delete(_cards).where(_cards.c.id == card.id))

    # --- progress

    def latest_attempts(self, learner: str) -> tuple[Attempt, ...]:
        """The newest attempt at each question that a learner has answered."""
        newest = select(func.max(_attempts.c.number)).where(_attempts.c.learner == learner)
        columns = (_attempts.c.question_id, _attempts.c.chapter, _attempts.c.section, _attempts.c.score, _attempts.c.at)
        wanted = select(*columns).where(_attempts.c.number.in_(newest.group_by(_attempts.c.question_id)))
        return self._list(wanted.order_by(_attempts.c.number), lambda row: Attempt(**row._mapping))


def _open(learner: str) -> tuple[ColumnElement[bool], ...]:
    return _exams.c.learner == learner, _exams.c.handed_in_at.is_(None)


def _draft(connection: Connection, exam_id: str) -> dict[str, Given]:
    row = connection.execute(select(_drafts.c.answers).where(_drafts.c.exam_id == exam_id)).one_or_none()
    return dict(row.answers) if row is not None else {}


def _make_card(connection: Connection, learner: str, question: BankQuestion, now: datetime) -> None:
    """Make a card, due at `now`; a card that is there becomes due."""
    own = (_cards.c.learner == learner, _cards.c.question_id == question.id)
    known = connection.execute(select(_cards.c.number, _cards.c.fsrs).where(*own)).one_or_none()
    if known is not None:
        again = make_due(known.fsrs, now)
        new = {"fsrs": again.fsrs_json, "due": again.due}
        connection.execute(update(_cards).where(_cards.c.number == known.number).values(new))
        return
    number = connection.scalars(select(func.coalesce(func.max(_cards.c.number), 0) + 1)).one()
    card = new_card(number, now)
    row = {
        "number": number,
        "id": f"card-{number}",
        "learner": learner,
        "question_id": question.id,
        "question": asdict(question),
        "fsrs": card.fsrs_json,
        "due": card.due,
        "state": card.state,
    }
    connection.execute(insert(_cards), row)


def _change_mark(
    connection: Connection, exam: StoredExam, question: BankQuestion, *, share: float | None = None, **new: Any
) -> tuple[Mark, Mark]:
    """Change one mark of a result: to a share of its points, where one is given. Gives the mark before and after."""
    row = connection.execute(select(_exams).where(_exams.c.id == exam.id)).one()
    result = _result(row.result)
    place = next(at for at, mark in enumerate(result.marks) if mark.question_id == question.id)
    before = result.marks[place]
    if share is not None:
        new["score"] = round(share * before.max_score, 4)
    mark = replace(before, **new)
    if mark != before:
        marks = (*result.marks[:place], mark, *result.marks[place + 1 :])
        record = {"result": _result_record(Result(marks))}
        connection.execute(update(_exams).where(_exams.c.id == exam.id).values(record))
    return before, mark


def _forget_miss(connection: Connection, exam: StoredExam, question: BankQuestion) -> None:
    """Leave the cards as if an exam's answer had been marked right: a card that exams made goes, one that this exam
    made due is due again as its last review said. While another exam's miss holds, the card stays as it is."""
    own = (_cards.c.learner == exam.learner, _cards.c.question_id == question.id)
    card = connection.execute(select(_cards.c.id, _cards.c.due).where(*own)).one_or_none()
    if card is None:
        return
    exams = select(_exams.c.handed_in_at, _exams.c.result).where(
        _exams.c.learner == exam.learner, _exams.c.handed_in_at.is_not(None)
    )
    marked = [
        (at, mark.passed)
        for at, record in connection.execute(exams)
        for mark in _result(record).marks
        if mark.question_id == question.id
    ]
    missed = [at for at, passed in marked if not passed]
    reviews = select(_reviews.c.fsrs).where(_reviews.c.card_id == card.id).order_by(_reviews.c.number.desc())
    last = connection.scalars(reviews.limit(1)).one_or_none()
    if last is not None and not any(at >= exam.handed_in_at for at in missed):
        new = {"fsrs": last, "due": stored_schedule(last).due}
        connection.execute(update(_cards).where(_cards.c.id == card.id).values(new))
    elif last is None and not missed and any(card.due == at for at, _ in marked):
        connection.execute(delete(_cards).where(_cards.c.id == card.id))


def _keep_attempts(connection: Connection, learner: str, attempts: Sequence[Attempt]) -> None:
    rows = [{"learner": learner} | asdict(attempt) for attempt in attempts]
    if rows:
        connection.execute(insert(_attempts), rows)


def _exam(row: Row[Any]) -> StoredExam:
    with stored_values():
        questions = tuple(_question(record) for record in row.questions)
    result = _result(row.result) if row.result is not None else None
    return StoredExam(
        row.id,
        row.learner,
        row.created_at,
        row.deadline,
        questions,
        row.handed_in_at,
        result,
        row.class_id,
        row.time_limit_s,
        row.assistant,
    )


def _card(row: Row[Any]) -> StoredCard:
    with stored_values():
        question = _question(row.question)
    return StoredCard(row.id, row.learner, row.question_id, question, row.fsrs, row.due, row.state)


def _question(record: Mapping[str, Any]) -> BankQuestion:
    return parse_question(record, where=str(record.get("id", "question")))


def _result_record(result: Result) -> dict[str, Any]:
    """The result as JSON keeps it; of a passage, what a reader is shown."""
    marks = []
    for mark in result.marks:
        passage = mark.passage
        shown = {name: getattr(passage, name) for name in _PASSAGE_FIELDS} if passage is not None else None
        marks.append(asdict(replace(mark, passage=None)) | {"passage": shown})
    return {"score": result.score, "max_score": result.max_score, "marks": marks}


def _result(record: Mapping[str, Any]) -> Result:
    with stored_values():
        return Result(tuple(_mark(mark) for mark in record["marks"]))


def _mark(record: Mapping[str, Any]) -> Mark:
    shown = record["passage"]
    passage = Passage(**shown | {"section": tuple(shown["section"])}) if shown is not None else None
    facts = {name: tuple(record.get(name, ())) for name in ("facts_met", "facts_missed")}
    by = record.get("by") or ("choice" if record.get("answer_index") is not None else "key_facts")
    return Mark(**dict(record) | facts | {"passage": passage, "by": by})


def _closed(exam_id: str) -> ExamClosed:
    return ExamClosed(msg("exam {} was handed in before", exam_id), hint=msg("see GET {}", f"/v1/exams/{exam_id}"))


def _not_found(kind: str, given_id: str, learner: str | None, *, hint: str) -> NotFound:
    whose = "there is" if learner is None else f"learner {learner!r} has"
    message = f"{whose} no {kind} {given_id!r}"
    return NotFound(message, hint=hint)
