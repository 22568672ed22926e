"""SQL over the lexical index: BM25 by SQLite's FTS5. Functions of an open transaction; no state."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from indexes.node_rows import filter_clause
from indexes.types import Filters

HEADING_WEIGHT = 2.0
"""How much more a term counts in a node's heading path than in its text (BM25 column weight)."""
SCORED_AT_LEAST = 20_000
SCORED_SHARE = 0.1
"""Scoring a row takes a microsecond, and in a large library half of the rows hold one of a question's terms. So only
rows are scored that hold one of its rarer terms: as many terms as occur in `SCORED_AT_LEAST` rows or this share of the
library. Their scores count all terms. `docs/benchmarks.md` says how often the first ten are the same."""
_RANK = f"bm25(lexical, {HEADING_WEIGHT}, 1.0)"


def lexical_ranking(
    rows: sqlite3.Connection, query: Sequence[str], top_k: int, filters: Filters, scored_at_least: int | None = None
) -> list[tuple[int, float]]:
    """Rowids with BM25 scores, best first; terms are parted by OR. `scored_at_least`: None takes `SCORED_AT_LEAST`."""
    terms = [f'"{term}"' for term in query if '"' not in term]
    if not terms or top_k < 1:
        return []
    match = " OR ".join(terms)
    if filters.empty:
        rare = _rare_terms(rows, terms, SCORED_AT_LEAST if scored_at_least is None else scored_at_least)
        clause, values = "1", []
        if len(rare) < len(terms):
            # The plus keeps SQLite from running the whole query anew for each of these rows.
            clause = "+rowid IN (SELECT rowid FROM lexical WHERE lexical MATCH ?)"
            values = [" OR ".join(rare)]
        found = rows.execute(
            f"SELECT rowid, {_RANK} AS score FROM lexical WHERE lexical MATCH ? AND {clause} ORDER BY score LIMIT ?",
            (match, *values, top_k),
        )
    else:
        clause, conditions = filter_clause(filters)
        found = rows.execute(
            f"SELECT lexical.rowid, {_RANK} AS score FROM lexical JOIN nodes ON nodes.rowid = lexical.rowid "
            f"WHERE lexical MATCH ? AND lexical.rowid BETWEEN ? AND ? AND {clause} ORDER BY score LIMIT ?",
            (match, *_bounds(rows, filters), *conditions, top_k),
        )
    # SQLite's bm25() is smaller for better rows.
    return [(rowid, -score) for rowid, score in found]


def _rare_terms(rows: sqlite3.Connection, terms: Sequence[str], scored_at_least: int) -> Sequence[str]:
    """The rarest of the terms, at least one, that together occur in no more rows than may be scored."""
    nodes = int(rows.execute("SELECT coalesce(sum(nodes), 0) FROM documents").fetchone()[0])
    most = max(scored_at_least, int(SCORED_SHARE * nodes))
    if nodes <= most:
        return terms
    count = "SELECT count(*) FROM (SELECT 1 FROM lexical WHERE lexical MATCH ? LIMIT ?)"
    occurs = {term: int(rows.execute(count, (term, most + 1)).fetchone()[0]) for term in terms}
    # A term that occurs nowhere narrows nothing.
    ordered = sorted((term for term in terms if occurs[term]), key=lambda term: occurs[term])
    kept: list[str] = []
    total = 0
    for term in ordered:
        total += occurs[term]
        if kept and total > most:
            break
        kept.append(term)
    return kept if len(kept) < len(ordered) else terms


def _bounds(rows: sqlite3.Connection, filters: Filters) -> tuple[int, int]:
    """The rowids between which the filters' books lie: FTS5 then reads that stretch only."""
    books = filters.document_ids
    where = f"WHERE document_id IN ({','.join('?' * len(books))})" if books else ""
    found = rows.execute(
        f"SELECT coalesce(min(first_rowid), 0), coalesce(max(last_rowid), -1) FROM documents {where}", books
    ).fetchone()
    return int(found[0]), int(found[1])
