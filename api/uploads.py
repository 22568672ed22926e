"""Uploaded books: kept in the home by content, because a book that is re-indexed or shown by page is read again."""

from __future__ import annotations

import hashlib
import os
import tempfile
import unicodedata
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import BinaryIO

from indexes.errors import InvalidInput
from indexes.types import Document

COPY_BYTES = 1024 * 1024
MAX_NAME_CHARS = 200


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that was taken in: where it lies now, the name it came with, and its content's SHA-256."""

    path: Path
    name: str
    sha256: str


class UploadFolder:
    """`uploads/` of the home: one file a content, named by its digest and its own ending."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "uploads"

    def keep(self, source: BinaryIO, name: str) -> Upload:
        """Copies a file in; the same content comes to the same place.

        Raises:
            InvalidInput: the name is none, or the file is empty.
        """
        name = file_name(name)
        self._folder.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        descriptor, partial = tempfile.mkstemp(prefix=".partial-", dir=self._folder)
        try:
            with os.fdopen(descriptor, "wb") as target:
                while block := source.read(COPY_BYTES):
                    digest.update(block)
                    target.write(block)
                size = target.tell()
            if not size:
                raise InvalidInput(f"{name!r} is empty", hint="upload a file with text in it")
            path = self._folder / f"{digest.hexdigest()}{Path(name).suffix.casefold()}"
            Path(partial).replace(path)
        finally:
            Path(partial).unlink(missing_ok=True)
        return Upload(path, name, digest.hexdigest())

    def forget(self, document: Document) -> None:
        """Removes the file of a book that was uploaded; leaves books that were added by path alone."""
        if upload_id(document.sha256) == document.document_id:
            for path in self._folder.glob(f"{document.sha256}*"):
                path.unlink(missing_ok=True)


def upload_id(sha256: str) -> str:
    """The id of an uploaded book with this content."""
    from indexes.sources import document_id_of

    return document_id_of(sha256)


def file_name(given: str) -> str:
    """The bare name of an uploaded file, without any folder and fit to be shown.

    Raises:
        InvalidInput: nothing is left of it.
    """
    bare = PureWindowsPath(PurePosixPath(given).name).name
    shown = "".join(character for character in bare if unicodedata.category(character)[0] != "C").strip()
    if not shown or shown in (".", ".."):
        raise InvalidInput(
            f"the file's name {given!r} is none", hint="send a file name with an ending, such as book.pdf"
        )
    stem, suffix = shown[: MAX_NAME_CHARS - 20], Path(shown).suffix[:20]
    return shown if len(shown) <= MAX_NAME_CHARS else stem + suffix
