"""The errors of Coalesce: one tree, whose root and lower branches live on this floor.

    CoalesceError                  what was wrong (with the value), a hint that mends it
    ├── InvalidInput               a value that a caller gave cannot be used                       (400)
    ├── NotFound                   an id that names nothing                                        (404)
    ├── Conflict                   cannot be done in the present state                             (409)
    ├── TooLarge                   larger than a stated limit                                      (413)
    ├── UnsupportedFormat          a file of a kind that no reader reads                           (415)
    ├── UnreadableBook             the right kind of file, but broken, encrypted or without text   (422)
    ├── Busy                       try again after `retry_after_s`                                 (503)
    ├── Cancelled                  stopped on request                                              (409)
    ├── IndexMissing               there is no library at this home yet                            (409)
    ├── IndexCorrupt               a database of the home cannot be read                           (503)
    ├── EmbedderMismatch           the library was embedded by another model                       (409)
    ├── EmbedderCannotLoad         the embedding model is not there or damaged                     (503)
    ├── HomeNotWritable            the home folder cannot be written                               (503)
    ├── StorageFull                the disk is full                                                (503)
    ├── VectorStoreUnavailable     the outside vector engine does not answer                       (503)
    ├── DatabaseUnavailable        the shared database does not answer, or cannot be used          (503)
    └── StorageUnavailable         the shared storage of files does not answer, or cannot be used  (503)

`rag/errors.py` and `evals/errors.py` add the branches of their floors. The numbers are HTTP statuses, set in
`api/errors.py` only and repeated here for the reader.
"""

from __future__ import annotations


class CoalesceError(Exception):
    """Root of the tree.

    Attributes:
        message: what was wrong, with the offending value.
        hint: the command or change that mends it; empty when there is none.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class InvalidInput(CoalesceError):
    """A value that a caller gave cannot be used."""


class NotFound(CoalesceError):
    """An id that names nothing."""


class Conflict(CoalesceError):
    """The request makes sense but not in the present state."""


class TooLarge(CoalesceError):
    """The request is larger than a stated limit."""


class UnsupportedFormat(CoalesceError):
    """No reader reads files of this kind."""


class UnreadableBook(CoalesceError):
    """The file is of a kind that is read, but it is broken, encrypted, or holds no text."""


class Busy(CoalesceError):
    """Cannot be served now; `retry_after_s` says when to come back."""

    def __init__(self, message: str, *, hint: str = "", retry_after_s: float = 5.0) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class Cancelled(CoalesceError):
    """Stopped because somebody asked for it."""


class IndexMissing(CoalesceError):
    """There is no library at this home yet."""


class IndexCorrupt(CoalesceError):
    """A database of the home cannot be read: damaged, another program's, or of a later version."""


class EmbedderMismatch(CoalesceError):
    """The library was embedded by another model than the one configured."""


class EmbedderCannotLoad(CoalesceError):
    """The embedding model is not on disk, or is damaged."""


class HomeNotWritable(CoalesceError):
    """The home folder cannot be created or written."""


class StorageFull(CoalesceError):
    """The disk is full; nothing of the operation was kept."""


class VectorStoreUnavailable(CoalesceError):
    """The outside engine that holds the vectors does not answer, or failed."""


class DatabaseUnavailable(CoalesceError):
    """The shared database does not answer, or cannot be used as it is."""


class StorageUnavailable(CoalesceError):
    """The shared storage of files does not answer, or cannot be used as it is."""


def first_line(error: BaseException) -> str:
    """The first line of an error's text, for messages of one sentence."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
