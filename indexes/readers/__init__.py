"""Books of many formats read into one shape: `read_book(path) -> Book`."""

from indexes.readers.book import (
    TEXT_FORMATS,
    book_files,
    content_digest,
    document_id_of,
    find_books,
    read_book,
    readable_endings,
)

__all__ = [
    "TEXT_FORMATS",
    "book_files",
    "content_digest",
    "document_id_of",
    "find_books",
    "read_book",
    "readable_endings",
]
