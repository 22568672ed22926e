"""Errors at the edge: the one table from error class to HTTP status and wire type, and the handlers that use it.

Branches that exist only here:

    CoalesceError
    ├── Conflict ── PortInUse       another program listens on the address                        (409)
    ├── InvalidInput ── UnsafeBind  a bind that other machines reach, without a key               (400)
    ├── NoKey                       no API key, or a wrong one                                    (401)
    ├── ForeignOrigin               a Host or Origin that may be another site's page               (403)
    ├── NotAllowed                  a learner's key asks for what is another's                    (403)
    ├── RateLimited                 a client asked too often                                      (429)
    └── Busy ── NotReady            still loading                                                 (503)
"""

from __future__ import annotations

import errno
import logging
import math
import sqlite3
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from evals import errors as evals_errors
from indexes import errors as indexes_errors
from indexes.errors import Busy, CoalesceError, Conflict, HomeNotWritable, InvalidInput, StorageFull
from rag import errors as rag_errors

logger = logging.getLogger("coalesce.api")


class PortInUse(Conflict):
    """Another program listens on the address."""


class UnsafeBind(InvalidInput):
    """The address is open to other machines and there is no key."""


class NoKey(CoalesceError):
    """No API key was given, or none that is known."""


class ForeignOrigin(CoalesceError):
    """The request may come from another site's page in the user's browser."""


class NotAllowed(CoalesceError):
    """A learner's own key asks for what is another learner's, or everyone's."""


class RateLimited(Busy):
    """The client asked more often than it may."""


class NotReady(Busy):
    """Library and generator are still loading."""


ERROR_TABLE: dict[type[CoalesceError], tuple[int, str]] = {
    CoalesceError: (500, "internal_error"),
    indexes_errors.InvalidInput: (400, "invalid_input"),
    indexes_errors.NotFound: (404, "not_found"),
    indexes_errors.Conflict: (409, "conflict"),
    indexes_errors.TooLarge: (413, "too_large"),
    indexes_errors.UnsupportedFormat: (415, "unsupported_format"),
    indexes_errors.UnreadableBook: (422, "unreadable_book"),
    indexes_errors.Busy: (503, "busy"),
    indexes_errors.Cancelled: (409, "cancelled"),
    indexes_errors.IndexMissing: (409, "index_missing"),
    indexes_errors.IndexCorrupt: (503, "index_corrupt"),
    indexes_errors.EmbedderMismatch: (409, "embedder_mismatch"),
    indexes_errors.EmbedderCannotLoad: (503, "embedder_cannot_load"),
    indexes_errors.HomeNotWritable: (503, "home_not_writable"),
    indexes_errors.StorageFull: (503, "storage_full"),
    indexes_errors.VectorStoreUnavailable: (503, "vector_store_unavailable"),
    rag_errors.ArmUnavailable: (409, "arm_unavailable"),
    rag_errors.ModelCannotLoad: (409, "model_cannot_load"),
    rag_errors.AdapterMismatch: (409, "adapter_mismatch"),
    rag_errors.PromptTooLong: (413, "prompt_too_long"),
    rag_errors.DoesNotFitInMemory: (413, "does_not_fit_in_memory"),
    rag_errors.GenerationFailed: (503, "generation_failed"),
    rag_errors.EngineUnreachable: (503, "engine_unreachable"),
    rag_errors.MalformedTrainingData: (422, "malformed_training_data"),
    evals_errors.MalformedQuestions: (422, "malformed_questions"),
    evals_errors.LeakageFound: (409, "leakage_found"),
    evals_errors.ExamClosed: (409, "exam_closed"),
    PortInUse: (409, "port_in_use"),
    UnsafeBind: (400, "unsafe_bind"),
    NoKey: (401, "no_key"),
    ForeignOrigin: (403, "foreign_origin"),
    NotAllowed: (403, "not_allowed"),
    RateLimited: (429, "rate_limited"),
    NotReady: (503, "not_ready"),
}

