"""`coalesce backup` and `restore`: everything of a home in one zip file, as it is at one moment, while a server writes.

The archive begins with the home's files under their own names and ends with `manifest.json`: who wrote it, and size and
SHA-256 of each file. Left out is what can be made or fetched again: the models (unless asked for), the FAISS index,
whose vectors are in the library, and remembered digests; and what belongs to a process: locks, logs, half files.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import IO, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from api.health_checks import RESTORE_PREFIX, STATE_FILES
from api.settings import CoalesceSettings, program_version
from indexes.catalog import CATALOG
from indexes.database import MEND, Schema, copy_together, damage, later_version
from indexes.disk import disk_error, disk_errors
from indexes.errors import Conflict, IndexCorrupt, IndexMissing, InvalidInput, NotFound, StorageFull
from indexes.messages import msg
from indexes.postgres import shown_url

MANIFEST = "manifest.json"
FORMAT = "coalesce-backup"
VERSION = 1
BACKUP_PREFIX = ".backup-"
MOST_MANIFEST_BYTES = 64 * 1024**2
COPY_BYTES = 1024**2
LEFT_OUT = ("models", "locks", "server.json", "digests.json", "vector_store.json", "errors.log")
"""Names in the home that no backup has; of models, see `write_backup`."""
ENDINGS_LEFT_OUT = (".sqlite3", ".sqlite3-wal", ".sqlite3-shm", ".lock", ".faiss", ".part")
"""Databases are copied by SQLite itself."""
BESIDE_A_DATABASE = ("uploads", "questions", "reports", "adapters", "coalesce.toml")
"""What of a home is in no database, and can neither be fetched nor made again."""
STORED = (".pdf", ".epub", ".docx", ".zip", ".png", ".jpg", ".safetensors", ".gguf")
"""Files that are compressed already."""


class FileEntry(BaseModel):
    """A file of an archive."""

    model_config = ConfigDict(frozen=True)

    bytes: int = Field(ge=0)
    sha256: str


class Manifest(BaseModel):
    """What an archive says of itself."""

    model_config = ConfigDict(frozen=True)

    format: str
    version: int
    coalesce: str
    created_at: str
    models: bool
    files: dict[str, FileEntry]


# --- backup


def write_backup(settings: CoalesceSettings, target: Path, *, models: bool = False) -> dict[str, Any]:
    """Writes an archive of the home; gives what is in it. A server may go on writing: it waits for milliseconds.

    Args:
        models: fetched models too.

    Raises:
        IndexMissing: there is no home yet.
        Conflict: the file exists.
        InvalidInput: a database keeps what the home would, or the file would lie in the home and be lost with it.
        IndexCorrupt: a database is damaged; nothing is written.
        StorageFull, HomeNotWritable, Busy: nothing is written.
    """
    home, target = settings.home, target.expanduser().absolute()
    if settings.index.database_url is not None:
        beside = [str(home / name) for name in BESIDE_A_DATABASE if (home / name).exists()]
        beside += [settings.uploads_url] if settings.uploads_url is not None else []
        raise InvalidInput(
            f"a database keeps what this writes of a home: {shown_url(settings.index.database_url)}",
            hint="Run `pg_dump --format=custom --file=FILE ADDRESS`"
            + (f", and copy beside it: {', '.join(beside)}." if beside else "."),
        )
    if not home.is_dir():
        raise IndexMissing(f"There is no home {home} yet.", hint="Name one with --home, or COALESCE_HOME.")
    if target.is_relative_to(home):
        raise InvalidInput(f"{target} lies in the home itself", hint="Name a file outside, best on another disk.")
    if target.exists():
        raise Conflict(f"{target} exists already.", hint="Name another file, or remove it.")
    if not target.parent.is_dir():
        raise InvalidInput(f"there is no folder {target.parent}", hint="Make it, or name another file.")
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with (
            disk_errors(home, kept="nothing was kept"),
            TemporaryDirectory(prefix=BACKUP_PREFIX, dir=home) as linked,
            disk_errors(target, kept="nothing was kept"),
            TemporaryDirectory(prefix=BACKUP_PREFIX, dir=target.parent) as copied,
        ):
            _fix_moment(home, Path(linked), Path(copied), models=models)
            manifest = _pack((Path(copied), Path(linked)), part, models=models)
            part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    files = {"files": len(manifest.files), "bytes": target.stat().st_size}
    return {"file": str(target), "models": models} | files


def _fix_moment(home: Path, linked: Path, copied: Path, *, models: bool) -> None:
    """Copies the databases, and links the other files, as they all are at one moment."""
    databases = sorted(home.glob("*.sqlite3"), key=lambda path: (path.name != "library.sqlite3", path.name))

    # Linked beforehand: while the moment is fixed nobody writes, and a book's files never change under their digest.
    uploads = {folder.name for folder in home.glob("uploads/[!.]*") if _link(home, linked, folder, models=models)}

    def link() -> None:
        _link(home, linked, home, models=models)
        now = {folder.name for folder in home.glob("uploads/[!.]*")}
        for name in now - uploads:
            _link(home, linked, home / "uploads" / name, models=models)
        for name in uploads - now:
            shutil.rmtree(linked / "uploads" / name)

    copy_together(databases, copied, link)
    for path in sorted(copied.glob("*.sqlite3")):
        if found := damage(path):
            raise IndexCorrupt(
                f"{home / path.name} is damaged: {found}; no backup was made.",
                hint=MEND,
            )


def _link(home: Path, linked: Path, below: Path, *, models: bool) -> int:
    """Links the files below a folder of the home, or copies them where links cannot be made; gives how many."""
    count = 0
    for path in _other_files(home, below, models=models):
        into = linked / path.relative_to(home)
        into.parent.mkdir(parents=True, exist_ok=True)
        try:
            into.hardlink_to(path.resolve())  # what is replaced or removed from now on stays as it is
        except OSError:
            with suppress(FileNotFoundError):
                shutil.copyfile(path, into)
        count += 1
    return count


def _other_files(home: Path, below: Path, *, models: bool) -> Iterator[Path]:
    """The files below a folder that are no databases; of the whole home, those that are no uploads."""
    for folder, folders, names in os.walk(below):
        at_top = Path(folder) == home
        left_out = ["uploads", *(name for name in LEFT_OUT if not (models and name == "models"))] if at_top else []
        folders[:] = sorted(name for name in folders if name not in left_out and not name.startswith("."))
        for name in sorted(names):
            if name in left_out or name.startswith(".") or (at_top and name.endswith(ENDINGS_LEFT_OUT)):
                continue
            path = Path(folder) / name
            if path.is_file() and path.name != "vectors.json":
                yield path


def _pack(folders: tuple[Path, ...], part: Path, *, models: bool) -> Manifest:
    found: dict[str, FileEntry] = {}
    descriptor = os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)  # it holds keys, if the settings do
    with os.fdopen(descriptor, "w+b") as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for folder in folders:
                for path in sorted(each for each in folder.rglob("*") if each.is_file()):
                    name = path.relative_to(folder).as_posix()
                    entry = zipfile.ZipInfo(name, datetime.now(UTC).timetuple()[:6])
                    packed = path.suffix.lower() in STORED
                    entry.compress_type = zipfile.ZIP_STORED if packed else zipfile.ZIP_DEFLATED
                    with path.open("rb") as source, archive.open(entry, "w", force_zip64=True) as into:
                        found[name] = _copy(source, into)
            created = datetime.now(UTC).isoformat(timespec="seconds")
            manifest = Manifest(
                format=FORMAT,
                version=VERSION,
                coalesce=program_version(),
                created_at=created,
                models=models,
                files=found,
            )
            archive.writestr(MANIFEST, manifest.model_dump_json(indent=1))
        file.flush()
        os.fsync(file.fileno())
    return manifest


def _copy(source: IO[bytes], into: IO[bytes], most: int | None = None) -> FileEntry:
    """Copies a file, and gives its size and digest; stops when it is larger than `most`."""
    digest, size = hashlib.sha256(), 0
    while (block := source.read(COPY_BYTES)) and (most is None or size <= most):
        digest.update(block)
        size += len(block)
        into.write(block)
    return FileEntry(bytes=size, sha256=digest.hexdigest())


# --- restore


def restore_backup(settings_home: Path, source: Path) -> dict[str, Any]:
    """Unpacks an archive into an empty home, checked whole before anything is in its place.

    Raises:
        NotFound: there is no such file.
        Conflict: the home is not empty.
        InvalidInput: not an archive of ours, damaged or cut off, or of a later version; nothing is changed.
        StorageFull, HomeNotWritable: nothing is changed.
    """
    home, source = settings_home, source.expanduser().absolute()
    if not source.is_file():
        raise NotFound(msg("there is no file {}", source), hint="Name what `coalesce backup` wrote.")
    there = [path.name for path in home.iterdir() if not path.name.startswith(RESTORE_PREFIX)] if home.is_dir() else []
    if there:
        raise Conflict(
            f"the home {home} is not empty: it holds {there[0]}",
            hint="Restore into an empty one: coalesce --home FOLDER restore FILE",
        )
    made = not home.exists()
    try:
        with disk_errors(home, kept="nothing was kept"):
            home.mkdir(parents=True, exist_ok=True)
            for left in home.glob(f"{RESTORE_PREFIX}*"):
                shutil.rmtree(left)  # of a restore that was killed
            with TemporaryDirectory(prefix=RESTORE_PREFIX, dir=home) as folder:
                manifest = _unpack(source, Path(folder), shutil.disk_usage(home).free)
                for path in sorted(Path(folder).iterdir()):
                    path.rename(home / path.name)
    except BaseException:
        if made:
            with suppress(OSError):
                home.rmdir()
        raise
    return {"home": str(home), "files": len(manifest.files), "created_at": manifest.created_at}


def _unpack(source: Path, folder: Path, free_bytes: int) -> Manifest:
    try:
        with zipfile.ZipFile(source) as archive:
            manifest = _manifest(archive, source)
            needed = sum(entry.bytes for entry in manifest.files.values())
            if needed > free_bytes:
                raise StorageFull(
                    f"{source} holds {needed:,} bytes; {free_bytes:,} are free.",
                    hint="Free some space, or name another home.",
                )
            for name, entry in manifest.files.items():
                path = folder / _checked(name, source)
                path.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(name) as packed, open(path, "xb", opener=_for_owner) as into:
                    if _copy(packed, into, entry.bytes) != entry:
                        raise _refused(source, f"is damaged: {name} is not what was saved")
    except (zipfile.BadZipFile, KeyError, EOFError, NotImplementedError, RuntimeError, ValueError, zlib.error) as error:
        raise _refused(source, f"is damaged, cut off or no backup ({error})") from error
    except OSError as error:
        if disk_error(error, folder) is not None:
            raise
        raise _refused(source, f"holds what cannot be a home's file ({error.strerror})") from error
    for path in folder.glob("*.sqlite3"):
        _check_database(path, source)
    return manifest


def _for_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)  # settings may hold keys


def _manifest(archive: zipfile.ZipFile, source: Path) -> Manifest:
    if archive.getinfo(MANIFEST).file_size > MOST_MANIFEST_BYTES:
        raise _refused(source, "has a manifest too large to be true")
    read = json.loads(archive.read(MANIFEST))
    if not isinstance(read, dict) or read.get("format") != FORMAT:
        raise _refused(source, "is another program's")
    if isinstance(read.get("version"), int) and read["version"] > VERSION:
        raise _refused(source, f"was written by a later Coalesce ({read.get('coalesce')})", "Use that, or a newer one.")
    try:
        manifest = Manifest.model_validate(read)
    except ValidationError as error:
        raise _refused(source, "has a damaged manifest") from error
    extra = {entry.filename for entry in archive.infolist()} - set(manifest.files) - {MANIFEST}
    if extra:
        raise _refused(source, f"holds {sorted(extra)[0]!r:.100}, which its manifest does not name")
    return manifest


def _checked(name: str, source: Path) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or path.as_posix() != name or {"..", "."} & set(path.parts) or "\\" in name or "\0" in name:
        raise _refused(source, f"holds the path {name!r:.100}, which leads out of a home")
    return path


def _check_database(path: Path, source: Path) -> None:
    known: dict[str, Schema] = STATE_FILES | {"library.sqlite3": CATALOG}
    if found := damage(path):
        raise _refused(source, f"is damaged: {path.name}: {found}")
    if path.name in known and (later := later_version(path, known[path.name])):
        raise _refused(source, f"was written by a later Coalesce: {path.name} is {later}", "Use that, or a newer one.")


def _refused(source: Path, why: str, hint: str = "Take another copy; nothing was changed.") -> InvalidInput:
    return InvalidInput(f"{source} {why}", hint=hint)
