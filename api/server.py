"""The server: its application, the port it listens on, how it reports its preparation and how it stops."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import gc
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI, Security
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse
from fastapi.security import HTTPBearer
from fastapi_offline import FastAPIOffline
from sse_starlette.sse import AppStatus
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from api.answering import BusyGate
from api.console import Console
from api.errors import HTTP_ERRORS, ErrorReply, PortInUse, install_handlers
from api.metrics import RequestMeter
from api.openapi import document
from api.page_files import ICON_PATH, hashes, page_or
from api.routes import ask, books, conversations, evaluation, openai, service, study
from api.running_server import announce, database_of, withdraw
from api.security import DOCS_POLICY, Guard, SafeHeaders, check_bind
from api.services import Preparation, Services, check_home
from api.settings import CoalesceSettings, program_version
from api.uploads import BODY_S, READING_S, BodyLimit
from indexes.errors import InvalidInput

ROUTERS = (
    ask.router,
    conversations.router,
    books.router,
    books.page_router,
    study.router,
    evaluation.router,
    openai.router,
    service.api_router,
)
ERRORS = """Errors are `{"error": {"type", "message", "hint"}}`: what was wrong, and what helps.

Where a text has arguments, `message_parts` and `hint_parts` stand beside it: its `key`, the English text with `{}` for
each argument, and its `arguments`, which may be such parts themselves. By these a client says it in another language,
as the page does. Jobs have the same."""
BEARER = HTTPBearer(auto_error=False, description="An API key, where the server asks for one.")
"""Names the scheme in `/openapi.json`; `Guard` checks the key before any route."""

SWITCH_S = 0.0005
"""How long a thread that computes keeps the one that takes calls from running; Python's own is 5 ms."""
MOST_ARENAS = 2
"""Heaps that glibc shares out among threads. It takes eight a core, and each keeps what was freed in it: 60,000 calls
held 1,012 MB at their end, and 908 with two (two cores)."""
HEAD_S = 10.0
"""The longest that the headers of a call may take to come."""
MOST_HEAD_BYTES = 64 * 1024
ANSWERS_END_S = 5
"""How long answers in work may take to end after Ctrl-C or SIGTERM; then their clients are told that they do not."""
GRACE_S = ANSWERS_END_S + 1
"""How long replies may take to be sent by then."""
STOPPED_S = 15.0
"""The process ends by then, whatever is still in work: every call is one transaction."""
SAME_SIGNAL_S = 1.0
"""A signal so soon after the first is the same: a program that started the server may pass on what its group got."""


def run_server(settings: CoalesceSettings, console: Console) -> None:
    """Serves until Ctrl-C or SIGTERM.

    Raises:
        UnsafeBind, PortInUse, HomeNotWritable: before anything is started.
        CoalesceError: the preparation failed.
    """
    check_bind(settings)
    if not settings.worker:
        from api.worker import need_shared

        need_shared(settings, "coalesce serve --no-worker")
    check_home(settings.home, read_only=True)
    server: StoppingServer
    address, database = "", database_of(settings)
    told: list[bool] = []

    def report(preparation: Preparation) -> None:
        if preparation.ready:
            # Everything loaded by now stays: without this, Python's collector walks all of it for every longer list.
            gc.freeze()
            announce(settings.home, address, database)
            console.say(f"ready after {preparation.seconds:.1f} s: {address}")
        elif preparation.error is not None:
            server.should_exit = True
        elif preparation.answering and not told:
            told.append(True)
            console.say(f"answers in the books' own sentences until the model is loaded: {address}")
        else:
            console.step(preparation.step, preparation.done, preparation.total)

    sys.setswitchinterval(SWITCH_S)
    share_few_arenas()
    services = Services(settings, listener=report)
    listener = take_port(settings)
    services.generators.own_port = listener.getsockname()[1]
    address = _address(settings, services.generators.own_port)
    kept = f"the home {settings.home}" + (f" and the database {database}" if database else "")
    console.say(f"Coalesce uses {kept} and answers on {address} when it is ready")
    server = StoppingServer(services)
    # uvicorn raises the signals it caught once more when it has stopped; by then there is nothing left to stop.
    signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        console.say("stopped")
    finally:
        withdraw(settings.home)
        listener.close()
    if services.preparation.error is not None:
        raise services.preparation.error


