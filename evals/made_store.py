"""The database of made questions: those of each book, for as long as the book has the content they were made from.

What a person has accepted, edited or added stays whatever the book's content becomes; what was dropped stays away.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from sqlalchemy import Column, Connection, Index, Integer, MetaData, Table, Text, delete, func, insert, select, update

from evals.questions import FACT_WORDS, BankQuestion, load_bank, parse_question
from indexes.database import JsonText, Schema, json_text, stored_values
from indexes.errors import Conflict, NotFound
from indexes.messages import msg
from indexes.postgres import store_at
from indexes.types import Document

_TABLES = MetaData()
_made = Table(
    "made_questions",
    _TABLES,
    Column("number", Integer, primary_key=True),
    Column("document_id", Text, nullable=False),
    Column("sha256", Text, nullable=False),  # of the book's content: another content has other questions
    Column("question", JsonText, nullable=False),
    Index("made_of", "document_id", "number"),
)
QUESTIONS = Schema("questions_1", _TABLES)
_question_id = json_text(_made.c.question, "id")
_ACCEPTED, _DROPPED = "accepted", "dropped"
"""In place of the content's digest: a question that stays with any content, and one that does not come back."""


def is_for_tuning(question: BankQuestion) -> bool:
    """Whether adapters may learn a question: the bank's of one split, and made ones of half of a book's sections."""
    if not question.id.startswith("made-"):
        return question.split == "tune"
    return hashlib.sha256(f"{question.book}{question.cluster}".encode()).digest()[0] % 2 == 0


