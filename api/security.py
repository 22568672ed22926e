"""Who may talk to the server: the bind, API keys, and pages of other sites in the user's own browser.

* A bind that other machines reach needs an API key, or `--insecure`.
* With keys, every call needs `Authorization: Bearer KEY`, or the cookie that the login page sets (a digest of the
  key). `/healthz`, `/readyz` and the login page are open. Whose key it is decides what it may see: `api/callers.py`.
* Without keys, the `Host` header must name this machine: a page of another site that rebinds its own name to
  127.0.0.1 carries its name there (DNS rebinding).
* Calls that change something, and web sockets, may not carry the `Origin` of another site.
"""

from __future__ import annotations

import ipaddress
import socket
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from api.callers import Caller, KeyRing, put_caller
from api.errors import ForeignOrigin, NoKey, UnsafeBind, describe, reply_for
from api.server_settings import ServerSettings
from indexes.errors import CoalesceError

COOKIE = "coalesce_key"
LOGIN_PATH = "/login"
LOGOUT_PATH = "/logout"
OPEN_PATHS = frozenset({"/healthz", "/readyz", LOGIN_PATH, LOGOUT_PATH})
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def check_bind(settings: ServerSettings) -> None:
    """Refuses to listen to other machines without a key.

    Raises:
        UnsafeBind: the address is not this machine's own, there is no key, and `--insecure` was not given.
    """
    if not (settings.loopback or settings.asks_for_keys or settings.insecure):
        raise UnsafeBind(
            f"binding to {settings.host} lets other machines in, and no API key is set",
            hint="set COALESCE_API_KEYS to a key of your choice, or give --insecure, or bind to 127.0.0.1",
        )


class Guard:
    """ASGI middleware that lets through what may come in."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app = app
        self._keys = KeyRing(settings)
        self._hosts = {"localhost", "127.0.0.1", "::1", socket.gethostname().lower(), settings.host.lower()}
        self._allowed = {host.lower() for host in settings.allowed_hosts}
        self._hosts |= self._allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers 401 or 403 itself, or hands on."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope)
        except CoalesceError as error:
            await self._refuse(error, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self._keys.empty:
            self._check_host(host)
        if scope["type"] == "websocket" or scope["method"] not in SAFE_METHODS:
            self._check_origin(headers, host)
        if self._keys.empty:
            put_caller(scope, Caller())
        elif scope["path"] not in OPEN_PATHS:
            put_caller(scope, self._caller(headers))

    def _check_host(self, host: str) -> None:
        name = _host_name(host)
        if name in self._hosts or _is_address(name):
            return
        raise ForeignOrigin(
            f"the Host header names {name!r}, which is not this machine", hint=f"add it: COALESCE_ALLOWED_HOSTS={name}"
        )

    def _check_origin(self, headers: Headers, host: str) -> None:
        origin = headers.get("origin")
        if origin is None:
            if headers.get("sec-fetch-site") == "cross-site":
                raise ForeignOrigin(
                    "the request comes from another site's page", hint="call from this server's own page"
                )
            return
        netloc = urlsplit(origin).netloc.lower()
        if netloc == host.lower() or _host_name(netloc) in self._allowed:
            return
        raise ForeignOrigin(
            f"the request comes from a page of {origin!r}", hint="call from this server's own page or a program"
        )

    def _caller(self, headers: Headers) -> Caller:
        # Header bytes are read as Latin-1, whatever they were written in: this takes the bytes back.
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and (caller := self._keys.by_key(key.strip().encode("latin-1"))):
            return caller
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            cookies = SimpleCookie()
        cookie = cookies[COOKIE].value if COOKIE in cookies else ""
        if caller := self._keys.by_cookie(cookie.encode("utf-8", "replace")):
            return caller
        given = "no API key was given" if not scheme else "the API key is not known"
        raise NoKey(given, hint="send `Authorization: Bearer KEY` with a key that was set when the server was started")

    async def _refuse(self, error: CoalesceError, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": error.message})
            return
        request = Request(scope)
        wants_page = scope["method"] == "GET" and "text/html" in request.headers.get("accept", "")
        response: Response = reply_for(request, describe(error))
        if isinstance(error, NoKey) and wants_page:
            response = RedirectResponse(LOGIN_PATH, status_code=303)
        await response(scope, receive, send)


def _host_name(netloc: str) -> str:
    name = netloc.rsplit("@", 1)[-1].lower()
    if name.startswith("["):
        return name[1 : name.find("]")] if "]" in name else name
    return name.rsplit(":", 1)[0] if name.count(":") == 1 else name


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
