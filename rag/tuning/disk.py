"""Recognises a full disk behind the several errors that libraries make of it."""

from __future__ import annotations

import errno

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
