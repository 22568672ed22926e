"""Mounts the page on the server without making the server wait for it.

NiceGUI takes half a second to import; the preparing thread does it, and until then a browser's request waits here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.answering import Answering
from api.books import Books
from api.services import Services
from api.studying import Studying

logger = logging.getLogger("coalesce.pages")
RECONNECT_S = 20.0
"""How long the server keeps a tab whose connection is lost; one that comes back later reloads itself."""
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; frame-src 'self'; object-src 'none'; "
    "base-uri 'self'; form-action 'self'; frame-ancestors 'self'"
)
"""The browser itself keeps every request on this server. NiceGUI's own scripts are inline and compile templates."""


class LazyPages:
    """An ASGI application that hands everything to the page's own once that is imported."""

    def __init__(self, services: Services, answering: Answering, books: Books, studying: Studying) -> None:
        self._services = services
        self._answering = answering
        self._books = books
        self._studying = studying
        self._shell: FastAPI | None = None
        self._imported = asyncio.Event()
        self._started = asyncio.Event()
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def import_pages(self) -> None:
        """Imports NiceGUI and the pages; called on the preparing thread, so that imports never race each other."""
        from api.pages.register import make_shell

        self._shell = make_shell(self._services, self._answering, self._books, self._studying, RECONNECT_S)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._imported.set)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Starts the page's own life when it is imported, and ends it."""
        self._loop = asyncio.get_running_loop()
        life = asyncio.create_task(self._live())
        try:
            yield
        finally:
            self._stop.set()
            if not self._started.is_set():
                life.cancel()
            await asyncio.gather(life, return_exceptions=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Waits for the page, then hands on."""
        await self._started.wait()
        application: ASGIApp = self._shell or PlainTextResponse(
            "The page cannot start; the server's log says why. REST works: see /docs.", status_code=503
        )
        await application(scope, receive, _guarded(send))

    async def _live(self) -> None:
        await self._imported.wait()
        shell = self._shell
        if shell is None:
            return
        try:
            async with shell.router.lifespan_context(shell):
                self._started.set()
                await self._stop.wait()
        except Exception:
            # A page that cannot start must say so, not let browsers wait for ever.
            logger.exception("the page cannot start")
            self._shell = None
            self._started.set()


def _guarded(send: Send) -> Send:
    """Adds the headers that keep a page's requests here."""

    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [
                *message.get("headers", ()),
                (b"content-security-policy", POLICY.encode()),
                (b"x-content-type-options", b"nosniff"),
                (b"referrer-policy", b"same-origin"),
            ]
            message = {**message, "headers": headers}
        await send(message)

    return guarded
