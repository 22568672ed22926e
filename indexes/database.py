"""SQLite files through SQLAlchemy: engines, transactions, schema versions, and SQLite's errors as ours.

Every store of the home (catalog, study, conversations, jobs) is a `Schema` in a `Database` of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import sqlalchemy as sa
from filelock import FileLock
from pydantic_core import from_json
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateTable
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from indexes.disk import disk_error, disk_errors
from indexes.errors import (
    Busy,
    CoalesceError,
    HomeNotWritable,
    IndexCorrupt,
    InvalidInput,
    StorageFull,
    TooLarge,
    first_line,
)
from indexes.messages import msg

BUSY_TIMEOUT_S = 5.0
"""How long a writer waits for another process's transaction on a small file of state."""
LONG_TIMEOUT_S = 60.0
"""How long a copy of a whole file waits for one; a book's takes seconds."""
IDLE_CONNECTIONS = 16
"""Connections that a database keeps open; more are opened when more threads use it at once."""
APPLICATION_ID = 0x436F616C
"""`Coal` in ASCII, in the file's header, for `file` and the like."""
USER_VERSION = 2
"""Version 0.1 wrote 1 and kept its schema version here; it refuses a library with a higher number."""
MOST_MISSED = 2_000
"""So many rows in a row that cannot be read are taken for the end of a damaged table."""
MIGRATIONS = Path(__file__).with_name("migrations")
MEND = "Stop the server, then run `coalesce doctor --repair`."
_BESIDE = ("-wal", "-shm")
"""What SQLite adds to a file's name for its log and the log's index."""

_VERSIONS = sa.Table("alembic_version", sa.MetaData(), sa.Column("version_num", sa.String(32), primary_key=True))
_WAIT_S = "coalesce_wait_s"
"""An option of transactions that write: how long one waits for others'."""
_DIALECT = DefaultDialect()
"""Types of columns take one, and ours ask it nothing."""
_MIGRATING = threading.Lock()  # what migrations call, `alembic.op`, is one for the process


class IsoTime(sa.TypeDecorator[datetime]):
    """A time in UTC, stored as ISO 8601 text, whose order is that of the times."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: datetime | None, _dialect: sa.Dialect) -> str | None:
        """The text to store."""
        return value.isoformat() if value is not None else None

    def process_result_value(self, value: str | None, _dialect: sa.Dialect) -> datetime | None:
        """The time that was stored."""
        with stored_values():
            return datetime.fromisoformat(value) if value is not None else None


class JsonText(sa.TypeDecorator[Any]):
    """A list or dictionary stored as JSON text; tuples come back as lists."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Any, _dialect: sa.Dialect) -> str | None:
        """The text to store."""
        return json.dumps(value, ensure_ascii=False) if value is not None else None

    def process_result_value(self, value: str | None, _dialect: sa.Dialect) -> Any:
        """The value that was stored."""
        with stored_values():
            return from_json(value) if value is not None else None  # in half the time of json.loads


class json_text(FunctionElement[str]):  # noqa: N801  called as SQL functions are
    """The text of a name in a JSON object that a column holds as text."""

    type = sa.Text()
    inherit_cache = True


@compiles(json_text)
def _extracted(element: json_text, compiler: SQLCompiler, **options: Any) -> str:
    body, name = element.clauses
    return f"json_extract({compiler.process(body, **options)}, '$.' || {compiler.process(name, **options)})"


@compiles(json_text, "postgresql")
def _extracted_there(element: json_text, compiler: SQLCompiler, **options: Any) -> str:
    body, name = (compiler.process(each, **options) for each in element.clauses)
    # Its JSON has no zero characters; one that is spelt out behind a backslash stays.
    whole = rf"regexp_replace({body}, '(?<!\\)((?:\\\\)*)\\u0000', '\\1', 'g')"
    return f"(CAST({whole} AS json) ->> CAST({name} AS text))"


@dataclass(frozen=True, slots=True)
class Schema:
    """The tables of one store.

    Attributes:
        version: the store's newest revision in `indexes/migrations`, `NAME_NUMBER`. Several stores may share a
            database: each has its own row of `alembic_version`, known by `NAME`.
    """

    version: str
    tables: sa.MetaData

    @property
    def prefix(self) -> str:
        """What all revisions of this store begin with."""
        return self.version.rpartition("_")[0] + "_"


