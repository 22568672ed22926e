"""The stores of a home in a PostgreSQL database that several servers share, in place of SQLite's files.

A store's writers take turns, as they do in its file: each waits for an advisory lock of the store. Readers see one
moment and wait for nobody.
"""

from __future__ import annotations

import time
import uuid
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from filelock import Timeout
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from indexes.database import (
    IDLE_CONNECTIONS,
    LONG_TIMEOUT_S,
    Database,
    Lock,
    Schema,
    Store,
    bring_up_to_date,
    is_anothers,
    is_later,
    sqlite_errors,
    stored_version,
)
from indexes.errors import Busy, CoalesceError, DatabaseUnavailable, InvalidInput, StorageFull, first_line
from indexes.messages import msg

CONNECT_TIMEOUT_S = 5
_KEEPALIVE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 2, "tcp_user_timeout": 20_000}
"""libpq's: a server that went away without a word is noticed within 20 s."""
OLDEST_SERVER = 140_000
"""PostgreSQL 14, in the form of its `server_version_num`."""
OLDEST_VECTOR = (0, 8)
"""The first pgvector that goes on looking where a filter leaves too few."""
SCHEMES = ("postgresql://", "postgres://", "postgresql+psycopg://")
_LOCKS = 0x436F616C << 32
"""Locks of ours have numbers from here on."""
_NOT_NOW = ("55P03", "40")
"""A lock that is held, and transactions that stood in each other's way."""
_FULL = "53100"
_NO_ACCESS = ("28P01", "28000")
_UNKNOWN_DATABASE = "3D000"
_NO_RIGHT = "42501"
_NO_TABLE = "42P01"
_NO_EXTENSION = ("0A000", "58P01", _NO_RIGHT)
_ANOTHERS_STATEMENT = ("26000", "42P05")
"""A prepared statement is not there, or is there already."""
_TOO_BIG = ("22003", "54000")
_GONE = ("08", "57P", "53", "25006")
"""What the states of a server begin with that cannot serve now."""


class PostgresDatabase:
    """One store in a shared database, as `indexes.database.Database` is one in a file of its own.

    Light to make: the first transaction, or `open()`, connects, and makes the tables in an empty database.

    Args:
        url: `postgresql://USER:PASSWORD@HOST/DATABASE`.

    Raises:
        InvalidInput: no database can have this address, or the driver is not installed.
    """

    def __init__(self, url: str, schema: Schema) -> None:
        self._engine = _engine(url)
        self._schema = schema
        self.shown = shown_url(url)
        self._turn = _LOCKS | zlib.crc32(schema.prefix.encode())
        self._is_open = False

    def open(self) -> None:
        """Make the tables where the database has none of this store.

        Raises:
            DatabaseUnavailable: it does not answer, lets nobody in, is too old, or of another version.
            StorageFull, Busy.
        """
        if self._is_open:
            return
        with self._errors(), self._engine.begin() as connection:
            _check_server(connection)
            _check_session(connection, self._engine)
            stored = stored_version(connection, self._schema)
        if stored is None:
            with self._errors(), self._writer(None) as connection:
                if stored_version(connection, self._schema) is None:  # not made meanwhile by another
                    if is_anothers(connection, self._schema):
                        raise DatabaseUnavailable(
                            msg("'{}' holds tables of another program.", self.shown),
                            hint="make a database of its own with createdb, and name it",
                        )
                    bring_up_to_date(connection, self._schema, None, self.shown)
        elif stored != self._schema.version:
            raise DatabaseUnavailable(
                msg("'{}' has schema version '{}'; this program needs '{}'.", self.shown, stored, self._schema.version),
                hint="use the newer program that wrote it"
                if is_later(stored, self._schema)
                else "run `coalesce migrate`",
            )
        self._is_open = True

    def upgrade(self) -> str | None:
        """As `open`, but bring tables of an earlier version up to date; give the version that was there."""
        with self._errors(), self._writer(None) as connection:
            stored = stored_version(connection, self._schema)
            if stored not in (None, self._schema.version) and not is_later(stored, self._schema):
                bring_up_to_date(connection, self._schema, stored, self.shown)
        self.open()
        return stored

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A connection inside one read transaction: everything read in it belongs to one moment. Raises as `open`."""
        self.open()
        with self._errors(), self._engine.connect() as connection:
            connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            with connection.begin():
                yield connection

    @contextmanager
    def writing(self, *, wait_s: float | None = None) -> Iterator[sa.Connection]:
        """A connection inside one write transaction, committed at the end and undone on any exception.

        Args:
            wait_s: how long to wait for others' transactions; None waits a minute.

        Raises:
            Busy: another transaction goes on. Else as `open`.
        """
        self.open()
        with self._errors(), self._writer(wait_s) as connection:
            yield connection

    def lock(self, name: str) -> Lock:
        """As `Store.lock`: an advisory lock, which ends with its connection."""
        return _AdvisoryLock(self, name)

    @contextmanager
    def connected(self) -> Iterator[sa.Connection]:
        """A connection whose every statement is a transaction. Raises as `open`."""
        with self._errors(), self._engine.connect() as connection:
            yield connection.execution_options(isolation_level="AUTOCOMMIT")

    def close(self) -> None:
        """Close connections, those in use as soon as they are not; the next transaction connects again."""
        pool = self._engine.pool
        self._engine.dispose()  # makes another pool, with the listeners of this one
        sa.event.listen(pool, "checkin", lambda _, record: record.close())
        self._is_open = False

    @contextmanager
    def _writer(self, wait_s: float | None) -> Iterator[sa.Connection]:
        wait_ms = max(1, round(1000 * (LONG_TIMEOUT_S if wait_s is None else wait_s)))
        with self._engine.begin() as connection:
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = {wait_ms}")
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(self._turn)))
            yield connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise the server's errors as ours, and those of stored values as a file's."""
        with sqlite_errors(Path(self.shown.rpartition("//")[2])):
            try:
                yield
            except PoolTimeout as error:
                raise Busy(
                    msg("All connections to '{}' are in use.", self.shown), hint="try again in a moment"
                ) from error
            except DBAPIError as error:
                ours = _ours(error, self.shown)
                if ours is None:
                    raise
                raise ours from error


