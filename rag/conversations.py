"""Conversations, their answers and the readers' feedback, in one SQLite file of the home.

An answer is kept whole as JSON, so that a conversation reloads with citations, passages and pages as they were, even
after the book is gone. Several threads and several processes may use one store; every call is one transaction.
"""

from __future__ import annotations

import sqlite3
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias

from indexes.errors import HomeNotWritable, InvalidInput, NotFound, StorageFull
from rag.answer_json import answer_from_json, answer_to_json
from rag.types import Answer

Rating: TypeAlias = Literal["up", "down"]
TITLE_CHARACTERS = 80
COMMENT_CHARACTERS = 4000
BUSY_TIMEOUT_S = 30.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS conversations (
    id TEXT PRIMARY KEY, title TEXT NOT NULL, created_at TEXT NOT NULL, updated_at TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS answers (
    id TEXT PRIMARY KEY, conversation_id TEXT NOT NULL REFERENCES conversations(id) ON DELETE CASCADE,
    ordinal INTEGER NOT NULL, created_at TEXT NOT NULL, body TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS answers_by_conversation ON answers(conversation_id, ordinal);
CREATE TABLE IF NOT EXISTS feedback (
    answer_id TEXT PRIMARY KEY REFERENCES answers(id) ON DELETE CASCADE,
    rating TEXT NOT NULL, comment TEXT NOT NULL, created_at TEXT NOT NULL);
"""
_SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation without its answers; times are ISO 8601 in UTC."""

    id: str
    title: str
    created_at: str
    updated_at: str
    num_answers: int


@dataclass(frozen=True, slots=True)
class Feedback:
    """A reader's verdict on an answer."""

    answer_id: str
    rating: Rating
    comment: str
    created_at: str


class ConversationStore:
    """All conversations of one home. Light to make; the file is created at the first call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def create(self, title: str = "") -> Conversation:
        """A new, empty conversation; without a title it takes the first question's words."""
        now = _now()
        conversation = Conversation(uuid.uuid4().hex, clean_title(title), now, now, 0)
        with self._transaction() as db:
            db.execute("INSERT INTO conversations VALUES (?, ?, ?, ?)", (conversation.id, conversation.title, now, now))
        return conversation

    def get(self, conversation_id: str) -> Conversation:
        """One conversation.

        Raises:
            NotFound: no conversation has this id.
        """
        with self._transaction() as db:
            row = db.execute(f"{_SELECT} WHERE c.id = ? GROUP BY c.id", (conversation_id,)).fetchone()
        if row is None:
            raise _unknown_conversation(conversation_id)
        return Conversation(*row)

    def list(self) -> tuple[Conversation, ...]:
        """All conversations, the one used last first."""
        with self._transaction() as db:
            rows = db.execute(f"{_SELECT} GROUP BY c.id ORDER BY c.updated_at DESC, c.rowid DESC").fetchall()
        return tuple(Conversation(*row) for row in rows)

    def rename(self, conversation_id: str, title: str) -> Conversation:
        """Gives a conversation another title.

        Raises:
            InvalidInput: the title is empty.
            NotFound: no conversation has this id.
        """
        cleaned = clean_title(title)
        if not cleaned:
            raise InvalidInput("the title is empty", hint="give the conversation a title of at least one letter")
        with self._transaction() as db:
            cursor = db.execute("UPDATE conversations SET title = ? WHERE id = ?", (cleaned, conversation_id))
        if cursor.rowcount == 0:
            raise _unknown_conversation(conversation_id)
        return self.get(conversation_id)

    def delete(self, conversation_id: str) -> None:
        """Removes a conversation with its answers and their feedback.

        Raises:
            NotFound: no conversation has this id.
        """
        with self._transaction() as db:
            cursor = db.execute("DELETE FROM conversations WHERE id = ?", (conversation_id,))
        if cursor.rowcount == 0:
            raise _unknown_conversation(conversation_id)

    def answers(self, conversation_id: str) -> tuple[Answer, ...]:
        """The answers of a conversation, oldest first.

        Raises:
            NotFound: no conversation has this id.
        """
        self.get(conversation_id)
        with self._transaction() as db:
            rows = db.execute(
                "SELECT body FROM answers WHERE conversation_id = ? ORDER BY ordinal", (conversation_id,)
            ).fetchall()
        return tuple(answer_from_json(body) for (body,) in rows)

    def answer(self, answer_id: str) -> Answer:
        """One answer.

        Raises:
            NotFound: no answer has this id.
        """
        with self._transaction() as db:
            row = db.execute("SELECT body FROM answers WHERE id = ?", (answer_id,)).fetchone()
        if row is None:
            raise _unknown_answer(answer_id)
        return answer_from_json(row[0])

    def append(self, answer: Answer) -> None:
        """Adds a finished answer to its conversation; an untitled conversation takes the question as title.

        Raises:
            NotFound: the conversation was deleted meanwhile.
        """
        now = _now()
        with self._transaction() as db:
            cursor = db.execute(
                "UPDATE conversations SET updated_at = ?, title = CASE title WHEN '' THEN ? ELSE title END "
                "WHERE id = ?",
                (now, clean_title(answer.question), answer.conversation_id),
            )
            if cursor.rowcount == 0:
                raise _unknown_conversation(answer.conversation_id)
            db.execute(
                "INSERT INTO answers SELECT ?, ?, COALESCE(MAX(ordinal) + 1, 0), ?, ? FROM answers "
                "WHERE conversation_id = ?",
                (answer.id, answer.conversation_id, now, answer_to_json(answer), answer.conversation_id),
            )

    def give_feedback(self, answer_id: str, rating: str, comment: str = "") -> Feedback:
        """Keeps a reader's verdict; a second one replaces the first.

        Raises:
            InvalidInput: a rating other than `up` and `down`, or a comment that is too long.
            NotFound: no answer has this id.
        """
        if rating not in ("up", "down"):
            raise InvalidInput(f"rating {rating!r} is not known", hint="use `up` or `down`")
        if len(comment) > COMMENT_CHARACTERS:
            raise InvalidInput(
                f"the comment has {len(comment):,} characters", hint=f"keep it under {COMMENT_CHARACTERS:,}"
            )
        self.answer(answer_id)
        now = _now()
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO feedback VALUES (?, ?, ?, ?)", (answer_id, rating, comment, now))
        return Feedback(answer_id, "up" if rating == "up" else "down", comment, now)

    def ratings(self, conversation_id: str) -> dict[str, Rating]:
        """The verdicts on the answers of one conversation, by answer id."""
        with self._transaction() as db:
            rows = db.execute(
                "SELECT f.answer_id, f.rating FROM feedback f JOIN answers a ON a.id = f.answer_id "
                "WHERE a.conversation_id = ?",
                (conversation_id,),
            ).fetchall()
        return dict(rows)

    def feedback(self) -> tuple[tuple[Feedback, Answer], ...]:
        """All feedback with the answers it is about, oldest first; for export as evaluation cases."""
        with self._transaction() as db:
            rows = db.execute(
                "SELECT f.answer_id, f.rating, f.comment, f.created_at, a.body FROM feedback f "
                "JOIN answers a ON a.id = f.answer_id ORDER BY f.created_at, f.rowid"
            ).fetchall()
        return tuple((Feedback(*row[:4]), answer_from_json(row[4])) for row in rows)

    def close(self) -> None:
        """Closes the file; the next call opens it again."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                connection = self._connection or self._open()
                with connection:
                    yield connection
            except sqlite3.OperationalError as error:
                if "full" in str(error):
                    raise StorageFull(f"{self._path}: {error}", hint="free some space; nothing was kept") from error
                raise HomeNotWritable(
                    f"cannot use {self._path}: {error}", hint="check that the home folder exists and can be written"
                ) from error

    def _open(self) -> sqlite3.Connection:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise HomeNotWritable(
                f"cannot create {self._path.parent}: {error}", hint="set COALESCE_HOME to a folder you can write"
            ) from error
        connection = sqlite3.connect(self._path, timeout=BUSY_TIMEOUT_S, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.executescript(_SCHEMA)
        connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
        self._connection = connection
        return connection


_SELECT = (
    "SELECT c.id, c.title, c.created_at, c.updated_at, COUNT(a.id) FROM conversations c "
    "LEFT JOIN answers a ON a.conversation_id = c.id"
)


def clean_title(text: str) -> str:
    """One line of at most `TITLE_CHARACTERS` characters, cut at a word."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if len(line) <= TITLE_CHARACTERS:
        return line
    cut = line[: TITLE_CHARACTERS - 1]
    return (cut.rsplit(" ", 1)[0] if " " in cut[40:] else cut).rstrip(" ,.;:") + "…"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _unknown_conversation(conversation_id: str) -> NotFound:
    return NotFound(f"no conversation has the id {conversation_id!r}", hint="GET /v1/conversations lists them")


def _unknown_answer(answer_id: str) -> NotFound:
    return NotFound(f"no answer has the id {answer_id!r}", hint="an answer's id stands in its `id` field")
