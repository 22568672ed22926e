"""A store moved whole from a home's file into a shared database, or back."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from indexes.database import Schema, Store, insert_rows
from indexes.errors import Conflict
from indexes.messages import msg

MOVED_TOGETHER = 1_000
"""Rows that are read and written at a time."""
_SUMS = 2**64

Derive = Callable[[sa.Connection], None]
"""Makes in a store what follows from the rows that were moved."""
Moved = Callable[[str, int, int], None]
"""Called with a table, the rows of it that are done, and all."""


def move_store(
    source: Store, target: Store, schema: Schema, derive: Derive = lambda _: None, tell: Moved = lambda *_: None
) -> dict[str, int]:
    """Copy every row of a store into another that is empty, and give the numbers of rows by table.

    All in one transaction: a move that broke off left nothing, and is begun again. What arrived is read back and
    compared. A store that holds the same rows was moved before, and is left as it is.

    Args:
        derive: what is called at the end of the transaction, before it is compared.

    Raises:
        Conflict: the target holds other rows, or did not take them all.
        CoalesceError: as `Store.reading` and `Store.writing`.
    """
    tables = schema.tables.sorted_tables
    with source.reading() as old, target.writing() as new:
        wanted, there = _counts(old, tables), _counts(new, tables)
        if any(there.values()):
            if there != wanted or any(_sum(_rows(old, table)) != _sum(_rows(new, table)) for table in tables):
                raise not_empty(there)
            return wanted
        for table in tables:
            done = expected = 0
            for rows in _rows(old, table):
                insert_rows(new, table, [dict(row) for row in rows])
                done, expected = done + len(rows), (expected + _sum([rows])) % _SUMS
                tell(table.name, done, wanted[table.name])
            if _sum(_rows(new, table)) != expected:
                raise Conflict(msg("The rows of '{}' did not arrive as they were.", table.name), hint="try again")
            _go_on_counting(new, table)
        derive(new)
        if (arrived := _counts(new, tables)) != wanted:
            raise Conflict(
                msg("Of {} only {} arrived; nothing was kept.", _told(wanted), _told(arrived)), hint="try again"
            )
        return wanted


def count_rows(store: Store, schema: Schema) -> dict[str, int]:
    """The numbers of rows of a store by table. Raises as `Store.reading`."""
    with store.reading() as connection:
        return _counts(connection, schema.tables.sorted_tables)


def not_empty(there: dict[str, int]) -> Conflict:
    """What is said of a target that holds rows of its own."""
    held = {name: count for name, count in there.items() if count}
    return Conflict(
        msg("There is something in it already: {}.", _told(held)), hint="move into an empty home or database"
    )


def _counts(connection: sa.Connection, tables: Sequence[sa.Table]) -> dict[str, int]:
    counted = {table.name: sa.select(sa.func.count()).select_from(table) for table in tables}
    return {name: connection.execute(wanted).scalar_one() for name, wanted in counted.items()}


def _rows(connection: sa.Connection, table: sa.Table) -> Iterator[Sequence[sa.RowMapping]]:
    found = connection.execute(sa.select(table), execution_options={"yield_per": MOVED_TOGETHER})
    return found.mappings().partitions()


def _sum(parts: Iterable[Sequence[sa.RowMapping]]) -> int:
    """A sum over rows, the same in any order."""
    digests = (hashlib.blake2b(repr(tuple(row.values())).encode(), digest_size=8) for rows in parts for row in rows)
    return sum(int.from_bytes(digest.digest()) for digest in digests) % _SUMS


def _told(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _go_on_counting(connection: sa.Connection, table: sa.Table) -> None:
    """Let PostgreSQL number the next row after those that came with their numbers; SQLite does so by itself."""
    column: sa.Column[Any] | None = table.autoincrement_column
    if column is not None and connection.dialect.name == "postgresql":
        last = sa.select(sa.func.max(column)).scalar_subquery()
        name = sa.func.pg_get_serial_sequence(table.name, column.name)
        connection.execute(sa.select(sa.func.setval(name, last)).where(last.is_not(None)))
