"""A library as a llama-index vector store: `VectorStoreIndex.from_vector_store(LibraryVectorStore(library), …)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llama_index.core.schema import BaseNode, TextNode
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    FilterCondition,
    FilterOperator,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryResult,
)
from pydantic import PrivateAttr

from indexes.errors import Conflict, InvalidInput
from indexes.library import Library
from indexes.text_nodes import to_text_node
from indexes.types import Filters

FILTER_KEYS = ("document_id", "chapter")


class LibraryVectorStore(BasePydanticVectorStore):
    """A loaded library, searched by llama-index. Books come in through `Library.add`; `delete` removes a book."""

    stores_text: bool = True

    _library: Library = PrivateAttr()

    def __init__(self, library: Library) -> None:
        super().__init__(stores_text=True)
        self._library = library

    @classmethod
    def class_name(cls) -> str:
        """Name under which llama-index knows the class."""
        return "CoalesceLibraryVectorStore"

    @property
    def client(self) -> Any:
        """The library."""
        return self._library

    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Never possible: the catalog holds books, not loose nodes. Raises Conflict."""
        raise Conflict("Nodes cannot be put into a library one by one.", hint="coalesce add PATH")

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Remove a book. Raises NotFound."""
        self._library.remove(ref_doc_id)

    def get_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None) -> list[BaseNode]:
        """Nodes by id. Raises NotFound, InvalidInput."""
        if node_ids is None or filters is not None:
            raise InvalidInput("A library gives nodes by their ids only.")
        return [to_text_node(node) for node in self._library.get_nodes(node_ids)]

    def embedded_nodes(self, document_id: str) -> list[TextNode]:
        """A book's nodes with their vectors, ready for another store's `add`. Raises NotFound, Busy."""
        nodes, vectors = self._library.nodes_of(document_id), self._library.vectors_of(document_id).tolist()
        return [to_text_node(node, vector) for node, vector in zip(nodes, vectors, strict=True)]

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """The nodes nearest in meaning, best first. Filters: `document_id` and `chapter`, by `==` or `in`.

        Raises:
            InvalidInput: no query vector, or another filter.
            NotFound: a book that is not there.
        """
        if query.query_embedding is None:
            raise InvalidInput("A query to a vector store needs a vector.", hint="give the index an embedding model")
        filters = _filters(query)
        hits = self._library.dense_by_vector(
            np.array(query.query_embedding, dtype=np.float32), query.similarity_top_k, filters
        )
        return VectorStoreQueryResult(
            nodes=[to_text_node(hit.node) for hit in hits],
            similarities=[hit.score for hit in hits],
            ids=[hit.node.node_id for hit in hits],
        )


def _filters(query: VectorStoreQuery) -> Filters:
    found: dict[str, tuple[Any, ...]] = {"document_id": tuple(query.doc_ids or ()), "chapter": ()}
    if query.node_ids or (query.filters is not None and query.filters.condition != FilterCondition.AND):
        raise InvalidInput("A library filters by book and chapter, all conditions together.")
    for one in query.filters.filters if query.filters is not None else ():
        key, operator = getattr(one, "key", None), getattr(one, "operator", None)
        if key not in FILTER_KEYS or operator not in (FilterOperator.EQ, FilterOperator.IN):
            raise InvalidInput(f"A library cannot filter by '{key}'.", hint=f"one of {', '.join(FILTER_KEYS)}")
        value = getattr(one, "value", None)
        found[key] += tuple(value) if isinstance(value, list) else (value,)
    return Filters(document_ids=found["document_id"], chapters=found["chapter"])
