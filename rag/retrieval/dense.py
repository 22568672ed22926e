"""Nodes by the nearness of their vectors to the query's."""

from __future__ import annotations

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle

from indexes.types import Filters, Hit
from rag.retrieval.llama_nodes import to_llama
from rag.retrieval.protocol import SearchableLibrary


class DenseRetriever(BaseRetriever):
    """The library's vectors behind llama-index's retriever."""

    def __init__(self, library: SearchableLibrary, top_k: int = 50, filters: Filters | None = None) -> None:
        super().__init__()
        self._library = library
        self._top_k = top_k
        self._filters = filters or Filters()

    def hits(self, query: str, k: int | None = None, filters: Filters | None = None) -> list[Hit]:
        """The nearest `k` nodes, the score a cosine."""
        return self._library.dense(query, k or self._top_k, filters or self._filters)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [to_llama(hit) for hit in self.hits(query_bundle.query_str)]
