"""The library, the front door of this floor: add, remove, list and search books."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from indexes.catalog import Catalog, open_catalog
from indexes.embedder import Matrix, TextEncoder, load_embedder
from indexes.errors import Busy, EmbedderMismatch
from indexes.ingest import Ingest, remove_lock
from indexes.readers import find_books, readable_endings
from indexes.reading_process import ReadingProcesses
from indexes.settings import LLAMA_INDEX, IndexSettings
from indexes.types import (
    AddResult,
    CancelCheck,
    Chapter,
    Document,
    Filters,
    FindFile,
    Hit,
    ProgressListener,
    Section,
    StoredNode,
)
from indexes.vectors import FaissVectors, NodeVectors, PostgresVectors
from indexes.words import query_terms


class Library:
    """Books on disk, and search in them. Threads may share it, and other processes may write to the same home.

    Call `load()` before the first search by meaning. Lists, removal and search by words need no model.
    """

    def __init__(self, settings: IndexSettings, catalog: Catalog, encoder: TextEncoder | None = None) -> None:
        self._settings = settings
        self._catalog = catalog
        self._encoder = encoder
        self._vectors: NodeVectors | None = None
        self._loading = threading.RLock()
        self._reading = ReadingProcesses(settings)
        self._storing = threading.Lock()

    # --- life

    def load(self, on_step: Callable[[str], None] | None = None) -> None:
        """Load the embedder and the vectors (some seconds).

        Args:
            on_step: called with a line of text for each step.

        Raises:
            EmbedderCannotLoad: the model is missing or damaged.
            EmbedderMismatch: the library's vectors were made by another model.
            VectorStoreUnavailable: the vector engine named in the settings does not answer.
        """
        self._load_encoder(on_step)
        if on_step is not None and self._vectors is None:
            on_step("opening vectors")
        self._open_vectors()

    @property
    def embedder_name(self) -> str:
        """The configured embedder as the settings name it, without arguments; known before `load()`."""
        return self._settings.embedder_name

    @property
    def device(self) -> str:
        """Where models of the library run: `auto`, `cpu` or `cuda`, as configured."""
        return self._settings.device

    @property
    def generation(self) -> int:
        """Number of writes so far, by this and other processes."""
        return self._catalog.generation()

    @property
    def encoder(self) -> TextEncoder:
        """The loaded embedder. Raises Busy before `load()`."""
        if self._encoder is None:
            raise Busy("The embedding model is still being loaded.", hint="try again in a few seconds")
        return self._encoder

    @property
    def faiss_device(self) -> str:
        """Where vectors are searched: `cuda`, `cpu`, `postgres` or `llama_index`; `none` before `load()`."""
        return self._vectors.device if self._vectors is not None else "none"

    def close(self) -> None:
        """End the processes that read, save the vectors if enough of them changed, and close the catalog."""
        self._reading.close()
        if self._vectors is not None:
            self._vectors.save_if_worth()
        self._catalog.close()

    # --- books

    def find_books(self, path: Path) -> list[Path]:
        """The books at a path: a file; or a folder of text files, and each PDF, EPUB and the like below it.

        Raises:
            UnreadableBook: the path does not exist.
            UnsupportedFormat: no reader reads the file, or the folder holds no book.
        """
        return find_books(path, self._settings.readers)

    def readable_endings(self) -> str:
        """The file endings that are read, separated by spaces."""
        return readable_endings(self._settings.readers)

    def add(
        self,
        path: Path,
        *,
        progress: ProgressListener | None = None,
        cancelled: CancelCheck | None = None,
        title: str | None = None,
        sample: bool = False,
        source_name: str | None = None,
        document_id: str | None = None,
    ) -> AddResult:
        """Add a book, or update it where its source changed. It is stored in one transaction at the end.

        Args:
            path: a file, or a folder of text files.
            progress: called during the stages `reading`, `embedding` and `storing`.
            cancelled: polled; once it returns True the call stops and keeps nothing.
            title: replaces the book's own title.
            sample: marks the bundled book.
            source_name: the file name of an upload; the id then comes from the content, not from `path`.
            document_id: the book's id, where it comes from neither.

        Raises:
            UnreadableBook, UnsupportedFormat, TooLarge: the book cannot be read.
            EmbedderMismatch: the library belongs to another embedder.
            Cancelled, StorageFull, HomeNotWritable, Busy: nothing of the book was kept.
        """
        self._load_encoder()
        self._check_embedder()
        result = self._ingest(progress, cancelled).add(
            path, title=title, sample=sample, source_name=source_name, document_id=document_id
        )
        self._sync()
        return result

    def outdated(self, find_file: FindFile) -> list[tuple[Document, Path | None]]:
        """Books that an earlier version of Coalesce read or cut, each with its file if that is there and unchanged."""
        return self._ingest().outdated(find_file)

    def once(self, add: Callable[[], object]) -> None:
        """Call `add` where no book was ever in the library; of several processes one calls it, and the others wait."""
        if not self.generation:
            with self._catalog.alone("first-book"):
                if not self.generation:
                    add()

    def renew(self, document: Document, path: Path | None, *, cancelled: CancelCheck | None = None) -> AddResult:
        """Read and cut an outdated book again, keeping its id and title; without its file it is only cut again.

        Raises:
            UnreadableBook: its file cannot be read any more; the book stays as it was.
            Cancelled, StorageFull, HomeNotWritable, Busy: the book stays as it was.
        """
        result = self._ingest(cancelled=cancelled).renew(document, path)
        self._sync()
        return result

    def take_over(self, other: Catalog, document: Document) -> None:
        """Store a book of another library's catalog under its id, cut again. Raises IndexCorrupt: it cannot be read."""
        self._load_encoder()
        self._ingest().take_over(other, document)

    def draw_page(self, path: Path, page: int, quote: str = "") -> bytes:
        """A page of a PDF (from 1) as PNG, with a quote marked on it, drawn where books are read.

        Raises:
            NotFound: the file has no such page, or cannot be read any more.
            Busy, TooLarge, UnreadableBook: others wait for theirs, or drawing it takes more than is allowed.
        """
        return self._reading.draw(path, page, quote)

    def remove(self, document_id: str) -> None:
        """Remove a book; nothing of it is found afterwards. Raises NotFound."""
        self._catalog.remove(document_id)
        self._sync()
        remove_lock(self._settings.home, document_id)

    def removed(self) -> frozenset[str]:
        """Digests of uploaded contents whose books were removed; files of theirs are left over."""
        return self._catalog.removed()

    def documents(self) -> tuple[Document, ...]:
        """All books, in the order in which they were added."""
        return self._catalog.documents()

    def document(self, document_id: str) -> Document:
        """One book. Raises NotFound."""
        return self._catalog.document(document_id)

    def chapters(self, document_id: str) -> tuple[Chapter, ...]:
        """Chapters of a book. Raises NotFound."""
        return self._catalog.chapters(document_id)

    def reindex(self, *, progress: ProgressListener | None = None) -> tuple[AddResult, ...]:
        """Cut and embed every book again with the configured embedder, from the sections in the catalog."""
        self._load_encoder()
        results = self._ingest(progress).reindex()
        with self._loading:
            self._vectors = None  # made by the former embedder
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
            # A node that is found but gone was removed in between by another thread or process: search again.
            if len(nodes) == len(rowids):
                break
        return [
            Hit(nodes[rowid], score)
            for rowid, score in zip(rowids.tolist(), scores.tolist(), strict=True)
            if rowid in nodes
        ]

    def lexical(self, query: str, top_k: int, filters: Filters | None = None) -> list[Hit]:
        """Nodes with the query's terms, best first; the score is BM25. Works before `load()`. Raises NotFound."""
        filters = filters or Filters()
        self._catalog.check_filters(filters)
        return self._catalog.lexical(query_terms(query), top_k, filters)

    def count_terms(self, terms: Sequence[str], most: int = 1000) -> dict[str, int]:
        """How many nodes hold each of these terms of `indexes.words`, counted up to `most`."""
        return self._catalog.count_terms(terms, most)

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

    def around(self, node: StoredNode, before: int = 1, after: int = 1) -> list[StoredNode]:
        """The node with up to `before` and `after` nodes around it in its book, whatever their sections, in order."""
        rowids = range(node.rowid - before, node.rowid + after + 1)
        return [near for near in self._catalog.nodes_by_rowid(rowids) if near.document_id == node.document_id]

    # --- within

    def _ingest(self, progress: ProgressListener | None = None, cancelled: CancelCheck | None = None) -> Ingest:
        return Ingest(self._settings, self._catalog, self.encoder, self._reading, self._storing, progress, cancelled)

    def _load_encoder(self, on_step: Callable[[str], None] | None = None) -> None:
        with self._loading:
            if self._encoder is None:
                self._encoder = _load_encoder(self._settings, on_step)

    def _open_vectors(self) -> NodeVectors:
        """The vectors, opened when first needed: adding a book does not. Raises Busy, EmbedderMismatch."""
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
        if settings.vector_store == "faiss" and settings.database_url is not None:
            return PostgresVectors(self._catalog, encoder.dimension)
        if settings.vector_store == "faiss":
            use_gpu = settings.device != "cpu"
            path = settings.vectors_path
            return FaissVectors(self._catalog, path, encoder.fingerprint, encoder.dimension, use_gpu=use_gpu)
        from indexes.vector_store import StoreVectors

        return StoreVectors(settings, self._catalog, encoder.fingerprint, encoder.dimension)

    def _check_embedder(self) -> None:
        stored = self._catalog.embedder()
        if stored is not None and stored != self.encoder.fingerprint and self._catalog.documents():
            raise EmbedderMismatch(
                f"The library was embedded by {stored}, but the configured embedder '{self.embedder_name}' is "
                f"{self.encoder.fingerprint}.",
                hint="Run `coalesce add --reindex`, or set the embedder back.",
            )

    def _sync(self) -> None:
        if self._vectors is not None:
            self._vectors.sync()


def open_library(settings: IndexSettings, *, create: bool = True, embedder: TextEncoder | None = None) -> Library:
    """Open the library in `settings.home`. Fast: no model is loaded before `Library.load()`.

    Args:
        create: make the home and an empty catalog if there is none.
        embedder: used instead of loading the configured one.

    Raises:
        IndexMissing, IndexCorrupt, HomeNotWritable.
    """
    catalog = open_catalog(settings.catalog_path, create=create, database_url=settings.database_url)
    return Library(settings, catalog, embedder)


def _load_encoder(settings: IndexSettings, on_step: Callable[[str], None] | None) -> TextEncoder:
    if not settings.embedder.startswith(LLAMA_INDEX):
        return load_embedder(settings, on_step)
    if on_step is not None:
        on_step(f"loading embedder {settings.embedder_name}")
    from indexes.llama_index import load_embedding

    return load_embedding(settings.embedder)
