"""Folders that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from indexes.errors import Conflict, StorageFull
from rag.tuning.disk import disk_full, make_folder


@contextmanager
def writing_folder(out: Path) -> Iterator[Path]:
    """A folder beside `out` to write into; it takes the name `out` at the end, and is removed after an error.

    Raises:
        Conflict: `out` exists.
        InvalidInput: it cannot be made.
        StorageFull: the disk filled while writing.
    """
    if out.exists():
        raise Conflict(f"{out} is there already.", hint="Choose another --out, or remove it.")
    target = out.with_name(f".{out.name}.{os.getpid()}.part")
    shutil.rmtree(target, ignore_errors=True)
    make_folder(target)
    try:
        yield target
        target.rename(out)
    except BaseException as error:
        shutil.rmtree(target, ignore_errors=True)
        if disk_full(error):
            raise StorageFull(f"The disk with {out} is full; nothing was kept.", hint="Free some space.") from error
        raise
