"""One thread owns the model; requests queue for it.

Switching adapters during another's answer would give wrong text, and torch's inference mode belongs to a thread. Work
is an iterator that runs here and hands its items to the consumer; failed work is reported to its own consumer only.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from indexes.errors import Busy, CoalesceError
from rag.errors import GenerationFailed
from rag.generators.stream_text import Relay
from rag.models.devices import is_out_of_memory

_log = logging.getLogger(__name__)
_FIRST_GUESS_S = 5.0  # assumed time of an answer until one has been measured

Item = TypeVar("Item")
Work = Callable[[Callable[[], bool]], Iterator[Item]]


@dataclass(eq=False, slots=True)
class _Job(Generic[Item]):
    work: Work[Item]
    relay: Relay[Item] = field(default_factory=Relay)
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
        self._usual_s = _FIRST_GUESS_S
        self._thread = threading.Thread(target=self._run, name="coalesce-model", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # a thread inside torch when the interpreter goes would abort the process

    def check_room(self) -> None:
        """Raises `Busy` when the queue is full."""
        with self._wake:
            self._check_room()

    def iterate(self, work: Work[Item], cancelled: Callable[[], bool] = lambda: False) -> Iterator[Item]:
        """Items of `work`, which runs on the model's thread; closing this iterator stops it.

        Args:
            work: yields items; its argument is a function that says when to stop.
            cancelled: polled; also while the work waits.

        Raises:
            Busy: the queue is full, or the wait was too long.
            Cancelled: `cancelled` became true.
            GenerationFailed: the work failed or ran out of memory; CoalesceErrors of the work come as they are.
        """
        job: _Job[Item] = _Job(work)
        with self._wake:
            self._check_room()
            self._waiting.append(job)
            self._wake.notify_all()
        deadline = time.monotonic() + self._waiting_timeout_s

        def give_up_after_deadline() -> None:
            if not job.started and time.monotonic() > deadline and self._withdraw(job):
                raise self._busy(f"waited {self._waiting_timeout_s:.0f} s for the model")

        try:
            yield from job.relay.items(cancelled, give_up_after_deadline)
        finally:
            job.stop.set()
            self._withdraw(job)

    def call(self, function: Callable[[], Item]) -> Item:
        """The result of one call on the model's thread; errors as for `iterate`."""
        return next(self.iterate(lambda _: iter([function()])))

    def close(self) -> None:
        """Stops the running work, refuses the waiting, ends the thread; the end of the program does it too."""
        atexit.unregister(self.close)
        with self._wake:
            self._closed = True
            if self._running is not None:
                self._running.stop.set()
            for job in self._waiting:
                job.relay.end(GenerationFailed("The generator was closed."))
            self._waiting.clear()
            self._wake.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=30)

    def _check_room(self) -> None:
        if self._closed:
            raise GenerationFailed("The generator was closed.")
        if len(self._waiting) + (self._running is not None) > self._max_waiting:
            raise self._busy(f"{len(self._waiting)} answers already wait for the model")

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
            job.relay.end(self._work(job))
            with self._wake:
                self._running = None
            self._usual_s += 0.3 * (time.monotonic() - begun - self._usual_s)

    def _work(self, job: _Job[Any]) -> BaseException | None:
        """Runs a job to its end; returns the error to raise in its consumer, if any."""
        try:
            for item in job.work(job.stop.is_set):
                job.relay.put(item)
        except CoalesceError as error:
            return error
        except Exception as error:  # noqa: BLE001 - one request's failure must not end the thread that serves all
            if not is_out_of_memory(error):
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
