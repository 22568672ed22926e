"""Runs the server: takes the port, says what it prepares, and stops cleanly."""

from __future__ import annotations

import errno
import gc
import signal
import socket

import uvicorn

from api.app import create_app
from api.console import Console
from api.errors import PortInUse
from api.security import check_bind
from api.server_settings import ServerSettings
from api.services import Preparation, Services, check_home
from api.settings import CoalesceSettings
from indexes.errors import InvalidInput

GRACE_S = 3
"""How long open streams and pages may take to end after Ctrl-C."""


def run_server(settings: CoalesceSettings, console: Console) -> None:
    """Serves until it is told to stop.

    Raises:
        UnsafeBind, PortInUse, HomeNotWritable: before anything is started.
        CoalesceError: what the preparation failed with.
    """
    server_settings = settings.server
    check_bind(server_settings)
    check_home(settings.home)
    listener = take_port(server_settings)
    address = _address(server_settings, listener.getsockname()[1])
    console.say(f"Coalesce uses the home {settings.home} and answers on {address} when it is ready")
    server: uvicorn.Server

    def told(preparation: Preparation) -> None:
        if preparation.ready:
            # What is loaded by now stays: without this, every longer list has Python's collector walk all of it.
            gc.freeze()
            console.say(f"ready after {preparation.seconds:.1f} s: {address}")
        elif preparation.error is not None:
            server.should_exit = True
        else:
            console.step(preparation.step, preparation.done, preparation.total)

    services = Services(settings, listener=told)
    config = uvicorn.Config(
        create_app(services),
        log_level="warning",
        access_log=False,
        lifespan="on",
        timeout_graceful_shutdown=GRACE_S,
        server_header=False,
    )
    server = uvicorn.Server(config)
    # uvicorn raises the signals it caught once more when it has stopped; by then there is nothing left to stop.
    signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        console.say("stopped")
    finally:
        listener.close()
    if services.preparation.error is not None:
        raise services.preparation.error


def take_port(settings: ServerSettings) -> socket.socket:
    """A socket that listens on the address of the settings.

    Raises:
        PortInUse: another program has it.
        InvalidInput: the address is none of this machine's.
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
                f"port {settings.port} of {settings.host} is taken by another program",
                hint=f"coalesce serve --port {settings.port + 1}, or --port 0 for any free one",
            ) from error
        if error.errno == errno.EACCES:
            raise InvalidInput(
                f"port {settings.port} may not be opened by this user", hint="coalesce serve --port 8000"
            ) from error
        raise InvalidInput(
            f"{settings.host} is no address of this machine: {error.strerror or error}",
            hint="coalesce serve --host 127.0.0.1",
        ) from error
    listener.set_inheritable(True)
    return listener


def _address(settings: ServerSettings, port: int) -> str:
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::", "localhost") else settings.host
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
