"""A live server over a library of small books, for tests of the API: no models, real HTTP."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any
from weakref import finalize

import httpx
from fakes import HashEncoder, ScriptedGenerator, put_book, signals_only
from waiting import PATIENCE_S, wait_until

from api.server import StoppingServer
from api.services import Services
from api.settings import CoalesceSettings
from indexes.catalog import open_catalog
from indexes.library import Library
from indexes.settings import IndexSettings
from indexes.types import AddProgress, AddResult, Book, Document, ProgressListener, Section
from rag.conversations import ConversationStore
from rag.engine import AnswerEngine
from rag.evidence import EvidenceJudge
from rag.retrieval import HybridRetriever
from rag.sentence_reader import LearnedReader
from rag.settings import RetrievalSettings
from rag.types import Answers

WARP = "A warp is a group of 32 threads that run in lockstep on one scheduler of a streaming multiprocessor."
SAMPLE_ID = "sample"


class Shelf(Library):
    """The real library in a folder of its own, over vectors of hashes, to put small books on.

    `before_step` runs before each step of an add: 0 as it begins, then one for each eight texts that are embedded, and
    a last one as it stores.
    """

    def __init__(self, database_url: str | None = None) -> None:
        folder = Path(mkdtemp(prefix="coalesce-shelf-"))
        finalize(self, rmtree, folder, ignore_errors=True)
        settings = IndexSettings(folder, database_url=database_url)
        self._hashes = encoder = HashEncoder()
        encoder.before_batch = lambda: self.before_step(next(self._steps))
        catalog = open_catalog(settings.catalog_path, create=True, database_url=database_url)
        super().__init__(settings, catalog, encoder)
        self.before_step: Callable[[int], None] = lambda step: None
        self._steps = count()
        self._books: dict[str, Book] = {}
        self._samples: set[str] = set()
        self.closed = False

    def put(self, document_id: str, text: str, *, source: str, sample: bool = False, pages: bool = False) -> Document:
        """A book of one section; with `pages`, on page 3 of 9, which is printed as iii."""
        section = Section(("Chapter", "Section"), text, 1, ((0, 3),) if pages else ())
        labels = ("i", "ii", "iii", *"123456") if pages else ()
        book = Book(source, "text", (section,), len(labels) or None, labels)
        if sample:
            self._samples.add(document_id)
        return self._keep(document_id, book, source)

    def extend(self, document_id: str, text: str, *, path: tuple[str, ...] = (), chapter: int = 1) -> Document:
        """One section more for a book."""
        book = self._books[document_id]
        path = path or ("Chapter", f"Section {len(book.sections) + 1}")
        sections = (*book.sections, Section(path, text, chapter))
        return self._keep(document_id, replace(book, sections=sections), book.title)

    def clear(self) -> None:
        """Takes every book off."""
        for document in self.documents():
            self.remove(document.document_id)

    def _keep(self, document_id: str, book: Book, source: str) -> Document:
        self._books[document_id] = book
        before, self.before_step = self.before_step, lambda step: None
        put_book(self._catalog, self._hashes, book, document_id, source)
        self.before_step = before
        return self.document(document_id)

    def document(self, document_id: str) -> Document:
        return replace(super().document(document_id), sample=document_id in self._samples)

    def documents(self) -> tuple[Document, ...]:
        return tuple(self.document(document.document_id) for document in super().documents())

    def add(self, path: Path, *, progress: ProgressListener | None = None, **more: Any) -> AddResult:
        def tell(step: AddProgress) -> None:
            if step.stage == "storing" and not step.done:
                self.before_step(next(self._steps))
            if progress is not None:
                progress(step)

        self._steps = count()
        self.before_step(next(self._steps))
        return super().add(path, progress=tell, **more)

    def close(self) -> None:
        super().close()
        self.closed = True


class FakeBuilder:
    """Builds a real engine over the shelf with a scripted generator. `gate` holds the preparation back."""

    def __init__(
        self,
        generator: ScriptedGenerator | None = None,
        answers: Answers = "unchecked",
        *,
        database_url: str | None = None,
    ) -> None:
        self.answers = answers
        self.shelf = Shelf(database_url)
        self.generator = generator or ScriptedGenerator(["A warp has ", "32 threads [1]."])
        self.judge = EvidenceJudge(LearnedReader(signals_only), 0.0)
        self.gate = threading.Event()
        self.gate.set()
        self.samples_added = 0

    def load(self, settings: CoalesceSettings, on_step: Callable[[str], None]) -> Any:
        on_step("opening the library and loading the embedder")
        self.gate.wait(PATIENCE_S)
        self.shelf.load()
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
            ConversationStore(settings.rag.conversations_place),
            chooser=self.generator,
            judge=self.judge,
            answers=self.answers,
        )


@dataclass
class Live:
    """A running server: a client for it, and what stands behind it."""

    client: httpx.Client
    services: Services
    builder: FakeBuilder
    address: str

    @property
    def shelf(self) -> Shelf:
        return self.builder.shelf

    @property
    def generator(self) -> ScriptedGenerator:
        return self.builder.generator

    def get(self, path: str, **params: Any) -> Any:
        """The JSON of a call that reads."""
        return self.client.get(path, params=params).json()

    def post(self, path: str, **body: Any) -> Any:
        """The JSON of a call that succeeds."""
        reply = self.client.post(path, json=body)
        assert reply.is_success, reply.text
        return reply.json()

    def status(self, method: str, path: str, body: Any = None, **params: Any) -> int:
        """The status of a call. An error has the contract's form and a hint."""
        return self.refusal(method, path, body, **params)[0]

    def refusal(self, method: str, path: str, body: Any = None, **params: Any) -> tuple[int, str]:
        """The status and the error's type ('' without one) of a call."""
        reply = self.client.request(method, path, json=body, params=params or None)
        if reply.is_success:
            return reply.status_code, ""
        error = reply.json()["error"]
        assert error["message"] and error["hint"], error
        return reply.status_code, error["type"]

    def upload(self, data: bytes, name: str, path: str = "/v1/documents") -> httpx.Response:
        return self.client.post(path, files={"file": (name, data)})

    def ended(self, job_id: str) -> dict[str, Any]:
        """The job once it has ended."""
        job: dict[str, Any] = {}

        def final() -> bool:
            job.update(self.client.get(f"/v1/jobs/{job_id}").json())
            return job["state"] in ("done", "failed", "cancelled")

        wait_until(final, "the job ends")
        return job