def share_few_arenas() -> None:
    """Has threads share glibc's heaps, unless the user chose; other C libraries are left as they are."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    chosen = "MALLOC_ARENA_MAX" in os.environ or "arena_max" in os.environ.get("GLIBC_TUNABLES", "")
    if mallopt is not None and not chosen:
        m_arena_max = -8
        mallopt(m_arena_max, MOST_ARENAS)


class StoppingServer(uvicorn.Server):
    """Takes no more calls when it is told to stop, stops jobs at their next step, and lets answers end."""

    def __init__(self, services: Services) -> None:
        config = server_config(create_app(services), services.settings, timeout_graceful_shutdown=GRACE_S)
        super().__init__(config)
        self._services = services
        self._told_at: float | None = None
        AppStatus.enable_automatic_graceful_drain = False  # it would cut every stream at once

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begins to stop, and ends the process after `STOPPED_S` whatever happens; told once more, at once."""
        if self._told_at is not None:
            if time.monotonic() - self._told_at < SAME_SIGNAL_S:
                return
            withdraw(self._services.settings.home)
            os._exit(128 + sig)  # children end with it, and every call is one transaction
        self._told_at = time.monotonic()
        last = threading.Timer(STOPPED_S, os._exit, (0,))
        last.daemon = True
        last.start()
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stops jobs and lets answers end."""
        self._services.jobs.stop()
        asyncio.get_running_loop().call_later(ANSWERS_END_S, self._services.answering.stop_all)
        await super().shutdown(sockets)


class HeadLimit(HttpToolsProtocol):
    """Leaves who sends the headers of a call too slowly, or no end of them, and who reads nothing of a reply for
    `READING_S`; refuses what is no HTTP in our form."""

    _in_head = False
    _head_bytes = 0
    _late: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Expects a call."""
        super().connection_made(transport)
        self._expect_head(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """Expects nothing more."""
        self._expect_none()
        self._watch_no_more()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Begins to watch whether anything is read."""
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        """Goes on; what is left at the end is watched still."""
        super().resume_writing()
        self._watch_no_more()
        if self.transport.is_closing():
            self._watch()

    def data_received(self, data: bytes) -> None:
        """Counts what came since the call began or its body ended: headers, and trailers behind a body."""
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > MOST_HEAD_BYTES:
            self._refuse(431, f"the headers have more than {MOST_HEAD_BYTES:,} bytes")

    def on_message_begin(self) -> None:
        """Begins to count."""
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Lets the call take its time."""
        self._in_head, self._head_bytes = False, 0
        self._expect_none()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Begins to count what may follow."""
        self._head_bytes = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        """Expects the next call; the body of one that was answered early may come first."""
        if not self.pipeline:
            self._expect_head(BODY_S if self.cycle.more_body else HEAD_S)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn answers to bytes that are no HTTP."""
        self._refuse(400, msg)

    def _expect_head(self, within_s: float) -> None:
        self._expect_none()
        self._late = self.loop.call_later(within_s, self._leave)

    def _expect_none(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _leave(self) -> None:
        if self._in_head:
            self._refuse(408, "the headers did not come in time")
        self.transport.close()
        self._watch()

    def _watch(self, left_bytes: int = 0) -> None:
        """Ends the connection where as much is left to be read as at the last look."""
        self._watch_no_more()
        now_bytes = self.transport.get_write_buffer_size()
        if now_bytes and now_bytes == left_bytes:
            self.transport.abort()
        elif now_bytes:
            self._unread = self.loop.call_later(READING_S, self._watch, now_bytes)

    def _watch_no_more(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _refuse(self, status: int, message: str) -> None:
        if self.transport.is_closing():
            return
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.close()  # within a reply nothing else can be said
            return
        kind, hint = HTTP_ERRORS[status]
        body = json.dumps(ErrorReply(status, kind, message, hint).body).encode()
        head = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()


def server_config(app: FastAPI, settings: CoalesceSettings, **more: Any) -> uvicorn.Config:
    """How the application is served."""
    return uvicorn.Config(
        app,
        http=HeadLimit,
        log_level="warning",
        access_log=False,
        lifespan="on",
        ws="none",
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
        **more,
    )


def take_port(settings: CoalesceSettings) -> socket.socket:
    """Opens a socket that listens on the address of the settings.

    Raises:
        PortInUse: another program listens on it.
        InvalidInput: the address is not one of this machine.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(
                f"another program listens on port {settings.port} of {settings.host}",
                hint=f"Run `coalesce serve --port {settings.port + 1}`, or give --port 0 for any free one.",
            ) from error
        if error.errno == errno.EACCES:
            raise InvalidInput(
                f"port {settings.port} may not be opened by this user", hint="Run `coalesce serve --port 8000`."
            ) from error
        raise InvalidInput(
            f"{settings.host} is not an address of this machine: {error.strerror or error}",
            hint="Run `coalesce serve --host 127.0.0.1`.",
        ) from error
    listener.set_inheritable(True)
    return listener


def _address(settings: CoalesceSettings, port: int) -> str:
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::", "localhost") else settings.host
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def create_app(services: Services) -> FastAPI:
    """The application over `services`, which start and stop with it."""
    settings = services.settings

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            services.start()
            yield
        finally:
            services.close()

    # The script of its API page comes with it; FastAPI's own is loaded from the network.
    app = FastAPIOffline(
        title="Coalesce",
        version=program_version(),
        summary="Cited answers from GPU-programming books.",
        description=ERRORS,
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
    )
    app.state.services = services
    install_handlers(app)
    for router in ROUTERS:
        app.include_router(router, dependencies=[Security(BEARER)])
    app.include_router(service.router)
    app.add_api_route("/docs", _api_page, include_in_schema=False)
    # Not a mount: one at "/" would take wrong methods and unknown calls of the API for paths of its own.
    app.router.default = page_or(app.router.default)
    document(app)
    # The one added last sees a request first.
    app.add_middleware(BodyLimit, settings=settings)
    app.add_middleware(BusyGate, check=services.answering.limit.check)
    app.add_middleware(Guard, settings=settings, guesses=services.guesses)
    app.add_middleware(SafeHeaders)
    app.add_middleware(RequestMeter, metrics=services.metrics)
    return app


async def _api_page() -> HTMLResponse:
    """The calls of REST, to read and to try."""
    page = get_swagger_ui_html(
        openapi_url="/openapi.json",
        title="Coalesce - Swagger UI",
        swagger_js_url="/static-offline-docs/swagger-ui-bundle.js",
        swagger_css_url="/static-offline-docs/swagger-ui.css",
        swagger_favicon_url=ICON_PATH,
    )
    scripts = hashes(bytes(page.body).decode(), "script")
    page.headers["Content-Security-Policy"] = DOCS_POLICY.format(scripts=scripts)
    return page
