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
from starlette.types import ASGIApp, Receive, Scope, Send

from api.services import Services

logger = logging.getLogger("coalesce.pages")
RECONNECT_S = 20.0
"""How long the server keeps a tab whose connection is lost; one that comes back later reloads itself."""


class LazyPages:
    """An ASGI application that hands everything to the page's own once that is imported."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._shell: FastAPI | None = None
        self._imported = asyncio.Event()
        self._started = asyncio.Event()
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def import_pages(self) -> None:
        """Imports NiceGUI and the pages; called on the preparing thread, so that imports never race each other."""
        self._shell = _make_shell(self._services)
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
        await application(scope, receive, send)

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


def _make_shell(services: Services) -> FastAPI:
    """The page's own application; one per process, because NiceGUI keeps its own for all."""
    from nicegui import app, ui

    from api.pages import (  # noqa: F401  imported for the paths that they add
        ask_page,
        book_page,
        cards_page,
        compare_page,
        exam_page,
        library_page,
        progress_page,
        reports_page,
        settings_page,
        study_page,
    )
    from api.pages.controls import FAVICON
    from api.pages.frame import TITLE, failed, install, not_found

    install(services)
    app.add_exception_handler(404, not_found)
    app.add_exception_handler(Exception, failed)
    shell = FastAPI(openapi_url=None)
    ui.run_with(
        shell,
        title=TITLE,
        favicon=FAVICON,
        dark=None,
        tailwind=False,
        binding_refresh_interval=None,
        reconnect_timeout=RECONNECT_S,
        show_welcome_message=False,
    )
    return shell
