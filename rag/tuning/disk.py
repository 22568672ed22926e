"""Folders that users name for results, and a full disk behind the several errors that libraries make of it."""

from __future__ import annotations

import errno
from pathlib import Path

from indexes.errors import InvalidInput

_SIGNS = ("No space left on device", "os error 28", "unexpected pos")  # Python, safetensors, torch's zip writer


def disk_full(error: BaseException | None) -> bool:
    """True when an error, or what caused it, says that the disk is full or a quota is reached."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if any(sign in str(error) for sign in _SIGNS):
            return True
        error = error.__cause__ or error.__context__
    return False


def make_folder(path: Path) -> None:
    """Makes a folder and those above it.

    Raises:
        InvalidInput: it cannot be made there. A full disk stays an `OSError`.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if disk_full(error):
            raise
        raise InvalidInput(
            f"The folder {path} cannot be made: {error.strerror or error}.",
            hint="Name a folder that can be written with --out.",
        ) from error
