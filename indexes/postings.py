"""The lexical index in PostgreSQL: BM25 as SQLite's FTS5 counts it, over our own terms.

PostgreSQL's own ranking knows nothing of how rare a term is. A row holds what one book has of one term: the rowids of
its nodes, and beside each how often its heading path and its text have the term, and how many terms the node has.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.schema import ExecutableDDLElement

from indexes.database import copy_rows

HEADING_WEIGHT = 2.0
"""How much more a term counts in a node's heading path than in its text (BM25 column weight)."""
K1, B = 1.2, 0.75
"""FTS5's."""
LEAST_IDF = 1e-6
"""FTS5's weight of a term that more than half of the rows hold."""
MOST = 32_767
"""What counts are capped at: they are kept in 16 bits."""

_CREATE = (
    "CREATE TABLE IF NOT EXISTS postings (term text NOT NULL, first integer NOT NULL, rowids integer[] NOT NULL, "
    "headings smallint[] NOT NULL, bodies smallint[] NOT NULL, sizes smallint[] NOT NULL, PRIMARY KEY (term, first))",
    "CREATE INDEX IF NOT EXISTS postings_by_book ON postings (first)",
    "CREATE TABLE IF NOT EXISTS postings_books "
    "(first integer PRIMARY KEY, nodes integer NOT NULL, terms bigint NOT NULL)",
)
LEXICAL = sa.table("lexical", sa.column("rowid", sa.Integer), sa.column("heading"), sa.column("body"))
"""SQLite's index, by whose name conditions speak of what is ranked here, too."""
_POSTINGS = sa.table("postings", *map(sa.column, ("term", "first", "rowids", "headings", "bodies", "sizes")))
_BOOKS = sa.table("postings_books", *map(sa.column, ("first", "nodes", "terms")))
_COUNTS = sa.text(
    "SELECT term, sum(cardinality(rowids)) FROM postings WHERE term = ANY(CAST(:terms AS text[])) GROUP BY term"
)
_TOTALS = sa.text("SELECT coalesce(sum(nodes), 0), coalesce(sum(terms), 0) FROM postings_books")
_SCORES = (
    sa.text(
        "SELECT one.rowid AS rowid, sum(asked.idf * one.often * :k1_1 / "
        "(one.often + :k1 * (1 - :b + :b * one.size / :average))) AS score "
        "FROM unnest(CAST(:terms AS text[]), CAST(:idfs AS float8[])) AS asked(term, idf) "
        "JOIN postings USING (term), LATERAL (SELECT rowid, :heading_weight * heading + body AS often, size "
        "FROM unnest(rowids, headings, bodies, sizes) AS each(rowid, heading, body, size)) AS one GROUP BY one.rowid"
    )
    .bindparams(k1=K1, k1_1=K1 + 1, b=B, heading_weight=HEADING_WEIGHT)
    .columns(sa.column("rowid", sa.Integer), sa.column("score", sa.Float))
    .cte("lexical")
)
_SCORE = sa.literal_column("score", sa.Float)
_RANKING = sa.select(LEXICAL.c.rowid, _SCORE).add_cte(_SCORES).order_by(_SCORE.desc(), LEXICAL.c.rowid)


def create_with(tables: sa.MetaData) -> None:
    """Create the index whenever these tables are created in PostgreSQL."""
    for statement in _CREATE:
        create: ExecutableDDLElement = sa.DDL(statement)  # type: ignore[no-untyped-call]  # as in `lexical`
        sa.event.listen(tables, "after_create", create.execute_if(dialect="postgresql"))


def add(connection: sa.Connection, first: int, nodes: Sequence[tuple[str, str]]) -> None:
    """Index the nodes of one book: terms of the heading path and of the text of each, between spaces."""
    found: dict[str, list[tuple[int, int, int, int]]] = {}
    total = 0
    for rowid, both in enumerate(nodes, first):
        in_heading, in_body = (Counter(terms.lower().split()) for terms in both)
        size = in_heading.total() + in_body.total()
        total += size
        for term in in_heading.keys() | in_body.keys():
            counted = rowid, in_heading.get(term, 0), in_body.get(term, 0), size
            found.setdefault(term, []).append(counted)
    connection.execute(sa.insert(_BOOKS), {"first": first, "nodes": len(nodes), "terms": total})
    # In the order of the index, which takes them a third quicker.
    rows = ((term, first, *_arrays(found[term])) for term in sorted(found))
    copy_rows(connection, "COPY postings (term, first, rowids, headings, bodies, sizes) FROM STDIN", rows)


def remove(connection: sa.Connection, first: int, last: int) -> None:
    """Forget the books whose first node has one of these rowids."""
    for table in (_POSTINGS, _BOOKS):
        connection.execute(sa.delete(table).where(table.c.first.between(first, last)))


def counts(connection: sa.Connection, terms: Sequence[str]) -> dict[str, int]:
    """How many nodes hold each of these terms; those that none holds are left out."""
    asked = list({term.lower() for term in terms})
    return {term: int(count) for term, count in connection.execute(_COUNTS, {"terms": asked})}


def ranked(
    connection: sa.Connection, terms: Sequence[str], top_k: int, conditions: Sequence[sa.ColumnElement[bool]]
) -> list[tuple[int, float]]:
    """Rowids and BM25 scores of the nodes that hold any of the terms and meet all conditions, best first."""
    nodes, all_terms = connection.execute(_TOTALS).one()
    held = counts(connection, terms)
    if not held or top_k < 1:
        return []
    idfs = [max(math.log((int(nodes) - count + 0.5) / (count + 0.5)), LEAST_IDF) for count in held.values()]
    values = {"terms": list(held), "idfs": idfs, "average": float(all_terms) / float(nodes)}
    found = connection.execute(_RANKING.where(*conditions).limit(top_k), values)
    return [(rowid, score) for rowid, score in found]


def _arrays(counted: Sequence[tuple[int, int, int, int]]) -> tuple[str, ...]:
    """Columns of a row, as the server reads arrays."""
    rowids, *counts = zip(*counted, strict=True)
    if max(counts[-1]) > MOST:
        counts = [tuple(min(count, MOST) for count in column) for column in counts]
    return tuple("{" + ",".join(map(str, column)) + "}" for column in (rowids, *counts))
