"""Dense and lexical search of one question, fused, and reranked when a reranker is configured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle

from indexes.types import Filters, Hit
from rag.generators.protocol import Turn
from rag.retrieval.dense import DenseRetriever
from rag.retrieval.fusion import reciprocal_rank_fusion
from rag.retrieval.inline_filters import split_inline_filters
from rag.retrieval.lexical import LexicalRetriever
from rag.retrieval.llama_nodes import to_llama
from rag.retrieval.protocol import SearchableLibrary
from rag.retrieval.query import Query, prepare_query
from rag.retrieval.reranker import CrossEncoderReranker
from rag.settings import RetrievalSettings

DENSE_WEIGHT = 1.0
LEXICAL_WEIGHT = 1.0


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
        hits = reciprocal_rank_fusion([dense, lexical], [DENSE_WEIGHT, LEXICAL_WEIGHT])
        if self._reranker is not None:
            hits = self._reranker.rerank(query.english, hits)
        return Retrieval(query, filters, tuple(hits), tuple(dense), tuple(lexical))

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [to_llama(hit) for hit in self.search(query_bundle.query_str, Filters()).hits]