HTTP_ERRORS: dict[int, tuple[str, str]] = {
    400: ("invalid_input", "see /docs for what this call takes"),
    404: ("not_found", "see /docs for the calls there are"),
    405: ("method_not_allowed", "see /docs for the methods of this path"),
    413: ("too_large", "send less"),
    415: ("unsupported_format", "see /docs for what this call takes"),
}
RETRY_AFTER_S = 5


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error as it goes over the wire: status, the three words of its body, and headers."""

    status: int
    type: str
    message: str
    hint: str
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def body(self) -> dict[str, Any]:
        """`{"error": {"type", "message", "hint"}}`."""
        return {"error": {"type": self.type, "message": self.message, "hint": self.hint}}

    def response(self) -> JSONResponse:
        """The reply for a plain call."""
        return JSONResponse(self.body, self.status, headers=self.headers)


def known_error(error: BaseException) -> CoalesceError | None:
    """The error as one of ours; None when it is a fault of the program.

    A full disk and a folder that cannot be written reach the edge as `OSError` or `sqlite3.OperationalError` from
    the stores that live here.
    """
    if isinstance(error, CoalesceError):
        return error
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(f"the disk is full: {error}", hint="free some space and try again")
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return HomeNotWritable(f"cannot write: {error}", hint="make the home writable, or name another: COALESCE_HOME")
    if isinstance(error, sqlite3.OperationalError):
        text = str(error)
        if "full" in text:
            return StorageFull(f"the disk is full: {text}", hint="free some space and try again")
        if "readonly" in text or "unable to open" in text:
            return HomeNotWritable(f"the home cannot be written: {text}", hint="make the home writable")
        if "locked" in text:
            return Busy("another program holds the home's database", hint="try again in a moment")
    return None


def describe(error: BaseException) -> ErrorReply:
    """How `error` goes over the wire. What is not ours becomes a 500 that shows nothing of the program."""
    known = known_error(error)
    if known is None:
        return ErrorReply(
            500,
            "internal_error",
            f"an error inside Coalesce: {type(error).__name__}",
            "the server's log has the details",
        )
    status, kind = next(ERROR_TABLE[cls] for cls in type(known).__mro__ if cls in ERROR_TABLE)
    headers = {}
    if status in (429, 503):
        headers["Retry-After"] = str(math.ceil(getattr(known, "retry_after_s", RETRY_AFTER_S)))
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return ErrorReply(status, kind, known.message, known.hint, headers)


def describe_validation(error: RequestValidationError) -> ErrorReply:
    """A body or query that does not have the form asked for: names the field, what is wrong, and the value."""
    first = error.errors()[0]
    kind = str(first["type"])
    if kind == "json_invalid":
        where = first["loc"][-1] if first["loc"] else 0
        return ErrorReply(
            400, "invalid_json", f"the body is not JSON: {_reason(first)} (at character {where})", "send JSON"
        )
    path = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path")) or "the body"
    if kind == "missing":
        return ErrorReply(422, "invalid_input", f"{path} is missing", "see /docs for what this call takes")
    if kind == "extra_forbidden":
        return ErrorReply(422, "invalid_input", f"{path} is no field of this call", "see /docs for the fields it takes")
    shown = "" if first.get("input") is None else f" (got {_show(first['input'])})"
    return ErrorReply(422, "invalid_input", f"{path}: {_reason(first)}{shown}", "see /docs for what this call takes")


def _reason(detail: dict[str, Any]) -> str:
    message = str(detail.get("ctx", {}).get("error") or detail["msg"])
    return message[:1].lower() + message[1:]


def _show(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def install_handlers(app: FastAPI) -> None:
    """Makes `app` answer every error in the contract's form."""

    @app.exception_handler(CoalesceError)
    async def _ours(request: Request, error: CoalesceError) -> JSONResponse:
        return reply_for(request, describe(error))

    @app.exception_handler(RequestValidationError)
    async def _form(request: Request, error: RequestValidationError) -> JSONResponse:
        return reply_for(request, describe_validation(error))

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> JSONResponse:
        kind, hint = HTTP_ERRORS.get(error.status_code, ("invalid_input", "see /docs for what this call takes"))
        message = f"{request.method} {request.url.path}: {error.detail}"
        reply = ErrorReply(error.status_code, kind, message, hint, dict(error.headers or {}))
        return reply_for(request, reply)

    @app.exception_handler(Exception)
    async def _unknown(request: Request, error: Exception) -> JSONResponse:
        reply = describe(error)
        if reply.status == 500:
            logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return reply_for(request, reply)


def reply_for(request: Request, reply: ErrorReply) -> JSONResponse:
    """The reply in the form that the caller's client reads: OpenAI's calls have two fields more."""
    response = reply.response()
    if request.url.path.startswith(("/v1/chat/", "/v1/models")):
        response = JSONResponse(openai_body(reply), reply.status, headers=reply.headers)
    if reply.status == 409:
        response.headers["x-should-retry"] = "false"  # OpenAI's clients retry a 409, which here stays one
    return response


def openai_body(reply: ErrorReply) -> dict[str, Any]:
    """The contract's body with OpenAI's `param` and `code` beside it."""
    return {"error": {**reply.body["error"], "param": None, "code": reply.type}}
