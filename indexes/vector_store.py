"""The FAISS index as a llama-index vector store, to stand wherever llama-index takes one.

Beside `VectorIndex` it keeps what llama-index expects of a store: node ids that are strings, nodes with their text,
documents that can be deleted, and metadata filters that are applied before ranking. Saved, it is two files: the FAISS
index, and the nodes as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from llama_index.core.schema import BaseNode
from llama_index.core.storage.docstore.utils import doc_to_json, json_to_doc
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryResult,
)
from llama_index.core.vector_stores.utils import build_metadata_filter_fn
from pydantic import PrivateAttr

from indexes.errors import IndexCorrupt, IndexMissing, InvalidInput
from indexes.vectors import VectorIndex, load_index


class FaissVectorStore(BasePydanticVectorStore):
    """Nodes with unit vectors in memory, searched exactly; a similarity is a cosine.

    A node that is added under an id that is there takes its place.
    """

    stores_text: bool = True
    flat_metadata: bool = False

    _index: VectorIndex | None = PrivateAttr(default=None)
    _nodes: dict[int, BaseNode] = PrivateAttr(default_factory=dict)
    _keys: dict[str, int] = PrivateAttr(default_factory=dict)
    _last_key: int = PrivateAttr(default=0)

    @classmethod
    def class_name(cls) -> str:
        """Name under which llama-index knows the class."""
        return "CoalesceFaissVectorStore"

    @property
    def client(self) -> Any:
        """The vector index; None before the first node."""
        return self._index

    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Store embedded nodes; their ids. Raises InvalidInput for a wrong dimension or values that are no numbers."""
        if not nodes:
            return []
        vectors = _unit(np.array([node.get_embedding() for node in nodes], dtype=np.float32))
        if self._index is None:
            self._index = VectorIndex(vectors.shape[1])
        # The last of several nodes with one id wins, as it would if they came one by one.
        last = {node.node_id: row for row, node in enumerate(nodes)}
        rows = sorted(last.values())
        keys = np.arange(self._last_key + 1, self._last_key + 1 + len(rows), dtype=np.int64)
        stale = [self._keys[node_id] for node_id in last if node_id in self._keys]
        self._index.add(keys, vectors[rows])
        self._forget(stale)
        self._last_key += len(rows)
        for key, row in zip(keys.tolist(), rows, strict=True):
            self._keys[nodes[row].node_id] = key
            self._nodes[key] = nodes[row].model_copy(update={"embedding": None})
        return [node.node_id for node in nodes]

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Delete the nodes of a document; nothing happens when there are none."""
        self._forget([key for key, node in self._nodes.items() if node.ref_doc_id == ref_doc_id])

    def delete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **delete_kwargs: Any
    ) -> None:
        """Delete the nodes that are named and pass the filters."""
        self._forget(self._allowed(node_ids, None, filters))

    def clear(self) -> None:
        """Delete all nodes."""
        self._index = None
        self._nodes.clear()
        self._keys.clear()

    def get_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None) -> list[BaseNode]:
        """The nodes that are named and pass the filters, in the order of storage."""
        return [self._nodes[key] for key in self._allowed(node_ids, None, filters)]

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """The most similar nodes that pass `node_ids`, `doc_ids` and `filters`, best first; empty lists pass all.

        Raises:
            InvalidInput: no query vector, or one of another dimension.
        """
        if query.query_embedding is None:
            raise InvalidInput("A query to a vector store needs a vector.", hint="give the index an embedding model")
        if self._index is None or not self._nodes:
            return VectorStoreQueryResult(nodes=[], similarities=[], ids=[])
        allowed: np.ndarray | None = None
        if query.node_ids or query.doc_ids or query.filters is not None:
            keys = self._allowed(query.node_ids or None, query.doc_ids or None, query.filters)
            allowed = np.array(keys, dtype=np.int64)
        vector = _unit(np.array([query.query_embedding], dtype=np.float32))[0]
        best, scores = self._index.search(vector, query.similarity_top_k, allowed)
        found = [self._nodes[key] for key in best.tolist()]
        return VectorStoreQueryResult(nodes=found, similarities=scores.tolist(), ids=[node.node_id for node in found])

    def persist(self, persist_path: str, fs: Any = None) -> None:
        """Save the nodes in `persist_path` and their vectors beside it, in place of what was there.

        Raises:
            InvalidInput: a file system other than this machine's.
        """
        if fs is not None and getattr(fs, "protocol", None) not in ("file", ("file", "local")):
            raise InvalidInput("The FAISS store is saved on this machine's disk only.", hint="leave out `fs`")
        path = Path(persist_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Without the nodes nothing is read, so a crash between the two files leaves nothing half-true.
        path.unlink(missing_ok=True)
        if self._index is not None:
            self._index.save(_vectors_beside(path))
        nodes = [[key, doc_to_json(node)] for key, node in self._nodes.items()]
        state = {"dimension": self._index.dimension if self._index else None, "last": self._last_key, "nodes": nodes}
        draft = path.with_name(path.name + ".tmp")
        draft.write_text(json.dumps(state), encoding="utf-8")
        draft.replace(path)

    @classmethod
    def from_persist_path(cls, persist_path: str, fs: Any = None) -> Self:
        """A store as `persist` saved it. Raises IndexMissing, IndexCorrupt."""
        path = Path(persist_path)
        if not path.exists():
            raise IndexMissing(f"There is no store in '{path}'.", hint="persist one first")
        store = cls()
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            nodes = {int(key): json_to_doc(node) for key, node in state["nodes"]}
            store._last_key = int(state["last"])
            if state["dimension"] is not None:
                store._index = load_index(_vectors_beside(path), int(state["dimension"]))
        except (ValueError, KeyError, TypeError) as error:
            raise IndexCorrupt(f"The store '{path}' cannot be read.", hint="build it anew") from error
        store._nodes = nodes
        store._keys = {node.node_id: key for key, node in nodes.items()}
        if len(nodes) != len(store._index or ()):
            raise IndexCorrupt(f"The store '{path}' and its vectors do not belong together.", hint="build it anew")
        return store

    def _allowed(
        self, node_ids: list[str] | None, doc_ids: list[str] | None, filters: MetadataFilters | None
    ) -> list[int]:
        named = self._keys.keys() if node_ids is None else set(node_ids)
        passes = build_metadata_filter_fn(lambda node_id: self._nodes[self._keys[node_id]].metadata, filters)
        return [
            key
            for key, node in self._nodes.items()
            if node.node_id in named and (doc_ids is None or node.ref_doc_id in doc_ids) and passes(node.node_id)
        ]

    def _forget(self, keys: Sequence[int]) -> None:
        if not keys or self._index is None:
            return
        self._index.remove(np.array(keys, dtype=np.int64))
        for key in keys:
            node = self._nodes.pop(key)
            if self._keys.get(node.node_id) == key:
                del self._keys[node.node_id]


def _vectors_beside(path: Path) -> Path:
    return path.with_name(path.name + ".faiss")


def _unit(vectors: np.ndarray) -> np.ndarray:
    """Rows of unit length; a row of zeros stays one."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths == 0, 1, lengths)
