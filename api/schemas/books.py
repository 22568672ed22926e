"""Wire forms of books and jobs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from api.jobs import JobState
from api.schemas.base import SOME_LEFT_OUT, ErrorDetail, MessageParts, WireIn, WireOut
from indexes.types import BookHealth, Chapter


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
    health: BookHealth
    questions: Annotated[
        int | None, Field(description="that an exam on it can ask; null where a command lists it without counting")
    ] = None


class DocumentsOut(WireOut):
    """Books of the library."""

    documents: list[DocumentOut]
    next_cursor: str | None = None


class FormatsOut(WireOut):
    """What can be added, by the endings of its files.

    `chapters` are the files that a folder is read from as one book; `missing` are endings whose package is not
    installed, with the command that installs it.
    """

    chapters: list[str]
    books: list[str]
    missing: dict[str, str]


class UrlIn(WireIn):
    """The address of one page to add as a book."""

    url: Annotated[str, Field(min_length=1, max_length=2000)]


class UploadOut(WireOut):
    """An upload that was taken: the job that adds it (null when there is nothing to do) and the book's id."""

    job_id: str | None
    document_id: str


class ChaptersOut(WireOut):
    """The chapters of a book, in order."""

    chapters: list[Chapter]


class HeadingOut(WireOut):
    """A section in a book's contents; its page where the format has pages."""

    section: list[str]
    page_start: int | None
    page_label: str | None


class ContentsPartOut(WireOut):
    """A part of a book: a chapter, or a piece of a long one."""

    number: int
    chapter: int
    title: str
    sections: list[HeadingOut]


class ContentsOut(WireOut):
    """A book's contents."""

    parts: list[ContentsPartOut]


class StretchOut(HeadingOut):
    """A section's text; `begins` is false where a long section goes on."""

    text: str
    begins: bool


class PartOut(WireOut):
    """A part of a book to read, and how many there are."""

    number: int
    chapter: int
    title: str
    sections: list[StretchOut]
    parts: int


class SuggestionOut(WireOut):
    """A question that a section of a book answers."""

    document_id: str
    title: str
    section: list[str]
    question: str


class SuggestionsOut(WireOut):
    """Questions to ask."""

    suggestions: list[SuggestionOut]


class JobOut(WireOut):
    """A piece of work: `done` of `total` steps of what `message` names; `total` is 0 while it is not known."""

    model_config = SOME_LEFT_OUT

    id: str
    kind: str
    state: JobState
    done: int
    total: int
    message: str
    message_parts: MessageParts | None = Field(None, description="left out where the text has no arguments")
    error: ErrorDetail | None = Field(description="of a job that failed")
    document_id: str | None = Field(description="the book that it is about")
    created_at: str
    updated_at: str
    title: str = Field(description="of what it works on; empty where the kind says all")
    seconds_left: float | None = Field(description="of the stage, while it runs and as far as it can be known")


class JobsOut(WireOut):
    """Jobs, the newest first."""

    jobs: list[JobOut]
    next_cursor: str | None = None
