"""The database module: transactions are kept whole or not at all, versions are respected, errors name the file."""

from __future__ import annotations

import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, MetaData, Table, Text, func, insert, inspect, literal_column, select, text

from api.jobs import JOBS
from evals.study_store import STUDY
from indexes import database
from indexes.catalog import CATALOG
from indexes.database import MIGRATIONS, Database, JsonText, Schema
from indexes.errors import Busy, HomeNotWritable, IndexCorrupt, InvalidInput
from rag.conversations import CONVERSATIONS

OLD_HOME = Path(__file__).parents[1] / "fixtures" / "home-0.1"
STORES = {"library": CATALOG, "conversations": CONVERSATIONS, "study": STUDY, "jobs": JOBS}

_TABLES = MetaData()
_things = Table("things", _TABLES, Column("name", Text, nullable=False))
THINGS = Schema("things_1", _TABLES)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "s.sqlite3"


@pytest.fixture
def things(path: Path) -> Iterator[Database]:
    things = Database(path, THINGS, busy_timeout_s=0.2)
    yield things
    things.close()


def add(things: Database, name: str) -> None:
    with things.writing() as connection:
        connection.execute(insert(_things), {"name": name})


def names(things: Database) -> list[str]:
    with things.reading() as connection:
        return list(connection.scalars(select(_things.c.name)))


