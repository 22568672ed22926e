"""Vectors of a library in any llama-index vector store that the settings name.

The catalog stays authoritative: books that came, changed or went are sent to the store, and what the store finds is
looked up and scored in the catalog. So a store need not filter, keep transactions or score as we do; it must delete by
`ref_doc_id` and give back the ids that it was sent. What is lost with one: `docs/llama-index.md`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from hashlib import sha256
from uuid import UUID

import numpy as np
from filelock import FileLock
from llama_index.core.vector_stores.types import BasePydanticVectorStore, VectorStoreQuery

from indexes.catalog import Catalog, RowRange
from indexes.disk import disk_errors
from indexes.errors import VectorStoreUnavailable
from indexes.llama_index import load_part, reason_of, to_text_node
from indexes.settings import IndexSettings
from indexes.types import Filters
from indexes.vectors import read_note, write_note

SENT_TOGETHER = 1_000
"""Nodes sent in one call."""
SAME_COSINE = 1 - 1e-3
"""A vector and what a store found for it are the same from here."""


class StoreVectors:
    """Vectors of the catalog's nodes in the llama-index vector store of the settings (a `NodeVectors`).

    A note in the home says which books the store holds. Other processes of the home share it.

    Args:
        embedder: fingerprint of the embedder.

    Raises:
        InvalidInput: the setting names no vector store. One that does not answer is a VectorStoreUnavailable later.
    """

    device = "llama_index"

    def __init__(self, settings: IndexSettings, catalog: Catalog, embedder: str, dimension: int) -> None:
        self._store = load_part(settings.vector_store, BasePydanticVectorStore)  # type: ignore[type-abstract]
        self._name = settings.vector_store.partition("?")[0]
        # Digested, because among the arguments may be a key; vectors of two embedders cannot be compared.
        self._identity = sha256(f"{settings.vector_store} {embedder}".encode()).hexdigest()
        self._note_path = settings.home / "vector_store.json"
        self._catalog = catalog
        self._dimension = dimension
        self._lock = threading.RLock()
        self._generation = -1
        self._known: dict[str, RowRange] = {}  # books that this process found in the store or sent to it

    def open(self) -> None:
        """Send what the store lacks. Raises VectorStoreUnavailable."""
        self.sync()

    def sync(self) -> None:
        """Send books that came, changed or were lost by the store; delete those that went. Raises as `open`."""
        if self._catalog.generation() == self._generation:
            return
        with self._lock, self._noted_books() as noted:
            generation, ranges = self._catalog.ranges()
            for document_id, span in ranges.items():
                if noted.get(document_id) != span or (self._known.get(document_id) != span and not self._holds(span)):
                    self._send(document_id, span)
                    noted[document_id] = span
                    self._write_note(noted)
            for document_id in {*noted, *self._known} - set(ranges):
                with self._using_store():
                    self._store.delete(document_id)
                noted.pop(document_id, None)
                self._write_note(noted)
            self._known, self._generation = ranges, generation

    def search(self, vector: np.ndarray, top_k: int, filters: Filters) -> tuple[np.ndarray, np.ndarray]:
        """As `NodeVectors.search`. With filters the nodes that pass are compared here, exactly, without the store."""
        if not self._known:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32)  # perhaps it has no collection yet
        rowids = self._nearest(vector, top_k) if filters.empty else self._catalog.rowids(filters)
        rowids, matrix = self._catalog.vectors_at(rowids, self._dimension)
        scores = matrix @ vector.astype(np.float32)
        order = np.argsort(-scores, kind="stable")[:top_k]
        return rowids[order], scores[order]

    def save_if_worth(self) -> None:
        """Nothing to do: the store keeps what it was sent."""

    def _nearest(self, vector: np.ndarray, top_k: int) -> np.ndarray:
        """Rowids of what the store finds; the catalog may have lost some."""
        with self._using_store():
            found = self._store.query(VectorStoreQuery(query_embedding=vector.tolist(), similarity_top_k=top_k))
        try:
            return np.array([UUID(sent).int for sent in found.ids or ()], dtype=np.int64)
        except (ValueError, OverflowError):
            raise VectorStoreUnavailable(
                f"The vector store '{self._name}' found ids that it was not sent, such as '{(found.ids or [''])[0]}'.",
                hint="name a store that keeps the ids of nodes, and a collection of this library's own",
            ) from None

    def _holds(self, span: RowRange) -> bool:
        """Whether the store finds a book's last node, or one of the same text; after losing its data it does not."""
        _, matrix = self._catalog.vectors_of(RowRange(span.last, span.last), self._dimension)
        if not len(matrix):
            return True  # removed meanwhile: the next `sync` sees it
        with contextlib.suppress(VectorStoreUnavailable):
            _, found = self._catalog.vectors_at(self._nearest(matrix[0], 1), self._dimension)
            return len(found) == 1 and float(found[0] @ matrix[0]) > SAME_COSINE
        return False

    def _send(self, document_id: str, span: RowRange) -> None:
        with contextlib.suppress(VectorStoreUnavailable), self._using_store():
            self._store.delete(document_id)  # an earlier version; a store without a collection yet may refuse
        for first in range(span.first, span.last + 1, SENT_TOGETHER):
            part = RowRange(first, min(first + SENT_TOGETHER - 1, span.last))
            rowids, matrix = self._catalog.vectors_of(part, self._dimension)
            vectors = dict(zip(rowids.tolist(), matrix.tolist(), strict=True))
            # Under the rowid as a UUID: no other form of an id is taken by every store.
            nodes = [
                to_text_node(node, str(UUID(int=node.rowid)), vectors[node.rowid])
                for node in self._catalog.nodes_by_rowid(list(vectors))
            ]
            if nodes:
                with self._using_store():
                    self._store.add(nodes)

    @contextlib.contextmanager
    def _using_store(self) -> Iterator[None]:
        """One call of the store at a time. Raises VectorStoreUnavailable for whatever it raises."""
        with self._lock:
            try:
                yield
            except Exception as error:
                raise VectorStoreUnavailable(
                    f"The vector store '{self._name}' failed: {reason_of(error)}",
                    hint="check that it runs and that COALESCE_VECTOR_STORE names it rightly",
                ) from error

    @contextlib.contextmanager
    def _noted_books(self) -> Iterator[dict[str, RowRange]]:
        """The books in the note, while no other process of this home may change it."""
        lock = self._note_path.parent / "locks" / f"{self._note_path.name}.lock"
        with disk_errors(self._note_path):
            lock.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(lock):
                noted: dict[str, RowRange] = {}
                with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                    note, ranges = read_note(self._note_path)
                    noted = ranges if note["identity"] == self._identity else {}
                yield noted

    def _write_note(self, noted: dict[str, RowRange]) -> None:
        write_note(self._note_path, noted, identity=self._identity)
