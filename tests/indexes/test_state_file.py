"""A small file of state: kept whole or not at all, and clear about what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from indexes.errors import HomeNotWritable, StorageFull
from indexes.state_file import StateFile

TABLE = "CREATE TABLE IF NOT EXISTS things (name TEXT);"


def names(file: StateFile) -> list[str]:
    with file.transaction() as rows:
        return [row["name"] for row in rows.execute("SELECT name FROM things")]


def test_what_raises_keeps_nothing_and_what_ends_is_there_after_closing(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "new" / "s.sqlite3", lambda connection: connection.executescript(TABLE))
    with file.transaction() as rows:
        rows.execute("INSERT INTO things VALUES ('kept')")
    with pytest.raises(ZeroDivisionError), file.transaction() as rows:
        rows.execute("INSERT INTO things VALUES ('lost')")
        raise ZeroDivisionError
    file.close()
    assert names(file) == ["kept"]


def test_a_full_disk_is_named_and_nothing_is_kept(tmp_path: Path) -> None:
    file = StateFile(
        tmp_path / "s.sqlite3", lambda connection: connection.executescript(f"{TABLE} PRAGMA max_page_count = 3;")
    )
    with pytest.raises(StorageFull), file.transaction() as rows:
        rows.execute("INSERT INTO things VALUES (?)", ("x" * 100_000,))
    assert names(file) == []


def test_a_home_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    file = StateFile(tmp_path / "file" / "s.sqlite3", lambda connection: connection.executescript(TABLE))
    with pytest.raises(HomeNotWritable, match="file"), file.transaction():
        pass
