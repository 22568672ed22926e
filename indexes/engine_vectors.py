"""Node vectors in an outside engine, spoken to through llama-index's vector store.

The catalog stays the truth: the engine is told of books that came, changed or went, and what it finds is looked up
here. A small file beside the catalog notes which books it holds. Everything sent may be sent again without harm, for
node ids are made from their content, so a process that is killed midway only repeats a book.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import numpy as np
from filelock import FileLock
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
)

from indexes.catalog import Catalog, RowRange
from indexes.database import translated
from indexes.errors import CoalesceError, InvalidInput, VectorStoreUnavailable
from indexes.settings import IndexSettings
from indexes.text_nodes import to_text_node
from indexes.types import Filters

SENT_TOGETHER = 1_000
"""Nodes in one call of the engine."""


class EngineVectors:
    """Vectors of the catalog's nodes in a llama-index vector store.

    Args:
        store: takes `add`, `delete` by book, and `query` with a filter on `document_id`; a similarity is a cosine.
        name: of the engine, for people.
        note_path: notes which books the engine holds.
        identity: of engine, collection and embedder; a note of another identity is not believed.
    """

    def __init__(
        self, catalog: Catalog, store: BasePydanticVectorStore, *, name: str, note_path: Path, identity: str,
        dimension: int,
    ) -> None:  # fmt: skip
        self._catalog = catalog
        self._store = store
        self._name = name
        self._note_path = note_path
        self._identity = identity
        self._dimension = dimension
        self._lock = threading.Lock()
        self._generation = -1

    @property
    def device(self) -> str:
        """The engine's name."""
        return self._name

    def open(self) -> None:
        """Send what the engine lacks. Raises VectorStoreUnavailable."""
        with self._one_writer() as held:
            for document_id, span in list(held.items()):
                if not self._still_there(document_id, span):
                    del held[document_id]
            self._write_note(held)
        self.sync()

    def sync(self) -> None:
        """Tell the engine of books that came, changed or went. Raises VectorStoreUnavailable."""
        if self._catalog.generation() == self._generation:
            return
        with self._lock, self._one_writer() as held:
            generation, ranges = self._catalog.ranges()
            for document_id, span in list(held.items()):
                if ranges.get(document_id) != span:
                    if document_id not in ranges:
                        self._forget(document_id)
                    del held[document_id]
                    self._write_note(held)
            for document_id, span in ranges.items():
                if document_id not in held:
                    self._send(document_id, span)
                    held[document_id] = span
                    self._write_note(held)
            self._generation = generation

    def search(self, vector: np.ndarray, top_k: int, filters: Filters) -> tuple[np.ndarray, np.ndarray]:
        """As `NodeVectors.search`. A filter by chapter or page is searched here, exactly: few nodes pass one."""
        if filters.chapters or filters.pages is not None:
            return self._search_here(vector, top_k, filters)
        only = None
        if filters.document_ids:
            wanted = list(filters.document_ids)
            only = MetadataFilters(
                filters=[MetadataFilter(key="document_id", value=wanted, operator=FilterOperator.IN)]
            )
        query = VectorStoreQuery(query_embedding=vector.tolist(), similarity_top_k=top_k, filters=only)
        with self._reported():
            found = self._store.query(query)
        similarities = dict(zip(found.ids or [], found.similarities or [], strict=True))
        rowids = self._catalog.rowids_by_id(list(similarities))
        best = sorted(((similarities[node_id], rowid) for node_id, rowid in rowids.items()), key=lambda pair: -pair[0])
        return (
            np.array([rowid for _, rowid in best], dtype=np.int64),
            np.array([score for score, _ in best], dtype=np.float32),
        )

    def save_if_worth(self) -> None:
        """Nothing to do: the engine keeps what it was sent."""

    # --- within

    def _search_here(self, vector: np.ndarray, top_k: int, filters: Filters) -> tuple[np.ndarray, np.ndarray]:
        rowids, matrix = self._catalog.vectors_at(self._catalog.rowids(filters), self._dimension)
        scores = matrix @ vector.astype(np.float32)
        order = np.argsort(-scores, kind="stable")[:top_k]
        return rowids[order], scores[order]

    def _send(self, document_id: str, span: RowRange) -> None:
        self._forget(document_id)
        for first in range(span.first, span.last + 1, SENT_TOGETHER):
            part = RowRange(first, min(first + SENT_TOGETHER - 1, span.last))
            rowids, matrix = self._catalog.vectors_of(part, self._dimension)
            vectors = dict(zip(rowids.tolist(), matrix.tolist(), strict=True))
            nodes = [to_text_node(node, vectors[node.rowid]) for node in self._catalog.nodes_by_rowid(list(vectors))]
            with self._reported():
                self._store.add(nodes)

    def _forget(self, document_id: str) -> None:
        with self._reported():
            self._store.delete(document_id)

    def _still_there(self, document_id: str, span: RowRange) -> bool:
        """Whether the engine finds a book's last node: one that lost its data, or was put up anew, does not."""
        rowids, matrix = self._catalog.vectors_of(RowRange(span.last, span.last), self._dimension)
        if not len(rowids):
            return True  # the book has gone from the catalog; the note must tell so
        found, scores = self.search(matrix[0], 1, Filters(document_ids=(document_id,)))
        return len(found) == 1 and float(scores[0]) > 1 - 1e-3

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        """Whatever the engine's client raises, as ours: each engine has exceptions of its own."""
        try:
            yield
        except CoalesceError:
            raise
        except Exception as error:
            raise unavailable(self._name, error) from error

    @contextlib.contextmanager
    def _one_writer(self) -> Iterator[dict[str, RowRange]]:
        """What the engine holds, while no other process of this home tells it anything."""
        lock = self._note_path.parent / "locks" / f"{self._note_path.name}.lock"
        with translated(self._note_path):
            lock.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(lock):
                yield self._read_note()

    def _read_note(self) -> dict[str, RowRange]:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            note = json.loads(self._note_path.read_text(encoding="utf-8"))
            if note["identity"] == self._identity:
                return {str(name): RowRange(int(first), int(last)) for name, (first, last) in note["ranges"].items()}
        return {}

    def _write_note(self, held: dict[str, RowRange]) -> None:
        ranges = {name: [span.first, span.last] for name, span in held.items()}
        draft = self._note_path.with_name(f"{self._note_path.name}.{os.getpid()}.tmp")
        draft.write_text(json.dumps({"identity": self._identity, "ranges": ranges}), encoding="utf-8")
        draft.replace(self._note_path)


