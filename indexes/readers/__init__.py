"""Books of many formats read into one shape: `read_book(path) -> Book`."""

from indexes.readers.book import (
    book_files,
    content_digest,
    document_id_of,
    find_books,
    read_book,
    readable_endings,
)

__all__ = ["book_files", "content_digest", "document_id_of", "find_books", "read_book", "readable_endings"]
