"""Readers' votes between answers of several arms to one question, beside the feedback in the home's SQLite file.

A vote keeps the answers it was about, whole, so that it can be looked at again when models and books have changed.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from indexes.errors import HomeNotWritable, InvalidInput, StorageFull
from rag.answer_json import answer_from_json, answer_to_json
from rag.types import Answer, Arm

BUSY_TIMEOUT_S = 30.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS votes (
    number INTEGER PRIMARY KEY, at TEXT NOT NULL, question TEXT NOT NULL, winner TEXT NOT NULL,
    blind INTEGER NOT NULL, answers TEXT NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class Vote:
    """One vote: `winner` is the best arm, or "" when none was better; `blind` says that the arms were hidden."""

    question: str
    winner: Arm | str
    blind: bool
    answers: tuple[Answer, ...]
    at: str


class VoteStore:
    """All votes of one home. Light to make; the table is created at the first call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def keep(self, answers: Sequence[Answer], winner: str, *, blind: bool) -> Vote:
        """Keeps a vote over `answers`, all to one question.

        Raises:
            InvalidInput: fewer than two answers, or a winner that is none of their arms (and not "").
        """
        arms = [answer.arm for answer in answers]
        if len(arms) < 2 or (winner and winner not in arms):
            raise InvalidInput(f"a vote for {winner!r} among {arms}", hint="vote for one of at least two arms, or none")
        vote = Vote(answers[0].question, winner, blind, tuple(answers), datetime.now(UTC).isoformat())
        body = json.dumps([answer_to_json(answer) for answer in answers], ensure_ascii=False)
        with self._transaction() as db:
            db.execute(
                "INSERT INTO votes (at, question, winner, blind, answers) VALUES (?, ?, ?, ?, ?)",
                (vote.at, vote.question, vote.winner, int(blind), body),
            )
        return vote

    def all(self) -> tuple[Vote, ...]:
        """Every vote, the oldest first."""
        with self._transaction() as db:
            rows = db.execute("SELECT question, winner, blind, answers, at FROM votes ORDER BY number").fetchall()
        return tuple(
            Vote(question, winner, bool(blind), tuple(answer_from_json(one) for one in json.loads(body)), at)
            for question, winner, blind, body, at in rows
        )

    def tally(self) -> dict[str, int]:
        """How often each arm won; "" counts the votes in which none was better."""
        with self._transaction() as db:
            return dict(Counter(winner for (winner,) in db.execute("SELECT winner FROM votes")))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with closing(sqlite3.connect(self._path, timeout=BUSY_TIMEOUT_S)) as connection, connection:
                    connection.executescript(_SCHEMA)
                    yield connection
            except (sqlite3.OperationalError, OSError) as error:
                if "full" in str(error):
                    raise StorageFull(f"{self._path}: {error}", hint="free some space; nothing was kept") from error
                raise HomeNotWritable(
                    f"cannot use {self._path}: {error}", hint="check that the home folder exists and can be written"
                ) from error
