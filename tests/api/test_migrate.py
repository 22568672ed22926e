"""`coalesce migrate`: a home goes into a database and back, and tables of an earlier version are brought up to date."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from shutil import copytree
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from fakes import HashEncoder, make_answer
from waiting import wait_until

from api import migrate
from api.chosen_generator import GeneratorChoice, keep_choice, read_choice
from api.jobs import JobStore
from api.migrate import STORES, move
from api.settings import load_settings
from api.shared_runs import SharedRuns, servers_of
from indexes.errors import Conflict, DatabaseUnavailable
from indexes.library import open_library
from indexes.postgres import store_at
from rag.conversations import ConversationStore


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """A home with a book, a conversation and a choice."""
    home, book = tmp_path / "full", tmp_path / "warps.md"
    book.write_text("# Warps\n\n## Size\n\nA warp has 32 threads.\n\n## Use\n\nCall `__syncwarp` in each.\n")
    settings = load_settings({"home": home})
    with closing(open_library(settings.index, embedder=HashEncoder())) as library:
        library.add(book)
    with closing(ConversationStore(settings.rag.conversations_place)) as kept:
        kept.append(make_answer("What is a warp?", id="one", conversation_id=kept.create().id))
        kept.give_feedback("one", "up")
    keep_choice(settings.choice_place, GeneratorChoice(generator="extractive"))
    return home


def rows(place: Path | str) -> dict[str, list[Any]]:
    """All that a home or a database keeps, by table."""
    found = {}
    for name, schema in STORES.items():
        with closing(store_at(place if isinstance(place, str) else place / name, schema)) as store:
            for table in schema.tables.sorted_tables:
                with store.reading() as connection:
                    found[table.name] = sorted(map(repr, connection.execute(sa.select(table))))
    return found


def test_a_home_moved_there_and_back_is_equal(full: Path, database_url: str, tmp_path: Path, coalesce) -> None:
    moved = coalesce.gives("migrate", "--from", str(full), "--to", database_url)["moved"]
    assert moved["conversations"]["answers"] == 1
    coalesce.gives("migrate", "--from", database_url, "--to", str(tmp_path / "back"))
    assert rows(tmp_path / "back") == rows(full) == rows(database_url)
    assert read_choice(tmp_path / "back" / "generator.json") == GeneratorChoice(generator="extractive")


def test_a_move_that_broke_off_goes_on_and_what_is_not_empty_is_left_alone(
    full: Path, database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def breaks(_: object) -> None:
        raise RuntimeError("the power failed")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(migrate, "derive_indexes", breaks)
        move(str(full), database_url, lambda *_: None)
    done: list[str] = []
    assert move(str(full), database_url, lambda name, *_: done.append(name))["moved"]["library"]["documents"] == 1
    assert "answers" not in done and "nodes" in done
    with closing(ConversationStore(full / "conversations.sqlite3")) as kept:
        kept.rename(kept.list()[0].id, "Another title")
    for source in (full, copytree(full, tmp_path / "other")):
        with pytest.raises(Conflict, match="already"):
            move(str(source), database_url, lambda *_: None)


def test_a_database_that_a_server_uses_is_not_moved(full: Path, database_url: str, tmp_path: Path, coalesce) -> None:
    shared = SharedRuns(database_url)
    shared.start()
    wait_until(lambda: servers_of(database_url) != [], "it is heard of")
    for source, target in ((full, database_url), (database_url, tmp_path / "back")):
        said = coalesce.refuses("migrate", "--from", str(source), "--to", str(target))
        assert servers_of(database_url)[0] in said and "Stop" in said
    assert not (tmp_path / "back" / "library.sqlite3").exists()
    shared.close()
    assert coalesce.gives("migrate", "--from", str(full), "--to", database_url)["moved"]


def test_an_earlier_schema_is_an_error_until_it_is_migrated(
    database_url: str, coalesce, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COALESCE_DATABASE_URL", database_url)
    coalesce.says("migrate")
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("ALTER TABLE jobs DROP COLUMN title")
        connection.execute("UPDATE alembic_version SET version_num = 'jobs_1' WHERE version_num LIKE 'jobs%'")
    with pytest.raises(DatabaseUnavailable) as error:
        JobStore(database_url).list()
    assert "coalesce migrate" in error.value.hint
    coalesce.says("migrate")
    assert JobStore(database_url).list() == []


def test_an_address_of_another_kind_is_no_folder_and_is_not_shown(full: Path, coalesce) -> None:
    said = coalesce.refuses("migrate", "--from", str(full), "--to", "mysql://me:hidden@host/x")
    assert "postgresql://" in said and "hidden" not in said
