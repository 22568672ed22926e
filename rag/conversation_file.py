"""The SQLite file that conversations are kept in: opened at the first call, one lock, one transaction a call."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from indexes.errors import HomeNotWritable, StorageFull

BUSY_TIMEOUT_S = 30.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS conversations (
    id TEXT PRIMARY KEY, title TEXT NOT NULL, created_at TEXT NOT NULL, updated_at TEXT NOT NULL,
    owner TEXT NOT NULL DEFAULT '');
CREATE TABLE IF NOT EXISTS answers (
    id TEXT PRIMARY KEY, conversation_id TEXT NOT NULL REFERENCES conversations(id) ON DELETE CASCADE,
    ordinal INTEGER NOT NULL, created_at TEXT NOT NULL, body TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS answers_by_conversation ON answers(conversation_id, ordinal);
CREATE TABLE IF NOT EXISTS feedback (
    answer_id TEXT PRIMARY KEY REFERENCES answers(id) ON DELETE CASCADE,
    rating TEXT NOT NULL, comment TEXT NOT NULL, created_at TEXT NOT NULL);
"""
_SCHEMA_VERSION = 2


class ConversationFile:
    """One connection behind one lock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """The connection, within a transaction that is kept unless something is raised.

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
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.executescript(_SCHEMA)
        if "owner" not in {row[1] for row in connection.execute("PRAGMA table_info(conversations)")}:
            # Version 1 knew no owners: its conversations are nobody's in particular.
            connection.execute("ALTER TABLE conversations ADD COLUMN owner TEXT NOT NULL DEFAULT ''")
        connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
        self._connection = connection
        return connection
