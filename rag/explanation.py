"""Why a page was not found: the ranks of its nodes in each search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from indexes.errors import InvalidInput, NotFound
from indexes.types import Filters, Hit, StoredNode
from indexes.words import terms_of
from rag.retrieval import Retrieval
from rag.types import SearchableLibrary

MOST_NODES = 100
"""Most nodes listed for one page."""


@dataclass(frozen=True, slots=True)
class NodeRanks:
    """One node's ranks, from 1; None where it is not among the candidates.

    Attributes:
        shared, missing: terms of the query that the node holds and lacks.
    """

    node_id: str
    section: tuple[str, ...]
    page_start: int | None
    page_end: int | None
    text: str
    dense_rank: int | None
    lexical_rank: int | None
    fused_rank: int | None
    shared: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """The nodes asked about, best fused rank first, and how deep each ranking went."""

    query: str
    dense_query: str
    lexical_query: str
    nodes: tuple[NodeRanks, ...]
    candidates_dense: int
    candidates_lexical: int


def explain(
    retrieval: Retrieval,
    library: SearchableLibrary,
    document_id: str,
    *,
    page: int | None = None,
    node_ids: Sequence[str] = (),
) -> Explanation:
    """Ranks of the nodes `node_ids`, or of every node of a book that touches file page `page`.

    Raises:
        InvalidInput: neither or both are given.
        NotFound: no such node or page in this book.
    """
    if (page is None) == (not node_ids):
        raise InvalidInput("give either a page or nodes", hint="Use `page=12`, or `node_ids` of passages.")
    if node_ids:
        nodes = [node for node in library.get_nodes(node_ids) if node.document_id == document_id]
    else:
        there = Filters(document_ids=(document_id,), pages=(page or 1, page or 1))
        nodes = [hit.node for hit in library.dense(retrieval.query.dense, MOST_NODES, there)]
    if not nodes:
        what = f"page {page}" if page is not None else f"node {node_ids[0]!r}"
        raise NotFound(f"{what} is not in the book {document_id!r}", hint="`coalesce list` shows the books.")
    asked = terms_of(retrieval.query.english).pieces
    ranks = [_ranks(node, retrieval, asked) for node in nodes]
    ranks.sort(key=lambda item: (item.fused_rank is None, item.fused_rank))
    query = retrieval.query
    return Explanation(
        query.text, query.dense, query.lexical, tuple(ranks), len(retrieval.dense), len(retrieval.lexical)
    )


def _ranks(node: StoredNode, retrieval: Retrieval, asked: frozenset[str]) -> NodeRanks:
    held = terms_of(" ".join((node.title, *node.heading_path, node.text))).pieces
    return NodeRanks(
        node_id=node.node_id,
        section=node.heading_path,
        page_start=node.page_start,
        page_end=node.page_end,
        text=node.text,
        dense_rank=_rank(node, retrieval.dense),
        lexical_rank=_rank(node, retrieval.lexical),
        fused_rank=_rank(node, retrieval.hits),
        shared=tuple(sorted(asked & held)),
        missing=tuple(sorted(asked - held)),
    )


def _rank(node: StoredNode, hits: Sequence[Hit]) -> int | None:
    return next((rank for rank, hit in enumerate(hits, 1) if hit.node.node_id == node.node_id), None)
