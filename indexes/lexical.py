"""The lexical index: BM25 by SQLite's FTS5, in PostgreSQL by `postings`. Only the catalog uses it; a row has its node's
rowid."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.schema import ExecutableDDLElement

from indexes import postings
from indexes.postings import HEADING_WEIGHT
from indexes.postings import LEXICAL as LEXICAL
from indexes.words import index_terms

SCORED_AT_LEAST = 20_000
SCORED_SHARE = 0.1
"""Scoring a row takes a microsecond, and in a large library half of the rows hold one of a question's terms. So only
rows are scored that hold one of its rarer terms: as many terms as occur in `SCORED_AT_LEAST` rows or this share of the
library. Their scores count all terms. `docs/benchmarks.md` says how often the first ten are the same."""

# Terms are separated by spaces; bytes above 127 are letters to this tokenizer.
_CREATE = """CREATE VIRTUAL TABLE IF NOT EXISTS lexical USING fts5(heading, body, tokenize = "ascii tokenchars '_.'")"""
_SCORE: sa.ColumnElement[float] = sa.literal_column(f"bm25(lexical, {HEADING_WEIGHT}, 1.0)").label("score")
_RANKING = (
    sa.select(LEXICAL.c.rowid, _SCORE)
    .where(sa.text("lexical MATCH :query"))
    .order_by(_SCORE)
    .limit(sa.bindparam("top_k"))
)
# The plus keeps SQLite from running the whole query again for each of these rows.
_RARE_RANKING = _RANKING.where(sa.text("+rowid IN (SELECT rowid FROM lexical WHERE lexical MATCH :rare)"))
_COUNTS = sa.text(
    "SELECT asked.value, (SELECT count(*) FROM (SELECT 1 FROM lexical WHERE lexical MATCH asked.value LIMIT :most)) "
    "FROM json_each(:terms) AS asked"
)


def create_with(tables: sa.MetaData) -> None:
    """Create the index whenever these tables are created."""
    create: ExecutableDDLElement = sa.DDL(_CREATE)  # type: ignore[no-untyped-call]  # typed in its stubs only in part
    sa.event.listen(tables, "after_create", create.execute_if(dialect="sqlite"))
    postings.create_with(tables)


def terms_of(nodes: Iterable[tuple[tuple[str, ...], str]]) -> list[tuple[str, str]]:
    """What is indexed of nodes, given their heading paths and texts: the terms of both, between spaces.

    Finding them takes as long as all that is stored of the nodes, and no transaction.
    """
    headings: dict[tuple[str, ...], str] = {}
    found = []
    for path, body in nodes:
        if path not in headings:
            headings[path] = " ".join(index_terms(" \n ".join(path)))
        found.append((headings[path], " ".join(index_terms(body))))
    return found


def add(connection: sa.Connection, first: int, nodes: Sequence[tuple[str, str]]) -> None:
    """Index the nodes of one book, as `terms_of` gives them; their rowids go up from `first`."""
    if not nodes:
        return
    if connection.dialect.name == "postgresql":
        postings.add(connection, first, nodes)
        return
    rows = [{"rowid": rowid, "heading": heading, "body": body} for rowid, (heading, body) in enumerate(nodes, first)]
    connection.execute(sa.insert(LEXICAL), rows)


def remove(connection: sa.Connection, first: int, last: int) -> None:
    """Forget the nodes with these rowids, both ends included: all that were added together."""
    if connection.dialect.name == "postgresql":
        postings.remove(connection, first, last)
        return
    connection.execute(sa.delete(LEXICAL).where(LEXICAL.c.rowid.between(first, last)))


def ranking(
    connection: sa.Connection, query: Sequence[str], top_k: int, num_nodes: int, scored_at_least: int | None = None
) -> list[tuple[int, float]]:
    """Rowids and BM25 scores of the nodes that hold any of the terms, best first.

    Args:
        num_nodes: nodes in the library, on which the number of scored rows depends.
        scored_at_least: None takes `SCORED_AT_LEAST`.
    """
    if connection.dialect.name == "postgresql":
        return postings.ranked(connection, query, top_k, ())
    terms = _quoted(query)
    most = max(SCORED_AT_LEAST if scored_at_least is None else scored_at_least, int(SCORED_SHARE * num_nodes))
    rare = _rare_terms(connection, terms, most) if num_nodes > most else terms
    if len(rare) == len(terms):
        return _ranked(connection, _RANKING, terms, top_k)
    return _ranked(connection, _RARE_RANKING, terms, top_k, rare=" OR ".join(rare))


def ranking_among(
    connection: sa.Connection, query: Sequence[str], top_k: int, conditions: Sequence[sa.ColumnElement[bool]]
) -> list[tuple[int, float]]:
    """As `ranking`, of the rows that meet all conditions; each of them is scored."""
    if connection.dialect.name == "postgresql":
        return postings.ranked(connection, query, top_k, conditions)
    return _ranked(connection, _RANKING.where(*conditions), _quoted(query), top_k)


def counts(connection: sa.Connection, terms: Sequence[str], most: int) -> dict[str, int]:
    """How many rows hold each of these terms, counted up to `most`."""
    if connection.dialect.name == "postgresql":
        counted = postings.counts(connection, terms)
        return {term: min(counted.get(term.lower(), 0), most) for term in terms if '"' not in term}
    quoted = {f'"{term}"': term for term in terms if '"' not in term}
    found = connection.execute(_COUNTS, {"terms": json.dumps(list(quoted)), "most": most})
    return {quoted[asked]: count for asked, count in found}


def _ranked(
    connection: sa.Connection, statement: sa.Select[Any], terms: Sequence[str], top_k: int, **values: str
) -> list[tuple[int, float]]:
    if not terms or top_k < 1:
        return []
    found = connection.execute(statement, {"query": " OR ".join(terms), "top_k": top_k} | values)
    # SQLite's bm25() is smaller for better rows.
    return [(rowid, -score) for rowid, score in found]


def _quoted(query: Sequence[str]) -> list[str]:
    return [f'"{term}"' for term in query if '"' not in term]


def _rare_terms(connection: sa.Connection, terms: Sequence[str], most: int) -> Sequence[str]:
    """The rarest of the terms, at least one, that together occur in at most `most` rows."""
    occurs = {f'"{term}"': count for term, count in counts(connection, [one[1:-1] for one in terms], most + 1).items()}
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
