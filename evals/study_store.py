"""What learners did, in one SQLite file in the home: exams, attempts, cards, reviews.

Questions are kept as they were asked, so marks stay readable when a question file changes. Every row names its
learner, and every list is of one. An exam or a card is found by its id alone only where no learner is asked for.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from evals.errors import ExamClosed
from evals.schedule import Scheduled, make_due, new_card
from indexes.errors import NotFound
from indexes.state_file import StateFile

_SCHEMA = """
CREATE TABLE IF NOT EXISTS exams (
    id TEXT PRIMARY KEY, learner TEXT NOT NULL, created_at TEXT NOT NULL, deadline TEXT,
    questions TEXT NOT NULL, handed_in_at TEXT, result TEXT
);
CREATE TABLE IF NOT EXISTS attempts (
    number INTEGER PRIMARY KEY, learner TEXT NOT NULL, question_id TEXT NOT NULL, chapter INTEGER NOT NULL,
    section TEXT, score REAL NOT NULL, at TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS attempts_of ON attempts (learner, question_id, number);
CREATE TABLE IF NOT EXISTS cards (
    number INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, learner TEXT NOT NULL, question_id TEXT NOT NULL,
    question TEXT NOT NULL, fsrs TEXT NOT NULL, due TEXT NOT NULL, state TEXT NOT NULL,
    UNIQUE (learner, question_id)
);
CREATE INDEX IF NOT EXISTS cards_due ON cards (learner, due);
CREATE TABLE IF NOT EXISTS reviews (
    number INTEGER PRIMARY KEY, card_id TEXT NOT NULL, rating INTEGER NOT NULL, at TEXT NOT NULL, fsrs TEXT NOT NULL
);
"""
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class StoredExam:
    """An exam as it was set: `questions` are records of the question schema; `result` once handed in."""

    id: str
    learner: str
    created_at: datetime
    deadline: datetime | None
    questions: tuple[dict[str, Any], ...]
    handed_in_at: datetime | None
    result: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class StoredCard:
    """A card: its question's record and its schedule."""

    id: str
    learner: str
    question_id: str
    question: dict[str, Any]
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


def _prepare(connection: sqlite3.Connection) -> None:
    connection.executescript(_SCHEMA)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


class StudyStore:
    """Exams, attempts and cards of every learner. Safe to share among threads."""

    def __init__(self, path: Path) -> None:
        self._file = StateFile(path, _prepare)

    def add_exam(self, exam: StoredExam) -> None:
        """Keeps a new exam."""
        with self._file.transaction() as database:
            database.execute(
                "INSERT INTO exams (id, learner, created_at, deadline, questions) VALUES (?, ?, ?, ?, ?)",
                (
                    exam.id,
                    exam.learner,
                    exam.created_at.isoformat(),
                    exam.deadline.isoformat() if exam.deadline else None,
                    json.dumps(exam.questions, ensure_ascii=False),
                ),
            )

    def exam(self, exam_id: str, learner: str | None) -> StoredExam:
        """One exam, whoever's it is when no learner is named.

        Raises:
            NotFound: there is none by that id, or it is another learner's.
        """
        with self._file.transaction() as database:
            row = database.execute("SELECT * FROM exams WHERE id = ?", (exam_id,)).fetchone()
        if row is None or learner not in (None, row["learner"]):
            whose = "there is" if learner is None else f"learner {learner!r} has"
            raise NotFound(f"{whose} no exam {exam_id!r}", hint="start one with POST /v1/exams")
        return _exam(row)

    def exams(self, learner: str, limit: int) -> tuple[StoredExam, ...]:
        """The newest exams of a learner, the newest first."""
        query = "SELECT * FROM exams WHERE learner = ? ORDER BY created_at DESC, rowid DESC LIMIT ?"
        with self._file.transaction() as database:
            return tuple(_exam(row) for row in database.execute(query, (learner, limit)))

    def close_exam(
        self,
        exam: StoredExam,
        result: dict[str, Any],
        attempts: Sequence[Attempt],
        missed: Sequence[dict[str, Any]],
        now: datetime,
    ) -> None:
        """Keeps marks and attempts and makes cards of the missed questions, due at `now`, in one transaction.

        Raises:
            ExamClosed: somebody handed it in meanwhile.
        """
        with self._file.transaction() as database:
            changed = database.execute(
                "UPDATE exams SET handed_in_at = ?, result = ? WHERE id = ? AND handed_in_at IS NULL",
                (now.isoformat(), json.dumps(result, ensure_ascii=False), exam.id),
            )
            if changed.rowcount == 0:
                raise ExamClosed(f"exam {exam.id} was handed in before", hint=f"see GET /v1/exams/{exam.id}")
            self._keep_attempts(database, exam.learner, attempts)
            for question in missed:
                self._make_card(database, exam.learner, question, now)

    def add_cards(self, learner: str, questions: Sequence[dict[str, Any]], now: datetime) -> int:
        """Makes cards of questions, due at `now`; how many there were not yet."""
        with self._file.transaction() as database:
            return sum(self._make_card(database, learner, question, now) for question in questions)

    def due_cards(self, learner: str, now: datetime, limit: int) -> tuple[StoredCard, ...]:
        """Cards due at `now`, the longest overdue first."""
        query = "SELECT * FROM cards WHERE learner = ? AND due <= ? ORDER BY due, number LIMIT ?"
        with self._file.transaction() as database:
            return tuple(_card(row) for row in database.execute(query, (learner, now.isoformat(), limit)))

    def count_due(self, learner: str, now: datetime) -> int:
        """How many cards are due at `now`, without reading them."""
        query = "SELECT count(*) FROM cards WHERE learner = ? AND due <= ?"
        with self._file.transaction() as database:
            return int(database.execute(query, (learner, now.isoformat())).fetchone()[0])

    def cards(self, learner: str) -> tuple[StoredCard, ...]:
        """All cards of a learner, by due time."""
        with self._file.transaction() as database:
            rows = database.execute("SELECT * FROM cards WHERE learner = ? ORDER BY due, number", (learner,))
            return tuple(_card(row) for row in rows)

    def due_times(self, learner: str) -> tuple[tuple[str, datetime], ...]:
        """`(question_id, due)` of every card, without reading the questions."""
        with self._file.transaction() as database:
            rows = database.execute("SELECT question_id, due FROM cards WHERE learner = ?", (learner,))
            return tuple((row["question_id"], datetime.fromisoformat(row["due"])) for row in rows)

    def card(self, card_id: str, learner: str | None) -> StoredCard:
        """One card, whoever's it is when no learner is named.

        Raises:
            NotFound: there is none by that id, or it is another learner's.
        """
        with self._file.transaction() as database:
            row = database.execute("SELECT * FROM cards WHERE id = ?", (card_id,)).fetchone()
        if row is None or learner not in (None, row["learner"]):
            whose = "there is" if learner is None else f"learner {learner!r} has"
            raise NotFound(f"{whose} no card {card_id!r}", hint="list them with GET /v1/cards/due")
        return _card(row)

    def keep_review(self, card: StoredCard, schedule: Scheduled, rating: int, attempt: Attempt) -> StoredCard:
        """Keeps a review: the card's new schedule, the review itself and the attempt it is."""
        due = schedule.due.isoformat()
        with self._file.transaction() as database:
            database.execute(
                "UPDATE cards SET fsrs = ?, due = ?, state = ? WHERE id = ?",
                (schedule.fsrs_json, due, schedule.state, card.id),
            )
            database.execute(
                "INSERT INTO reviews (card_id, rating, at, fsrs) VALUES (?, ?, ?, ?)",
                (card.id, rating, attempt.at.isoformat(), schedule.fsrs_json),
            )
            self._keep_attempts(database, card.learner, [attempt])
        return self.card(card.id, card.learner)

    def latest_attempts(self, learner: str) -> tuple[Attempt, ...]:
        """The newest attempt at each question a learner has answered."""
        query = (
            "SELECT question_id, chapter, section, score, at FROM attempts WHERE number IN "
            "(SELECT max(number) FROM attempts WHERE learner = ? GROUP BY question_id) ORDER BY number"
        )
        with self._file.transaction() as database:
            return tuple(
                Attempt(r["question_id"], r["chapter"], r["section"], r["score"], datetime.fromisoformat(r["at"]))
                for r in database.execute(query, (learner,))
            )

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _make_card(self, database: sqlite3.Connection, learner: str, question: dict[str, Any], now: datetime) -> bool:
        key = (learner, question["id"])
        row = database.execute("SELECT * FROM cards WHERE learner = ? AND question_id = ?", key).fetchone()
        if row is not None:
            again = make_due(row["fsrs"], now)
            database.execute(
                "UPDATE cards SET fsrs = ?, due = ? WHERE id = ?", (again.fsrs_json, again.due.isoformat(), row["id"])
            )
            return False
        number = database.execute("SELECT coalesce(max(number), 0) + 1 AS next FROM cards").fetchone()["next"]
        card = new_card(number, now)
        text = json.dumps(question, ensure_ascii=False)
        database.execute(
            "INSERT INTO cards (number, id, learner, question_id, question, fsrs, due, state) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (number, f"card-{number}", *key, text, card.fsrs_json, card.due.isoformat(), card.state),
        )
        return True

    def _keep_attempts(self, database: sqlite3.Connection, learner: str, attempts: Sequence[Attempt]) -> None:
        database.executemany(
            "INSERT INTO attempts (learner, question_id, chapter, section, score, at) VALUES (?, ?, ?, ?, ?, ?)",
            [(learner, a.question_id, a.chapter, a.section, a.score, a.at.isoformat()) for a in attempts],
        )


def _exam(row: sqlite3.Row) -> StoredExam:
    return StoredExam(
        row["id"],
        row["learner"],
        datetime.fromisoformat(row["created_at"]),
        datetime.fromisoformat(row["deadline"]) if row["deadline"] else None,
        tuple(json.loads(row["questions"])),
        datetime.fromisoformat(row["handed_in_at"]) if row["handed_in_at"] else None,
        json.loads(row["result"]) if row["result"] else None,
    )


def _card(row: sqlite3.Row) -> StoredCard:
    return StoredCard(
        row["id"],
        row["learner"],
        row["question_id"],
        from_json(row["question"]),  # thousands of cards are listed at once: quicker than json.loads by half
        row["fsrs"],
        datetime.fromisoformat(row["due"]),
        row["state"],
    )
