"""The database of made questions: those of each book, for as long as the book has the content they were made from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from sqlalchemy import Column, Index, Integer, MetaData, Table, Text, delete, func, insert, select

from evals.questions import BankQuestion, load_bank, parse_question
from indexes.database import Database, JsonText, Schema, stored_values
from indexes.errors import Conflict
from indexes.messages import msg
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


def is_for_tuning(question: BankQuestion) -> bool:
    """Whether adapters may learn a question: the bank's of one split, and made ones of half of a book's sections."""
    if not question.id.startswith("made-"):
        return question.split == "tune"
    return hashlib.sha256(f"{question.book}{question.cluster}".encode()).digest()[0] % 2 == 0


class MadeQuestions:
    """The questions made from each book. Light to make; threads may share it."""

    def __init__(self, path: Path) -> None:
        self._database = Database(path, QUESTIONS)

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        self._database.close()

    def keep(self, document: Document, questions: Sequence[BankQuestion]) -> None:
        """Keep the questions of a book in place of those made before."""
        rows = [
            {"document_id": document.document_id, "sha256": document.sha256, "question": asdict(question)}
            for question in questions
        ]
        with self._database.writing() as connection:
            connection.execute(delete(_made).where(_made.c.document_id == document.document_id))
            if rows:
                connection.execute(insert(_made), rows)

    def of(self, document: Document) -> tuple[BankQuestion, ...]:
        """The questions of a book in reading order; none where it changed since they were made."""
        own = (_made.c.document_id == document.document_id, _made.c.sha256 == document.sha256)
        with self._database.reading() as connection:
            rows = connection.execute(select(_made.c.question).where(*own).order_by(_made.c.number))
            with stored_values():
                return tuple(parse_question(row.question, where="made") for row in rows)

    def counts(self) -> dict[tuple[str, str], int]:
        """How many questions there are, by the id and the content's digest of their book."""
        wanted = select(_made.c.document_id, _made.c.sha256, func.count()).group_by(_made.c.document_id, _made.c.sha256)
        with self._database.reading() as connection:
            return {(document_id, sha256): number for document_id, sha256, number in connection.execute(wanted)}

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
