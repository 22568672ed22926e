"""A store moved whole from a home's file into a shared database, or back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from indexes.database import Schema, Store
from indexes.errors import Conflict
from indexes.messages import msg

MOVED_TOGETHER = 1_000
"""Rows that are read and written at a time."""

Derive = Callable[[sa.Connection], None]
"""Makes in a store what follows from the rows that were moved."""


def move_store(source: Store, target: Store, schema: Schema, derive: Derive = lambda _: None) -> dict[str, int]:
    """Copy every row of a store into another that is empty, and give the numbers of rows by table.

    All in one transaction: a move that broke off left nothing, and is begun again. A store that holds the same numbers
    of rows was moved before, and is left as it is.

    Args:
        derive: what is called at the end of the transaction, before it is counted.

    Raises:
        Conflict: the target holds other rows, or did not take them all.
        CoalesceError: as `Store.reading` and `Store.writing`.
    """
    tables = schema.tables.sorted_tables
    with source.reading() as old, target.writing() as new:
        wanted, there = _counts(old, tables), _counts(new, tables)
        if there == wanted:
            return wanted
        if any(there.values()):
            raise Conflict(
                msg("There is something in it already: {}.", _told(there)), hint="move into an empty home or database"
            )
        for table in tables:
            for rows in old.execute(sa.select(table)).mappings().partitions(MOVED_TOGETHER):
                new.execute(sa.insert(table), [dict(row) for row in rows])
            _go_on_counting(new, table)
        derive(new)
        if (arrived := _counts(new, tables)) != wanted:
            raise Conflict(
                msg("Of {} only {} arrived; nothing was kept.", _told(wanted), _told(arrived)), hint="try again"
            )
        return wanted


def _counts(connection: sa.Connection, tables: Sequence[sa.Table]) -> dict[str, int]:
    counted = {table.name: sa.select(sa.func.count()).select_from(table) for table in tables}
    return {name: connection.execute(wanted).scalar_one() for name, wanted in counted.items()}


def _told(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _go_on_counting(connection: sa.Connection, table: sa.Table) -> None:
    """Let PostgreSQL number the next row after those that came with their numbers; SQLite does so by itself."""
    column: sa.Column[Any] | None = table.autoincrement_column
    if column is not None and connection.dialect.name == "postgresql":
        last = sa.select(sa.func.max(column)).scalar_subquery()
        name = sa.func.pg_get_serial_sequence(table.name, column.name)
        connection.execute(sa.select(sa.func.setval(name, last)).where(last.is_not(None)))
