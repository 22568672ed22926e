"""The values that flow through this floor. All are frozen; none knows where it is stored."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from indexes.errors import InvalidInput

PageMarks = tuple[tuple[int, int], ...]
"""Where pages begin in a text: `(char_offset, page)` pairs, ascending, offsets in code points, pages from 1.

The first offset is 0 in a paged text; the tuple is empty in a format without pages.
"""


def page_at(marks: PageMarks, offset: int) -> int | None:
    """The file page (from 1) of the character at `offset`; None in a format without pages."""
    if not marks:
        return None
    index = bisect_right(marks, offset, key=lambda mark: mark[0]) - 1
    return marks[max(index, 0)][1]


def slice_page_marks(marks: PageMarks, start: int, end: int) -> PageMarks:
    """The marks of `text[start:end]`, its first mark moved to offset 0."""
    if not marks:
        return ()
    first = page_at(marks, start)
    inside = tuple((offset - start, page) for offset, page in marks if start < offset < end)
    return ((0, first), *inside) if first is not None else inside


@dataclass(frozen=True, slots=True)
class Section:
    """A stretch of a book under one heading, in reading order.

    Attributes:
        heading_path: headings from the chapter down to this section; the chapter's title comes first.
        text: the section's text without its heading; code is in ``` fences with its indentation.
        chapter: ordinal of the chapter in the book, from 1; 0 before the first chapter.
        page_marks: where pages begin in `text`; empty without pages.
    """

    heading_path: tuple[str, ...]
    text: str
    chapter: int
    page_marks: PageMarks = ()


@dataclass(frozen=True, slots=True)
class BookHealth:
    """What reading a book lost or doubts. Page lists hold file pages, from 1.

    `recognised_pages` are pictures whose text was recognised: letters in it may be wrong, listings lose their columns.
    `turned_pages` have lines that run along the sheet, or are shown so; they were read the right way up.
    """

    pages_without_text: tuple[int, ...] = ()
    pages_with_lost_text: tuple[int, ...] = ()
    turned_pages: tuple[int, ...] = ()
    recognised_pages: tuple[int, ...] = ()
    duplicate_pages: tuple[int, ...] = ()
    suspected_columns: tuple[int, ...] = ()
    broken_listings: tuple[str, ...] = ()
    skipped_files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Book:
    """What a reader makes of a source: a title and sections in reading order.

    Attributes:
        format: `pdf`, `epub`, `docx`, `pptx`, `markdown`, `rst`, `ipynb`, `html`, `text`, `code`, or `folder`.
        pages: number of pages of the file, None for formats without pages.
        page_labels: printed label of each page, index 0 for page 1; empty without pages; None where a page has none.
    """

    title: str
    format: str
    sections: tuple[Section, ...]
    pages: int | None = None
    page_labels: tuple[str | None, ...] = ()
    health: BookHealth = field(default_factory=BookHealth)


@dataclass(frozen=True, slots=True)
class Document:
    """A book in the library, as the catalog knows it.

    Attributes:
        document_id: belongs to the source (path, or content for an upload) and survives edits.
        source: where it came from: a path, or the file name of an upload.
        sample: true for the bundled book.
        pages: number of pages or None; sections, nodes: counts.
        sha256: hex digest of the content.
        added_at: ISO 8601 in UTC.
    """

    document_id: str
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


@dataclass(frozen=True, slots=True)
class Chapter:
    """A chapter of a document: ordinal from 1, its title, and how many nodes it holds."""

    ordinal: int
    title: str
    nodes: int


@dataclass(frozen=True, slots=True)
class StoredNode:
    """A stored stretch of one section.

    Attributes:
        rowid: the node's integer key in the catalog and in FAISS.
        node_id: content-addressed id, the same after re-indexing the same text at the same place.
        ordinal: position in the document, from 0.
        heading_path: headings from the chapter down.
        text: verbatim stretch of the section's text.
        page_marks: where pages begin in `text`.
        page_labels: printed label of each page that `text` touches, in the order of those pages.
    """

    rowid: int
    node_id: str
    document_id: str
    title: str
    ordinal: int
    chapter: int
    heading_path: tuple[str, ...]
    text: str
    page_marks: PageMarks = ()
    page_labels: tuple[str | None, ...] = ()
    num_tokens: int = 0

    @property
    def page_start(self) -> int | None:
        """First file page of the node, from 1."""
        return self.page_marks[0][1] if self.page_marks else None

    @property
    def page_end(self) -> int | None:
        """Last file page of the node, from 1."""
        return self.page_marks[-1][1] if self.page_marks else None


@dataclass(frozen=True, slots=True)
class Hit:
    """A node found for a query; a higher score is better."""

    node: StoredNode
    score: float


@dataclass(frozen=True, slots=True)
class Filters:
    """Restricts a search before ranking. Empty means everything.

    Attributes:
        document_ids: books to look in.
        chapters: 1-based ordinals or exact titles, within each book.
        pages: file pages `(first, last)`, inclusive.
    """

    document_ids: tuple[str, ...] = ()
    chapters: tuple[int | str, ...] = ()
    pages: tuple[int, int] | None = None

    @property
    def empty(self) -> bool:
        """True when nothing is restricted."""
        return not (self.document_ids or self.chapters or self.pages)


@dataclass(frozen=True, slots=True)
class AddProgress:
    """A step of adding a book: `stage` is `reading`, `embedding` or `storing`; `done` of `total` nodes."""

    stage: str
    done: int
    total: int


ProgressListener = Callable[[AddProgress], None]
CancelCheck = Callable[[], bool]
"""Returns True once the work should stop."""
FindFile = Callable[["Document"], Path | None]
"""The file or folder that a book was read from, None where it is not known."""


@dataclass(frozen=True, slots=True)
class AddResult:
    """What adding one book did: `status` is `added`, `updated` or `unchanged`."""

    document: Document
    status: str
    embedded_nodes: int
    seconds: float


def book_id(named: str, books: Iterable[tuple[str, str]]) -> str:
    """The id of a book that is named by its id or title; a name that no book has stays as it is.

    Args:
        books: id and title of each.

    Raises:
        InvalidInput: several books have the title.
    """
    known = dict(books)
    ids = [each for each, title in known.items() if title.casefold() == named.casefold()]
    if named in known or not ids:
        return named
    if len(ids) > 1:
        raise InvalidInput(f"{len(ids)} books are called {named!r:.200}", hint=f"Name one by its id: {', '.join(ids)}")
    return ids[0]
