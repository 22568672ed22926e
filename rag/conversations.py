"""Conversations, their answers, and readers' feedback and votes, in one SQLite file of the home.

An answer is kept whole as JSON, so that a conversation reloads with citations, passages and pages as they were, even
after the book is gone. Several threads and processes may use one store; every call is one transaction.
"""

from __future__ import annotations

import json
import re
import uuid
from collections import Counter
from collections.abc import Sequence
from copy import copy
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from sqlalchemy import (
    Boolean,
    Column,
    ColumnElement,
    Connection,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Select,
    Table,
    Text,
    case,
    delete,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    true,
    tuple_,
    update,
)

from indexes.database import Schema, json_text, stored_values
from indexes.errors import InvalidInput, NotFound
from indexes.postgres import store_at
from rag.types import Answer, Arm, place_of

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Rating: TypeAlias = Literal["up", "down"]
Place: TypeAlias = Literal["page", "call"]
"""Where a conversation began: on the page, or by a call or a command."""
_DOUBTS = {"supported": "", "partial": " (partly supported)", "unsupported": " (not supported)"}
TITLE_CHARACTERS = 80
COMMENT_CHARACTERS = 4000
DELETED_TOGETHER = 1000
MOST_SEARCHED = 20_000
"""Conversations that a search looks through, the newest of those that may be seen."""