class MadeQuestions:
    """The questions made from each book, in a file or the shared database with an address. Light to make; threads may
    share it."""

    def __init__(self, place: Path | str) -> None:
        self._database = store_at(place, QUESTIONS)

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        self._database.close()

    def keep(self, document: Document, questions: Sequence[BankQuestion]) -> None:
        """Keep the questions of a book in place of those made before, beside those that were accepted."""
        own = _made.c.document_id == document.document_id
        by_hand = (_ACCEPTED, _DROPPED)
        with self._database.writing() as connection:
            connection.execute(delete(_made).where(own, _made.c.sha256.not_in(by_hand)))
            known = [row.question for row in connection.execute(select(_made.c.question).where(own))]
            ids = {question["id"] for question in known}
            quotes = {gold["evidence"] for question in known for gold in question["gold"]}
            new = [q for q in questions if q.id not in ids and not quotes & {gold.evidence for gold in q.gold}]
            _insert(connection, document.document_id, document.sha256, new)

    def add(self, document: Document, questions: Sequence[BankQuestion]) -> None:
        """Keep questions that a person wrote or changed elsewhere, in place of those with the same ids."""
        ours = [replace(one, id=_own_id(document, one), book=document.document_id, accepted=True) for one in questions]
        ids = {one.id for one in ours}
        known = select(_made.c.number, _question_id).where(_made.c.document_id == document.document_id)
        with self._database.writing() as connection:
            for number, known_id in connection.execute(known).all():
                if known_id in ids:
                    connection.execute(delete(_made).where(_made.c.number == number))
            _insert(connection, document.document_id, _ACCEPTED, ours)

    def one(self, question_id: str) -> BankQuestion:
        """A question by its id. Raises NotFound."""
        with self._database.reading() as connection:
            _, found = self._by_id(connection, question_id)
            with stored_values():
                return parse_question(found, where="made")

    def change(self, question_id: str, change: Mapping[str, Any]) -> BankQuestion:
        """Changes fields of a question, and accepts it. Another answer takes the right option's place, and the facts'.

        Raises:
            NotFound: no book has a made question with this id.
            MalformedQuestions: the question would break the schema.
        """
        with self._database.writing() as connection:
            number, question = self._by_id(connection, question_id)
            record = {**question, **_consistent(question, change), "accepted": True}
            changed = parse_question(record, where=question_id)
            row = {"question": asdict(changed), "sha256": _ACCEPTED}
            connection.execute(update(_made).where(_made.c.number == number).values(row))
        return changed

    def drop(self, question_id: str) -> None:
        """Removes a question; making some again does not bring it back. Raises NotFound."""
        with self._database.writing() as connection:
            number, _ = self._by_id(connection, question_id)
            connection.execute(update(_made).where(_made.c.number == number).values(sha256=_DROPPED))

    def of(self, document: Document) -> tuple[BankQuestion, ...]:
        """The questions of a book: those that were accepted, then the best; none of other contents than its own."""
        own = (_made.c.document_id == document.document_id, _made.c.sha256.in_((document.sha256, _ACCEPTED)))
        with self._database.reading() as connection:
            rows = connection.execute(
                select(_made.c.question).where(*own).order_by(_made.c.sha256 != _ACCEPTED, _made.c.number)
            )
            with stored_values():
                return tuple(parse_question(row.question, where="made") for row in rows)

    def counts(self, documents: Sequence[Document]) -> dict[str, int]:
        """How many questions each of some books has, by its id; books without any are left out."""
        wanted = select(_made.c.document_id, _made.c.sha256, func.count()).group_by(_made.c.document_id, _made.c.sha256)
        content = {document.document_id: document.sha256 for document in documents}
        found: Counter[str] = Counter()
        with self._database.reading() as connection:
            for document_id, sha256, number in connection.execute(wanted):
                if sha256 in (content.get(document_id), _ACCEPTED) and document_id in content:
                    found[document_id] += number
        return dict(found)

    def forget(self, document_id: str) -> None:
        """Remove the questions of a book."""
        with self._database.writing() as connection:
            connection.execute(delete(_made).where(_made.c.document_id == document_id))

    def about(self, documents: Sequence[Document]) -> tuple[BankQuestion, ...]:
        """The questions that an exam on these books draws from: the bank's on the bundled book, else the made ones.

        Raises:
            Conflict: none were made from one of them yet.
        """
        found: list[BankQuestion] = []
        for document in documents:
            own = load_bank() if document.sample else self.of(document)
            if not own:
                raise Conflict(
                    msg("no questions have been made from '{}'", document.title),
                    hint=msg(
                        "POST /v1/documents/{}/questions, or coalesce quiz --book {}",
                        document.document_id,
                        document.document_id,
                    ),
                )
            found.extend(own)
        return tuple(found)

    def _by_id(self, connection: Connection, question_id: str) -> tuple[int, dict[str, Any]]:
        wanted = select(_made.c.number, _made.c.question).where(_question_id == question_id, _made.c.sha256 != _DROPPED)
        if (row := connection.execute(wanted).first()) is not None:
            return row.number, row.question
        raise NotFound(
            msg("no question made from a book has the id {}", repr(question_id)[:80]),
            hint="list them with `coalesce questions list BOOK` or GET /v1/questions?document_id=ID",
        )


def _consistent(question: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """A change with what follows from it: a choice's answer is its right option."""
    new = dict(change)
    if "answer" in new and "key_facts" not in new:
        new["key_facts"] = [new["answer"]] if len(new["answer"].split()) <= FACT_WORDS else []
    if question["choices"]:
        choices = list(new.get("choices", question["choices"]))
        index = new.get("answer_index", question["answer_index"])
        if new.get("answer") in choices:
            index = choices.index(new["answer"])
        elif "answer" in new:
            choices[index] = new["answer"]
        new |= {"choices": choices, "answer_index": index, "answer": choices[index]}
    return new


def _insert(connection: Connection, document_id: str, sha256: str, questions: Sequence[BankQuestion]) -> None:
    rows = [{"document_id": document_id, "sha256": sha256, "question": asdict(question)} for question in questions]
    if rows:
        connection.execute(insert(_made), rows)


def _own_id(document: Document, question: BankQuestion) -> str:
    """The id of a question that was made, else one by its text: a file numbers its questions by their lines."""
    if question.id.startswith("made-"):
        return question.id
    return made_id(document.document_id, question.question)


def made_id(document_id: str, question: str) -> str:
    """The id of a question about a book, by its text."""
    digest = hashlib.sha256(f"{document_id}\n{question}".encode()).hexdigest()
    return f"made-{digest[:16]}"
