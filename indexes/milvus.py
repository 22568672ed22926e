"""Vectors of a library in Milvus, through llama-index's vector store.

The catalog stays authoritative: books that came, changed or went are sent to Milvus, and what Milvus finds is looked up
in the catalog. A note in the home lists the books that Milvus holds. Sending a book again does no harm, because node
ids are made from content, so a process killed midway only repeats a book.
"""

from __future__ import annotations

import contextlib
import json
import logging
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
from indexes.disk import disk_errors, replaced_file
from indexes.errors import CoalesceError, InvalidInput, VectorStoreUnavailable
from indexes.llama_index import to_text_node
from indexes.settings import IndexSettings
from indexes.types import Filters

SENT_TOGETHER = 1_000
"""Nodes sent in one call."""


def open_milvus(settings: IndexSettings, catalog: Catalog, embedder: str, dimension: int) -> MilvusVectors:
    """Connect to what `settings.vector_store` names: `milvus` (a file in the home) or `milvus:ADDRESS[#COLLECTION]`.

    Raises:
        InvalidInput: another engine, or the client is not installed.
        VectorStoreUnavailable: Milvus does not answer.
    """
    engine, _, rest = settings.vector_store.partition(":")
    address, _, collection = rest.partition("#")
    if engine != "milvus":
        raise InvalidInput(
            f"Unknown vector store '{engine}'.", hint="set COALESCE_VECTOR_STORE to faiss, milvus or milvus:ADDRESS"
        )
    address = address or str(settings.home / "milvus.db")
    # One collection per embedder: vectors of two cannot be compared.
    collection = f"{collection or 'coalesce'}_{sha256(embedder.encode()).hexdigest()[:12]}"
    store = _connect(address, collection, dimension, settings.vector_store_token)
    return MilvusVectors(catalog, store, settings.home / "vector_store.json", f"{address}#{collection}", dimension)


