"""The library: the one front door of this floor. Add, remove, list, search."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from indexes.catalog import Catalog, open_catalog
from indexes.errors import Busy, EmbedderMismatch
from indexes.ingest import Ingest
from indexes.node_vectors import NodeVectors
from indexes.settings import IndexSettings
from indexes.terms import query_terms
from indexes.text_encoder import CancelCheck, Matrix, TextEncoder
from indexes.types import (
    AddResult,
    Chapter,
    Document,
    Filters,
    Hit,
    ProgressListener,
    Section,
    StoredNode,
)
from indexes.vector_sync import SyncedVectors


class Library:
    """Books on disk and the means to search them. Threads may share it; other processes may write beside it.

    `load()` must have run before the first search by meaning; lists, removal and lexical search work without it.
    """

    def __init__(self, settings: IndexSettings, catalog: Catalog, encoder: TextEncoder | None = None) -> None:
        self._settings = settings
        self._catalog = catalog
        self._encoder = encoder
        self._vectors: NodeVectors | None = None
        self._loading = threading.RLock()

    # --- life

    def load(self, on_step: Callable[[str], None] | None = None) -> None:
        """Load the embedder and the vectors (some seconds).

        Raises:
            EmbedderCannotLoad: the model is not there or damaged.
            EmbedderMismatch: the library's vectors were made by another model.
            VectorStoreUnavailable: the outside engine of the settings does not answer.
        """
        self._load_encoder(on_step)
        if on_step is not None and self._vectors is None:
            on_step("opening vectors")
        self._open_vectors()

    @property
    def loaded(self) -> bool:
        """True once `load()` is done."""
        return self._vectors is not None

    @property
    def embedder_name(self) -> str:
        """The configured embedder, as the settings name it; known before `load()`."""
        return self._settings.embedder

    @property
    def generation(self) -> int:
        """Counts the writes, of this and of other processes."""
        return self._catalog.generation()

    @property
    def encoder(self) -> TextEncoder:
        """The loaded embedder. Raises Busy before `load()`."""
        if self._encoder is None:
            raise Busy("The embedding model is still being loaded.", hint="try again in a few seconds")
        return self._encoder

    @property
    def faiss_device(self) -> str:
        """Where vectors are searched: `cuda` or `cpu`, or an outside engine's name; `none` before `load()`."""
        return self._vectors.device if self._vectors is not None else "none"

    def close(self) -> None:
        """Save the vectors where that is worth it, and close the catalog."""
        if self._vectors is not None:
            self._vectors.save_if_worth()
        self._catalog.close()

    # --- books

    def add(
        self,
        path: Path,
        *,
        progress: ProgressListener | None = None,
        cancelled: CancelCheck | None = None,
        title: str | None = None,
        sample: bool = False,
        source_name: str | None = None,
    ) -> AddResult:
        """Add a book, or take over its changes. All of it is stored in one transaction at the end.

        Args:
            path: a file, or a folder of text files.
            progress: told about `reading`, `embedding` and `storing`.
            cancelled: asked often; when it says yes, nothing of the call is kept.
            title: instead of the one the book gives itself.
            sample: marks the bundled book.
            source_name: the file name of an upload; its id then comes from its content, not from `path`.

        Raises:
            UnreadableBook, UnsupportedFormat, TooLarge: the book cannot be read.
            EmbedderMismatch: the library belongs to another embedder.
            Cancelled, StorageFull, HomeNotWritable, Busy: nothing of the book was kept.
        """
        self._load_encoder()
        self._check_embedder()
        result = Ingest(self._settings, self._catalog, self.encoder).add(
            path, progress=progress, cancelled=cancelled, title=title, sample=sample, source_name=source_name
        )
        self._sync()
        return result

    def remove(self, document_id: str) -> None:
        """Remove a book; nothing of it is found afterwards. Raises NotFound."""
        self._catalog.remove(document_id)
        self._sync()

    def documents(self) -> tuple[Document, ...]:
        """All books, in the order in which they were added."""
        return self._catalog.documents()

    def document(self, document_id: str) -> Document:
        """One book. Raises NotFound."""
        return self._catalog.document(document_id)

    def chapters(self, document_id: str) -> tuple[Chapter, ...]:
        """Chapters of a book. Raises NotFound."""
        return self._catalog.chapters(document_id)

    def reindex(
        self, *, progress: ProgressListener | None = None, cancelled: CancelCheck | None = None
    ) -> tuple[AddResult, ...]:
        """Cut and embed every book anew with the configured embedder, from the sections kept in the catalog."""
        self._load_encoder()
        results = Ingest(self._settings, self._catalog, self.encoder).reindex(progress, cancelled)
        with self._loading:
            self._vectors = None  # of the former embedder
        self.load()
        return results

    # --- search

    def embed(self, texts: Sequence[str]) -> Matrix:
        """Vectors of questions, float32, shape (len(texts), dimension), unit length. Raises Busy before `load()`."""
        return self.encoder.encode_queries(texts)

    def dense(self, query: str, top_k: int, filters: Filters | None = None) -> list[Hit]:
        """Nodes nearest in meaning, best first; the score is the cosine. Raises NotFound, Busy, EmbedderMismatch."""
        return self.dense_by_vector(self.embed([query])[0], top_k, filters)

    def dense_by_vector(self, vector: np.ndarray, top_k: int, filters: Filters | None = None) -> list[Hit]:
        """As `dense`, for a vector of `embed`, shape (dimension,)."""
        vectors = self._open_vectors()
        filters = filters or Filters()
        for _ in range(3):
            vectors.sync()
            self._catalog.check_filters(filters)
            rowids, scores = vectors.search(vector, top_k, filters)
            nodes = {node.rowid: node for node in self._catalog.nodes_by_rowid(rowids.tolist())}
            # A node that was found but is gone means that a writer came between the two: look again.
            if len(nodes) == len(rowids):
                break
        return [
            Hit(nodes[rowid], score)
            for rowid, score in zip(rowids.tolist(), scores.tolist(), strict=True)
            if rowid in nodes
        ]

    def lexical(self, query: str, top_k: int, filters: Filters | None = None) -> list[Hit]:
        """Nodes that hold the query's terms, best first; the score is BM25. Works before `load()`. Raises NotFound."""
        return self.lexical_by_terms(query_terms(query), top_k, filters)

    def lexical_by_terms(self, terms: Sequence[str], top_k: int, filters: Filters | None = None) -> list[Hit]:
        """As `lexical`, for terms as `indexes.terms` makes them."""
        filters = filters or Filters()
        self._catalog.check_filters(filters)
        return self._catalog.lexical(terms, top_k, filters)

    def get_nodes(self, node_ids: Sequence[str]) -> list[StoredNode]:
        """Nodes by id, in the order asked. Raises NotFound."""
        return self._catalog.nodes_by_id(node_ids)

    def nodes_of(self, document_id: str) -> list[StoredNode]:
        """All nodes of a book in order. Raises NotFound."""
        return self._catalog.nodes_of(document_id)

    def vectors_of(self, document_id: str) -> Matrix:
        """Vectors of a book's nodes in order, float32, shape (num_nodes, dimension). Raises NotFound, Busy."""
        self._catalog.document(document_id)
        span = self._catalog.ranges()[1].get(document_id)
        dimension = self.encoder.dimension
        if span is None:
            return np.empty((0, dimension), dtype=np.float32)
        return self._catalog.vectors_of(span, dimension)[1]

    def sections_of(self, document_id: str) -> tuple[Section, ...]:
        """All sections of a book in order, as its reader read them. Raises NotFound."""
        self._catalog.document(document_id)
        return self._catalog.sections(document_id)

    def neighbours(self, node: StoredNode, before: int = 1, after: int = 1) -> list[StoredNode]:
        """The node with up to `before` and `after` nodes around it in its own section, in document order."""
        return self._catalog.neighbours(node, before, after)

    def around(self, node: StoredNode, before: int = 1, after: int = 1) -> list[StoredNode]:
        """The node with up to `before` and `after` nodes around it in its book, whatever their sections, in order."""
        rowids = range(node.rowid - before, node.rowid + after + 1)
        return [near for near in self._catalog.nodes_by_rowid(rowids) if near.document_id == node.document_id]

    # --- within

    def _load_encoder(self, on_step: Callable[[str], None] | None = None) -> None:
        with self._loading:
            if self._encoder is None:
                from indexes.embedder import load_embedder

                self._encoder = load_embedder(self._settings, on_step)

    def _open_vectors(self) -> NodeVectors:
        """The vectors, opened at the first need: adding a book does without them. Raises Busy, EmbedderMismatch."""
        if self._vectors is not None:
            return self._vectors
        encoder = self.encoder
        with self._loading:
            if self._vectors is None:
                self._check_embedder()
                vectors = self._choose_vectors(encoder)
                vectors.open()
                self._vectors = vectors
            return self._vectors

    def _choose_vectors(self, encoder: TextEncoder) -> NodeVectors:
        settings = self._settings
        if settings.vector_store == "faiss":
            use_gpu = settings.device != "cpu"
            path = settings.vectors_path
            return SyncedVectors(self._catalog, path, encoder.fingerprint, encoder.dimension, use_gpu=use_gpu)
        from indexes.engine_vectors import open_engine_vectors

        return open_engine_vectors(settings, self._catalog, encoder.fingerprint, encoder.dimension)

    def _check_embedder(self) -> None:
        stored = self._catalog.embedder()
        if stored is not None and stored != self.encoder.fingerprint and self._catalog.documents():
            raise EmbedderMismatch(
                f"The library was embedded by {stored}, but the configured embedder '{self._settings.embedder}' is "
                f"{self.encoder.fingerprint}.",
                hint="coalesce add --reindex, or set the embedder back",
            )

    def _sync(self) -> None:
        if self._vectors is not None:
            self._vectors.sync()


def open_library(settings: IndexSettings, *, create: bool = True, embedder: TextEncoder | None = None) -> Library:
    """Open the library in `settings.home`; light, for the embedder is loaded by `Library.load()`.

    Args:
        create: make the home and an empty catalog when there is none.
        embedder: use this one instead of loading the configured one.

    Raises:
        IndexMissing, IndexCorrupt, HomeNotWritable.
    """
    return Library(settings, open_catalog(settings.catalog_path, create=create), embedder)
