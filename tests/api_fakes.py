"""A shelf of books in memory and a live server over it, for tests of the API: no models, real HTTP."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import uvicorn
from fakes import FakeLibrary, ScriptedGenerator, make_node, signals_only
from waiting import PATIENCE_S, wait_until

from api.adapter_tuning import Tune
from api.server import create_app
from api.services import Services
from api.settings import CoalesceSettings
from indexes.errors import Cancelled, NotFound, UnreadableBook
from indexes.readers import book_files, content_digest, document_id_of, find_books, readable_endings
from indexes.types import AddProgress, AddResult, BookHealth, Document, FindFile, Section, StoredNode
from rag.conversations import ConversationStore
from rag.engine import AnswerEngine
from rag.evidence import EvidenceJudge
from rag.retrieval import HybridRetriever
from rag.sentence_reader import LearnedReader
from rag.settings import RetrievalSettings

WARP = "A warp is a group of 32 threads that run in lockstep on one scheduler of a streaming multiprocessor."
SAMPLE_ID = "sample"


class ShelfLibrary(FakeLibrary):
    """A fake library that books can be added to and removed from. `before_step` runs between steps of an add."""

    faiss_device = "cpu"

    def __init__(self) -> None:
        super().__init__([])
        self._documents: dict[str, Document] = {}
        self.before_step: Callable[[int], None] = lambda step: None
        self.closed = False

    def readable_endings(self) -> str:
        return readable_endings()

    def documents(self) -> tuple[Document, ...]:  # type: ignore[override]
        return tuple(self._documents.values())

    def document(self, document_id: str) -> Document:
        try:
            return self._documents[document_id]
        except KeyError:
            raise NotFound(f"no book has the id {document_id!r}", hint="coalesce list") from None

    def dense(self, query: str, k: int, filters: Any = None) -> Any:
        for document_id in filters.document_ids if filters is not None else ():
            self.document(document_id)
        return super().dense(query, k, filters)

    def find_books(self, path: Path) -> list[Path]:
        return find_books(path)

    def extend(self, node: StoredNode) -> None:
        """One node more for a book, which then has another digest, as a book that changed has."""
        self.nodes.append(node)
        document = self._documents[node.document_id]
        self._documents[node.document_id] = replace(document, sha256=uuid4().hex)

    def section(self, document_id: str, text: str, ordinal: int) -> StoredNode:
        """A node that is a section of its own."""
        return make_node(text, ordinal, document_id=document_id, heading_path=("Chapter", f"Section {ordinal}"))

    def put(self, document_id: str, text: str, *, source: str, sample: bool = False, pages: bool = False) -> Document:
        marks = ((0, 3),) if pages else ()
        node = make_node(
            text, document_id=document_id, title=source, page_marks=marks, page_labels=("iii",) if pages else ()
        )
        self.nodes.append(node)
        digest = sha256(text.encode()).hexdigest()
        document = Document(
            document_id,
            source,
            source,
            sample,
            "text",
            9 if pages else None,
            1,
            1,
            digest,
            "2026-01-01T00:00:00+00:00",
            BookHealth(),
        )
        self._documents[document_id] = document
        return document

    def outdated(self, find_file: FindFile) -> list[tuple[Document, Path | None]]:
        return []

    def add(
        self,
        path: Path,
        *,
        progress: Callable[[AddProgress], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
        title: str | None = None,
        sample: bool = False,
        source_name: str | None = None,
        document_id: str | None = None,
    ) -> AddResult:
        files = book_files(path)
        data = b"\n".join(file.read_bytes() for file in files)
        digest = content_digest(path) if path.is_dir() else sha256(data).hexdigest()
        for step in range(3):
            self.before_step(step)
            if cancelled is not None and cancelled():
                raise Cancelled("the add was cancelled")
            if progress is not None:
                progress(AddProgress("embedding", step + 1, 3))
        if b"\0" in data:
            raise UnreadableBook(f"{source_name!r} holds binary data", hint="give a text file")
        document_id = document_id or document_id_of(digest if source_name else str(path))
        document = self.put(document_id, data.decode(), source=source_name or str(path), sample=sample)
        self._documents[document_id] = replace(document, sha256=digest)
        return AddResult(self._documents[document_id], "added", 1, 0.1)

    def remove(self, document_id: str) -> None:
        self.document(document_id)
        del self._documents[document_id]
        self.nodes = [node for node in self.nodes if node.document_id != document_id]

    def nodes_of(self, document_id: str) -> list[StoredNode]:
        return [node for node in self.nodes if node.document_id == document_id]

    def sections_of(self, document_id: str) -> tuple[Section, ...]:
        """One section for each node."""
        nodes = self.nodes_of(document_id)
        return tuple(Section(node.heading_path, node.text, node.chapter, node.page_marks) for node in nodes)

    def close(self) -> None:
        self.closed = True


class FakeBuilder:
    """Builds a real engine over the shelf with a scripted generator. `gate` holds the preparation back."""

    def __init__(self, generator: ScriptedGenerator | None = None) -> None:
        self.shelf = ShelfLibrary()
        self.generator = generator or ScriptedGenerator(["A warp has ", "32 threads [1]."])
        self.judge = EvidenceJudge(LearnedReader(signals_only), 0.0)
        self.gate = threading.Event()
        self.gate.set()
        self.samples_added = 0

    def load(self, settings: CoalesceSettings, on_step: Callable[[str], None]) -> Any:
        on_step("opening the library and loading the embedder")
        self.gate.wait(PATIENCE_S)
        return self.shelf, self.engine(settings, self.shelf)

    def add_sample(self, library: Any, progress: Callable[[AddProgress], None]) -> None:
        self.samples_added += 1
        progress(AddProgress("embedding", 1, 1))
        self.shelf.put(SAMPLE_ID, WARP, source="Sample", sample=True, pages=True)

    def engine(self, settings: CoalesceSettings, library: Any) -> Any:
        retrieval = RetrievalSettings()
        return AnswerEngine(
            library,
            HybridRetriever(library, retrieval),
            self.generator,
            ConversationStore(settings.rag.conversations_path),
            chooser=self.generator,
            judge=self.judge,
        )


@dataclass
class Live:
    """A running server: a client for it, and what stands behind it."""

    client: httpx.Client
    services: Services
    builder: FakeBuilder
    address: str

    @property
    def shelf(self) -> ShelfLibrary:
        return self.builder.shelf

    @property
    def generator(self) -> ScriptedGenerator:
        return self.builder.generator


@contextmanager
def serving(services: Services, *, pages: bool = False) -> Iterator[str]:
    """The address of a server over `services`, in a thread of this process. Only one of a process may have the page."""
    server = uvicorn.Server(
        uvicorn.Config(create_app(services, pages=pages), port=0, log_level="error", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started, "the server started")
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)


@contextmanager
def running(
    settings: CoalesceSettings,
    builder: FakeBuilder | None = None,
    *,
    wait: bool = True,
    pages: bool = False,
    tune: Tune | None = None,
) -> Iterator[Live]:
    """A server without models, as `serving` makes it; ready unless `wait` is false."""
    builder = builder or FakeBuilder()
    services = Services(settings, load=builder.load, add_sample=builder.add_sample, tune=tune)
    with serving(services, pages=pages) as address:
        try:
            if wait:
                wait_until(lambda: services.preparation.ready, "the services are ready")
            with httpx.Client(base_url=address, timeout=PATIENCE_S) as client:
                yield Live(client, services, builder, address)
        finally:
            builder.gate.set()
