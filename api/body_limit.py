"""Bounds on request bodies, by declared length and by what really comes."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import describe, reply_for
from api.server_settings import ServerSettings
from indexes.errors import InvalidInput, TooLarge

UPLOAD_PATH = "/v1/documents"
PAGE_UPLOAD_PREFIX = "/_nicegui/client/"
MAX_DRAINED_BYTES = 64 * 1024**2
"""Read and thrown away before a 413, so that a client that is still sending gets to read the answer."""


class BodyLimit:
    """ASGI middleware: 413 for bodies above the limit of their path."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers 413 for what says it is too large; counts what comes otherwise."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        upload = path.rstrip("/") == UPLOAD_PATH or (path.startswith(PAGE_UPLOAD_PREFIX) and "/upload/" in path)
        limit = self._settings.max_upload_bytes if upload else self._settings.max_body_bytes
        declared = Headers(scope=scope).get("content-length", "0")
        if not (declared.isascii() and declared.isdecimal() and len(declared) < 20):
            error = InvalidInput(
                f"Content-Length {declared!r:.40} is no number", hint="send the body's length in bytes"
            )
            await reply_for(Request(scope), describe(error))(scope, receive, send)
            return
        if int(declared) > limit:
            await _drain(receive)
            hint = "raise COALESCE_MAX_UPLOAD_BYTES" if upload else "send less, or raise COALESCE_MAX_BODY_BYTES"
            large = TooLarge(f"the body has {int(declared):,} bytes; at most {limit:,} are taken", hint=hint)
            await reply_for(Request(scope), describe(large))(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                if received > limit:
                    # FastAPI hands on an HTTPException raised while it reads a body, and hides every other error.
                    raise HTTPException(413, f"the body has more than {limit:,} bytes")
            return message

        await self._app(scope, counted, send)


async def _drain(receive: Receive) -> None:
    drained = 0
    while drained <= MAX_DRAINED_BYTES:
        message = await receive()
        drained += len(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body"):
            return
