"""Uploaded books: kept in the home by content, because a book that is re-indexed or shown by page is read again."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import unicodedata
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import BinaryIO

from indexes.errors import InvalidInput
from indexes.types import Document

COPY_BYTES = 1024 * 1024
MAX_NAME_CHARS = 200
PARTIAL_PREFIX = ".partial-"


@dataclass(frozen=True, slots=True)
class Incoming:
    """A file that has come in whole but has no place yet: where it lies, and its content's SHA-256."""

    path: Path
    sha256: str


class UploadFolder:
    """`uploads/` of the home: one folder a content, named by its digest, with the file under its own name."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "uploads"

    def take_in(self, source: BinaryIO) -> Incoming:
        """Copies a file in; `settle` or `drop` must follow.

        Raises:
            InvalidInput: the file is empty.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        descriptor, name = tempfile.mkstemp(prefix=PARTIAL_PREFIX, dir=self._folder)
        partial = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as target:
                while block := source.read(COPY_BYTES):
                    digest.update(block)
                    target.write(block)
                size = target.tell()
            if not size:
                raise InvalidInput("the file is empty", hint="upload a file with text in it")
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        return Incoming(partial, digest.hexdigest())

    def settle(self, incoming: Incoming, name: str) -> Path:
        """Gives a file its place, and that place back."""
        folder = self._folder / incoming.sha256
        folder.mkdir(exist_ok=True)
        return incoming.path.replace(folder / name)

    def drop(self, incoming: Incoming) -> None:
        """Removes a file that is not wanted after all."""
        incoming.path.unlink(missing_ok=True)

    def forget(self, sha256: str) -> None:
        """Removes what was kept of a content, if anything was."""
        shutil.rmtree(self._folder / sha256, ignore_errors=True)

    def forget_book(self, document: Document) -> None:
        """Removes the file of a book that was uploaded; a book that was added by its path keeps what it is."""
        if upload_id(document.sha256) == document.document_id:
            self.forget(document.sha256)


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
    suffix = Path(shown).suffix[:20]
    return shown if len(shown) <= MAX_NAME_CHARS else shown[: MAX_NAME_CHARS - len(suffix)] + suffix
