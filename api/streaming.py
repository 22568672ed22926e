"""Server-sent events, and the bridge from a generator that blocks to a loop that may not.

A model's state may be bound to a thread (`torch.inference_mode` is), and a server that resumes a sync generator on
whichever worker is free breaks it. So one thread drives an event iterator from its first event to its last and
closes it; the event loop only reads a queue. When the client goes away the iterator is told and closed.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any, Generic, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")
KEEP_ALIVE_S = 15.0
Cancelled = Callable[[], bool]


def sse(data: Any, event: str | None = None) -> bytes:
    """One server-sent event; `data` goes as one line of JSON, a string as it is."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    name = f"event: {event}\n" if event else ""
    return f"{name}data: {text}\n\n".encode("utf-8", "replace")


class EventPump(Generic[T]):
    """Runs one blocking iterator on one thread and hands its items to the event loop.

    Args:
        start: makes the iterator; it is given a function that says whether the reader has gone.
        executor: whose thread drives the iterator.
        finished: called on that thread when the iterator is closed, whatever happened.
    """

    def __init__(
        self, start: Callable[[Cancelled], Iterator[T]], executor: Executor, finished: Callable[[], None] = lambda: None
    ) -> None:
        self._start = start
        self._finished = finished
        self._gone = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[tuple[T | None, BaseException | None]] = asyncio.Queue()
        executor.submit(self._drive)

    def stop(self) -> None:
        """Tells the iterator that nobody reads any more."""
        self._gone.set()

    async def next(self) -> T | None:
        """The next item, or None after the last one; raises what the iterator raised."""
        item, error = await self._items.get()
        if error is not None:
            raise error
        return item

    async def __aiter__(self) -> AsyncIterator[T]:
        """The items that are left; stops the iterator when the reader leaves."""
        try:
            while (item := await self.next()) is not None:
                yield item
        finally:
            self.stop()

    def _drive(self) -> None:
        error: BaseException | None = None
        try:
            if not self._gone.is_set():
                self._pass_on()
        except BaseException as caught:  # noqa: BLE001  the reader raises it; on this thread nobody would see it
            error = caught
        finally:
            self._finished()
            self._put(None, error)

    def _pass_on(self) -> None:
        items = self._start(self._gone.is_set)
        try:
            for item in items:
                if self._gone.is_set():
                    return
                self._put(item, None)
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()

    def _put(self, item: T | None, error: BaseException | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: the server has stopped and nobody reads
            self._loop.call_soon_threadsafe(self._items.put_nowait, (item, error))


async def until_gone(request: Request) -> None:
    """Returns when the client has closed the connection; the body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def unless_gone(request: Request, pump: EventPump[T], wanted: Callable[[T], bool]) -> T | None:
    """Reads `pump` up to the first wanted item; stops it, and gives None, when the client goes away meanwhile."""

    async def read() -> T | None:
        async for item in pump:
            if wanted(item):
                return item
        return None

    reading, leaving = asyncio.ensure_future(read()), asyncio.ensure_future(until_gone(request))
    try:
        await asyncio.wait({reading, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return await reading if reading.done() else None
    finally:
        pump.stop()
        for task in (reading, leaving):
            task.cancel()


class EventStreamResponse(Response):
    """Sends ready-made events as they come and stops their source when the client goes away.

    Args:
        events: encoded events; closed when the response ends for any reason.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes]) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends, while it listens for the client's leaving."""
        sending = asyncio.ensure_future(self._send_all(send))
        leaving = asyncio.ensure_future(until_gone(Request(scope, receive)))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            for task in (sending, leaving):
                task.cancel()
                with suppress(asyncio.CancelledError, OSError):
                    await task

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        source = aiter(self._events)
        try:
            waiting = asyncio.ensure_future(anext(source, None))
            while True:
                done, _ = await asyncio.wait({waiting}, timeout=KEEP_ALIVE_S)
                if not done:
                    await send({"type": "http.response.body", "body": b": still here\n\n", "more_body": True})
                    continue
                event = waiting.result()
                if event is None:
                    break
                await send({"type": "http.response.body", "body": event, "more_body": True})
                waiting = asyncio.ensure_future(anext(source, None))
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            waiting.cancel()
            with suppress(asyncio.CancelledError):
                await waiting
            close = getattr(source, "aclose", None)
            if close is not None:
                await close()
