"""Who may talk to the server, and as whom: the bind, API keys, and pages of other sites in the user's own browser.

* A bind that other machines reach needs an API key, or `--insecure`.
* With keys, every call needs `Authorization: Bearer KEY`, or the cookie that signing in sets (a digest of the key).
  `/healthz`, `/readyz` and the page's own files are open.
* A learner's key sees and changes that learner's exams, cards, progress, conversations and feedback only. It reads
  the library, the question bank and the reports, and does not change them. Any other key, and the user of this
  machine where no key is set, may do everything for any learner.
* Without keys, the `Host` header must name this machine: a page of another site that rebinds its own name to
  127.0.0.1 carries its name there (DNS rebinding).
* An address that sends many unknown keys is let in only with a key that was right there before.
* Calls that change something may not carry the `Origin` of another site, unless they carry a key as well, or the
  settings list it. No cookie counts for such a call.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import socket
import threading
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import ForeignOrigin, NoKey, NotAllowed, RateLimited, UnsafeBind, describe, reply_for
from api.page_files import is_page
from api.settings import CoalesceSettings
from evals.learners import DEFAULT_LEARNER
from indexes.errors import CoalesceError
from indexes.messages import msg

_IN_SCOPE = "coalesce_caller"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request.

    Attributes:
        learner: the learner that the key belongs to, None for an open key or without keys.
        key_digest: tells the keys apart, for the rate limit; empty without keys.
    """

    learner: str | None = None
    key_digest: str = field(default="", compare=False)

    def learner_for(self, asked: str | None) -> str:
        """The learner whose exams, cards and conversations a request is about.

        Args:
            asked: the learner that the request names, None when it names none.

        Raises:
            NotAllowed: the key is another learner's.
        """
        if self.learner is None:
            return asked or DEFAULT_LEARNER
        if asked is None or asked.strip() == self.learner:
            return self.learner
        raise NotAllowed(
            f"this key is learner {self.learner!r}'s, and learner {asked!r:.60} was asked for",
            hint="Leave out `learner`, or use a key of COALESCE_API_KEYS.",
        )

    def owner_for(self, asked: str | None) -> str | None:
        """The learner who must own the exam or card of an id; None allows any owner. Raises NotAllowed."""
        return None if self.learner is None and asked is None else self.learner_for(asked)

    def need_open_key(self, what: str) -> None:
        """Raises NotAllowed for a learner's key; `what` names what it cannot do."""
        if self.learner is not None:
            raise NotAllowed(msg("a learner's key cannot {}", what), hint="Use a key of COALESCE_API_KEYS.")


def put_caller(scope: MutableMapping[str, Any], caller: Caller) -> None:
    """Stores who sent a request."""
    scope[_IN_SCOPE] = caller


def caller_of(scope: MutableMapping[str, Any]) -> Caller:
    """Who sent a request. KeyError if `Guard` has not seen it: a bug must not grant access."""
    caller: Caller = scope[_IN_SCOPE]
    return caller


def address_of(scope: MutableMapping[str, Any]) -> str:
    """The network address that a request comes from."""
    client = scope.get("client")
    return str(client[0]) if client else "unknown"


def client_of(request: Request) -> str:
    """Who asks, for the rate limit: the caller's key where there is one, else the network address."""
    return caller_of(request.scope).key_digest or address_of(request.scope)


def cookie_value(key: str) -> str:
    """The cookie for a key: a digest, so that the browser does not keep the key itself."""
    return hmac.new(key.encode(), b"coalesce page", hashlib.sha256).hexdigest()


class KeyRing:
    """The accepted keys and their owners. A look-up takes the same time whichever key is right."""

    def __init__(self, settings: CoalesceSettings) -> None:
        owners: list[tuple[str, str | None]] = [(key.get_secret_value(), None) for key in settings.api_keys]
        owners += [(key.get_secret_value(), learner) for learner, key in settings.learner_keys.items()]
        known = [(key, Caller(learner, cookie_value(key))) for key, learner in owners]
        self._keys = [(key.encode(), caller) for key, caller in known]
        self._cookies = [(caller.key_digest.encode(), caller) for _, caller in known]

    @property
    def empty(self) -> bool:
        """True when callers need no key."""
        return not self._keys

    def by_key(self, given: bytes) -> Caller | None:
        """The caller whose key `given` is, in UTF-8; None for an unknown key."""
        return _owner(self._keys, given)

    def by_cookie(self, given: bytes) -> Caller | None:
        """The caller whose cookie `given` is; None for an unknown one."""
        return _owner(self._cookies, given)


