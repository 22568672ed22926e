"""Which book a path is, and whether its content changed. Reads bytes, understands none."""

from __future__ import annotations

import hashlib
from pathlib import Path

from indexes.errors import Cancelled, UnreadableBook
from indexes.readers import book_files
from indexes.text_encoder import CancelCheck


def document_id_of(source: str) -> str:
    """A document's id: made of its resolved path, or of an upload's content digest."""
    return hashlib.sha256(source.encode("utf-8", errors="surrogateescape")).hexdigest()[:16]


def content_digest(path: Path, cancelled: CancelCheck | None = None) -> str:
    """SHA-256 of a file, or of a folder's book files and their names.

    Raises:
        UnreadableBook: not there, or not permitted.
        Cancelled: `cancelled` said so.
    """
    try:
        if not path.is_dir():
            return _file_digest(path)
        whole = hashlib.sha256()
        for file in book_files(path):
            if cancelled is not None and cancelled():
                raise Cancelled(f"Adding '{path.name}' was cancelled.")
            name = file.relative_to(path).as_posix()
            whole.update(f"{name}\0{_file_digest(file)}\n".encode("utf-8", errors="surrogateescape"))
        return whole.hexdigest()
    except OSError as error:
        raise UnreadableBook(
            f"'{error.filename or path}' cannot be read: {error.strerror}.", hint="check the path and its permissions"
        ) from error


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