class Store(Protocol):
    """The tables of one store, in a file (`Database`) or in a database on a server (`indexes.postgres`)."""

    def open(self) -> None:
        """Get ready, and make or renew the tables."""

    def reading(self) -> AbstractContextManager[sa.Connection]:
        """A connection inside one read transaction: everything read in it belongs to one moment."""

    def writing(self, *, wait_s: float | None = None) -> AbstractContextManager[sa.Connection]:
        """A connection inside one write transaction, committed at the end and undone on any exception."""

    def lock(self, name: str) -> Lock:
        """What one process after another may hold, by name, for longer than a transaction."""

    def close(self) -> None:
        """Close idle connections; the next transaction opens the store again."""


class Lock(Protocol):
    """Held by one process at a time; gone with the process."""

    def acquire(self, timeout: float) -> object:
        """Take it, after at most `timeout` seconds. Raises filelock.Timeout."""

    def release(self) -> None:
        """Let it go."""


class Database:
    """One store's file. Any thread may read or write; readers never wait for a writer.

    Light to make: the first transaction, or `open()`, creates the file or brings its tables up to date.

    Args:
        busy_timeout_s: how long a writer waits for another process's transaction.
    """

    def __init__(self, path: Path, schema: Schema, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        self.path = path
        self._schema = schema
        self._busy_timeout_s = busy_timeout_s
        self._engine = _engine(path, busy_timeout_s)
        self._write_lock = threading.Lock()
        self._found_busy_at = 0.0
        self._is_open = False

    def open(self) -> None:
        """Create the file or bring its tables up to date, unless that is done. What cannot be written is only read, and
        what cannot be made is read as empty.

        Raises:
            IndexCorrupt: the file is damaged, another program's, or of a later version.
            HomeNotWritable: the file or its folder cannot be made or written.
            StorageFull, Busy.
        """
        with self._write_lock:
            if not self._is_open:
                _make_folder(self.path.parent)
                if not (self.path.exists() or os.access(self.path.parent, os.W_OK)):
                    self._engine = _empty(self._schema)
                    self._is_open = True
                    return
                if _cannot_be_written(self.path):
                    self._engine = _engine(self.path, self._busy_timeout_s, only_reading=True)
                with sqlite_errors(self.path):
                    self._prepare()
                self._is_open = True

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A connection inside one read transaction: everything read in it belongs to one moment. Raises as `open`."""
        if not self._is_open:
            self.open()
        with sqlite_errors(self.path), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self, *, wait_s: float | None = None) -> Iterator[sa.Connection]:
        """A connection inside one write transaction, committed at the end and undone on any exception.

        Args:
            wait_s: how long to wait for others' transactions, where not as long as this file's usually.

        Raises:
            StorageFull: the disk is full; nothing is kept.
            Busy: another transaction goes on.
            IndexCorrupt, HomeNotWritable: as `open`.
        """
        if not self._is_open:
            self.open()
        began = time.monotonic()
        if not self._write_lock.acquire(timeout=-1 if wait_s is None else wait_s):
            raise Busy(msg("'{}' is being written to.", self.path), hint="try again in a moment")
        try:
            if self._found_busy_at > began:  # who came before waited in vain meanwhile: not once more, each in turn
                raise Busy(msg("Another process is writing to '{}'.", self.path), hint="try again in a moment")
            with ExitStack() as transaction:
                try:
                    transaction.enter_context(sqlite_errors(self.path))
                    connection = transaction.enter_context(self._writer(wait_s).begin())
                except (DBAPIError, sqlite3.Error) as error:
                    if isinstance(_ours(error, self.path), Busy):
                        self._found_busy_at = time.monotonic()
                    raise
                yield connection
        finally:
            self._write_lock.release()

    def lock(self, name: str) -> Lock:
        """As `Store.lock`: a file below the home. Raises HomeNotWritable, StorageFull."""
        path = lock_path(self.path.parent, name)
        with disk_errors(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(path)

    def close(self) -> None:
        """Close idle connections; the next transaction opens the file again."""
        self._engine.dispose()
        self._is_open = False

    def _writer(self, wait_s: float | None = None) -> sa.Engine:
        return self._engine.execution_options(**{_WAIT_S: self._busy_timeout_s if wait_s is None else wait_s})

    def _prepare(self) -> None:
        with self._engine.begin() as connection:
            if stored_version(connection, self._schema) == self._schema.version:
                return
        with self._writer().begin() as connection:
            # Looked up again: another process may have done it while this one waited for the lock.
            stored = stored_version(connection, self._schema)
            if stored == self._schema.version:
                return
            if stored is None and is_anothers(connection, self._schema):
                raise IndexCorrupt(
                    f"'{self.path}' is a database of another program.", hint="set COALESCE_HOME to another folder"
                )
            bring_up_to_date(connection, self._schema, stored, str(self.path))
            connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.exec_driver_sql(f"PRAGMA user_version = {USER_VERSION}")


def lock_path(home: Path, name: str) -> Path:
    """The file of a lock in a home."""
    return home / "locks" / f"{name}.lock"


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(error, folder) or HomeNotWritable(
            f"The folder '{folder}' cannot be made: {error.strerror}.",
            hint="Make its folder writable, or set COALESCE_HOME to another.",
        ) from error


# --- connections


def _engine(path: Path, busy_timeout_s: float, *, only_reading: bool = False) -> sa.Engine:
    """An engine whose transactions `_begin` begins: Python's sqlite3 begins later, and never for reading."""
    url = sa.URL.create("sqlite", database=str(path))
    if only_reading:
        still = {"immutable": "1"} if _is_still(path) else {}
        url = sa.URL.create("sqlite", database=f"file:{quote(str(path))}", query={"mode": "ro", "uri": "true"} | still)
    engine = sa.create_engine(
        url,
        connect_args={"timeout": busy_timeout_s, "check_same_thread": False},
        pool_size=IDLE_CONNECTIONS,
        max_overflow=-1,
    )

    configure = _configure_reading if only_reading else _configure
    sa.event.listen(engine, "connect", lambda connection, _record: configure(connection, busy_timeout_s))
    sa.event.listen(engine, "begin", _begin)
    return engine


def _empty(schema: Schema) -> sa.Engine:
    """An engine over tables without rows, which cannot be written."""
    engine = sa.create_engine("sqlite://", poolclass=sa.QueuePool, connect_args={"check_same_thread": False})
    tables = [str(CreateTable(table).compile(engine)) for table in schema.tables.sorted_tables]

    def make(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None
        for statement in (*tables, "PRAGMA query_only = ON"):
            connection.execute(statement).close()

    sa.event.listen(engine, "connect", make)
    sa.event.listen(engine, "begin", _begin)
    return engine


def _configure(connection: sqlite3.Connection, busy_timeout_s: float) -> None:
    _configure_reading(connection, busy_timeout_s)
    _write_ahead(connection, time.monotonic() + busy_timeout_s)


def _configure_reading(connection: sqlite3.Connection, _busy_timeout_s: float) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys = ON").close()


def _write_ahead(connection: sqlite3.Connection, deadline: float) -> None:
    """Turn the log on. A new file that another process opens too is locked for a moment, and SQLite does not wait."""
    while True:
        try:
            # Read to its end: a statement in progress that writes would forbid the next COMMIT.
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _begin(connection: sa.Connection) -> None:
    wait_s = connection.get_execution_options().get(_WAIT_S)
    # On the driver's cursor: through SQLAlchemy this would take as long as the query that follows.
    cursor = connection.connection.cursor()
    _begin_on(cursor, wait_s)
    cursor.close()


def _begin_on(cursor: Any, wait_s: float | None) -> None:
    if wait_s is not None:
        cursor.execute(f"PRAGMA busy_timeout = {round(1000 * wait_s)}")
    cursor.execute("BEGIN" if wait_s is None else "BEGIN IMMEDIATE")


def fetch_tuples(connection: sa.Connection, statement: sa.Executable) -> list[Any]:
    """All rows as the driver's own tuples: for thousands of rows a third quicker than SQLAlchemy's `Row`."""
    result = connection.execute(statement)
    return [] if result.cursor is None else list(result.cursor.fetchall())


def insert_rows(connection: sa.Connection, table: sa.TableClause, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows that have the same columns."""
    if not rows:
        return
    if connection.dialect.name != "postgresql":
        connection.execute(sa.insert(table), rows)
        return
    names = tuple(rows[0])
    stored = [table.c[name].type.bind_processor(connection.dialect) or _as_it_is for name in names]
    told = (tuple(to_store(row[name]) for name, to_store in zip(names, stored, strict=True)) for row in rows)
    copy_rows(connection, f"COPY {table.name} ({', '.join(names)}) FROM STDIN", told)


def copy_rows(
    connection: sa.Connection, statement: str, rows: Iterable[Sequence[Any]], types: Sequence[str] = ()
) -> None:
    """Send rows to a server by its COPY, in a fifth of the time of statements.

    Args:
        types: names of the columns' types, for the binary format.
    """
    driver = connection.dialect.loaded_dbapi.Error
    try:
        with connection.connection.cursor() as cursor, cursor.copy(statement) as copy:  # type: ignore[attr-defined]
            if types:
                copy.set_types(types)
            for row in rows:
                copy.write_row(row)
    except driver as error:
        raise DBAPIError.instance(statement, None, error, driver, dialect=connection.dialect) from error


def _as_it_is(value: Any) -> Any:
    return value


# --- versions


def bring_up_to_date(connection: sa.Connection, schema: Schema, stored: str | None, shown: str) -> None:
    """Make a store's tables, or those that are missing, change the others as this version needs, and note it.

    Args:
        stored: the version that is there; None where there is none, or only the tables of version 0.1.
        shown: what messages call the database.
    """
    there = set(sa.inspect(connection).get_table_names())
    schema.tables.create_all(connection)
    if stored is not None or there & set(schema.tables.tables):
        _migrate(connection, schema, stored, shown)
    _VERSIONS.create(connection, checkfirst=True)
    connection.execute(sa.delete(_VERSIONS).where(_VERSIONS.c.version_num == stored))
    connection.execute(sa.insert(_VERSIONS), {"version_num": schema.version})


def is_anothers(connection: sa.Connection, schema: Schema) -> bool:
    """Whether a database holds tables, and none of a store's of ours."""
    there = set(sa.inspect(connection).get_table_names())
    return bool(there) and not there & {_VERSIONS.name, *schema.tables.tables}


def stored_version(connection: sa.Connection, schema: Schema) -> str | None:
    """The version of a store's tables; None where it has none, or only those of version 0.1."""
    if not sa.inspect(connection).has_table(_VERSIONS.name):
        return None
    versions = connection.scalars(sa.select(_VERSIONS.c.version_num))
    return next((version for version in versions if version.startswith(schema.prefix)), None)


def is_later(stored: str, schema: Schema) -> bool:
    """Whether a later program wrote this version of a store."""
    return _number(stored) > _number(schema.version)


def _number(version: str) -> int:
    return int(version.rpartition("_")[2])


def _migrate(connection: sa.Connection, schema: Schema, stored: str | None, shown: str) -> None:
    """Run the migrations after `stored`; None is a file that version 0.1 wrote."""
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    if stored is not None and is_later(stored, schema):
        raise IndexCorrupt(
            f"'{shown}' has schema version '{stored}'; this program knows up to '{schema.version}'.",
            hint="use the newer program that wrote it",
        )
    scripts = ScriptDirectory(str(MIGRATIONS), version_locations=[str(MIGRATIONS)])
    if stored not in {script.revision for script in scripts.walk_revisions()}:
        stored = None  # never released: a store's first step adds only what is missing
    steps = [*scripts.iterate_revisions(schema.version, stored or "base")]
    with _MIGRATING, Operations.context(MigrationContext.configure(connection)):
        for step in reversed(steps):
            step.module.upgrade()


# --- whole files


def damage(path: Path, schema: Schema | None = None) -> str | None:
    """What SQLite's own check finds wrong with a file, in words; None when it is whole. Nothing is written.

    Args:
        schema: of the file, to read every value too: the check does not look into what rows hold.
    """
    try:
        with only_reading(path) as connection:
            tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            if not tables:
                return "it holds no table"
            found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if schema is not None:
                for table in tables:
                    _read_values(connection, table, schema.tables.tables.get(table))
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise Busy(msg("Another process is writing to '{}'.", path), hint="try again in a moment") from error
        return first_line(error)
    return None if found == "ok" else " ".join(found.split())


def _read_values(connection: sqlite3.Connection, table: str, known: sa.Table | None) -> None:
    """Read every value as the program does; raises sqlite3.DatabaseError at the first that it could not read."""
    rows = connection.execute(f'SELECT * FROM "{table}"')  # noqa: S608  a name of the file's own
    types = {column.name: column.type for column in known.columns} if known is not None else {}
    found = [(place, types.get(name)) for place, (name, *_) in enumerate(rows.description)]
    ours = [(place, type_) for place, type_ in found if isinstance(type_, sa.TypeDecorator)]
    for row in rows:
        for place, type_ in ours:
            type_.process_result_value(row[place], _DIALECT)


def later_version(path: Path, schema: Schema) -> str | None:
    """The version of a file that a later program wrote; None for any other, a damaged one too."""
    with suppress(sqlite3.DatabaseError), only_reading(path) as connection:  # version 0.1 kept none
        for (version,) in connection.execute("SELECT version_num FROM alembic_version"):
            if version.startswith(schema.prefix) and is_later(version, schema):
                return str(version)
    return None


def salvage(damaged: Path, path: Path, schema: Schema) -> int:
    """Copy the rows of a damaged file that can be read into a new one, and return how many."""
    Database(path, schema).open()
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        copy_damaged(damaged, part)
        return _salvage(part, path, schema)
    finally:
        for ending in ("", *_BESIDE):
            part.with_name(part.name + ending).unlink(missing_ok=True)


def copy_damaged(damaged: Path, copy: Path) -> None:
    """Copy a file with its log, so that reading changes nothing; what was cut off its end is filled up with zeros."""
    for ending in ("", _BESIDE[0]):
        with suppress(FileNotFoundError):
            shutil.copyfile(damaged.with_name(damaged.name + ending), copy.with_name(copy.name + ending))
    if not copy.exists():
        return
    with copy.open("rb") as file:
        header = file.read(32)
    whole_bytes = int.from_bytes(header[16:18]) * int.from_bytes(header[28:32])
    here_bytes = copy.stat().st_size
    if header.startswith(b"SQLite format 3\0") and here_bytes < whole_bytes < 1000 * here_bytes:
        os.truncate(copy, whole_bytes)


def _salvage(damaged: Path, path: Path, schema: Schema) -> int:
    with closing(sqlite3.connect(damaged)) as old, closing(sqlite3.connect(path)) as new, new:
        old.text_factory = bytes  # decoded row by row
        for table in schema.tables.sorted_tables:
            into = f"INSERT OR IGNORE INTO {table.name} VALUES ({', '.join('?' * len(table.columns))})"  # noqa: S608
            for values in _readable_rows(old, table):
                with suppress(ValueError):
                    new.execute(into, [_whole_value(*each) for each in zip(table.columns, values, strict=True)])
        for name, rowid, *_ in new.execute("PRAGMA foreign_key_check").fetchall():
            new.execute(f"DELETE FROM {name} WHERE rowid = ?", [rowid])  # noqa: S608  of our own schema
        return new.total_changes


def _readable_rows(connection: sqlite3.Connection, table: sa.Table) -> Iterator[Sequence[Any]]:
    """The rows of a table that can be read, looked for one after another behind a damaged place."""
    columns = ", ".join(table.columns.keys())
    wanted = f"SELECT rowid, {columns} FROM {table.name} WHERE rowid > ? ORDER BY rowid"  # noqa: S608
    last, missed = 0, 0
    while missed < MOST_MISSED:
        try:
            for rowid, *values in connection.execute(wanted, [last]):
                last, missed = rowid, 0
                yield values
            return
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_CORRUPT:
                return  # there is no such table, or no database
            last, missed = last + 1, missed + 1


def _whole_value(column: sa.Column[Any], value: Any) -> Any:
    """A value of a row; raises ValueError where it is not one of its column."""
    text = value.decode() if isinstance(value, bytes) else value
    if isinstance(column.type, sa.TypeDecorator):
        try:
            column.type.process_result_value(text, _DIALECT)
        except sqlite3.DatabaseError as error:
            raise ValueError(str(error)) from error
    if isinstance(text, str) and "\0" in text:
        raise ValueError("zeros stand in for what was cut off")
    return text


@contextmanager
def only_reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that cannot write."""
    address = f"file:{quote(str(path))}?mode=ro" + ("&immutable=1" if _is_still(path) else "")
    with closing(sqlite3.connect(address, uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_S)) as connection:
        yield connection


def _cannot_be_written(path: Path) -> bool:
    return path.exists() and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))


def _is_still(path: Path) -> bool:
    """Whether a file is read as it lies there: it has no log, and SQLite could not make one beside it."""
    log = path.with_name(path.name + _BESIDE[0])
    return _cannot_be_written(path) and not (log.exists() and log.stat().st_size)


def set_aside(path: Path) -> Path:
    """Give a damaged file, with its log, a dated name beside it, which is returned. No process may have it open."""
    kept = path.with_name(f"{path.name}.damaged-{datetime.now(UTC):%Y-%m-%dT%H-%M-%S-%f}")
    log, log_index = (path.with_name(path.name + ending) for ending in _BESIDE)
    log_index.unlink(missing_ok=True)
    path.rename(kept)
    if log.exists() and log.stat().st_size:
        log.rename(kept.with_name(kept.name + _BESIDE[0]))
    else:
        log.unlink(missing_ok=True)
    return kept


def copy_together(paths: Sequence[Path], folder: Path, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Copy databases into a folder, all as they are at one moment, while other processes write.

    Writers wait only until that moment is fixed in each of them; the copying comes after.

    Args:
        paths: the files; the one whose transactions take longest comes first, so that the others wait for none.
        meanwhile: called while nothing can be written.

    Raises:
        Busy: a transaction of another process did not end.
        IndexCorrupt, StorageFull.
    """
    with ExitStack() as reading:
        readers: list[sqlite3.Connection] = []
        with ExitStack() as writing:
            for path in paths:
                with sqlite_errors(path):
                    writer = writing.enter_context(closing(_connected(path)))
                    writer.execute("BEGIN IMMEDIATE")
            for path in paths:
                with sqlite_errors(path):
                    reader = reading.enter_context(closing(_connected(path)))
                    reader.execute("BEGIN")
                    reader.execute("SELECT 1 FROM sqlite_master").fetchone()  # only now it begins
                    readers.append(reader)
            meanwhile()
        for path, reader in zip(paths, readers, strict=True):
            with sqlite_errors(path), closing(sqlite3.connect(folder / path.name)) as copy:
                reader.backup(copy)
                copy.execute("PRAGMA journal_mode = DELETE").fetchall()  # one file, whoever only reads it


def _connected(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, timeout=LONG_TIMEOUT_S)


# --- errors


@contextmanager
def stored_values() -> Iterator[None]:
    """Raise the error of a stored value that cannot be read as SQLite raises that of a row."""
    try:
        yield
    except (ValueError, TypeError, KeyError, CoalesceError) as error:
        raise sqlite3.DatabaseError(f"a value in it cannot be read ({first_line(error)})") from error


@contextmanager
def sqlite_errors(path: Path) -> Iterator[None]:
    """Raise SQLite's errors, and those of the disk, as ours."""
    try:
        yield
    except (UnicodeEncodeError, OverflowError) as error:
        told = "A value holds a number of more than 64 bits, which no database keeps."
        if isinstance(error, UnicodeEncodeError):
            told = "A value holds half a surrogate pair, which no database keeps."
        raise InvalidInput(told, hint="send another value") from error
    except (DBAPIError, sqlite3.Error, OSError) as error:
        ours = disk_error(error, path) if isinstance(error, OSError) else _ours(error, path)
        if ours is None:
            raise
        raise ours from error


def _ours(error: DBAPIError | sqlite3.Error, path: Path) -> CoalesceError | None:
    cause: Any = error.orig if isinstance(error, DBAPIError) else error
    code = (getattr(cause, "sqlite_errorcode", 0) or 0) & 0xFF
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _disk_is_full(path.parent)):
        return StorageFull(
            msg("The disk that holds '{}' is full; nothing was kept.", path.parent),
            hint="free some space and try again",
        )
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Busy(msg("Another process is writing to '{}'.", path), hint="try again in a moment")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return HomeNotWritable(
            msg("'{}' cannot be opened for writing: {}.", path, cause),
            hint="Make its folder writable, or set COALESCE_HOME to another.",
        )
    if code == sqlite3.SQLITE_TOOBIG:
        return TooLarge(msg("A value is too large for '{}'.", path), hint="send less")
    if code == sqlite3.SQLITE_IOERR:
        return IndexCorrupt(msg("'{}' cannot be read: {}.", path, cause), hint=MEND)
    if isinstance(cause, (sqlite3.IntegrityError, sqlite3.ProgrammingError)) or not isinstance(
        cause, sqlite3.DatabaseError
    ):
        return None  # a fault of the program
    return IndexCorrupt(msg("'{}' is damaged: {}.", path, cause), hint=MEND)


def _disk_is_full(folder: Path) -> bool:
    with suppress(OSError):
        return shutil.disk_usage(folder).free < 1_000_000
    return False
