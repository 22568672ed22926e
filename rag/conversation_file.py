"""The SQLite file that conversations are kept in: its tables, and how an older file gets them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from indexes.state_file import StateFile

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


def conversation_file(path: Path) -> StateFile:
    """The file at `path`, opened at its first transaction."""
    return StateFile(path, _prepare)


def _prepare(connection: sqlite3.Connection) -> None:
    connection.executescript(_SCHEMA)
    if "owner" not in {row["name"] for row in connection.execute("PRAGMA table_info(conversations)")}:
        # Version 1 knew no owners: its conversations are nobody's in particular.
        connection.execute("ALTER TABLE conversations ADD COLUMN owner TEXT NOT NULL DEFAULT ''")
    connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
