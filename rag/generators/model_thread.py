"""One thread owns the model; requests wait in a line for it.

A model, its adapters and its caches belong to one thread: switching adapters under another's answer gives wrong text,
and torch's inference mode is bound to a thread. Work is an iterator that runs here and whose items travel back through
a queue. When the consumer goes away the work is told to stop; when work fails only its own consumer hears of it.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from indexes.errors import Busy, Cancelled, CoalesceError
from rag.errors import GenerationFailed

_log = logging.getLogger(__name__)
_POLL_S = 0.05
_USUAL_ANSWER_S = 5.0

Item = TypeVar("Item")
Work = Callable[[Callable[[], bool]], Iterator[Item]]


@dataclass(frozen=True, slots=True)
class _End:
    """The last thing in a job's queue: how it ended."""

    error: BaseException | None = None


@dataclass(eq=False, slots=True)
class _Job(Generic[Item]):
    work: Work[Item]
    items: queue.SimpleQueue[Item | _End] = field(default_factory=queue.SimpleQueue)
    stop: threading.Event = field(default_factory=threading.Event)
    started: bool = False


class ModelThread:
    """Runs work one piece at a time, in the order it came.

    Args:
        max_waiting: work that may wait; more is `Busy` at once.
        waiting_timeout_s: how long work may wait before it is `Busy` too.
        on_out_of_memory: frees what can be freed after work ran out of memory.
    """

    def __init__(
        self, max_waiting: int, waiting_timeout_s: float, on_out_of_memory: Callable[[], None] = lambda: None
    ) -> None:
        self._max_waiting = max_waiting
        self._waiting_timeout_s = waiting_timeout_s
        self._on_out_of_memory = on_out_of_memory
        self._waiting: deque[_Job[Any]] = deque()
        self._wake = threading.Condition()
        self._closed = False
        self._running: _Job[Any] | None = None
        self._usual_s = _USUAL_ANSWER_S
        self._thread = threading.Thread(target=self._run, name="coalesce-model", daemon=True)
        self._thread.start()

    def check_room(self) -> None:
        """Raises `Busy` when the line is full."""
        with self._wake:
            self._refuse_when_full()

    def iterate(self, work: Work[Item], cancelled: Callable[[], bool] = lambda: False) -> Iterator[Item]:
        """Items of `work`, which runs on the model's thread; closing this iterator stops it.

        Args:
            work: takes a function that tells it to stop, and yields items.
            cancelled: polled; also while the work waits.

        Raises:
            Busy: the line is full, or the wait was too long.
            Cancelled: `cancelled` became true.
            GenerationFailed: the work failed or ran out of memory; CoalesceErrors of the work come as they are.
        """
        job: _Job[Item] = _Job(work)
        with self._wake:
            self._refuse_when_full()
            self._waiting.append(job)
            self._wake.notify_all()
        deadline = time.monotonic() + self._waiting_timeout_s
        try:
            while True:
                try:
                    item = job.items.get(timeout=_POLL_S)
                except queue.Empty:
                    if cancelled():
                        raise Cancelled("The answer was stopped.") from None
                    if not job.started and time.monotonic() > deadline and self._withdraw(job):
                        raise self._busy(f"waited {self._waiting_timeout_s:.0f} s for the model") from None
                    continue
                if isinstance(item, _End):
                    if item.error is not None:
                        raise item.error
                    return
                yield item
                if cancelled():
                    raise Cancelled("The answer was stopped.")
        finally:
            job.stop.set()
            self._withdraw(job)

    def call(self, function: Callable[[], Item]) -> Item:
        """The result of one call on the model's thread; errors as for `iterate`."""
        return next(self.iterate(lambda _: iter([function()])))

    def close(self) -> None:
        """Stops what runs, refuses what waits, ends the thread."""
        with self._wake:
            self._closed = True
            for job in (*self._waiting, *((self._running,) if self._running else ())):
                job.stop.set()
            for job in self._waiting:
                job.items.put(_End(GenerationFailed("The generator was closed.")))
            self._waiting.clear()
            self._wake.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=30)

    def _refuse_when_full(self) -> None:
        if self._closed:
            raise GenerationFailed("The generator was closed.")
        if len(self._waiting) + (self._running is not None) > self._max_waiting:
            raise self._busy(f"{len(self._waiting)} answers are waiting for the model already")

    def _busy(self, why: str) -> Busy:
        seconds = self._usual_s * (len(self._waiting) + 1)
        return Busy(
            f"The generator is busy: {why}.",
            hint="Try again later, raise max_queue, or serve with --generator remote.",
            retry_after_s=round(min(max(seconds, 1.0), 300.0), 1),
        )

    def _withdraw(self, job: _Job[Any]) -> bool:
        with self._wake:
            if job not in self._waiting:
                return False
            self._waiting.remove(job)
            return True

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._waiting and not self._closed:
                    self._wake.wait()
                if self._closed:
                    return
                job = self._running = self._waiting.popleft()
                job.started = True
            begun = time.monotonic()
            job.items.put(_End(self._work(job)))
            with self._wake:
                self._running = None
            self._usual_s += 0.3 * (time.monotonic() - begun - self._usual_s)

    def _work(self, job: _Job[Any]) -> BaseException | None:
        """Runs a job to its end; the error it ended with, as its consumer shall see it."""
        try:
            for item in job.work(job.stop.is_set):
                job.items.put(item)
        except CoalesceError as error:
            return error
        except Exception as error:  # noqa: BLE001 - one request's failure must not end the thread that serves all
            if not out_of_memory(error):
                _log.exception("generation failed")
                return GenerationFailed(
                    f"The model failed: {type(error).__name__}: {error}",
                    hint="The log has the details; other questions can still be asked.",
                )
        else:
            return None
        # outside the handler, so that the traceback's tensors are free when memory is given back
        self._on_out_of_memory()
        return GenerationFailed(
            "The model ran out of memory in the middle of the answer.",
            hint="Ask with fewer passages or max_tokens, use --quantization nf4, or lower kv_budget_bytes.",
        )


def out_of_memory(error: BaseException) -> bool:
    """True for the several ways in which Python, torch and CUDA say that memory is full."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)
