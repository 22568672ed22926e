"""Answers in work, apart from the tabs that watch them: a reloaded page finds the one it left.

An answer whose last watcher has gone is stopped after `ABANDONED_S`; the reader who reloads is back long before.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator

from api.answering import Answering
from api.streaming import EventPump
from rag.types import Answer, AnswerDone, Event, Passage, PassagesFound, Question, TextDelta

ABANDONED_S = 30.0
KEPT_RUNS = 500
"""Ended runs that are remembered, the newest: stopped and failed ones are shown again after a reload."""


class AnswerRun:
    """One answer from its question to its end. `done` is the finished answer, `error` what ended it instead.

    Lives on the event loop; nothing of it may be touched from other threads.
    """

    def __init__(self, question: Question, pump: EventPump[Event]) -> None:
        self.question = question
        self.passages: tuple[Passage, ...] = ()
        self.text = ""
        self.done: Answer | None = None
        self.error: BaseException | None = None
        self.stopped = False
        self.ended = False
        self.first_event_at = 0.0
        self._pump = pump
        self._watchers = 0
        self._version = 0
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._run())
        self._abandoned: asyncio.TimerHandle | None = None

    def stop(self) -> None:
        """Stops the generator; what is written stays."""
        self.stopped = True
        self._pump.stop()

    async def follow(self) -> AsyncIterator[None]:
        """Something for every change, from now to the end; several changes at once may come as one."""
        self._watchers += 1
        if self._abandoned is not None:
            self._abandoned.cancel()
            self._abandoned = None
        seen = -1
        try:
            while True:
                if seen != self._version:
                    seen = self._version
                    yield
                    continue
                if self.ended:
                    return
                self._changed.clear()
                await self._changed.wait()
        finally:
            self._watchers -= 1
            if not self._watchers and not self.ended:
                self._abandoned = asyncio.get_running_loop().call_later(ABANDONED_S, self.stop)

    async def _run(self) -> None:
        try:
            async for event in self._pump:
                self.first_event_at = self.first_event_at or time.perf_counter()
                match event:
                    case PassagesFound(passages):
                        self.passages = passages
                    case TextDelta(piece):
                        self.text += piece
                    case AnswerDone(answer):
                        self.done = answer
                self._tell()
        except Exception as error:  # noqa: BLE001  the views show it in words
            self.error = error
        finally:
            self.ended = True
            if self._abandoned is not None:
                self._abandoned.cancel()
            self._tell()

    def _tell(self) -> None:
        self._version += 1
        # Every watcher waits on the event it found; a new one is for the next change.
        self._changed.set()


class Runs:
    """The runs of a server by conversation; one at a time in each."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering
        self._runs: OrderedDict[str, AnswerRun] = OrderedDict()

    def of(self, conversation_id: str) -> AnswerRun | None:
        """The run of a conversation that is in work, or that ended without an answer to keep."""
        run = self._runs.get(conversation_id)
        return run if run is not None and run.done is None else None

    def start(self, question: Question, address: str) -> AnswerRun:
        """Begins an answer in `question.conversation_id`.

        Raises:
            NotReady, RateLimited, Busy: nothing is begun.
        """
        run = AnswerRun(question, self._answering.stream(question, address))
        if question.conversation_id:
            self._runs[question.conversation_id] = run
            self._runs.move_to_end(question.conversation_id)
            while len(self._runs) > KEPT_RUNS:
                self._runs.popitem(last=False)
        return run

    def start_unkept(self, question: Question, address: str) -> AnswerRun:
        """Begins an answer that goes into no conversation; raises as `start` does."""
        return AnswerRun(question, self._answering.stream(question, address, keep=False))

    def forget(self, conversation_id: str) -> None:
        """Stops and drops the run of a conversation that is deleted."""
        run = self._runs.pop(conversation_id, None)
        if run is not None and not run.ended:
            run.stop()