class _AdvisoryLock:
    """Keeps a connection for itself while it is held; where that is lost, so is the lock, and its holder goes on."""

    def __init__(self, database: PostgresDatabase, name: str) -> None:
        self._database = database
        self._number = (_LOCKS + 2**32) | zlib.crc32(name.encode())
        self._held = ExitStack()

    def acquire(self, timeout: float) -> None:
        """As `Lock.acquire`."""
        with ExitStack() as stack:
            connection = stack.enter_context(self._database.connected())
            if connection.scalar(sa.select(sa.func.pg_try_advisory_lock(self._number))):
                stack.callback(connection.execute, sa.select(sa.func.pg_advisory_unlock(self._number)))
                self._held = stack.pop_all()
                return
        time.sleep(timeout)
        raise Timeout(self._database.shown)

    def release(self) -> None:
        """As `Lock.release`."""
        with suppress(CoalesceError):
            self._held.close()


def shown_url(url: str) -> str:
    """The address of a database without what may be secret. Raises InvalidInput."""
    parsed = _engine(url).url
    where = {name: value for name, value in parsed.query.items() if name in ("host", "port")}
    return parsed.set(drivername="postgresql", query=where).render_as_string(hide_password=True)


def store_at(place: Path | str, schema: Schema) -> Store:
    """A store in a file, or in the database with this address; light to make."""
    return Database(place, schema) if isinstance(place, Path) else PostgresDatabase(place, schema)


@cache
def _engine(url: str) -> sa.Engine:
    """All stores of a database share its connections."""
    try:
        parsed = sa.make_url(url)
        if not url.startswith(SCHEMES) or "@" in (parsed.host or ""):
            raise ArgumentError("another scheme, or a password that is not in percent-encoding")
        return sa.create_engine(
            parsed.set(drivername="postgresql+psycopg"),
            connect_args={"connect_timeout": CONNECT_TIMEOUT_S, **_KEEPALIVE},
            pool_size=IDLE_CONNECTIONS,
            max_overflow=IDLE_CONNECTIONS,
            hide_parameters=True,  # errors are printed
            pool_pre_ping=True,  # a server that was started again is seen before a statement fails
        )
    except ImportError as error:
        raise InvalidInput(
            "PostgreSQL needs the package psycopg, which is not installed",
            hint="pip install 'coalesce-rag[postgres]'",
        ) from error
    except (ArgumentError, ValueError) as error:
        raise InvalidInput(
            "This is not the address of a PostgreSQL database.",
            hint="for example: postgresql://USER:PASSWORD@HOST/DATABASE; in a password write %40 for @, and %2F for /",
        ) from error


