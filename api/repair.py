"""`coalesce doctor --repair`: makes again what can be made again, sets aside what is damaged, sweeps what is left over.

A damaged file keeps its content under a dated name beside it. Nothing of a user's is deleted but half files, and
uploads whose job failed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from api.backup import BACKUP_PREFIX
from api.chosen_generator import CHOICE_FILE, read_choice
from api.console import counted
from api.health_checks import STATE_FILES, Held, held_by, kept_jobs, lost_uploads
from api.jobs import OWNER_LOCK
from api.services import SAMPLE_MARKER
from api.settings import CoalesceSettings
from api.uploads import LEFT_S, left_over, uploads_of
from indexes.catalog import CATALOG
from indexes.database import damage, later_version, salvage, set_aside
from indexes.errors import CoalesceError, Conflict, InvalidInput
from indexes.integrity import REBUILDING, REBUILT, library_faults, rebuild_library, saved_vectors_fault
from indexes.library import open_library

Tell = Callable[[str], None]


def repair(settings: CoalesceSettings, tell: Tell) -> list[str]:
    """Repairs the home; gives what was done, each in words.

    Raises:
        Conflict: a server uses the home.
    """
    if not settings.home.is_dir():
        return []
    with alone(settings.home):
        if settings.database_url is not None:  # which looks after itself
            return [*_left_over(settings)]
        return [
            *_choice(settings),
            *_state_files(settings),
            *_library(settings, tell),
            *_left_over(settings),
        ]


@contextmanager
def alone(home: Path) -> Iterator[None]:
    """While no server uses a home, and none may begin to. Raises Conflict."""
    lock = FileLock(home / OWNER_LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise Conflict(f"a server uses {home}", hint="Stop it first; files that are open stay as they are.") from None
    try:
        yield
    finally:
        lock.release()


def _choice(settings: CoalesceSettings) -> Iterator[str]:
    try:
        read_choice(settings.choice_place)
    except InvalidInput:
        aside = set_aside(settings.home / CHOICE_FILE)
        yield f"{CHOICE_FILE} was damaged: it is {aside.name} now; choose again what answers"


def _state_files(settings: CoalesceSettings) -> Iterator[str]:
    for name, schema in STATE_FILES.items():
        path = settings.home / name
        if path.exists() and not later_version(path, schema) and damage(path, schema):
            aside = set_aside(path)
            rows = salvage(aside, path, schema)
            yield f"{name} was damaged: it is {aside.name} now; {rows:,} rows of it could be read and are kept"


def _library(settings: CoalesceSettings, tell: Tell) -> Iterator[str]:
    """Makes a damaged or lost library again; books whose files are there without them come back."""
    path = settings.index.catalog_path
    if path.exists() and later_version(path, CATALOG):
        return

    folder = uploads_of(settings)
    lost = [file for sha256 in lost_uploads(settings, held_by(settings) or Held()) if (file := folder.find(sha256))]
    had_one = (settings.home / SAMPLE_MARKER).exists() or (settings.home / REBUILT / path.name).exists()
    gone = not path.exists() and had_one
    if gone or (path.exists() and library_faults(path)):
        rebuilt = rebuild_library(settings.index, folder.file_of, lost, tell=tell)
        aside = f"; the file before is {rebuilt.aside.name}" if rebuilt.aside else ""
        yield f"the library was made again with {counted(len(rebuilt.kept), 'book')}{aside}"
        for title in rebuilt.lost:
            yield f"not to be had again: {title}; add it from its file"
        return
    for upload in lost:
        tell(f"adding {upload.name}")
        with closing(open_library(settings.index)) as library, suppress(CoalesceError):
            yield f"added from its upload: {library.add(upload, source_name=upload.name).document.title}"
    if fault := saved_vectors_fault(settings.index.vectors_path):
        for cached in (settings.index.vectors_path, settings.index.vectors_path.with_suffix(".json")):
            cached.unlink(missing_ok=True)
        yield f"the saved vectors were dropped ({fault}): they are made from the library when it is opened"


def _left_over(settings: CoalesceSettings) -> Iterator[str]:
    held = held_by(settings)
    if held is None:
        return
    folder = uploads_of(settings)
    orphans = folder.orphans(held.documents)
    at_home = settings.database_url is None  # no server runs; others of a database may be at their uploads
    left = left_over(orphans, held.removed, kept_jobs(settings), unfinished=at_home)
    swept = folder.sweep(left, older_than_s=0.0 if at_home else LEFT_S)
    if swept:
        yield f"removed, left by uploads that were interrupted: {', '.join(swept)}"
    ids = {document.document_id for document in held.documents}
    for lock in settings.home.glob("locks/*.lock"):
        if lock.stem not in ids and not lock.stem.startswith("model-"):
            lock.unlink()
    halves = (".*.part", "*/.*.part", "*/.*.parts", f"{BACKUP_PREFIX}*", REBUILDING, REBUILT)
    for half in (path for pattern in halves for path in settings.home.glob(pattern)):
        shutil.rmtree(half) if half.is_dir() else half.unlink()
        yield f"removed, half done: {half.name}"
