"""One way for every door to ask the engine: a place at the gate, one thread an answer, counted and stopped on leave."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.requests import Request

from api.errors import describe
from api.limits import AnswerGate, RateLimit
from api.metrics import Metrics
from api.server_settings import ServerSettings
from api.services import Services
from api.streaming import Cancelled, EventPump, unless_gone, until_gone
from rag.types import Answer, AnswerDone, Event, Question

T = TypeVar("T")


class Answering:
    """Runs the engine for requests.

    Args:
        services: where the engine is found when it is ready.
        settings: how many answers at once, waiting, and a minute.
        metrics: counts what comes out.
    """

    def __init__(self, services: Services, settings: ServerSettings, metrics: Metrics) -> None:
        self._services = services
        self._metrics = metrics
        self._rate = RateLimit(settings.rate_limit_per_minute)
        self.gate = AnswerGate(settings.answer_threads + settings.max_waiting_asks)
        self._threads = ThreadPoolExecutor(settings.answer_threads, thread_name_prefix="coalesce-answer")

    def stream(self, question: Question, client: str, *, keep: bool = True) -> EventPump[Event]:
        """Begins an answer on a thread of its own; the pump gives its events.

        Raises:
            NotReady, RateLimited, Busy: before anything is begun.
        """
        engine = self._services.engine
        self._rate.take(client)
        self.gate.enter()

        def events(cancelled: Cancelled) -> Iterator[Event]:
            return self._counted(engine.stream(question, cancelled, keep=keep))

        return EventPump(events, self._threads, self.gate.leave)

    async def answer(self, question: Question, request: Request, *, keep: bool = True) -> Answer | None:
        """The finished answer; None when the client left before, which also stops the generator."""
        pump = self.stream(question, client_of(request), keep=keep)
        done = await unless_gone(request, pump, lambda event: isinstance(event, AnswerDone))
        return done.answer if isinstance(done, AnswerDone) else None

    async def run(self, work: Callable[[], T], client: str) -> T:
        """Runs other work of the engine under the same bounds; raises as `stream` does."""
        self._rate.take(client)
        with self.gate.place():
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def run_for(self, request: Request, work: Callable[[Cancelled], T]) -> T:
        """As `run`, for work that stops when it is told that the client has left; it raises Cancelled then."""
        gone = threading.Event()
        leaving = asyncio.ensure_future(until_gone(request))
        leaving.add_done_callback(lambda _: gone.set())
        try:
            return await self.run(lambda: work(gone.is_set), client_of(request))
        finally:
            leaving.cancel()

    def count(self, answers: tuple[Answer, ...]) -> None:
        """Counts answers that were not streamed."""
        for answer in answers:
            self._metrics.count_answer(answer)

    def close(self) -> None:
        """Takes no more; answers in work run to their end or until their readers leave."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _counted(self, events: Iterator[Event]) -> Iterator[Event]:
        try:
            for event in events:
                if isinstance(event, AnswerDone):
                    self._metrics.count_answer(event.answer)
                yield event
        except Exception as error:
            self._metrics.count_failure(describe(error).type)
            raise
        finally:
            close = getattr(events, "close", None)
            if close is not None:
                close()


def client_of(request: Request) -> str:
    """Who asks, for the rate limit: the key when there is one, else the address."""
    return request.headers.get("authorization") or (request.client.host if request.client else "unknown")
