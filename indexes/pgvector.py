"""Search by vector in PostgreSQL with pgvector: half-precision vectors beside the catalog's own, in its transactions.

What the index finds is scored again with the catalog's vectors, so scores are those of a home.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError
from sqlalchemy.schema import ExecutableDDLElement

from indexes.database import copy_rows

EXACT_LIMIT = 50_000
"""With more vectors an exact search takes more than tens of milliseconds; above it an HNSW graph is built."""
EDGES, BUILT_AMONG, SEARCHED_AMONG = 32, 200, 1000
"""The graph's `m`, `ef_construction` and `ef_search`. pgvector's own 16, 64 and 40 find 0.64 of the ten nearest among
50,000 vectors that lie in tight groups (`docs/scale.md`)."""
BYTES_OF_EDGES = 1_350
"""Memory of a vector's edges while the graph is built. Measured: 1,324 (32,072 vectors of 384 numbers in 64 MB); when
the room is full each further vector takes some three times as long."""
MOST_MEMORY_KB = 2 << 20
"""More is taken only where `maintenance_work_mem` of the server says so."""
BUILDING = 0x436F616C_67726170
"""The number of the lock that a builder holds."""
_NO_SHARED_MEMORY = "53100"
"""Of several processes that build; a container has 64 MB by default. One alone needs none."""
FOUND_AGAIN = 2
"""How many times `top_k` are looked for before they are scored again: half precision swaps near neighbours."""
_CREATE = (
    "CREATE EXTENSION IF NOT EXISTS vector",
    "CREATE TABLE IF NOT EXISTS vector_index (vector_id integer PRIMARY KEY "
    "REFERENCES vectors ON DELETE CASCADE, embedding halfvec NOT NULL)",
)
_VECTOR_ID = sa.column("vector_id", sa.Integer)
_INDEX = sa.table("vector_index", _VECTOR_ID)
_ADD = "COPY vector_index (vector_id, embedding) FROM STDIN (FORMAT BINARY)"


def create_with(tables: sa.MetaData) -> None:
    """Create extension and table whenever these tables are created in PostgreSQL."""
    for statement in _CREATE:
        create: ExecutableDDLElement = sa.DDL(statement)  # type: ignore[no-untyped-call]  # as in `lexical`
        sa.event.listen(tables, "after_create", create.execute_if(dialect="postgresql"))


def add(connection: sa.Connection, new: Iterable[tuple[int, bytes]]) -> None:
    """Index stored vectors: the id of each and its little-endian float32."""
    copy_rows(connection, _ADD, ((number, _sent(vector)) for number, vector in new), types=("int4", "bytea"))


def nearest(
    connection: sa.Connection,
    nodes: sa.Table,
    vector: np.ndarray,
    top_k: int,
    conditions: Sequence[sa.ColumnElement[bool]],
) -> np.ndarray:
    """Rowids, int64, ascending, of at least the `top_k` nodes nearest to a vector that meet all conditions.

    Where there are conditions every node that meets them is compared: the graph is for searches of everything.
    """
    kind = f"halfvec({len(vector)})"
    stored = "embedding" if conditions else f"CAST(embedding AS {kind})"  # by the second the server knows the graph
    connection.exec_driver_sql(
        f"SET LOCAL hnsw.iterative_scan = strict_order; SET LOCAL hnsw.ef_search = {SEARCHED_AMONG}"
    )
    near: Any = sa.text(f"{stored} <#> CAST(:vector AS {kind})")
    wanted = (
        sa.select(nodes.c.rowid)
        .join_from(_INDEX, nodes, nodes.c.vector_id == _INDEX.c.vector_id)
        .where(*conditions)
        .order_by(near)
        .limit(FOUND_AGAIN * top_k)
    )
    found = connection.execute(wanted, {"vector": _text(vector)})
    return np.array(sorted(rowid for (rowid,) in found), dtype=np.int64)


def build(connection: sa.Connection, dimension: int) -> bool:
    """Build the graph of a library that has grown large, beside readers and writers, unless somebody builds it.

    Args:
        connection: one whose every statement is a transaction, and that is closed afterwards.

    Returns:
        whether the graph is there.
    """
    name = f"vector_graph_{dimension}"
    is_there = sa.select(sa.literal(True)).select_from(sa.text("pg_index"))
    is_there = is_there.where(sa.text(f"indexrelid = to_regclass('{name}') AND indisvalid"))
    if connection.scalar(is_there):
        return True
    count = connection.execute(sa.select(sa.func.count()).select_from(_INDEX)).scalar_one()
    if count <= EXACT_LIMIT or not connection.scalar(sa.select(sa.func.pg_try_advisory_lock(BUILDING))):
        return False
    if connection.scalar(is_there):  # built while this one counted
        return True
    (memory_kb,) = connection.exec_driver_sql(
        "SELECT setting::bigint FROM pg_settings WHERE name = 'maintenance_work_mem'"
    ).one()
    needed_kb = min(count * (2 * dimension + BYTES_OF_EDGES) // 1024, MOST_MEMORY_KB)
    connection.exec_driver_sql(f"SET maintenance_work_mem = {max(memory_kb, needed_kb)}")
    try:
        _create_graph(connection, name, dimension)
    except OperationalError as error:
        if getattr(error.orig, "sqlstate", None) != _NO_SHARED_MEMORY:
            raise
        connection.exec_driver_sql("SET max_parallel_maintenance_workers = 0")
        _create_graph(connection, name, dimension)
    return True


def _create_graph(connection: sa.Connection, name: str, dimension: int) -> None:
    # What is left of a build that broke off; dropped at once, it would keep all others out while it waits for readers.
    connection.exec_driver_sql(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
    connection.exec_driver_sql(
        f"CREATE INDEX CONCURRENTLY {name} ON vector_index "
        f"USING hnsw ((CAST(embedding AS halfvec({dimension}))) halfvec_ip_ops) "
        f"WITH (m = {EDGES}, ef_construction = {BUILT_AMONG})"
    )


def _sent(vector: bytes) -> bytes:
    """A stored vector as a server takes its `halfvec`: how many numbers, two unused bytes, and the numbers."""
    numbers = np.frombuffer(vector, "<f4").astype(">f2")
    return len(numbers).to_bytes(2) + bytes(2) + numbers.tobytes()


def _text(vector: np.ndarray) -> str:
    return "[" + ",".join(f"{value:.6g}" for value in vector.tolist()) + "]"