class KeyGuesses:
    """Bounds the unknown keys and cookies that come from one address. A key that was right there before stays let in.

    Args:
        clock: a monotonic clock in seconds.
    """

    def __init__(self, keys: KeyRing, clock: Callable[[], float] = time.monotonic) -> None:
        self.keys = keys
        self._clock = clock
        self._lock = threading.Lock()
        self._left: dict[str, tuple[float, float]] = {}
        self._right: dict[tuple[str, str], None] = {}

    def caller(self, given: bytes, address: str) -> Caller | None:
        """The caller whose key `given` is, in UTF-8; None for an unknown key. Raises RateLimited."""
        return self._counted(self.keys.by_key(given), address)

    def caller_of_cookie(self, given: bytes, address: str) -> Caller | None:
        """The same of a cookie: whoever guesses a key can make its cookie."""
        return self._counted(self.keys.by_cookie(given), address)

    def _counted(self, caller: Caller | None, address: str) -> Caller | None:
        with self._lock:
            if caller is not None and (address, caller.key_digest) in self._right:
                return caller
            now = self._clock()
            left, seen = self._left.pop(address, (float(MOST_GUESSES), now))
            left = min(MOST_GUESSES, left + (now - seen) * MOST_GUESSES / 60)
            self._left[address] = (left if caller is not None else max(left - 1, 0.0), now)
            if left < 1:
                raise RateLimited(
                    msg("more than {} unknown keys per minute came from this address", MOST_GUESSES),
                    hint="Wait as long as Retry-After says, then send a key of the server.",
                    retry_after_s=60 / MOST_GUESSES,
                )
            if caller is not None:
                self._right[address, caller.key_digest] = None
            while len(self._left) > MOST_ADDRESSES:
                del self._left[next(iter(self._left))]
            while len(self._right) > MOST_ADDRESSES:
                del self._right[next(iter(self._right))]
            return caller


def _owner(known: list[tuple[bytes, Caller]], given: bytes) -> Caller | None:
    found: Caller | None = None
    for item, caller in known:
        if hmac.compare_digest(item, given):
            found = caller
    return found