class MilvusVectors:
    """Vectors of the catalog's nodes in a Milvus collection (a `NodeVectors`).

    Args:
        store: offers `add`, `delete` by book, and `query` with a filter on `document_id`; similarities are cosines.
        note_path: the note of the books that the collection holds.
        identity: address and collection; a note with another identity is ignored.
    """

    device = "milvus"

    def __init__(
        self, catalog: Catalog, store: BasePydanticVectorStore, note_path: Path, identity: str, dimension: int
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._note_path = note_path
        self._identity = identity
        self._dimension = dimension
        self._lock = threading.Lock()
        self._generation = -1

    def open(self) -> None:
        """Send what the collection lacks. Raises VectorStoreUnavailable."""
        with self._held_books() as held:
            for document_id, span in list(held.items()):
                if not self._is_held(document_id, span):
                    del held[document_id]
            self._write_note(held)
        self.sync()

    def sync(self) -> None:
        """Send books that came or changed, and delete those that went. Raises VectorStoreUnavailable."""
        if self._catalog.generation() == self._generation:
            return
        with self._lock, self._held_books() as held:
            generation, ranges = self._catalog.ranges()
            for document_id, span in list(held.items()):
                if ranges.get(document_id) != span:
                    if document_id not in ranges:
                        self._delete(document_id)
                    del held[document_id]
                    self._write_note(held)
            for document_id, span in ranges.items():
                if document_id not in held:
                    self._send(document_id, span)
                    held[document_id] = span
                    self._write_note(held)
            self._generation = generation

    def search(self, vector: np.ndarray, top_k: int, filters: Filters) -> tuple[np.ndarray, np.ndarray]:
        """As `NodeVectors.search`. Filters by chapter or page are searched here, exactly: few nodes pass one."""
        if filters.chapters or filters.pages is not None:
            return self._search_here(vector, top_k, filters)
        only = None
        if filters.document_ids:
            wanted = list(filters.document_ids)
            only = MetadataFilters(
                filters=[MetadataFilter(key="document_id", value=wanted, operator=FilterOperator.IN)]
            )
        query = VectorStoreQuery(query_embedding=vector.tolist(), similarity_top_k=top_k, filters=only)
        with _client_errors():
            found = self._store.query(query)
        similarities = dict(zip(found.ids or [], found.similarities or [], strict=True))
        rowids = self._catalog.rowids_by_id(list(similarities))
        best = sorted(((similarities[node_id], rowid) for node_id, rowid in rowids.items()), key=lambda pair: -pair[0])
        return (
            np.array([rowid for _, rowid in best], dtype=np.int64),
            np.array([score for score, _ in best], dtype=np.float32),
        )

    def save_if_worth(self) -> None:
        """Nothing to do: Milvus keeps what it was sent."""

    def _search_here(self, vector: np.ndarray, top_k: int, filters: Filters) -> tuple[np.ndarray, np.ndarray]:
        rowids, matrix = self._catalog.vectors_at(self._catalog.rowids(filters), self._dimension)
        scores = matrix @ vector.astype(np.float32)
        order = np.argsort(-scores, kind="stable")[:top_k]
        return rowids[order], scores[order]

    def _send(self, document_id: str, span: RowRange) -> None:
        self._delete(document_id)
        for first in range(span.first, span.last + 1, SENT_TOGETHER):
            part = RowRange(first, min(first + SENT_TOGETHER - 1, span.last))
            rowids, matrix = self._catalog.vectors_of(part, self._dimension)
            vectors = dict(zip(rowids.tolist(), matrix.tolist(), strict=True))
            nodes = [to_text_node(node, vectors[node.rowid]) for node in self._catalog.nodes_by_rowid(list(vectors))]
            with _client_errors():
                self._store.add(nodes)

    def _delete(self, document_id: str) -> None:
        with _client_errors():
            self._store.delete(document_id)

    def _is_held(self, document_id: str, span: RowRange) -> bool:
        """Whether the collection finds a book's last node; after losing its data it does not."""
        rowids, matrix = self._catalog.vectors_of(RowRange(span.last, span.last), self._dimension)
        if not len(rowids):
            return True  # no longer in the catalog: it stays in the note, so that `sync` deletes it
        found, scores = self.search(matrix[0], 1, Filters(document_ids=(document_id,)))
        return len(found) == 1 and float(scores[0]) > 1 - 1e-3

    @contextlib.contextmanager
    def _held_books(self) -> Iterator[dict[str, RowRange]]:
        """The books in the note, while no other process of this home may change it."""
        lock = self._note_path.parent / "locks" / f"{self._note_path.name}.lock"
        with disk_errors(self._note_path):
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
        with replaced_file(self._note_path) as draft:
            draft.write_text(json.dumps({"identity": self._identity, "ranges": ranges}), encoding="utf-8")


def _connect(address: str, collection: str, dimension: int, token: str | None) -> BasePydanticVectorStore:
    try:
        from llama_index.vector_stores.milvus import MilvusVectorStore
    except ImportError as error:
        raise InvalidInput(
            "The client of the vector store 'milvus' is not installed.",
            hint="Run `pip install 'coalesce-rag[milvus]'`.",
        ) from error
    in_process = "://" not in address
    if in_process:
        # Milvus Lite logs a stack trace for every call of the client that it does not know.
        logging.getLogger("grpc._server").setLevel(logging.CRITICAL)
    with _client_errors(also="; Milvus Lite's file takes one process at a time" if in_process else ""):
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
        # A collection made by another process is searched only once it is loaded.
        store.client.load_collection(collection)
    found: BasePydanticVectorStore = store
    return found


@contextlib.contextmanager
def _client_errors(*, also: str = "") -> Iterator[None]:
    """Raises VectorStoreUnavailable for whatever the client raises; `also` ends its hint."""
    try:
        yield
    except CoalesceError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise VectorStoreUnavailable(
            f"The vector store 'milvus' failed: {reason}",
            hint=f"check that it runs at the address in COALESCE_VECTOR_STORE{also}",
        ) from error
