"""Mounts the page on the server without making the server wait for it.

NiceGUI takes half a second to import; the preparing thread does it, and until then a browser's request waits here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from api.answering import Answering
from api.books import Books
from api.services import Services


class LazyPages:
    """An ASGI application that hands everything to the page's own once that is imported."""

    def __init__(self, services: Services, answering: Answering, books: Books) -> None:
        self._services = services
        self._answering = answering
        self._books = books
        self._shell: FastAPI | None = None
        self._imported = asyncio.Event()
        self._started = asyncio.Event()
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def import_pages(self) -> None:
        """Imports NiceGUI and the pages; called on the preparing thread, so that imports never race each other."""
        from nicegui import ui

        from api.pages import ask_page, library_page
        from api.pages.frame import TITLE, PageServices

        page_services = PageServices(self._services, self._answering, self._books)
        ask_page.register(page_services)
        library_page.register(page_services)
        shell = FastAPI(openapi_url=None)
        ui.run_with(shell, title=TITLE, dark=None, show_welcome_message=False)
        self._shell = shell
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
        application: ASGIApp | None = self._shell
        if application is not None:
            await application(scope, receive, send)

    async def _live(self) -> None:
        await self._imported.wait()
        shell = self._shell
        if shell is None:
            return
        async with shell.router.lifespan_context(shell):
            self._started.set()
            await self._stop.wait()