class _Server(StoppingServer):
    """Ends within a hundredth of a second: tests start and end one server after another."""

    async def main_loop(self) -> None:
        await self.on_tick(0)
        while not self.should_exit:
            await asyncio.sleep(0.01)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):  # that a browser began as it stopped
            connection.transport.abort()
        await asyncio.sleep(0.01)


_ROUTES: list[Any] = []
"""Of all servers: FastAPI takes a tenth of a second of a core to prepare them at an application's first request."""


@contextmanager
def serving(services: Services) -> Iterator[str]:
    """The address of a server over `services`, in a thread of this process."""
    server = _Server(services)
    server.config.port, server.config.timeout_graceful_shutdown = 0, 1
    server.config.date_header = False  # it would stay that of the start
    routes = server.config.app.router.routes
    if not _ROUTES:
        _ROUTES.extend(routes)
    routes[:] = _ROUTES
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
    **work: Any,
) -> Iterator[Live]:
    """A server without models, as `serving` makes it; ready unless `wait` is false. `work` stands in for long jobs."""
    builder = builder or FakeBuilder()
    services = Services(settings, load=builder.load, add_sample=builder.add_sample, **work)
    with serving(services) as address:
        try:
            if wait:
                wait_until(lambda: services.preparation.ready, "the services are ready")
            with httpx.Client(base_url=address, timeout=PATIENCE_S) as client:
                yield Live(client, services, builder, address)
        finally:
            builder.gate.set()
