"""A shared database: who makes its tables, and what is said of one that cannot be used or goes away."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from fakes import HashEncoder
from waiting import wait_until

from indexes.catalog import CATALOG, open_catalog
from indexes.database import copy_rows, insert_rows
from indexes.errors import Busy, CoalesceError, DatabaseUnavailable, InvalidInput
from indexes.library import open_library
from indexes.pgvector import BUILDING
from indexes.postgres import PostgresDatabase
from indexes.settings import IndexSettings

ONE = sa.select(sa.literal(1))


def run(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def end_connections(url: str) -> None:
    """As a server does that is stopped."""
    run(
        url,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE pid <> pg_backend_pid() AND datname = current_database()",
    )


def test_of_several_that_start_at_once_one_makes_the_tables(empty_database: str) -> None:
    stores = [PostgresDatabase(empty_database, CATALOG) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda store: store.open(), stores))
    with stores[0].reading() as connection:
        assert connection.exec_driver_sql("SELECT version_num FROM alembic_version").all() == [(CATALOG.version,)]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("postgresql://nobody:hidden@127.0.0.1:9/x", "127.0.0.1"), ("postgresql://[::1", "address"),
        ("mysql://user:hidden@host/x", "address"), ("missing", "does not exist"), ("locked", "password"),
        ("later", "catalog_99"), ("foreign", "another program"), ("no rights", "lacks a right"),
        ("no extension", "extension `vector`"),
    ],
)  # fmt: skip
def test_a_database_that_cannot_be_used_is_an_error_that_says_why_without_the_password(
    wrong: str, told: str, empty_database: str
) -> None:
    url = empty_database
    if "://" in wrong:
        url = wrong
    elif wrong == "missing":
        url = empty_database.replace("/test_", "/no_")
    elif wrong == "later":
        run(url, "CREATE TABLE alembic_version (version_num text)", "INSERT INTO alembic_version VALUES ('catalog_99')")
    elif wrong == "foreign":
        run(url, "CREATE TABLE customers (id integer)")
    else:
        role = "locked" if wrong == "locked" else f"guest_{uuid.uuid4().hex}"
        run(url, f"DROP ROLE IF EXISTS {role}", f"CREATE ROLE {role} LOGIN PASSWORD 'right'")
        if wrong == "no extension":
            run(url, f"GRANT ALL ON SCHEMA public TO {role}")
        url = url.replace("postgres:@", f"{role}:hidden@")
    if wrong == "locked":
        with psycopg.connect(empty_database, autocommit=True) as connection:
            (rules,) = connection.execute("SHOW hba_file").fetchone() or ("",)
            text, rule = Path(rules).read_text(), "local all locked scram-sha-256\n"
            Path(rules).write_text(text if text.startswith(rule) else rule + text)
            connection.execute("SELECT pg_reload_conf()")
    with pytest.raises(CoalesceError, match=told) as error:
        PostgresDatabase(url, CATALOG).open()
    assert isinstance(error.value, InvalidInput if told == "address" else DatabaseUnavailable)
    assert error.value.hint
    assert "hidden" not in f"{error.value} {error.value.hint}"


def test_a_server_that_goes_away_in_the_middle_is_an_error_and_the_next_transaction_goes_on(
    empty_database: str,
) -> None:
    store = PostgresDatabase(empty_database, CATALOG)
    with pytest.raises(DatabaseUnavailable), store.writing() as connection:
        connection.execute(ONE)
        end_connections(empty_database)
        connection.execute(ONE)
    with store.reading() as connection:
        assert connection.scalar(ONE) == 1
    store.close()


def graphs(url: str) -> list[bool]:
    """Whether each graph of vectors that is there is whole."""
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT indisvalid FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid WHERE relname ~ '^vector_graph'"
        )
        return [whole for (whole,) in found]


def test_a_library_that_grows_large_while_it_is_served_gets_its_graph_and_writers_go_on(
    empty_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indexes.pgvector.EXACT_LIMIT", 0)
    book = tmp_path / "book.md"
    settings = IndexSettings(tmp_path / "home", database_url=empty_database)
    with closing(open_library(settings, embedder=HashEncoder())) as library:
        library.load()
        library.dense("warp", 1)
        assert graphs(empty_database) == []
        book.write_text("# One\n\nA warp has 32 threads.\n\n# Two\n\nA block has warps.\n")
        with psycopg.connect(empty_database) as other:  # a writer at work, for whom a build has to wait
            other.execute("LOCK TABLE vector_index IN ROW EXCLUSIVE MODE")
            library.add(book)
            assert library.dense("warp", 1)
            wait_until(lambda: graphs(empty_database) == [False], "a graph in work")
            book.write_text(book.read_text() + "\n# Three\n\nA grid has blocks.\n")
            library.add(book)
        wait_until(lambda: graphs(empty_database) == [True], "a graph")
        assert len(library.dense("grid", 10)) == 3


def test_of_several_builders_one_builds_and_a_build_that_broke_off_is_begun_again(
    empty_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indexes.pgvector.EXACT_LIMIT", -1)
    with closing(open_catalog(tmp_path, create=True, database_url=empty_database)) as catalog:
        with psycopg.connect(empty_database) as other:
            other.execute("SELECT pg_advisory_lock(%s)", [BUILDING])
            assert not catalog.build_graph(16)
        assert graphs(empty_database) == []
        assert catalog.build_graph(16)
        run(empty_database, "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'vector_graph_16'::regclass")
        assert catalog.build_graph(16)
        assert graphs(empty_database) == [True]


def test_a_graph_that_another_server_did_not_finish_is_built_though_no_book_comes(
    empty_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indexes.pgvector.EXACT_LIMIT", -1)
    monkeypatch.setattr("indexes.vectors.LOOKED_AFTER_S", 0.0)
    settings = IndexSettings(tmp_path / "home", database_url=empty_database)
    with closing(open_library(settings, embedder=HashEncoder())) as library:
        with psycopg.connect(empty_database) as other:
            other.execute("SELECT pg_advisory_lock(%s)", [BUILDING])
            library.load()
            wait_until(lambda: not any(thread.name == "graph" for thread in threading.enumerate()), "a look")
        assert graphs(empty_database) == []
        library.dense("warp", 1)
        wait_until(lambda: graphs(empty_database) == [True], "a graph")


def test_what_is_left_of_a_broken_build_is_dropped_beside_readers(
    empty_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indexes.pgvector.EXACT_LIMIT", -1)
    with closing(open_catalog(tmp_path, create=True, database_url=empty_database)) as catalog:
        assert catalog.build_graph(16)
        run(empty_database, "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'vector_graph_16'::regclass")
        with ThreadPoolExecutor(1) as pool:
            with psycopg.connect(empty_database) as reader:
                reader.execute("SELECT count(*) FROM vector_index")
                built = pool.submit(catalog.build_graph, 16)
                with psycopg.connect(empty_database, autocommit=True) as other:
                    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
                    wait_until(lambda: other.execute(waiting).fetchone() != (0,), "a build that waits for a reader")
                    other.execute("SET lock_timeout = '1s'")
                    assert other.execute("SELECT count(*) FROM vector_index").fetchone() == (0,)
            assert built.result(30)
    assert graphs(empty_database) == [True]


def test_a_graph_is_built_by_one_process_where_there_is_no_room_to_share(
    empty_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indexes.pgvector.EXACT_LIMIT", -1)
    with closing(open_catalog(tmp_path, create=True, database_url=empty_database)) as catalog:
        run(
            empty_database,
            "CREATE FUNCTION no_room() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN "
            "IF current_setting('max_parallel_maintenance_workers') <> '0' THEN RAISE SQLSTATE '53100'; END IF; END $$",
            "CREATE EVENT TRIGGER shared ON ddl_command_start WHEN TAG IN ('CREATE INDEX') EXECUTE FUNCTION no_room()",
        )
        assert catalog.build_graph(16)
        assert graphs(empty_database) == [True]


def test_a_value_that_no_database_keeps_is_bad_input(empty_database: str) -> None:
    store = PostgresDatabase(empty_database, CATALOG)
    for value in ("a\0b", "half \ud800"):
        with pytest.raises(InvalidInput), store.writing() as connection:
            connection.execute(sa.text("INSERT INTO meta VALUES ('x', :value)"), {"value": value})
        with pytest.raises(InvalidInput), store.writing() as connection:
            insert_rows(connection, CATALOG.tables.tables["meta"], [{"key": "x", "value": value}])


def test_rows_sent_while_the_server_goes_away_are_an_error_and_none_is_kept(empty_database: str) -> None:
    store = PostgresDatabase(empty_database, CATALOG)
    meta = CATALOG.tables.tables["meta"]

    def rows() -> Iterator[tuple[str, str]]:
        yield "first", ""
        end_connections(empty_database)
        yield from ((f"{number}", "x" * 1000) for number in range(1000))

    with pytest.raises(DatabaseUnavailable), store.writing() as connection:
        copy_rows(connection, "COPY meta (key, value) FROM STDIN", rows())
    with store.reading() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(meta)) == 0
    store.close()


@pytest.mark.parametrize(("state", "kind"), [("40P01", Busy), ("26000", DatabaseUnavailable)])
def test_transactions_in_each_others_way_are_busy_and_a_session_that_others_use_is_no_database(
    empty_database: str, state: str, kind: type[CoalesceError]
) -> None:
    store = PostgresDatabase(empty_database, CATALOG)
    with pytest.raises(kind), store.writing() as connection:
        connection.exec_driver_sql(f"DO $$ BEGIN RAISE SQLSTATE '{state}'; END $$")