_TABLES = MetaData()
_conversations = Table(
    "conversations",
    _TABLES,
    Column("id", Text, primary_key=True),
    Column("title", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    Column("updated_at", Text, nullable=False),
    Column("owner", Text, nullable=False, server_default=""),
    Column("begun_in", Text, nullable=False, server_default=""),
    Index("conversations_by_time", "updated_at", "id", "begun_in"),
    Index("conversations_of", "owner", "updated_at", "id", "begun_in"),
)
_answers = Table(
    "answers",
    _TABLES,
    Column("id", Text, primary_key=True),
    Column("conversation_id", Text, ForeignKey("conversations.id", ondelete="CASCADE"), nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column("created_at", Text, nullable=False),
    Column("body", Text, nullable=False),
    Index("answers_by_conversation", "conversation_id", "ordinal"),
)
_feedback = Table(
    "feedback",
    _TABLES,
    Column("answer_id", Text, ForeignKey("answers.id", ondelete="CASCADE"), primary_key=True),
    Column("rating", Text, nullable=False),
    Column("comment", Text, nullable=False),
    Column("created_at", Text, nullable=False),
)
# A vote keeps the answers it was about, so that it can be read when models and books have changed.
_votes = Table(
    "votes",
    _TABLES,
    Column("number", Integer, primary_key=True),
    Column("at", Text, nullable=False),
    Column("question", Text, nullable=False),
    Column("winner", Text, nullable=False),
    Column("blind", Boolean, nullable=False),
    Column("answers", Text, nullable=False),
)
CONVERSATIONS = Schema("conversations_4", _TABLES)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation without its answers; times are ISO 8601 in UTC.

    Attributes:
        owner: the learner whose it is, None for that of an open key.
    """

    id: str
    title: str
    created_at: str
    updated_at: str
    num_answers: int
    owner: str | None


@dataclass(frozen=True, slots=True)
class Feedback:
    """A reader's verdict on an answer."""

    answer_id: str
    rating: Rating
    comment: str
    created_at: str


@dataclass(frozen=True, slots=True)
class Vote:
    """A choice between answers of several arms to one question.

    Attributes:
        winner: the best arm or variant, or "" when none was better.
        blind: the arms were hidden.
    """

    question: str
    winner: Arm | str
    blind: bool
    answers: tuple[Answer, ...]
    at: str


@dataclass(frozen=True, slots=True)
class Won:
    """How often an arm or variant won, of the votes in which it was shown."""

    name: str
    won: int
    shown: int


@dataclass(frozen=True, slots=True)
class Wins:
    """The table of wins; `undecided` counts the votes in which none was better."""

    votes: int
    undecided: int
    wins: tuple[Won, ...]


class ConversationStore:
    """The conversations and votes of one home. Light to make; the file is created at the first call.

    Args:
        place: a file, or the address of a shared database.
        owner: sees the conversations of this owner only, "" those without one; None sees everyone's, and those it
            creates have no owner.
    """

    def __init__(self, place: Path | str, owner: str | None = None) -> None:
        self._owner = owner
        self._database = store_at(place, CONVERSATIONS)

    def of(self, owner: str | None) -> ConversationStore:
        """This store for one owner, over the same open file; None changes nothing."""
        if owner is None:
            return self
        narrowed = copy(self)
        narrowed._owner = owner
        return narrowed

    def close(self) -> None:
        """Close the file, for stores made by `of` too; the next call opens it again."""
        self._database.close()

    # --- conversations

    def create(self, title: str = "", begun_in: Place = "call") -> Conversation:
        """Start an empty conversation; without a title it takes the first question's words."""
        now = _now()
        conversation = Conversation(uuid.uuid4().hex, clean_title(title), now, now, 0, self._owner or None)
        row = {"id": conversation.id, "title": conversation.title, "created_at": now, "updated_at": now}
        with self._database.writing() as connection:
            connection.execute(insert(_conversations), row | {"owner": self._owner or "", "begun_in": begun_in})
        return conversation

    def get(self, conversation_id: str) -> Conversation:
        """One conversation. Raises NotFound."""
        with self._database.reading() as connection:
            return self._get(connection, conversation_id)

    def list(
        self,
        search: str = "",
        *,
        of_the_page: bool = False,
        limit: int | None = None,
        after: tuple[str, str] | None = None,
    ) -> tuple[Conversation, ...]:
        """The conversations, last used first.

        Args:
            search: only those of the newest `MOST_SEARCHED` whose title or one of whose questions and answers holds it.
            of_the_page: without those begun by a call or a command.
            limit: the most that are given.
            after: `updated_at` and `id` of the one behind which to begin.
        """
        place = (_conversations.c.updated_at, _conversations.c.id)
        wanted = [self._owned]
        if after is not None:
            wanted.append(tuple_(*place) < tuple_(*map(literal, after)))
        if of_the_page:
            wanted.append(_conversations.c.begun_in != "call")
        newest_first = [each.desc() for each in place]
        with self._database.reading() as connection:
            if text := search.strip():
                end = select(*place).where(*wanted).order_by(*newest_first).offset(MOST_SEARCHED).limit(1)
                if (oldest := connection.execute(end).one_or_none()) is not None:
                    wanted.append(tuple_(*place) > tuple_(*map(literal, oldest)))
                said = (json_text(_answers.c.body, name) for name in ("question", "answer"))
                title, *answer = (one.icontains(text, autoescape=True) for one in (_conversations.c.title, *said))
                of_it = _answers.c.conversation_id == _conversations.c.id
                wanted.append(or_(title, exists().where(of_it, or_(*answer))))
            rows = connection.execute(_with_counts().where(*wanted).order_by(*newest_first).limit(limit))
            return tuple(Conversation(*row) for row in rows)

    def rename(self, conversation_id: str, title: str) -> Conversation:
        """Give a conversation another title.

        Raises:
            InvalidInput: the title is empty.
            NotFound: no conversation has this id.
        """
        cleaned = clean_title(title)
        if not cleaned:
            raise InvalidInput("the title is empty", hint="give the conversation a title of at least one letter")
        with self._database.writing() as connection:
            connection.execute(update(_conversations).where(*self._only(conversation_id)).values(title=cleaned))
            return self._get(connection, conversation_id)

    def delete(self, conversation_id: str) -> None:
        """Remove a conversation with its answers and their feedback. Raises NotFound."""
        with self._database.writing() as connection:
            if connection.execute(delete(_conversations).where(*self._only(conversation_id))).rowcount == 0:
                raise _unknown_conversation(conversation_id)

    def delete_all(self, *, of_the_page: bool = False) -> int:
        """Remove every conversation, or those that the page lists; gives how many."""
        listed = _conversations.c.begun_in != "call" if of_the_page else true()
        return self._delete(listed)

    def delete_before(self, moment: datetime) -> int:
        """Remove the conversations that were last used before a moment, with answers and feedback; gives how many."""
        old = _conversations.c.updated_at < moment.astimezone(UTC).isoformat(timespec="microseconds")
        return self._delete(old)

    # --- answers

    def remove_answer(self, answer_id: str) -> None:
        """Remove an answer from its conversation, with its feedback. Raises NotFound."""
        with self._database.writing() as connection:
            self._answer(connection, answer_id)
            connection.execute(delete(_answers).where(_answers.c.id == answer_id))

    def answers(self, conversation_id: str) -> tuple[Answer, ...]:
        """The answers of a conversation, oldest first. Raises NotFound."""
        wanted = select(_answers.c.body).where(_answers.c.conversation_id == conversation_id)
        with self._database.reading() as connection:
            self._get(connection, conversation_id)
            return tuple(map(_stored_answer, connection.scalars(wanted.order_by(_answers.c.ordinal))))

    def answer(self, answer_id: str) -> Answer:
        """One answer. Raises NotFound."""
        with self._database.reading() as connection:
            return self._answer(connection, answer_id)

    def append(self, answer: Answer, *, replaces: str | None = None) -> None:
        """Add a finished answer to its conversation; an untitled conversation takes the question as title.

        Args:
            replaces: an answer of the conversation that goes, with its feedback.

        Raises:
            NotFound: the conversation was deleted meanwhile.
        """
        now = _now()
        conversation = _conversations.c.id == answer.conversation_id
        title = case((_conversations.c.title == "", clean_title(answer.question)), else_=_conversations.c.title)
        last = select(func.max(_answers.c.ordinal)).where(_answers.c.conversation_id == answer.conversation_id)
        row = {"id": answer.id, "conversation_id": answer.conversation_id, "body": answer_to_json(answer)}
        with self._database.writing() as connection:
            touched = connection.execute(update(_conversations).where(conversation).values(updated_at=now, title=title))
            if touched.rowcount == 0:
                raise _unknown_conversation(answer.conversation_id)
            ordinal = connection.scalar(select(func.coalesce(last.scalar_subquery() + 1, 0)))
            connection.execute(insert(_answers), row | {"ordinal": ordinal, "created_at": now})
            if replaces is not None:
                old = _answers.c.conversation_id == answer.conversation_id, _answers.c.id == replaces
                connection.execute(delete(_answers).where(*old))

    # --- feedback

    def give_feedback(self, answer_id: str, rating: str, comment: str = "") -> Feedback:
        """Keep a reader's verdict; a second one replaces the first.

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
        feedback = Feedback(answer_id, "up" if rating == "up" else "down", comment, _now())
        with self._database.writing() as connection:
            self._answer(connection, answer_id)
            connection.execute(delete(_feedback).where(_feedback.c.answer_id == answer_id))
            connection.execute(insert(_feedback), asdict(feedback))
        return feedback

    def ratings(self, conversation_id: str) -> dict[str, Rating]:
        """The verdicts on the answers of one conversation, by answer id."""
        wanted = _of_answers(_feedback.c.answer_id, _feedback.c.rating).where(*self._only(conversation_id))
        with self._database.reading() as connection:
            return {row.answer_id: row.rating for row in connection.execute(wanted)}

    def feedback(self) -> tuple[tuple[Feedback, Answer], ...]:
        """All feedback with the answers it is about, oldest first; for export as evaluation cases."""
        wanted = _of_answers(*_feedback.c, _answers.c.body).where(self._owned).order_by(_feedback.c.created_at)
        with self._database.reading() as connection:
            rows = connection.execute(wanted)
            return tuple((Feedback(*verdict), _stored_answer(body)) for *verdict, body in rows)

    # --- votes

    def vote(self, answers: Sequence[Answer], winner: str, *, blind: bool) -> Vote:
        """Keep a vote between `answers` to one question.

        Raises:
            InvalidInput: fewer than two answers, or a winner that is not one of their names or "".
        """
        arms = [answer.name for answer in answers]
        if len(arms) < 2 or (winner and winner not in arms):
            raise InvalidInput(
                f"the vote is for {winner!r}, which is not among {arms}",
                hint="Vote for one of at least two arms, or none.",
            )
        vote = Vote(answers[0].question, winner, blind, tuple(answers), _now())
        body = json.dumps([answer_to_json(answer) for answer in answers], ensure_ascii=False)
        row = {"at": vote.at, "question": vote.question, "winner": winner, "blind": blind, "answers": body}
        with self._database.writing() as connection:
            connection.execute(insert(_votes), row)
        return vote

    def votes(self) -> tuple[Vote, ...]:
        """Everyone's votes, oldest first."""
        with self._database.reading() as connection:
            rows = connection.execute(select(_votes).order_by(_votes.c.number))
            with stored_values():
                return tuple(
                    Vote(
                        row.question, row.winner, row.blind, tuple(map(_stored_answer, json.loads(row.answers))), row.at
                    )
                    for row in rows
                )

    def wins(self) -> Wins:
        """How often each arm or variant won, of the votes in which it was shown; those that won most come first."""
        votes = self.votes()
        won = Counter(vote.winner for vote in votes)
        shown = Counter(answer.name for vote in votes for answer in vote.answers)
        rows = (Won(name, won[name], count) for name, count in shown.items())
        return Wins(len(votes), won[""], tuple(sorted(rows, key=lambda row: (-row.won / row.shown, row.name))))

    # --- within

    @property
    def _owned(self) -> ColumnElement[bool]:
        return _conversations.c.owner == self._owner if self._owner is not None else true()

    def _delete(self, which: ColumnElement[bool]) -> int:
        """Remove conversations some at a time, so that no other writer waits for all of them; gives how many."""
        some = select(_conversations.c.id).where(self._owned, which).limit(DELETED_TOGETHER)
        gone, deleted = 0, DELETED_TOGETHER
        while deleted == DELETED_TOGETHER:
            with self._database.writing() as connection:
                deleted = connection.execute(delete(_conversations).where(_conversations.c.id.in_(some))).rowcount
            gone += deleted
        return gone

    def _only(self, conversation_id: str) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
        return _conversations.c.id == conversation_id, self._owned

    def _get(self, connection: Connection, conversation_id: str) -> Conversation:
        row = connection.execute(_with_counts().where(*self._only(conversation_id))).one_or_none()
        if row is None:
            raise _unknown_conversation(conversation_id)
        return Conversation(*row)

    def _answer(self, connection: Connection, answer_id: str) -> Answer:
        wanted = select(_answers.c.body).join_from(_answers, _conversations)
        body = connection.scalar(wanted.where(_answers.c.id == answer_id, self._owned))
        if body is None:
            raise NotFound(f"no answer has the id {answer_id!r}", hint="use the `id` of an answer")
        return _stored_answer(body)


def _stored_answer(body: str) -> Answer:
    with stored_values():
        return answer_from_json(body)


def answer_to_json(answer: Answer) -> str:
    """Every field of an answer as one line of JSON: the store's form, not the wire form of `api/schemas`."""
    return _answer_form().dump_json(answer).decode()


def answer_from_json(text: str) -> Answer:
    """The answer that `answer_to_json` wrote; fields unknown to this version are ignored.

    Raises:
        ValueError: not a line that it wrote.
    """
    try:
        return _answer_form().validate_json(text)
    except ValueError as error:
        raise ValueError(f"not a stored answer: {error}") from error


@cache
def _answer_form() -> TypeAdapter[Answer]:
    from pydantic import TypeAdapter

    return TypeAdapter(Answer)


def _with_counts() -> Select[Any]:
    """Conversations as `Conversation` lists its fields."""
    table = _conversations.c
    number = select(func.count()).where(_answers.c.conversation_id == table.id).scalar_subquery()
    return select(table.id, table.title, table.created_at, table.updated_at, number, func.nullif(table.owner, ""))


def _of_answers(*columns: ColumnElement[Any]) -> Select[Any]:
    """Columns of feedback with its answers and their conversations."""
    return select(*columns).join_from(_feedback, _answers).join(_conversations)


def conversation_markdown(title: str, answers: Sequence[Answer]) -> str:
    """A conversation as Markdown: questions as headings, sources as footnotes; what is doubtful says so."""
    blocks = [f"# {title}"] if title else []
    for number, answer in enumerate(answers, 1):
        cited = {citation.marker: citation for citation in reversed(answer.citations)}
        text = answer.answer
        notes = []
        for marker, citation in sorted(cited.items()):
            text = re.sub(rf"\[{marker}\](?!\()", f"[^{number}-{marker}]", text)
            place = place_of(citation.title, citation.section, citation.page_label or citation.page_start)
            quote = f"“{' '.join(citation.quote.split())}”{_DOUBTS[citation.verdict]}"
            notes.append(f"[^{number}-{marker}]: {place}: {quote}")
        doubt = [f"> {answer.note}"] if answer.note else []
        blocks += [f"## {' '.join(answer.question.split())}", *doubt, text, *notes]
    return "\n\n".join(blocks) + "\n"


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
