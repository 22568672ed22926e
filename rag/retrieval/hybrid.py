"""Dense and lexical search of one question, fused, rescored by wording, reranked when a reranker is configured.

A node's score is a weighted sum of its reciprocal ranks, of how closely the question's wording stands together in it,
of its length (a node of a few words rarely answers), and of its book's being named. The first four weights were fitted
on development questions over six open GPU texts; how, and what else was tried, stands in
`docs/decisions-retrieval.md`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle

from indexes.types import Filters, Hit
from rag.retrieval.closeness import closeness
from rag.retrieval.dense import DenseRetriever
from rag.retrieval.fusion import RRF_CONSTANT, reciprocal_rank_fusion
from rag.retrieval.inline_filters import split_inline_filters
from rag.retrieval.lexical import LexicalRetriever
from rag.retrieval.llama_nodes import to_llama
from rag.retrieval.protocol import SearchableLibrary
from rag.retrieval.query import Query, prepare_query
from rag.retrieval.reranker import CrossEncoderReranker
from rag.settings import RetrievalSettings
from rag.types import Turn
from rag.wording import count_words, proper_names

DENSE_WEIGHT = 2.9
LEXICAL_WEIGHT = 3.9
CLOSENESS_WEIGHT = 3.9
LENGTH_WEIGHT = 1.3
FULL_LENGTH_WORDS = 180
TITLE_WEIGHT = 1.2
"""For nodes of a book whose title holds a name that the question calls ('in Numba'), where others' do not. Set by hand:
it moves none of the 616 development searches over several books, and ten questions that name a book to that book."""
RESCORED = 30
"""Nodes of the fused order whose wording is looked at."""
_GREATEST = DENSE_WEIGHT + LEXICAL_WEIGHT + CLOSENESS_WEIGHT + LENGTH_WEIGHT + TITLE_WEIGHT


@dataclass(frozen=True, slots=True)
class Retrieval:
    """What one question found.

    Attributes:
        hits: the final order, best first.
        dense, lexical: the two rankings that went into it, with their own scores.
    """

    query: Query
    filters: Filters
    hits: tuple[Hit, ...]
    dense: tuple[Hit, ...]
    lexical: tuple[Hit, ...]


class HybridRetriever(BaseRetriever):
    """Both retrievers behind one; as a llama-index retriever it gives the fused order."""

    def __init__(
        self,
        library: SearchableLibrary,
        settings: RetrievalSettings,
        *,
        reranker: CrossEncoderReranker | None = None,
        multilingual: bool = False,
    ) -> None:
        super().__init__()
        self._library = library
        self._settings = settings
        self._dense = DenseRetriever(library, settings.candidates)
        self._lexical = LexicalRetriever(library, settings.candidates)
        self._reranker = reranker
        self._multilingual = multilingual

    def search(self, question: str, filters: Filters, turns: Sequence[Turn] = ()) -> Retrieval:
        """Ranked nodes for a question; inline filters in it are taken out and applied.

        Args:
            turns: earlier exchanges, oldest first; used when the question leans on them.
        """
        text, filters = split_inline_filters(question, filters, self._library)
        query = prepare_query(text, turns, multilingual=self._multilingual)
        dense = self._dense.hits(query.dense, filters=filters)
        lexical = self._lexical.hits(query.lexical, filters=filters)
        hits = fuse(query.english, dense, lexical)
        if self._reranker is not None:
            hits = self._reranker.rerank(query.english, hits)
        return Retrieval(query, filters, tuple(hits), tuple(dense), tuple(lexical))

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [to_llama(hit) for hit in self.search(query_bundle.query_str, Filters()).hits]


def fuse(question: str, dense: Sequence[Hit], lexical: Sequence[Hit]) -> list[Hit]:
    """One order from both rankings; scores from 0 to 1."""
    fused = reciprocal_rank_fusion([dense, lexical], [DENSE_WEIGHT, LEXICAL_WEIGHT])
    head, tail = fused[:RESCORED], fused[RESCORED:]
    close = closeness(question, [hit.node.text for hit in head])
    named = named_titles(question, {hit.node.title for hit in head})
    scored = [
        Hit(
            hit.node,
            (
                (RRF_CONSTANT + 1) * hit.score
                + CLOSENESS_WEIGHT * share
                + LENGTH_WEIGHT * min(count_words(hit.node.text) / FULL_LENGTH_WORDS, 1.0)
                + TITLE_WEIGHT * (hit.node.title in named)
            )
            / _GREATEST,
        )
        for hit, share in zip(head, close, strict=True)
    ]
    scored.sort(key=lambda hit: -hit.score)
    least = scored[-1].score if scored else 0.0
    return [*scored, *(Hit(hit.node, min(least, (RRF_CONSTANT + 1) * hit.score / _GREATEST)) for hit in tail)]


def named_titles(question: str, titles: Collection[str]) -> frozenset[str]:
    """The titles that hold a name of the question, a word with a capital, which at most half of the titles hold."""
    words = {title: proper_names(title, sentences=False) for title in titles}
    named: set[str] = set()
    for name in proper_names(question, sentences=False):
        holding = [title for title in titles if name in words[title]]
        if 2 * len(holding) <= len(titles):
            named.update(holding)
    return frozenset(named)
