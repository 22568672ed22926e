"""A book's way into the catalog: read, cut, embed what is new, store all of it in one transaction."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from filelock import FileLock, Timeout

from indexes.catalog import Catalog
from indexes.chunking import NodeDraft, chunk_book
from indexes.database import translated
from indexes.document_rows import BookIdentity, CatalogEntry
from indexes.errors import Cancelled, UnreadableBook
from indexes.readers import read_book
from indexes.settings import IndexSettings
from indexes.sources import content_digest, document_id_of
from indexes.text_encoder import CancelCheck, TextEncoder
from indexes.types import AddProgress, AddResult, Book, Document, ProgressListener

CHUNKER_VERSION = 1
"""Raised when the same text would be cut into other nodes: books are then cut anew when they are added again."""
READER_VERSION = 2
"""Raised when a reader gives other text for the same file, with the same effect."""
LARGEST_NODE_TOKENS = 240
"""A node is a passage that can be read and cited, however much the embedder could read."""
TOKEN_RESERVE = 14
"""Tokens left free below what the embedder reads: a few tokenizers count a piece of text otherwise than the whole."""


class Ingest:
    """Adds books to a catalog with one embedder. Several threads and processes may add at once."""

    def __init__(self, settings: IndexSettings, catalog: Catalog, encoder: TextEncoder) -> None:
        self._settings = settings
        self._catalog = catalog
        self._encoder = encoder

    def add(
        self,
        path: Path,
        *,
        progress: ProgressListener | None,
        cancelled: CancelCheck | None,
        title: str | None,
        sample: bool,
        source_name: str | None,
    ) -> AddResult:
        """Add one book, or take over its changes; see `Library.add`."""
        started = time.monotonic()
        path = path.expanduser().resolve()
        digest = content_digest(path, cancelled)
        source = source_name or str(path)
        document_id = document_id_of(digest if source_name is not None else str(path))
        with self._book_lock(document_id, cancelled):
            # Looked up only now: another process may have added the same book while this one waited.
            identity = BookIdentity(document_id, source, sample, digest, self._chunking())
            known = self._catalog.find(document_id)
            if known is not None and self._is_current(known, identity, title):
                return AddResult(known, "unchanged", 0, time.monotonic() - started)
            book, digest = self._read(path, digest, source_name, progress, cancelled)
            book = replace(book, title=title) if title else book
            drafts = self._cut(book)
            embedded = self._embed(drafts, progress, cancelled)
            if progress is not None:
                progress(AddProgress("storing", 0, len(drafts)))
            entry = CatalogEntry(replace(identity, sha256=digest), book, drafts)
            self._catalog.put([entry], self._encoder.fingerprint, embedded)
            if progress is not None:
                progress(AddProgress("storing", len(drafts), len(drafts)))
        status = "added" if known is None else "updated"
        return AddResult(self._catalog.document(document_id), status, len(embedded), time.monotonic() - started)

    def reindex(self, progress: ProgressListener | None, cancelled: CancelCheck | None) -> tuple[AddResult, ...]:
        """Cut and embed all books anew from the sections in the catalog, and change over in one transaction.

        Vectors are put aside book by book, so that a run that was broken off goes on where it stopped; until the
        change-over the library is what it was.
        """
        started = time.monotonic()
        entries: list[CatalogEntry] = []
        counts: dict[str, int] = {}
        for document in self._catalog.documents():
            book = self._catalog.book(document.document_id)
            drafts = self._cut(book)
            vectors = self._embed(drafts, progress, cancelled)
            self._catalog.set_aside(self._encoder.fingerprint, vectors)
            stored = self._catalog.chunking_of(document.document_id) or ""
            chunking = self._chunking(_reader_of(stored))  # it is cut anew, not read anew
            identity = BookIdentity(document.document_id, document.source, document.sample, document.sha256, chunking)
            entries.append(CatalogEntry(identity, book, drafts))
            counts[document.document_id] = len(vectors)
        self._catalog.put(entries, self._encoder.fingerprint, {}, only_embedder=True)
        seconds = time.monotonic() - started
        return tuple(
            AddResult(self._catalog.document(name), "updated", count, seconds) for name, count in counts.items()
        )

    def _chunking(self, reader: int | None = None) -> str:
        """Names how a book was read and cut; stored with it."""
        cut = f"{CHUNKER_VERSION}/{self._limit_tokens}/{self._settings.chunk_overlap_tokens}"
        return f"{cut}/{reader or READER_VERSION}"

    @property
    def _limit_tokens(self) -> int:
        reads = self._encoder.max_text_tokens
        return max(16, min(self._settings.chunk_tokens or LARGEST_NODE_TOKENS, reads - TOKEN_RESERVE))

    def _is_current(self, known: Document, identity: BookIdentity, title: str | None) -> bool:
        same = known.sha256 == identity.sha256 and (not title or known.title == title)
        if self._settings.ocr and known.health.pages_without_text and not known.health.recognised_pages:
            return False  # it was added before recognising was asked for
        return same and self._catalog.chunking_of(identity.document_id) == identity.chunking

    @contextmanager
    def _book_lock(self, document_id: str, cancelled: CancelCheck | None) -> Iterator[None]:
        folder = self._settings.home / "locks"
        with translated(self._settings.catalog_path):
            folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / f"{document_id}.lock")
        while True:
            try:
                lock.acquire(timeout=0.2)
                break
            except Timeout:
                if cancelled is not None and cancelled():
                    raise Cancelled("Adding was cancelled while another process added the same book.") from None
        try:
            yield
        finally:
            lock.release()

    def _read(
        self,
        path: Path,
        digest: str,
        name: str | None,
        progress: ProgressListener | None,
        cancelled: CancelCheck | None,
    ) -> tuple[Book, str]:
        """The book and the digest of exactly what was read."""

        def listen(done: int, total: int) -> None:
            if progress is not None:
                progress(AddProgress("reading", done, total))

        for _ in range(3):
            book = read_book(path, cancelled=cancelled, progress=listen, name=name, ocr=self._settings.ocr)
            after = content_digest(path, cancelled)
            if after == digest:
                return book, digest
            digest = after
        raise UnreadableBook(f"'{path}' keeps changing while it is read.", hint="add it again when it is finished")

    def _cut(self, book: Book) -> list[NodeDraft]:
        return list(
            chunk_book(book, self._encoder.token_starts, self._limit_tokens, self._settings.chunk_overlap_tokens)
        )

    def _embed(
        self, drafts: Sequence[NodeDraft], progress: ProgressListener | None, cancelled: CancelCheck | None
    ) -> dict[bytes, bytes]:
        """Vectors of those embedded texts that the catalog has none for, as little-endian float32, by digest."""
        texts = {draft.text_sha: draft.embedded_text for draft in drafts}
        missing = self._catalog.missing_vectors(self._encoder.fingerprint, texts)
        shas = [sha for sha in texts if sha in missing]

        def listen(done: int, total: int) -> None:
            if progress is not None:
                progress(AddProgress("embedding", done, total))

        listen(0, len(shas))
        vectors = self._encoder.encode([texts[sha] for sha in shas], progress=listen, cancelled=cancelled)
        if cancelled is not None and cancelled():
            raise Cancelled("Adding was cancelled; nothing of the book was kept.")
        return {sha: vector.astype("<f4").tobytes() for sha, vector in zip(shas, vectors, strict=True)}


def _reader_of(chunking: str) -> int:
    """The reader's version in a stored name; the first versions did not write it."""
    parts = chunking.split("/")
    return int(parts[3]) if len(parts) > 3 else 1
