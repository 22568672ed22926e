"""What a running server holds: the library, the engine and the jobs, made ready on a thread of their own.

Importing and loading models takes seconds; meanwhile the server answers `/healthz`, and everything else says what it
waits for.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from api.errors import NotReady
from api.jobs import JobQueue
from api.settings import CoalesceSettings
from indexes.errors import HomeNotWritable

if TYPE_CHECKING:
    from indexes.library import Library
    from indexes.types import AddProgress
    from rag.engine import AnswerEngine

logger = logging.getLogger("coalesce.services")
SAMPLE_MARKER = "sample-book-added"
"""A file of the home: the sample book was put there once, so a missing one was removed on purpose."""
READY_RETRY_S = 1.0


class Builder(Protocol):
    """Makes the two heavy things; tests put light ones in their place."""

    def library(self, settings: CoalesceSettings) -> Library:
        """The home's library, its models loaded."""
        ...

    def add_sample(self, library: Library, progress: Callable[[AddProgress], None]) -> None:
        """Puts the sample book into the library."""
        ...

    def engine(self, settings: CoalesceSettings, library: Library) -> AnswerEngine:
        """The engine over that library, its models loaded."""
        ...


class RealBuilder:
    """Makes what users get. Imports on first use: the modules below bring the model libraries with them."""

    def library(self, settings: CoalesceSettings) -> Library:
        """Opens the home's library and loads the embedder."""
        from indexes.library import open_library

        library = open_library(settings.index, create=True)
        library.load()
        return library

    def add_sample(self, library: Library, progress: Callable[[AddProgress], None]) -> None:
        """Indexes the bundled book."""
        from indexes.sample import add_sample

        add_sample(library, progress=progress)

    def engine(self, settings: CoalesceSettings, library: Library) -> AnswerEngine:
        """Assembles the engine and loads the generator."""
        from rag.assemble import build_engine

        engine = build_engine(settings.rag, library)
        engine.load()
        return engine


@dataclass(slots=True)
class Preparation:
    """How far the preparation is: `step` in words, with `done` of `total` when the step counts."""

    step: str = "starting"
    done: int = 0
    total: int = 0
    ready: bool = False
    error: BaseException | None = None
    seconds: float = 0.0
    listener: Callable[[Preparation], None] = field(default=lambda _: None)

    def tell(self, step: str, done: int = 0, total: int = 0) -> None:
        """Moves on and lets the listener know."""
        self.step, self.done, self.total = step, done, total
        self.listener(self)


class Services:
    """Library, engine and jobs of one server.

    Args:
        settings: the settings of the process.
        builder: makes library and engine.
        listener: told at every step of the preparation, on the preparing thread.
    """

    def __init__(
        self,
        settings: CoalesceSettings,
        *,
        builder: Builder | None = None,
        listener: Callable[[Preparation], None] = lambda _: None,
    ) -> None:
        self.settings = settings
        self.jobs = JobQueue(settings.home)
        self.preparation = Preparation(listener=listener)
        self._builder = builder or RealBuilder()
        self._library: Library | None = None
        self._engine: AnswerEngine | None = None
        self._first: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._prepare, name="coalesce-prepare", daemon=True)

    @property
    def library(self) -> Library:
        """The library; raises NotReady until it is open."""
        if self._library is None or not self.preparation.ready:
            raise self._not_ready()
        return self._library

    @property
    def engine(self) -> AnswerEngine:
        """The engine; raises NotReady until it can answer."""
        if self._engine is None or not self.preparation.ready:
            raise self._not_ready()
        return self._engine

    def start(self, first: Callable[[], None] | None = None) -> None:
        """Begins to prepare; returns at once.

        Args:
            first: imports that the preparing thread does before its own, so that no two threads import at once.

        Raises:
            HomeNotWritable: the home cannot be created or written.
        """
        check_home(self.settings.home)
        self._first = first
        self.jobs.start()
        self._thread.start()

    def close(self) -> None:
        """Stops the jobs and frees the models."""
        self.jobs.close()
        if self._engine is not None:
            self._engine.close()
        if self._library is not None:
            self._library.close()

    def _not_ready(self) -> NotReady:
        error = self.preparation.error
        message = f"preparation failed: {error}" if error is not None else f"waiting for: {self.preparation.step}"
        return NotReady(message, hint="try again in a moment; GET /readyz says when", retry_after_s=READY_RETRY_S)

    def _prepare(self) -> None:
        started = time.perf_counter()
        preparation = self.preparation
        try:
            if self._first is not None:
                preparation.tell("loading the page")
                self._first()
            preparation.tell("opening the library and loading the embedder")
            library = self._library = self._builder.library(self.settings)
            # The generator first: a model that cannot load is told before a minute goes into the sample book.
            preparation.tell("loading the generator")
            self._engine = self._builder.engine(self.settings, library)
            self._add_sample(library)
        except Exception as error:  # noqa: BLE001  the server tells it to every caller and ends
            preparation.error = error
            preparation.tell("failed")
            return
        preparation.seconds = time.perf_counter() - started
        preparation.ready = True
        preparation.tell("ready")

    def _add_sample(self, library: Library) -> None:
        marker = self.settings.home / SAMPLE_MARKER
        if marker.exists() or library.documents():
            return

        def tell(progress: AddProgress) -> None:
            self.preparation.tell(f"adding the sample book: {progress.stage}", progress.done, progress.total)

        self.preparation.tell("adding the sample book")
        self._builder.add_sample(library, tell)
        marker.touch()


def check_home(home: Path) -> None:
    """Makes the home and proves that files can be made in it.

    Raises:
        HomeNotWritable: they cannot.
    """
    probe = home / ".write-probe"
    try:
        home.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise HomeNotWritable(
            f"the home {home} cannot be written: {error.strerror or error}",
            hint="make it writable, or name another folder: COALESCE_HOME=/path coalesce …",
        ) from error
