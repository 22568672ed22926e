"""Search by vector in PostgreSQL with pgvector: half-precision vectors beside the catalog's own, in its transactions.

What the index finds is scored again with the catalog's vectors, so scores are those of a home.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.schema import ExecutableDDLElement

from indexes.database import copy_rows

EXACT_LIMIT = 50_000
"""With more vectors an exact search takes more than tens of milliseconds; above it an HNSW graph is built."""
EDGES, BUILT_AMONG, SEARCHED_AMONG = 32, 200, 1000
"""The graph's `m`, `ef_construction` and `ef_search`. pgvector's own 16, 64 and 40 find 0.64 of the ten nearest among
50,000 vectors that lie in tight groups (`docs/scale.md`)."""
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


def build(connection: sa.Connection, dimension: int) -> None:
    """Build the graph of a library that has grown large, unless there is one; other writers wait."""
    count = connection.execute(sa.select(sa.func.count()).select_from(_INDEX)).scalar_one()
    if count > EXACT_LIMIT:
        connection.exec_driver_sql(
            f"CREATE INDEX IF NOT EXISTS vector_graph_{dimension} ON vector_index "
            f"USING hnsw ((CAST(embedding AS halfvec({dimension}))) halfvec_ip_ops) "
            f"WITH (m = {EDGES}, ef_construction = {BUILT_AMONG})"
        )


def _sent(vector: bytes) -> bytes:
    """A stored vector as a server takes its `halfvec`: how many numbers, two unused bytes, and the numbers."""
    numbers = np.frombuffer(vector, "<f4").astype(">f2")
    return len(numbers).to_bytes(2) + bytes(2) + numbers.tobytes()


def _text(vector: np.ndarray) -> str:
    return "[" + ",".join(f"{value:.6g}" for value in vector.tolist()) + "]"
