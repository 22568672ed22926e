"""How a book gets into the catalog: read, cut, embed what is new, store everything in one transaction.

A llama-index `IngestionPipeline` cuts and embeds. It has no store of its own: the catalog's transaction keeps a book
whole. llama-index is imported when a book is cut, so an unchanged book and a question do not wait for it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar, cast

from filelock import FileLock, Timeout

from indexes.catalog import BookIdentity, Catalog, CatalogEntry, VectorsGone
from indexes.chunking import Chunk, chunk_book
from indexes.database import lock_path
from indexes.embedder import TextEncoder
from indexes.errors import Cancelled, DatabaseUnavailable, UnreadableBook
from indexes.readers import content_digest, document_id_of
from indexes.readers.elements import real_title, whole_letters
from indexes.reading_process import ReadingProcesses
from indexes.settings import IndexSettings
from indexes.types import AddProgress, AddResult, Book, CancelCheck, Document, FindFile, ProgressListener

if TYPE_CHECKING:
    from llama_index.core.ingestion import IngestionPipeline

    from indexes.llama_index import BookNode

T = TypeVar("T")
CHUNKER_VERSION = 8
"""Raised when the same text would be cut into other nodes or found by other terms: a server then cuts the books of its
home again."""
READER_VERSION = 12
"""Raised when a reader gives other text for the same file: books whose file is there are then read again."""
AWAY_S = 60.0
"""How long a book that was read waits for a database that does not answer."""
LARGEST_NODE_TOKENS = 240
"""A node is a passage to read and cite, however much the embedder could read."""
TOKEN_RESERVE = 14
"""Tokens left free below what the embedder reads: a few tokenizers count part of a text differently from the whole."""


class Ingest:
    """Adds books to a catalog with one embedder. Several threads and processes may add at once.

    Args:
        reading: reads the books.
        storing: held while a book is cut, embedded and written: the threads of a process read side by side, but embed
            one after the other.
        progress: called during the stages `reading`, `embedding` and `storing`.
        cancelled: polled; once it returns True a call raises Cancelled and keeps nothing.
    """

    def __init__(
        self,
        settings: IndexSettings,
        catalog: Catalog,
        encoder: TextEncoder,
        reading: ReadingProcesses,
        storing: Lock,
        progress: ProgressListener | None = None,
        cancelled: CancelCheck | None = None,
    ) -> None:
        self._settings = settings
        self._catalog = catalog
        self._encoder = encoder
        self._reading = reading
        self._storing = storing
        self._progress = progress
        self._cancelled = cancelled

    def add(
        self, path: Path, *, title: str | None, sample: bool, source_name: str | None, document_id: str | None
    ) -> AddResult:
        """Add a book, or update it; see `Library.add`."""
        started = time.monotonic()
        path = path.expanduser().resolve()
        digest = content_digest(path, self._cancelled)
        source = whole_letters(source_name or str(path))
        reader = self._reader_of(source)
        document_id = document_id or document_id_of(digest if source_name is not None else str(path))
        with self._catalog.alone(document_id, self._cancelled):
            # Looked up only now: another process may have added the same book while this one waited.
            identity = BookIdentity(document_id, source, sample, digest, self._chunking(reader=reader))
            known = self._catalog.find(document_id)
            if known is not None and self._is_current(known, identity, title):
                return AddResult(known, "unchanged", 0, time.monotonic() - started)
            book, digest = self._read(path, digest, reader, source_name)
            book = replace(book, title=title) if title else book
            embedded = self._store(replace(identity, sha256=digest), book)
            document = self._until_back(partial(self._catalog.document, document_id))
        status = "added" if known is None else "updated"
        return AddResult(document, status, embedded, time.monotonic() - started)

    def outdated(self, find_file: FindFile) -> list[tuple[Document, Path | None]]:
        """Books that an earlier version read or cut, each with its file where that is there and unchanged.

        A book without its file can only be cut again; one that was cut by this version and has no file is not listed.
        """
        found = []
        for document in self._catalog.documents():
            cutter, reader = _versions(self._catalog, document)
            if (cutter, reader) == (CHUNKER_VERSION, READER_VERSION):
                continue
            path = find_file(document)
            if path is not None and not _holds(path, document.sha256):
                path = None
            if path is not None or cutter != CHUNKER_VERSION:
                found.append((document, path))
        return found

    def renew(self, document: Document, path: Path | None) -> AddResult:
        """Read and cut a book again under its id and title; without its file only cut again."""
        started = time.monotonic()
        reader = self._reader_of(document.source)
        with self._catalog.alone(document.document_id, self._cancelled):
            if path is not None:
                book, digest = self._read(path, document.sha256, reader, document.source)
                chunking = self._chunking(reader=reader)
            else:
                book, digest = self._catalog.book(document.document_id), document.sha256
                chunking = self._chunking(_versions(self._catalog, document)[1], reader)
            identity = BookIdentity(document.document_id, document.source, document.sample, digest, chunking)
            embedded = self._store(identity, replace(book, title=real_title(document.title) or book.title))
        return AddResult(self._catalog.document(document.document_id), "updated", embedded, time.monotonic() - started)

    def take_over(self, other: Catalog, document: Document) -> None:
        """Cut a book of another catalog again, and store it under its id; see `indexes/integrity.py`.

        Raises:
            IndexCorrupt: it cannot be read there.
        """
        book = replace(other.book(document.document_id), title=document.title)
        chunking = self._chunking(_versions(other, document)[1], self._reader_of(document.source))
        self._store(
            BookIdentity(document.document_id, document.source, document.sample, document.sha256, chunking), book
        )

    def reindex(self) -> tuple[AddResult, ...]:
        """Cut and embed all books again from the sections in the catalog, then switch over in one transaction.

        Vectors are stored book by book beforehand, so an interrupted run continues where it stopped. Until the switch
        the library stays as it was.
        """
        started = time.monotonic()
        entries: list[CatalogEntry] = []
        counts: dict[str, int] = {}
        for document in self._catalog.documents():
            book = self._catalog.book(document.document_id)
            nodes = self._run_pipeline(book)
            vectors = _vectors_of(nodes)
            self._catalog.set_aside(self._encoder.fingerprint, vectors)
            chunking = self._chunking(_versions(self._catalog, document)[1])  # cut again, but not read again
            identity = BookIdentity(document.document_id, document.source, document.sample, document.sha256, chunking)
            entries.append(CatalogEntry(identity, book, [node.chunk for node in nodes]))
            counts[document.document_id] = len(vectors)
        self._catalog.put(entries, self._encoder.fingerprint, {}, only_embedder=True)
        seconds = time.monotonic() - started
        return tuple(
            AddResult(self._catalog.document(name), "updated", count, seconds) for name, count in counts.items()
        )

    def _store(self, identity: BookIdentity, book: Book) -> int:
        """Cut, embed and write a book; return the number of texts embedded."""
        with self._turn_to_store():
            nodes = self._run_pipeline(book)
            entry = CatalogEntry(identity, book, [node.chunk for node in nodes])
            while True:
                vectors = _vectors_of(nodes)
                self._tell("storing", 0, len(nodes))
                with suppress(VectorsGone):
                    self._until_back(partial(self._catalog.put, [entry], self._encoder.fingerprint, vectors))
                    break
                # Another book was removed meanwhile, and texts that both have lost their vectors.
                self._pipeline.transformations[-1](nodes, **self._listeners())
            self._tell("storing", len(nodes), len(nodes))
        return len(vectors)

    def _until_back(self, call: Callable[[], T]) -> T:
        """What a call of the catalog gives; made again while its database is away: reading a book takes long."""
        began = time.monotonic()
        while True:
            try:
                return call()
            except DatabaseUnavailable:
                if time.monotonic() - began > AWAY_S or (self._cancelled is not None and self._cancelled()):
                    raise
            time.sleep(1.0)

    @contextmanager
    def _turn_to_store(self) -> Iterator[None]:
        while not self._storing.acquire(timeout=0.2):
            if self._cancelled is not None and self._cancelled():
                raise Cancelled("Adding was cancelled while another book was embedded.")
        try:
            yield
        finally:
            self._storing.release()

    def _run_pipeline(self, book: Book) -> list[BookNode]:
        """The nodes of a book; those whose text is new to the library have a vector."""
        from indexes.llama_index import BookDocument

        nodes = self._pipeline.run(documents=[BookDocument(book)], **self._listeners())
        if self._cancelled is not None and self._cancelled():
            raise Cancelled("Adding was cancelled; nothing of the book was kept.")
        return cast("list[BookNode]", nodes)

    @cached_property
    def _pipeline(self) -> IngestionPipeline:
        from llama_index.core.ingestion import IngestionPipeline

        from indexes.llama_index import BookParser, EncoderEmbedding

        def missing(text_shas: Iterable[bytes]) -> set[bytes]:
            return self._until_back(partial(self._catalog.missing_vectors, self._encoder.fingerprint, text_shas))

        parts = [BookParser(self._cut), EncoderEmbedding(self._encoder, missing)]
        return IngestionPipeline(transformations=parts, disable_cache=True)

    def _listeners(self) -> dict[str, Any]:
        """What the pipeline hands to its parts."""
        return {"progress": partial(self._tell, "embedding"), "cancelled": self._cancelled}

    def _tell(self, stage: str, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(AddProgress(stage, done, total))

    def _reader_of(self, source: str) -> str | None:
        return self._settings.readers.get(Path(source).suffix.casefold())

    def _chunking(self, reader_version: int | None = None, reader: str | None = None) -> str:
        """Identify how a book was read and cut; stored with it."""
        cut = f"{CHUNKER_VERSION}/{self._limit_tokens}/{self._settings.chunk_overlap_tokens}"
        named = f"/{hashlib.sha256(reader.encode()).hexdigest()[:8]}" if reader else ""
        return f"{cut}/{reader_version or READER_VERSION}{named}"

    @property
    def _limit_tokens(self) -> int:
        reads = self._encoder.max_text_tokens
        return max(16, min(self._settings.chunk_tokens or LARGEST_NODE_TOKENS, reads - TOKEN_RESERVE))

    def _is_current(self, known: Document, identity: BookIdentity, title: str | None) -> bool:
        same = known.sha256 == identity.sha256 and (not title or known.title == title)
        if self._settings.ocr and known.health.pages_without_text and not known.health.recognised_pages:
            return False  # added before `ocr` was set
        return same and self._catalog.chunking_of(identity.document_id) == identity.chunking

    def _read(self, path: Path, digest: str, reader: str | None, name: str | None) -> tuple[Book, str]:
        """The book, and the digest of exactly what was read."""
        for _ in range(3):
            listen = partial(self._tell, "reading")
            book = self._reading.read(path, name=name, reader=reader, progress=listen, cancelled=self._cancelled)
            after = content_digest(path, self._cancelled)
            if after == digest:
                return book, digest
            digest = after
        raise UnreadableBook(f"'{path}' keeps changing while it is read.", hint="add it again when it is finished")

    def _cut(self, book: Book) -> list[Chunk]:
        overlap = self._settings.chunk_overlap_tokens
        return list(chunk_book(book, self._encoder.token_starts, self._limit_tokens, overlap))


def remove_lock(home: Path, document_id: str) -> None:
    """Remove the lock file of a book that was removed, unless somebody adds it again right now.

    It is removed while it is held: whoever opened it meanwhile finds that it guards nothing and opens a new one.
    """
    path = lock_path(home, document_id)
    if path.exists():
        with suppress(Timeout, OSError), FileLock(path, timeout=0):
            path.unlink()


def _vectors_of(nodes: Sequence[BookNode]) -> dict[bytes, bytes]:
    """New vectors, as little-endian float32, by the digest of their text."""
    return {node.chunk.text_sha: node.embedding.astype("<f4").tobytes() for node in nodes if node.embedding is not None}


def _versions(catalog: Catalog, document: Document) -> tuple[int, int]:
    """`CHUNKER_VERSION` and `READER_VERSION` of a book; the first versions did not write the latter."""
    parts = (catalog.chunking_of(document.document_id) or "").split("/")
    return int(parts[0] or 0), int(parts[3]) if len(parts) > 3 else 1


def _holds(path: Path, sha256: str) -> bool:
    """Whether a book's file or folder is there, may be read and is unchanged."""
    try:
        return content_digest(path) == sha256
    except UnreadableBook:
        return False
