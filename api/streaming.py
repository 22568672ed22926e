"""Server-sent events, and work that stops when its client leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import Request

T = TypeVar("T")
KEEP_ALIVE_S = 15.0


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
