"""Server-sent events, events that several clients follow, and work that stops when its client leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import aclosing
from typing import Any, Generic, TypeVar

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import Request

from indexes.errors import Cancelled

T = TypeVar("T")
KEEP_ALIVE_S = 15.0
Named = tuple[str, dict[str, Any]]
"""An event of a stream: its name and its data."""


class Followed(Generic[T]):
    """Events that are made once and read from their start by any number of clients. Lives on the event loop.

    Args:
        grace_s: how long they go on being made after the last client has left.

    Attributes:
        made: those that there are so far.
        ended: no more of them come; error: what ended them before their time.
    """

    def __init__(self, grace_s: float) -> None:
        self.made: list[T] = []
        self.error: BaseException | None = None
        self.ended = False
        self.loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._followers = 0
        self._grace_s = grace_s
        self._timer: asyncio.TimerHandle | None = None

    def stop(self) -> None:
        """Lets nothing more be made."""
        raise NotImplementedError

    async def events(self) -> AsyncGenerator[T]:
        """The events from the start to the end; raises what ended them."""
        self._followers += 1
        if self._timer is not None:
            self._timer.cancel()
        sent = 0
        try:
            while sent < len(self.made) or not self.ended:
                if sent < len(self.made):
                    sent += 1
                    yield self.made[sent - 1]
                else:
                    self._changed.clear()
                    await self._changed.wait()
        finally:
            self._followers -= 1
            if not self._followers and not self.ended:
                self._timer = self.loop.call_later(self._grace_s, self.stop)
        if self.error is not None:
            raise self.error

    def _add(self, event: T) -> None:
        if not self.ended:
            self.made.append(event)
            self._changed.set()

    def _end(self, error: BaseException | None) -> None:
        if not self.ended:
            self.error = error
            self.ended = True
            self._changed.set()


class FollowedTask(Followed[T]):
    """Events that an asynchronous iterator makes."""

    def __init__(self, events: AsyncGenerator[T], grace_s: float) -> None:
        super().__init__(grace_s)
        self._making = asyncio.create_task(self._make(events))

    def stop(self) -> None:
        """Closes the iterator."""
        self._making.cancel()

    async def _make(self, events: AsyncGenerator[T]) -> None:
        error: Exception | None = None
        try:
            async with aclosing(events):
                async for event in events:
                    self._add(event)
        except asyncio.CancelledError:
            error = Cancelled("it was stopped")
        except Exception as caught:  # noqa: BLE001  who follows hears of it
            error = caught
        finally:
            self._end(error)


def sse(data: Any, event: str | None = None) -> ServerSentEvent:
    """One server-sent event; `data` goes as one line of JSON, a string as it is."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    # A book's text may hold half a surrogate pair, which UTF-8 cannot carry.
    return ServerSentEvent(text.encode("utf-8", "replace").decode(), event=event, sep="\n")


def event_stream(events: AsyncIterator[ServerSentEvent], **headers: str) -> EventSourceResponse:
    """The reply that sends `events` as they come and closes their source when the client leaves."""
    return EventSourceResponse(events, headers=headers, ping=KEEP_ALIVE_S, sep="\n")


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """What `work` returns; None when the client leaves first, which cancels it. The body must have been read."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_until_gone(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else None
    finally:
        for task in (working, leaving):
            task.cancel()


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
