"""Wire forms of books."""

from __future__ import annotations

from dataclasses import asdict
from typing import Self

from api.schemas.base import WireOut
from indexes import types as index_types


class DocumentOut(WireOut):
    """A book in the library."""

    id: str
    title: str
    source: str
    sample: bool
    format: str
    pages: int | None
    sections: int
    nodes: int
    sha256: str
    added_at: str
    health: dict[str, list[int] | list[str]]

    @classmethod
    def of(cls, value: index_types.Document) -> Self:
        """From the catalog's document."""
        fields = {name: item for name, item in asdict(value).items() if name not in ("document_id", "health")}
        health = {name: list(items) for name, items in asdict(value.health).items()}
        return cls(id=value.document_id, health=health, **fields)


class DocumentsOut(WireOut):
    """Every book."""

    documents: list[DocumentOut]


class UploadOut(WireOut):
    """An upload that was taken: the job that adds it (null when there is nothing to do) and the book's id."""

    job_id: str | None
    document_id: str


class ChapterOut(WireOut):
    """A chapter: its ordinal from 1, its title, and how many nodes it holds."""

    ordinal: int
    title: str
    nodes: int


class ChaptersOut(WireOut):
    """The chapters of a book, in order."""

    chapters: list[ChapterOut]