COOKIE = "coalesce_key"
MOST_GUESSES = 60
"""Unknown keys that an address may send at once, and again within a minute."""
MOST_ADDRESSES = 10_000
MOST_ORIGIN_CHARS = 300
_PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, POST, PUT, PATCH, DELETE",
    "Access-Control-Allow-Headers": "*, Authorization",
    "Access-Control-Allow-Private-Network": "true",
    "Access-Control-Max-Age": "600",
    "Vary": "Origin",
}
LOGIN_PATH = "/login"
OPEN_PATHS = frozenset({"/healthz", "/readyz"})
POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""Of what is no page: nothing in it is run, drawn or fetched."""
REPORT_POLICY = "default-src 'none'; style-src {styles}; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
"""Of a report, a page without scripts that this server's own page shows in a frame."""
DOCS_POLICY = (
    "default-src 'none'; script-src 'self' {scripts}; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Of the page that shows the calls of REST; its sheet has pictures in it."""
SESSION_PATH = "/v1/session"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def check_bind(settings: CoalesceSettings) -> None:
    """Refuses to serve other machines without a key.

    Raises:
        UnsafeBind: the address is not this machine's own, there is no key, and `--insecure` was not given.
    """
    if not (settings.loopback or settings.asks_for_keys or settings.insecure):
        raise UnsafeBind(
            f"binding to {settings.host} lets other machines in, and no API key is set",
            hint="Set COALESCE_API_KEYS to a key of your choice, or give --insecure, or bind to 127.0.0.1.",
        )


class Guard:
    """ASGI middleware that refuses callers without a key and requests from other sites' pages."""

    def __init__(self, app: ASGIApp, settings: CoalesceSettings, guesses: KeyGuesses | None = None) -> None:
        self._app = app
        self._guesses = guesses or KeyGuesses(KeyRing(settings))
        self._keys = self._guesses.keys
        self._hosts = {"localhost", "127.0.0.1", "::1", socket.gethostname().lower(), settings.host.lower()}
        self._allowed = {host.lower() for host in settings.allowed_hosts}
        self._hosts |= self._allowed
        self._origins = {origin.lower() for origin in settings.allowed_origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers 401 or 403, or hands on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if (origin := self._open_to(scope)) is not None:
            if scope["method"] == "OPTIONS":
                await Response(status_code=204, headers=_PREFLIGHT | {"Access-Control-Allow-Origin": origin})(
                    scope, receive, send
                )
                return
            send = _readable_by(origin, send)
        try:
            self._check(scope, origin)
        except CoalesceError as error:
            await self._refuse(error, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _open_to(self, scope: Scope) -> str | None:
        """The origin of another site's page that may call: a listed one, or any where a key, not a cookie, is sent.

        A browser asks first, without the key, whether it may send it.
        """
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        if origin is None or scope["type"] != "http" or not _is_origin(origin):
            return None
        if origin.lower() in self._origins:
            return origin
        asks_first = scope["method"] == "OPTIONS" and "access-control-request-method" in headers
        with_key = asks_first or headers.get("authorization", "").lower().startswith("bearer ")
        return origin if with_key and not self._keys.empty else None

    def _check(self, scope: Scope, open_to: str | None) -> None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self._keys.empty:
            self._check_host(host)
        if open_to is None and scope["method"] not in SAFE_METHODS:
            self._check_origin(headers, host)
        if self._keys.empty:
            put_caller(scope, Caller())
        elif not (scope["path"] in OPEN_PATHS or is_page(scope["path"]) or _opens_session(scope)):
            put_caller(scope, self._caller(headers, address_of(scope), with_cookie=open_to is None))

    def _check_host(self, host: str) -> None:
        name = _host_name(host)
        if name in self._hosts or _is_address(name):
            return
        raise ForeignOrigin(
            f"the Host header names {name!r:.260}, which is not this machine",
            hint=f"Add it: COALESCE_ALLOWED_HOSTS={name:.255}",
        )

    def _check_origin(self, headers: Headers, host: str) -> None:
        origin = headers.get("origin")
        if origin is None:
            if headers.get("sec-fetch-site") == "cross-site":
                raise ForeignOrigin(
                    "the request comes from another site's page", hint="Call from this server's own page."
                )
            return
        netloc = urlsplit(origin).netloc.lower()
        if netloc == host.lower() or _host_name(netloc) in self._allowed:
            return
        raise ForeignOrigin(
            f"the request comes from a page of {origin!r:.100}", hint="Call from this server's own page or a program."
        )

    def _caller(self, headers: Headers, address: str, *, with_cookie: bool) -> Caller:
        # Header bytes are read as Latin-1, whatever they were written in: this takes the bytes back.
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and (caller := self._guesses.caller(key.strip().encode("latin-1"), address)):
            return caller
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            cookies = SimpleCookie()
        cookie = cookies[COOKIE].value if COOKIE in cookies and with_cookie else ""
        if cookie and (caller := self._guesses.caller_of_cookie(cookie.encode("utf-8", "replace"), address)):
            return caller
        given = "no API key was given" if not scheme else "the API key is not known"
        raise NoKey(given, hint="Send `Authorization: Bearer KEY` with a key of the server.")

    async def _refuse(self, error: CoalesceError, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        wants_page = scope["method"] == "GET" and "text/html" in request.headers.get("accept", "")
        response: Response = reply_for(request, describe(error))
        if isinstance(error, NoKey) and wants_page:
            wanted = f"{request.url.path}?{request.url.query}".rstrip("?")
            after = f"?next={quote(wanted, safe='')}" if wanted != "/" else ""
            response = RedirectResponse(f"{LOGIN_PATH}{after}", status_code=303)
        await response(scope, receive, send)


def _readable_by(origin: str, send: Send) -> Send:
    """Lets the page of another site read the reply."""

    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["Access-Control-Allow-Origin"] = origin
            headers["Access-Control-Expose-Headers"] = "Retry-After, X-Answer-Id, X-Comparison-Id"
            headers.add_vary_header("Origin")
        await send(message)

    return with_headers


def _is_origin(text: str) -> bool:
    """Whether a header can be sent back as an origin; `null` is that of many pages."""
    return text.isascii() and text.isprintable() and "://" in text and len(text) <= MOST_ORIGIN_CHARS


class SafeHeaders:
    """ASGI middleware that adds the headers by which a browser keeps a page's requests on this server."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hands on, and adds the headers to the reply."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("Content-Security-Policy", POLICY)
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Referrer-Policy"] = "same-origin"
            await send(message)

        await self._app(scope, receive, with_headers)


def _opens_session(scope: Scope) -> bool:
    return scope["path"] == SESSION_PATH and scope["method"] in ("POST", "DELETE")


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
