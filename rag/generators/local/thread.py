"""One thread owns the model; answers take turns on it, and decode together.

Switching adapters during another's answer would give wrong text, and torch's inference mode belongs to a thread. Work
is a generator that runs here and hands its items to the consumer; failed work is reported to its own consumer only. In
every turn one answer reads a piece of its prompt, or the next in line begins, and all that read theirs go one step on.
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from indexes.errors import Busy, CoalesceError
from indexes.messages import msg
from rag.errors import GenerationFailed
from rag.generators.stream_text import Relay
from rag.models.devices import is_out_of_memory

_log = logging.getLogger(__name__)
SWITCH_INTERVAL_S = 1e-5
"""How long another Python thread may keep the interpreter from the model's, which gives it up in every torch operation.
With Python's own 5 ms a thread that computes (reading a book, the page) took nearly all of the decoding speed."""
_POLL_S = 0.05
_FIRST_GUESS_S = 5.0  # assumed time of an answer until one has been measured

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Step:
    """Work yields it to go one step on with others of its group; it is sent the step's result for `row`."""

    group: str
    row: Any


class Pause:
    """Work yields it where others may have their turn."""


Work = Callable[[Callable[[], bool]], Generator[Any, Any, None]]
"""Gets a function that says when to stop; gives items, and `Step` or `Pause` between them."""


@dataclass(eq=False, slots=True)
class _Job(Generic[Item]):
    work: Work
    fits: Callable[[], bool]
    place: Callable[[int], Item] | None
    relay: Relay[Item] = field(default_factory=Relay)
    stop: threading.Event = field(default_factory=threading.Event)
    begun_at: float = 0.0
    running: Generator[Any, Any, None] | None = None
    asked: Step | None = None
    told_place: int = -1
    gave_items: bool = False
    tried_again: bool = False


