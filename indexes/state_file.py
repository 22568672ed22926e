"""A small SQLite file beside the catalog: opened at the first call, one lock, one transaction a call.

Conversations, studying and jobs are kept in one each. The catalog is another matter (`database.py`): it has readers
that run beside a writer, and migrations of its own.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from indexes.errors import HomeNotWritable, StorageFull

BUSY_TIMEOUT_S = 30.0


class StateFile:
    """One connection behind one lock; other processes may use the file too.

    Args:
        prepare: makes what is not there yet, each time the file is opened.
    """

    def __init__(self, path: Path, prepare: Callable[[sqlite3.Connection], object]) -> None:
        self._path = path
        self._prepare = prepare
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """The connection, within a transaction that is kept unless something is raised; rows go by name too.

        Raises:
            StorageFull: the disk is full; nothing is kept.
            HomeNotWritable: the file cannot be opened or written.
        """
        with self._lock:
            try:
                connection = self._connection or self._open()
                with connection:
                    yield connection
            except sqlite3.OperationalError as error:
                if "full" in str(error):
                    raise StorageFull(f"{self._path}: {error}", hint="free some space; nothing was kept") from error
                raise HomeNotWritable(
                    f"cannot use {self._path}: {error}", hint="check that the home folder exists and can be written"
                ) from error

    def close(self) -> None:
        """Closes the file; the next transaction opens it again."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _open(self) -> sqlite3.Connection:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise HomeNotWritable(
                f"cannot create {self._path.parent}: {error}", hint="set COALESCE_HOME to a folder you can write"
            ) from error
        connection = sqlite3.connect(self._path, timeout=BUSY_TIMEOUT_S, check_same_thread=False)
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA foreign_keys = ON")
        self._prepare(connection)
        self._connection = connection
        return connection
