"""The SQLite file under the catalog: connections, transactions, schema version, and SQLite's errors as ours."""

from __future__ import annotations

import errno
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from indexes.errors import Busy, CoalesceError, Conflict, HomeNotWritable, IndexCorrupt, IndexMissing, StorageFull
from indexes.migrations import MIGRATIONS, SCHEMA_VERSION

BUSY_TIMEOUT_S = 60.0
"""How long a writer waits for another process's transaction; a book's takes seconds."""
APPLICATION_ID = 0x436F616C
"""`Coal` in ASCII, in the file's header: tells a catalog from any other SQLite file."""


class Database:
    """One SQLite file in WAL mode. Any thread may read or write; readers never wait for a writer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._idle: list[sqlite3.Connection] = []
        self._guard = threading.Lock()
        self._write_lock = threading.Lock()
        self._closed = False

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection inside one read transaction: everything read in it belongs to one moment."""
        with self._connection() as connection, translated(self.path):
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                with suppress(sqlite3.Error):
                    connection.rollback()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A connection inside one write transaction, committed at the end and undone on any exception."""
        with self._write_lock, self._connection() as connection, translated(self.path):
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.commit()
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.rollback()
                raise

    def close(self) -> None:
        """Close idle connections; those in use close when they are given back."""
        with self._guard:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with self._guard:
            if self._closed:
                raise Conflict("The library is closed.")
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            connection = connect(self.path)
        try:
            yield connection
        finally:
            with self._guard:
                keep = not self._closed
                if keep:
                    self._idle.append(connection)
            if not keep:
                connection.close()


def open_database(path: Path, *, create: bool) -> Database:
    """Open the catalog's file, make it when `create`, and bring its schema up to date.

    Raises:
        IndexMissing: it is not there, and `create` is false.
        IndexCorrupt: it is no catalog, damaged, or of a later version.
        HomeNotWritable: the home cannot be made or written.
    """
    if not path.exists():
        if not create:
            raise IndexMissing(f"There is no library in '{path.parent}' yet.", hint="coalesce add PATH")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise HomeNotWritable(
                f"The home folder '{path.parent}' cannot be made: {error.strerror}.", hint="set COALESCE_HOME"
            ) from error
    connection = connect(path)
    try:
        with translated(path):
            _migrate(connection, path)
    finally:
        connection.close()
    return Database(path)


def connect(path: Path) -> sqlite3.Connection:
    """A connection with this project's settings; transactions are begun by hand."""
    with translated(path):
        connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA cache_size = -32000")
        connection.execute("PRAGMA mmap_size = 1073741824")
        return connection


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version == SCHEMA_VERSION:
        return
    if version > SCHEMA_VERSION:
        raise IndexCorrupt(
            f"The library '{path}' has schema version {version}; this program knows up to {SCHEMA_VERSION}.",
            hint="use the newer program that made it",
        )
    if version == 0 and connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        owner = int(connection.execute("PRAGMA application_id").fetchone()[0])
        if owner != APPLICATION_ID:
            raise IndexCorrupt(
                f"'{path}' is a database of another program.", hint="set COALESCE_HOME to another folder"
            )
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have done it while this one waited for the lock.
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        for number in range(version, SCHEMA_VERSION):
            for statement in _statements(MIGRATIONS[number]):
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.commit()
    except BaseException:
        with suppress(sqlite3.Error):
            connection.rollback()
        raise


def _statements(script: str) -> Iterator[str]:
    """A script's statements one by one: `executescript` would commit before it begins."""
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """SQLite's and the operating system's errors as ours."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        ours = _ours(error, path)
        if ours is None:
            raise
        raise ours from error


def _ours(error: sqlite3.Error | OSError, path: Path) -> CoalesceError | None:
    if isinstance(error, OSError):
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return StorageFull(f"The disk that holds '{path.parent}' is full.", hint="free some space and try again")
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return HomeNotWritable(f"'{error.filename or path}' cannot be written.", hint="set COALESCE_HOME")
        return None
    code = (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return StorageFull(f"The disk that holds '{path.parent}' is full.", hint="free some space and try again")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Busy("Another process is writing to the library.", hint="try again in a moment")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return HomeNotWritable(f"The library '{path}' cannot be opened for writing.", hint="set COALESCE_HOME")
    if code == sqlite3.SQLITE_IOERR:
        full = _disk_is_full(path.parent)
        return (
            StorageFull(f"The disk that holds '{path.parent}' is full.", hint="free some space and try again")
            if full
            else IndexCorrupt(f"The library '{path}' cannot be read: {error}.", hint="coalesce doctor")
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return IndexCorrupt(
            f"The library '{path}' is damaged: {error}.",
            hint="restore a copy, or move the file away and add the books again",
        )
    return None


def _disk_is_full(folder: Path) -> bool:
    import shutil

    with suppress(OSError):
        return shutil.disk_usage(folder).free < 1_000_000
    return False
