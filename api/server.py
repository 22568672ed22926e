"""The server: its application, the port it listens on, how it reports its preparation and how it stops."""

from __future__ import annotations

import errno
import gc
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI, Security
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse
from fastapi.security import HTTPBearer
from fastapi_offline import FastAPIOffline

from api.answering import BusyGate
from api.console import Console
from api.errors import PortInUse, install_handlers
from api.metrics import RequestMeter
from api.openapi import document
from api.page_files import ICON_PATH, hashes, page_or
from api.routes import ask, books, conversations, evaluation, openai, service, study
from api.running_server import announce, withdraw
from api.security import DOCS_POLICY, Guard, SafeHeaders, check_bind
from api.services import Preparation, Services, check_home
from api.settings import CoalesceSettings, program_version
from api.uploads import BodyLimit
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

GRACE_S = 3
"""How long open streams may take to end after Ctrl-C."""


def run_server(settings: CoalesceSettings, console: Console) -> None:
    """Serves until Ctrl-C or SIGTERM.

    Raises:
        UnsafeBind, PortInUse, HomeNotWritable: before anything is started.
        CoalesceError: the preparation failed.
    """
    check_bind(settings)
    check_home(settings.home, read_only=True)
    listener = take_port(settings)
    address = _address(settings, listener.getsockname()[1])
    console.say(f"Coalesce uses the home {settings.home} and answers on {address} when it is ready")
    server: uvicorn.Server
    told: list[bool] = []

    def report(preparation: Preparation) -> None:
        if preparation.ready:
            # Everything loaded by now stays: without this, Python's collector walks all of it for every longer list.
            gc.freeze()
            announce(settings.home, address)
            console.say(f"ready after {preparation.seconds:.1f} s: {address}")
        elif preparation.error is not None:
            server.should_exit = True
        elif preparation.answering and not told:
            told.append(True)
            console.say(f"answers in the books' own sentences until the model is loaded: {address}")
        else:
            console.step(preparation.step, preparation.done, preparation.total)

    services = Services(settings, listener=report)
    services.generators.own_port = listener.getsockname()[1]
    server = uvicorn.Server(server_config(create_app(services), settings, timeout_graceful_shutdown=GRACE_S))
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


def server_config(app: FastAPI, settings: CoalesceSettings, **more: Any) -> uvicorn.Config:
    """How the application is served."""
    return uvicorn.Config(
        app,
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