class ModelThread:
    """Runs work in the order it came.

    Args:
        max_waiting: how much work may wait, None for any amount; more is `Busy` at once.
        waiting_timeout_s: how long work may wait; what would wait longer is `Busy` at once.
        on_out_of_memory: frees what can be freed after work ran out of memory. Work that has given no item by then
            begins once more.
        together: answers that can run at once, as far as memory allows.
        step: goes one step on with rows of one group; gives the result for each.
    """

    def __init__(
        self,
        max_waiting: int | None,
        waiting_timeout_s: float,
        on_out_of_memory: Callable[[], None] = lambda: None,
        together: int = 1,
        step: Callable[[str, list[Any]], list[Any]] = lambda _, rows: rows,
    ) -> None:
        self._max_waiting = max_waiting
        self._waiting_timeout_s = waiting_timeout_s
        self._on_out_of_memory = on_out_of_memory
        self._together = together
        self._step = step
        self._waiting: deque[_Job[Any]] = deque()
        self._running: list[_Job[Any]] = []
        self._wake = threading.Condition()
        self._closed = False
        self._usual_s = _FIRST_GUESS_S
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._thread = threading.Thread(target=self._run, name="coalesce-model", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # a thread inside torch when the interpreter goes would abort the process

    def check_room(self) -> None:
        """Raises `Busy` when the line is full, or the wait would be too long."""
        with self._wake:
            self._check_room()

    def iterate(
        self,
        work: Work,
        cancelled: Callable[[], bool] = lambda: False,
        *,
        fits: Callable[[], bool] = lambda: True,
        place: Callable[[int], Item] | None = None,
    ) -> Iterator[Item]:
        """Items of `work`, which runs on the model's thread; closing this iterator stops it.

        Args:
            work: yields items; its argument is a function that says when to stop.
            cancelled: polled; also while the work waits.
            fits: whether the work can begin beside what runs; once it says so, the work begins.
            place: makes the item that tells how many wait before this, while it waits.

        Raises:
            Busy: the line is full, or the wait is too long.
            Cancelled: `cancelled` became true.
            GenerationFailed: the work failed or ran out of memory; CoalesceErrors of the work come as they are.
        """
        job: _Job[Item] = _Job(work, fits, place)
        with self._wake:
            self._check_room()
            self._waiting.append(job)
            self._wake.notify_all()
        deadline = time.monotonic() + self._waiting_timeout_s

        def give_up_after_deadline() -> None:
            if not job.begun_at and time.monotonic() > deadline and self._withdraw(job):
                raise self._busy(msg("this question waited {} s for the model", f"{self._waiting_timeout_s:.0f}"))

        try:
            yield from job.relay.items(cancelled, give_up_after_deadline)
        finally:
            job.stop.set()
            self._withdraw(job)

    def call(self, function: Callable[[], Item], fits: Callable[[], bool] = lambda: True) -> Item:
        """The result of one call on the model's thread; errors as for `iterate`."""
        return next(self.iterate(lambda _: (function() for _ in range(1)), fits=fits))

    def close(self) -> None:
        """Stops the running work, refuses the waiting, ends the thread; the end of the program does it too."""
        atexit.unregister(self.close)
        with self._wake:
            self._closed = True
            for job in self._running:
                job.stop.set()
            for job in self._waiting:
                job.relay.end(GenerationFailed("The generator was closed."))
            self._waiting.clear()
            self._wake.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=30)

    def _check_room(self) -> None:
        if self._closed:
            raise GenerationFailed("The generator was closed.")
        if self._max_waiting is not None and self._running and len(self._waiting) >= self._max_waiting:
            raise self._busy(msg("{} questions wait for the model, as many as max_queue allows", len(self._waiting)))
        if (wait_s := self._expected_wait_s()) > self._waiting_timeout_s:
            raise self._busy(
                msg("{} questions wait, so one more would wait about {} s", len(self._waiting), f"{wait_s:.0f}")
            )

    def _expected_wait_s(self) -> float:
        """How long one more would wait: in the time of one answer, all that run together end."""
        if not self._running or not self._waiting:
            return 0.0
        so_far = time.monotonic() - min(job.begun_at for job in self._running)
        return max(self._usual_s, so_far) * (len(self._waiting) + 1) / self._together

    def _busy(self, why: str) -> Busy:
        too_long_s = self._expected_wait_s() - self._waiting_timeout_s
        return Busy(
            msg("The generator is busy: {}.", why),
            hint="Try again later, raise queue_timeout_s, or serve with --generator remote.",
            retry_after_s=round(max(too_long_s, self._usual_s / self._together, 1.0), 1),
        )

    def _withdraw(self, job: _Job[Any]) -> bool:
        with self._wake:
            if job not in self._waiting:
                return False
            self._waiting.remove(job)
            self._wake.notify_all()
            return True

    def _run(self) -> None:
        while True:
            with self._wake:
                while not (self._running or self._waiting or self._closed):
                    self._wake.wait()
                if self._closed and not self._running:
                    return
                reading = next((job for job in self._running if job.asked is None), None) or self._begin()
                if not self._running:
                    self._wake.wait(_POLL_S)  # the first in line does not fit, though it is alone
            if reading is not None:
                self._advance(reading)
            self._step_all()

    def _begin(self) -> _Job[Any] | None:
        """The first in line, if it fits; those that stay are told their places."""
        begun = None
        if self._waiting and self._waiting[0].fits():
            begun = self._waiting.popleft()
            begun.begun_at = begun.begun_at or time.monotonic()
            self._running.append(begun)
        elif self._waiting:
            self._together = max(len(self._running), 1)
        for number, job in enumerate(self._waiting):
            if job.place is not None and job.told_place != number:
                job.told_place = number
                job.relay.put(job.place(number))
        return begun

    def _step_all(self) -> None:
        groups: dict[str, list[_Job[Any]]] = {}
        for job in self._running:
            if job.asked is not None:
                groups.setdefault(job.asked.group, []).append(job)
        for group, jobs in groups.items():
            for job, reply in self._replies(group, jobs):
                self._advance(job, reply)

    def _replies(self, group: str, jobs: list[_Job[Any]]) -> list[tuple[_Job[Any], Any]]:
        """A step of a group; should it fail, each by itself, so that one's failure is not the others'."""
        try:
            return list(zip(jobs, self._step(group, [job.asked.row for job in jobs if job.asked]), strict=True))
        except Exception as error:  # noqa: BLE001 - raised in the work that it belongs to
            if len(jobs) == 1:
                return [(jobs[0], error)]
        return [pair for job in jobs for pair in self._replies(group, [job])]

    def _advance(self, job: _Job[Any], reply: Any = None) -> None:
        """Runs a job until it asks for a step, lets others have their turn, or ends."""
        try:
            job.asked = self._next_ask(job, reply)
        except StopIteration:
            self._end(job, None)
        except CoalesceError as error:
            self._end(job, error)
        except Exception as error:  # noqa: BLE001 - one request's failure must not end the thread that serves all
            self._fail(job, error)

    @staticmethod
    def _next_ask(job: _Job[Any], reply: Any) -> Step | None:
        """The step that a job asks for, None at a pause; its items are handed over. Raises StopIteration at its end."""
        job.running = job.running or job.work(job.stop.is_set)
        asked = job.running.throw(reply) if isinstance(reply, Exception) else job.running.send(reply)
        while not isinstance(asked, Step | Pause):
            job.relay.put(asked)
            job.gave_items = True
            asked = next(job.running)
        return asked if isinstance(asked, Step) else None

    def _fail(self, job: _Job[Any], error: Exception) -> None:
        if not is_out_of_memory(error):
            _log.error("generation failed", exc_info=error)
            failed = GenerationFailed(
                msg("The model failed: {}: {}", type(error).__name__, error),
                hint="The log has the details; other questions can still be asked.",
            )
            return self._end(job, failed)
        error.__traceback__ = error.__context__ = None  # they hold tensors
        self._on_out_of_memory()
        if job.gave_items or job.tried_again or self._closed:
            failed = GenerationFailed(
                "The model ran out of memory in the middle of the answer.",
                hint="Ask with fewer passages or max_tokens, use --quantization nf4, or lower kv_budget_bytes.",
            )
            return self._end(job, failed)
        job.tried_again, job.running, job.asked = True, None, None
        with self._wake:  # ahead of all that wait
            self._running.remove(job)
            self._waiting.appendleft(job)
        return None

    def _end(self, job: _Job[Any], error: BaseException | None) -> None:
        with self._wake:
            self._running.remove(job)
            if job.place is not None:  # an answer, not a single call
                self._usual_s += 0.3 * (time.monotonic() - job.begun_at - self._usual_s)
        job.relay.end(error)
