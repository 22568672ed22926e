"""Wire forms of books and jobs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from pydantic import BeforeValidator, Field

from api.job_store import JobState
from api.schemas.base import WireOut


class DocumentOut(WireOut):
    """A book in the library."""

    id: Annotated[str, Field(validation_alias="document_id")]
    title: str
    source: str
    sample: bool
    format: str
    pages: int | None
    sections: int
    nodes: int
    sha256: str
    added_at: str
    health: Annotated[dict[str, list[int] | list[str]], BeforeValidator(asdict)]


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


class JobOut(WireOut):
    """Work that goes on after the call that started it."""

    id: str
    kind: str
    state: JobState
    done: int
    total: int
    message: str
    error: dict[str, str] | None = None
    document_id: str | None = None
    created_at: str
    updated_at: str
    seconds_left: float | None = None


class JobsOut(WireOut):
    """Every job kept."""

    jobs: list[JobOut]