def _check_server(connection: sa.Connection) -> None:
    number = int(connection.exec_driver_sql("SHOW server_version_num").scalar_one())
    if number < OLDEST_SERVER:
        raise DatabaseUnavailable(
            msg("The server is PostgreSQL {}; {} or newer is needed.", number // 10_000, OLDEST_SERVER // 10_000),
            hint="upgrade it with pg_upgrade, or name another",
        )
    found = connection.exec_driver_sql(
        "SELECT coalesce(extversion, default_version) FROM pg_available_extensions AS there "
        "LEFT JOIN pg_extension AS used ON extname = name WHERE name = 'vector'"
    ).scalar()
    if found is None:
        raise _no_vector()
    if tuple(map(int, found.split(".")[:2])) < OLDEST_VECTOR:
        raise DatabaseUnavailable(
            msg("The database has pgvector {}; {} or newer is needed.", found, ".".join(map(str, OLDEST_VECTOR))),
            hint="install it on the server, then run in the database: ALTER EXTENSION vector UPDATE",
        )


def _check_session(connection: sa.Connection, engine: sa.Engine) -> None:
    """Locks and prepared statements are a session's: a pooler must not give it to another between transactions."""
    driver: Any = connection.connection.dbapi_connection
    if driver.info.backend_pid == connection.scalar(sa.select(sa.func.pg_backend_pid())):
        return
    mark = uuid.uuid4().hex
    with engine.connect() as one:
        one.execute(sa.select(sa.func.set_config("coalesce.session", mark, False)))
        one.commit()
        with engine.connect() as other:
            if other.scalar(sa.select(sa.func.current_setting("coalesce.session", True))) == mark:
                raise _shared_session()


def _shared_session() -> DatabaseUnavailable:
    return DatabaseUnavailable(
        "A pooler before the database gives a session to another client after each transaction.",
        hint="set pool_mode = session where it is PgBouncer, or name the server itself",
    )


def _no_vector() -> DatabaseUnavailable:
    return DatabaseUnavailable(
        "The database lacks the extension `vector`.",
        hint="install pgvector on the server, then run in the database as its owner: CREATE EXTENSION vector",
    )


def _ours(error: DBAPIError, shown: str) -> CoalesceError | None:
    cause: Any = error.orig
    state = str(getattr(cause, "sqlstate", None) or "")
    told = first_line(cause) if cause is not None else str(error)
    if state.startswith(_NOT_NOW):
        return Busy(msg("'{}' is being written to.", shown), hint="try again in a moment")
    if state == _FULL:
        return StorageFull(msg("The disk that holds '{}' is full; nothing was kept.", shown), hint="free some space")
    if state in _TOO_BIG or "NUL" in told or isinstance(cause, OverflowError):
        return InvalidInput(
            "A value holds what the database does not keep: a zero character, or too large a number.",
            hint="send another value",
        )
    if state in _ANOTHERS_STATEMENT:
        return _shared_session()
    if state in _NO_EXTENSION and "extension" in told:
        return _no_vector()
    if state == _NO_RIGHT:
        return DatabaseUnavailable(
            msg("The user of the database at '{}' lacks a right: {}", shown, told),
            hint="run in the database as its owner: GRANT ALL ON SCHEMA public TO USER",
        )
    hint = "start it, or correct the address"
    if state in _NO_ACCESS or "authentication failed" in told or "no password supplied" in told:
        hint = "correct user and password in the address"
    elif state == _UNKNOWN_DATABASE or ("database" in told and "does not exist" in told):
        hint = "make it with createdb, or name another"
    elif state == _NO_TABLE:
        hint = "restore it, or start again over an empty one"
    elif not (
        state.startswith(_GONE) or error.connection_invalidated or (not state and isinstance(error, OperationalError))
    ):
        return None  # a fault of the program
    return DatabaseUnavailable(msg("The database at '{}' does not answer: {}", shown, told), hint=hint)
