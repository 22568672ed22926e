"""Conversations, their answers and the readers' feedback, in one SQLite file of the home.

An answer is kept whole as JSON, so that a conversation reloads with citations, passages and pages as they were, even
after the book is gone. Several threads and several processes may use one store; every call is one transaction.
Every conversation may have an owner; a store that is narrowed to one owner knows no other's.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias

from indexes.errors import InvalidInput, NotFound
from rag.answer_json import answer_from_json, answer_to_json
from rag.conversation_file import conversation_file
from rag.types import Answer

Rating: TypeAlias = Literal["up", "down"]
TITLE_CHARACTERS = 80
COMMENT_CHARACTERS = 4000
_OWNED = "(:owner IS NULL OR c.owner = :owner)"


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
    """The conversations of one home. Light to make; the file is created at the first call.

    Args:
        owner: whose conversations it knows; None knows everyone's, and those it creates are nobody's.
    """

    def __init__(self, path: Path, owner: str | None = None) -> None:
        self._path = path
        self._owner = owner
        self._file = conversation_file(path)

    def of(self, owner: str | None) -> ConversationStore:
        """This store narrowed to one owner, over the same open file; None narrows nothing."""
        if owner is None:
            return self
        narrowed = ConversationStore(self._path, owner)
        narrowed._file = self._file
        return narrowed

    def create(self, title: str = "") -> Conversation:
        """A new, empty conversation; without a title it takes the first question's words."""
        now = _now()
        conversation = Conversation(uuid.uuid4().hex, clean_title(title), now, now, 0)
        with self._file.transaction() as db:
            db.execute(
                "INSERT INTO conversations (id, title, created_at, updated_at, owner) VALUES (?, ?, ?, ?, ?)",
                (conversation.id, conversation.title, now, now, self._owner or ""),
            )
        return conversation

    def get(self, conversation_id: str) -> Conversation:
        """One conversation.

        Raises:
            NotFound: no conversation has this id.
        """
        with self._file.transaction() as db:
            row = db.execute(
                f"{_SELECT} WHERE c.id = :id AND {_OWNED} GROUP BY c.id", {"id": conversation_id, "owner": self._owner}
            ).fetchone()
        if row is None:
            raise _unknown_conversation(conversation_id)
        return Conversation(*row)

    def list(self) -> tuple[Conversation, ...]:
        """Its conversations, the one used last first."""
        with self._file.transaction() as db:
            rows = db.execute(
                f"{_SELECT} WHERE {_OWNED} GROUP BY c.id ORDER BY c.updated_at DESC, c.rowid DESC",
                {"owner": self._owner},
            ).fetchall()
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
        self.get(conversation_id)
        with self._file.transaction() as db:
            db.execute("UPDATE conversations SET title = ? WHERE id = ?", (cleaned, conversation_id))
        return self.get(conversation_id)

    def delete(self, conversation_id: str) -> None:
        """Removes a conversation with its answers and their feedback.

        Raises:
            NotFound: no conversation has this id.
        """
        self.get(conversation_id)
        with self._file.transaction() as db:
            cursor = db.execute("DELETE FROM conversations WHERE id = ?", (conversation_id,))
        if cursor.rowcount == 0:
            raise _unknown_conversation(conversation_id)

    def answers(self, conversation_id: str) -> tuple[Answer, ...]:
        """The answers of a conversation, oldest first.

        Raises:
            NotFound: no conversation has this id.
        """
        self.get(conversation_id)
        with self._file.transaction() as db:
            rows = db.execute(
                "SELECT body FROM answers WHERE conversation_id = ? ORDER BY ordinal", (conversation_id,)
            ).fetchall()
        return tuple(answer_from_json(body) for (body,) in rows)

    def answer(self, answer_id: str) -> Answer:
        """One answer.

        Raises:
            NotFound: no answer has this id.
        """
        with self._file.transaction() as db:
            row = db.execute(
                "SELECT a.body FROM answers a JOIN conversations c ON c.id = a.conversation_id "
                "WHERE a.id = :id AND (:owner IS NULL OR c.owner = :owner)",
                {"id": answer_id, "owner": self._owner},
            ).fetchone()
        if row is None:
            raise _unknown_answer(answer_id)
        return answer_from_json(row[0])

    def append(self, answer: Answer) -> None:
        """Adds a finished answer to its conversation; an untitled conversation takes the question as title.

        Raises:
            NotFound: the conversation was deleted meanwhile.
        """
        now = _now()
        with self._file.transaction() as db:
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
        with self._file.transaction() as db:
            db.execute("INSERT OR REPLACE INTO feedback VALUES (?, ?, ?, ?)", (answer_id, rating, comment, now))
        return Feedback(answer_id, "up" if rating == "up" else "down", comment, now)

    def ratings(self, conversation_id: str) -> dict[str, Rating]:
        """The verdicts on the answers of one conversation, by answer id."""
        with self._file.transaction() as db:
            rows = db.execute(
                "SELECT f.answer_id, f.rating FROM feedback f JOIN answers a ON a.id = f.answer_id "
                "JOIN conversations c ON c.id = a.conversation_id "
                "WHERE c.id = :id AND (:owner IS NULL OR c.owner = :owner)",
                {"id": conversation_id, "owner": self._owner},
            ).fetchall()
        return dict(rows)

    def feedback(self) -> tuple[tuple[Feedback, Answer], ...]:
        """All feedback with the answers it is about, oldest first; for export as evaluation cases."""
        with self._file.transaction() as db:
            rows = db.execute(
                "SELECT f.answer_id, f.rating, f.comment, f.created_at, a.body FROM feedback f "
                "JOIN answers a ON a.id = f.answer_id JOIN conversations c ON c.id = a.conversation_id "
                "WHERE (:owner IS NULL OR c.owner = :owner) ORDER BY f.created_at, f.rowid",
                {"owner": self._owner},
            ).fetchall()
        return tuple((Feedback(*row[:4]), answer_from_json(row[4])) for row in rows)

    def close(self) -> None:
        """Closes the file, for stores narrowed from this one too; the next call opens it again."""
        self._file.close()


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