def open_engine_vectors(settings: IndexSettings, catalog: Catalog, embedder: str, dimension: int) -> EngineVectors:
    """The engine that `settings.vector_store` names: `milvus` (a file in the home) or `milvus:ADDRESS[#COLLECTION]`.

    Raises:
        InvalidInput: another engine, or its client is not installed.
        VectorStoreUnavailable: it does not answer.
    """
    engine, _, rest = settings.vector_store.partition(":")
    address, _, collection = rest.partition("#")
    if engine != "milvus":
        raise InvalidInput(
            f"There is no vector store '{engine}'.", hint="set COALESCE_VECTOR_STORE to faiss, milvus or milvus:ADDRESS"
        )
    address = address or str(settings.home / "milvus.db")
    # Vectors of two embedders cannot stand in one collection.
    collection = f"{collection or 'coalesce'}_{sha256(embedder.encode()).hexdigest()[:12]}"
    return EngineVectors(
        catalog,
        _milvus(address, collection, dimension, settings.vector_store_token),
        name=engine,
        note_path=settings.home / "vector_store.json",
        identity=f"{address}#{collection}",
        dimension=dimension,
    )


def unavailable(name: str, error: Exception, *, also: str = "") -> VectorStoreUnavailable:
    """An engine's failure in our words; `also` ends the hint."""
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    return VectorStoreUnavailable(
        f"The vector store '{name}' failed: {reason}",
        hint=f"see that it runs at the address in COALESCE_VECTOR_STORE{also}",
    )


def _milvus(address: str, collection: str, dimension: int, token: str | None) -> BasePydanticVectorStore:
    try:
        from llama_index.vector_stores.milvus import MilvusVectorStore
    except ImportError as error:
        raise InvalidInput(
            "The client of the vector store 'milvus' is not installed.", hint="pip install 'coalesce-rag[milvus]'"
        ) from error
    if "://" not in address:
        # Milvus Lite serves in this process, and logs a trace for each call of the client's that it does not know.
        logging.getLogger("grpc._server").setLevel(logging.CRITICAL)
    try:
        store = MilvusVectorStore(
            uri=address,
            token=token or "",
            collection_name=collection,
            dim=dimension,
            similarity_metric="COSINE",
            upsert_mode=True,
            consistency_level="Strong",
            use_async_client=False,
        )
        # A collection that another process made is not loaded by opening it, and what is not loaded is not searched.
        store.client.load_collection(collection)
    except Exception as error:
        own_file = "" if "://" in address else "; Milvus Lite's file takes one process at a time"
        raise unavailable("milvus", error, also=own_file) from error
    found: BasePydanticVectorStore = store
    return found
