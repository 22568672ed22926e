"""SQL over books and their sections as their readers read them; what a book to be written is made of."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from indexes import node_rows
from indexes.chunking import NodeDraft
from indexes.types import Book, BookHealth, Document


@dataclass(frozen=True, slots=True)
class BookIdentity:
    """What a book is called in the catalog and which content it had.

    Attributes:
        chunking: how it was read and cut; a change reads and cuts it anew though its content is the same.
    """

    document_id: str
    source: str
    sample: bool
    sha256: str
    chunking: str


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A book to be written: what it is called, what was read, and the nodes it was cut into."""

    identity: BookIdentity
    book: Book
    drafts: Sequence[NodeDraft]


SELECT_DOCUMENT = (
    "SELECT document_id, title, source, sample, format, pages, sections, nodes, sha256, added_at, health FROM documents"
)


def document_of(row: tuple[object, ...]) -> Document:
    """A row of `SELECT_DOCUMENT` as a value."""
    fields: list[Any] = list(row)
    health = {name: tuple(value) for name, value in json.loads(fields[10]).items()}
    fields[3], fields[10] = bool(fields[3]), BookHealth(**health)
    return Document(*fields)  # the columns stand in the order of the fields


def insert_document(rows: sqlite3.Connection, entry: CatalogEntry, added_at: str) -> None:
    """Writes a book's own row; the range of its nodes is not known yet."""
    identity, book = entry.identity, entry.book
    health = {name: value for name, value in asdict(book.health).items() if value}
    labels = json.dumps(book.page_labels, ensure_ascii=False)
    rows.execute(
        "INSERT INTO documents VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, -1)",
        (
            identity.document_id, book.title, identity.source, identity.sample, book.format, book.pages, labels,
            len(book.sections), len(entry.drafts), identity.sha256, identity.chunking, added_at,
            json.dumps(health, ensure_ascii=False),
        ),
    )  # fmt: skip


def insert_sections(rows: sqlite3.Connection, document_id: str, book: Book) -> None:
    """Writes a book's sections in order."""
    rows.executemany(
        "INSERT INTO sections (document_id, ordinal, chapter, heading_path, text, page_marks) "
        "VALUES (?, ?, ?, ?, ?, ?)",
        (
            (document_id, ordinal, section.chapter, json.dumps(section.heading_path, ensure_ascii=False), section.text,
             node_rows.marks_to_json(section.page_marks))
            for ordinal, section in enumerate(book.sections)
        ),
    )  # fmt: skip
