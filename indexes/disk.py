"""Full disks, files and folders written whole, and the digest of a file.

A full disk is recognized whichever library noticed it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from indexes.errors import CoalesceError, Conflict, HomeNotWritable, InvalidInput, StorageFull

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)
_FULL_MESSAGES = ("No space left on device", "os error 28", "unexpected pos")  # Python, safetensors, torch's zip writer


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error, or the one that caused it, says that the disk is full or a quota is reached."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _FULL:
            return True
        if any(message in str(error) for message in _FULL_MESSAGES):
            return True
        error = error.__cause__ or error.__context__
    return False


def disk_error(error: BaseException, path: Path | str, *, kept: str = "") -> CoalesceError | None:
    """The error of a full disk (`StorageFull`) or a read-only one (`HomeNotWritable`) as ours; None for any other.

    Args:
        path: what was being written.
        kept: what a full disk left intact, as a clause for the message.
    """
    if is_disk_full(error):
        message = f"The disk is full: {path} could not be written" + (f"; {kept}." if kept else ".")
        return StorageFull(message, hint="Free some space and try again.")
    if isinstance(error, OSError) and error.errno in _NOT_WRITABLE:
        return HomeNotWritable(
            f"{path} cannot be written: {error.strerror}.", hint="Make it writable, or name another folder."
        )
    return None


@contextmanager
def disk_errors(path: Path | str, *, kept: str = "") -> Iterator[None]:
    """Raises `disk_error` in place of what the block raises, where there is one."""
    try:
        yield
    except Exception as error:
        ours = None if isinstance(error, CoalesceError) else disk_error(error, path, kept=kept)
        if ours is None:
            raise
        raise ours from error


def make_folder(path: Path) -> None:
    """Makes a folder that the user named, and its parents.

    Raises:
        StorageFull: the disk is full.
        InvalidInput: it cannot be made there.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if is_disk_full(error):
            raise StorageFull(f"The disk is full: {path} could not be made.", hint="Free some space.") from error
        raise InvalidInput(
            f"The folder {path} cannot be made: {error.strerror or error}.",
            hint="Name a folder that can be written, for example with --out.",
        ) from error


@contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """Gives a temporary file to write; it takes the place of `path` at the end and is removed after an error."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Gives a temporary folder to write into; it is renamed to `path` at the end and removed after an error.

    Raises:
        Conflict: `path` exists.
        InvalidInput: it cannot be made.
        StorageFull, HomeNotWritable: the block could not write.
    """
    if path.exists():
        raise Conflict(f"{path} already exists.", hint="Choose another --out, or remove it.")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    shutil.rmtree(part, ignore_errors=True)
    make_folder(part)
    try:
        with disk_errors(path, kept="nothing was kept"):
            yield part
            part.rename(path)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
