"""Books of many formats read into one shape: `read_book(path) -> Book`."""

from indexes.readers.dispatch import book_files, find_books, read_book, readable_endings

__all__ = ["book_files", "find_books", "read_book", "readable_endings"]