def changed(path: Path, *statements: str) -> list[Any]:
    """Runs statements of another program on a file, and gives the rows of the last."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            rows = connection.execute(statement).fetchall()
    return rows


def old_and_new(folder: Path, name: str) -> tuple[Path, Path]:
    """A file of version 0.1, and one made now, both opened."""
    old, new = folder / "old.sqlite3", folder / "new.sqlite3"
    old.write_bytes((OLD_HOME / f"{name}.sqlite3").read_bytes())
    for path in (old, new):
        Database(path, STORES[name]).open()
    return old, new


# --- transactions


def test_what_raises_keeps_nothing_and_what_ends_is_there_after_closing(things: Database) -> None:
    add(things, "kept")
    with pytest.raises(ZeroDivisionError), things.writing() as connection:
        connection.execute(insert(_things), {"name": "lost"})
        raise ZeroDivisionError
    things.close()
    assert names(things) == ["kept"]


def test_a_reader_sees_one_moment_and_never_waits_for_a_writer(things: Database) -> None:
    add(things, "first")
    counted = select(func.count()).select_from(_things)
    with things.reading() as reader:
        assert reader.scalar(counted) == 1
        with things.writing() as writer:
            writer.execute(insert(_things), {"name": "second"})
            assert names(things) == ["first"]
        assert reader.scalar(counted) == 1
    assert names(things) == ["first", "second"]


def test_a_writing_transaction_holds_the_lock_from_its_beginning(path: Path, things: Database) -> None:
    locked = pytest.raises(sqlite3.OperationalError, match="locked")
    with things.writing(), closing(sqlite3.connect(path, timeout=0)) as other, locked:
        other.execute("BEGIN IMMEDIATE")


def test_many_threads_write_and_lose_nothing(things: Database) -> None:
    numbers = [str(number) for number in range(30)]
    with ThreadPoolExecutor(30) as pool:
        list(pool.map(lambda number: add(things, number), numbers))
    assert sorted(names(things), key=int) == numbers


def test_files_are_copied_as_they_are_at_one_moment_and_writers_wait_for_that_alone(tmp_path: Path) -> None:
    both = [Database(tmp_path / f"{name}.sqlite3", THINGS) for name in ("one", "two")]
    for each in both:
        add(each, "early")
    late = [threading.Thread(target=add, args=(each, "late")) for each in both]

    def meanwhile() -> None:
        for thread in late:
            thread.start()
            thread.join(0.05)
            assert thread.is_alive(), "it wrote while nothing may be written"

    (tmp_path / "copies").mkdir()
    database.copy_together([each.path for each in both], tmp_path / "copies", meanwhile)
    for each, thread in zip(both, late, strict=True):
        thread.join()
        assert names(each) == ["early", "late"]
        assert names(Database(tmp_path / "copies" / each.path.name, THINGS)) == ["early"]
        each.close()


# --- errors


def test_a_home_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(HomeNotWritable, match="file"):
        names(Database(tmp_path / "file" / "s.sqlite3", THINGS))


def test_a_file_that_another_process_writes_to_is_busy(path: Path, things: Database) -> None:
    add(things, "first")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Busy, match=r"s\.sqlite3"):
            add(things, "second")
    add(things, "third")
    assert names(things) == ["first", "third"]


def test_many_who_wait_for_another_process_wait_no_longer_than_one(path: Path, things: Database) -> None:
    add(things, "first")

    def write(name: str) -> float:
        began = time.monotonic()
        with pytest.raises(Busy):
            add(things, name)
        return time.monotonic() - began

    with closing(sqlite3.connect(path, isolation_level=None)) as other, ThreadPoolExecutor(12) as threads:
        other.execute("BEGIN IMMEDIATE")
        assert max(threads.map(write, map(str, range(12)))) < 1.5  # one after another, they took 2.4 s


def test_damage_is_named_with_the_way_out_at_the_beginning_of_a_file_or_in_its_middle(path, things):
    for number in range(50):
        add(things, f"{number}" * 1000)
    things.close()
    changed(path, "PRAGMA wal_checkpoint(TRUNCATE)")
    whole = path.read_bytes()
    for content in (whole[: 4096 * 3] + b"\xff" * (len(whole) - 4096 * 3), b"not a database at all, but text " * 200):
        path.write_bytes(content)
        with pytest.raises(IndexCorrupt, match=r"s\.sqlite3' is damaged") as caught:
            names(Database(path, THINGS))
        assert caught.value.hint


def test_a_file_that_cannot_be_written_is_read(path: Path, things: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    add(things, "kept")
    things.close()
    monkeypatch.setattr(database, "_cannot_be_written", lambda _: True)
    reader = Database(path, THINGS)
    assert names(reader) == ["kept"]
    with pytest.raises(HomeNotWritable, match=r"s\.sqlite3"):
        add(reader, "lost")
    reader.close()


def test_a_file_that_cannot_be_made_is_read_as_empty(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.parent.mkdir()
    monkeypatch.setattr("os.access", lambda *_: False)
    reader = Database(path, THINGS)
    assert names(reader) == []
    with pytest.raises(HomeNotWritable, match=r"s\.sqlite3"):
        add(reader, "lost")
    assert not path.exists()


def test_what_no_database_keeps_is_bad_input_and_a_value_that_cannot_be_read_is_damage(things: Database) -> None:
    for value in ("\ud800", 2**64):
        with pytest.raises(InvalidInput), things.reading() as connection:
            connection.execute(text("SELECT :value"), {"value": value})
    with pytest.raises(IndexCorrupt, match="cannot be read"), things.reading() as connection:
        connection.scalar(select(literal_column("'['", JsonText)))


# --- versions


@pytest.mark.parametrize("name", STORES)
def test_a_file_of_a_later_version_is_refused_and_left_as_it_is(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.sqlite3"
    Database(path, STORES[name]).open()
    later = f"{STORES[name].prefix}99"
    changed(path, f"UPDATE alembic_version SET version_num = '{later}'")
    with pytest.raises(IndexCorrupt, match=f"version '{later}'") as caught:
        Database(path, STORES[name]).open()
    assert "newer program" in caught.value.hint
    assert changed(path, "SELECT version_num FROM alembic_version") == [(later,)]


def test_version_0_1_refuses_a_library_of_today(tmp_path: Path) -> None:
    for path in old_and_new(tmp_path, "library"):
        assert changed(path, "PRAGMA user_version") == [(2,)], "it refuses what is above its own 1"


def test_another_programs_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite3"
    changed(path, "CREATE TABLE theirs (x)")
    with pytest.raises(IndexCorrupt, match="another program"):
        names(Database(path, THINGS))
    assert changed(path, "SELECT name FROM sqlite_master") == [("theirs",)]


def layout(path: Path) -> dict[str, object]:
    """Tables, columns, keys and indexes, without how SQLite spells types of the same affinity."""
    affinity = {"BOOLEAN": "INTEGER", "VARCHAR(32)": "TEXT"}
    found: dict[str, object] = {}
    for (table,) in changed(path, "SELECT name FROM sqlite_master WHERE type = 'table' AND name != 'sqlite_sequence'"):
        columns = [
            (name, affinity.get(kind, kind), bool(required or key), key)
            for _, name, kind, required, _, key in changed(path, f"PRAGMA table_info({table})")
        ]
        keys = sorted((key[2], key[3], key[6]) for key in changed(path, f"PRAGMA foreign_key_list({table})"))
        indexes = sorted(
            (bool(unique), origin, [row[2] for row in changed(path, f"PRAGMA index_info({name})")])
            for _, name, unique, origin, _ in changed(path, f"PRAGMA index_list({table})")
        )
        found[table] = (columns, keys, indexes)
    return found


@pytest.mark.parametrize("name", STORES)
def test_a_file_of_a_release_or_from_between_two_gets_the_tables_of_a_new_one(tmp_path: Path, name: str) -> None:
    old, new = old_and_new(tmp_path, name)
    assert layout(old) == layout(new)
    if name != "library":
        first = f"UPDATE alembic_version SET version_num = '{STORES[name].prefix}1'"
        changed(old, first, "DROP TABLE IF EXISTS drafts", "DROP TABLE IF EXISTS feedback")
        Database(old, STORES[name]).open()
        assert layout(old) == layout(new)


def test_a_migration_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "study.sqlite3"
    path.write_bytes((OLD_HOME / "study.sqlite3").read_bytes())
    before = layout(path)
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(database._VERSIONS, "create", lambda *_, **__: 1 / 0)  # after the steps, before the commit
        Database(path, STUDY).open()
    assert layout(path) == before
    Database(path, STUDY).open()
    assert "drafts" in layout(path)


def test_a_new_file_that_many_processes_open_at_once_is_never_busy(tmp_path: Path) -> None:
    for number in range(40):  # without waiting, some 4 of 60 found the file locked
        path = tmp_path / f"{number}.sqlite3"
        at_once = threading.Barrier(4)

        def first_use(path: Path = path, at_once: threading.Barrier = at_once) -> list[str]:
            at_once.wait()
            return names(Database(path, THINGS))

        with ThreadPoolExecutor(4) as threads:
            assert [used.result() for used in [threads.submit(first_use) for _ in range(4)]] == [[]] * 4


def test_old_files_of_all_stores_are_migrated_at_once_and_each_once(tmp_path: Path) -> None:
    for attempt in range(3):
        home = Path(shutil.copytree(OLD_HOME, tmp_path / str(attempt)))
        files = [Database(home / f"{name}.sqlite3", schema) for name, schema in STORES.items() for _ in range(3)]
        with ThreadPoolExecutor(len(files)) as threads:
            for opened in [threads.submit(file.open) for file in files]:
                opened.result()
        assert "drafts" in layout(home / "study.sqlite3")
        assert "drafts" not in layout(home / "conversations.sqlite3")


def test_every_store_names_the_newest_migration() -> None:
    from alembic.script import ScriptDirectory

    from api.server_state import SERVERS

    scripts = ScriptDirectory(str(MIGRATIONS), version_locations=[str(MIGRATIONS)])
    assert set(scripts.get_heads()) == {schema.version for schema in (*STORES.values(), SERVERS)}


def test_stores_can_share_a_database(path: Path) -> None:
    for schema in STORES.values():
        Database(path, schema).open()
    with Database(path, CATALOG).reading() as connection:
        assert set(inspect(connection).get_table_names()) >= {"documents", "conversations", "exams", "jobs"}
        versions = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalars().all()
    assert set(versions) == {schema.version for schema in STORES.values()}
