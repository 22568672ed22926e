"""The application: middleware, routes, pages, and what starts and stops with it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import PackageNotFoundError, version

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from api.answering import Answering
from api.body_limit import BodyLimit
from api.books import Books
from api.errors import install_handlers
from api.metrics import Metrics, RequestMeter
from api.pages.mount import LazyPages
from api.routes import (
    ask,
    cards,
    compare,
    conversations,
    docs,
    documents,
    exams,
    feedback,
    health,
    jobs,
    login,
    openai,
    questions,
    reports,
    search,
)
from api.security import Guard
from api.services import Services
from api.studying import Studying

logger = logging.getLogger("coalesce.app")
ROUTERS = tuple(
    module.router
    for module in (
        *(ask, search, compare, documents, jobs, conversations, feedback),
        *(questions, exams, cards, reports, openai, health, docs, login),
    )
)

API_PREFIX = "/v1"
PAGE_PREFIX = "/_nicegui"
"""Where the page keeps its assets, uploads and socket."""


def create_app(services: Services, *, pages: bool = True) -> FastAPI:
    """The application over `services`, which start and stop with it.

    Args:
        pages: mount the web page too; one application of a process may.
    """
    settings = services.settings.server
    metrics = Metrics()
    answering = Answering(services, settings, metrics)
    books = Books(services)
    studying = Studying(services)
    lazy_pages = LazyPages(services, answering, books, studying) if pages else None

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.callback(services.close)
            stack.callback(studying.close)
            stack.callback(answering.close)
            if lazy_pages is not None:
                await stack.enter_async_context(lazy_pages.running())
            services.start(lazy_pages.import_pages if lazy_pages is not None else None)
            yield

    # docs_url is ours: FastAPI's own page loads its script from the network.
    app = FastAPI(
        title="Coalesce",
        version=program_version(),
        summary="Cited answers from GPU-programming books.",
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
    )
    app.state.services = services
    app.state.answering = answering
    app.state.metrics = metrics
    app.state.books = books
    app.state.studying = studying
    metrics.watch("coalesce_ready", "1 when questions are answered.", lambda: float(services.preparation.ready))
    metrics.watch("coalesce_answers_inside", "Answers in work or waiting.", lambda: float(answering.gate.inside))
    install_handlers(app)
    for router in ROUTERS:
        app.include_router(router)
    if lazy_pages is not None:
        # Not a mount: one at "/" would take wrong methods and unknown calls of the API for paths of its own.
        app.router.default = _pages_or_not_found(lazy_pages, app.router.default)
    # The one added last sees a request first.
    app.add_middleware(BodyLimit, settings=settings)
    app.add_middleware(Guard, settings=settings)
    app.add_middleware(RequestMeter, metrics=metrics)
    return app


def _pages_or_not_found(pages: ASGIApp, not_found: ASGIApp) -> ASGIApp:
    """Unknown paths of the API stay unknown; everything else is the page's."""

    async def choose(scope: Scope, receive: Receive, send: Send) -> None:
        asks_for_page = scope["type"] == "websocket" or scope["method"] in ("GET", "HEAD")
        of_page = scope["path"].startswith(PAGE_PREFIX) or (asks_for_page and not scope["path"].startswith(API_PREFIX))
        await (pages if of_page else not_found)(scope, receive, send)

    return choose


def program_version() -> str:
    """The installed version."""
    try:
        return version("coalesce-rag")
    except PackageNotFoundError:
        return "0"
