"""Errors at the edge: the one table from error class to HTTP status and wire type, and the handlers that use it.

Branches that exist only here:

    CoalesceError
    ├── Conflict ── PortInUse       another program listens on the address                        (409)
    ├── InvalidInput ── UnsafeBind  a bind that other machines reach, without a key               (400)
    ├── NoKey                       no API key, or a wrong one                                    (401)
    ├── ForeignOrigin               a Host or Origin that may be another site's page               (403)
    ├── NotAllowed                  a learner's key asks for what belongs to others               (403)
    ├── RateLimited                 a client asked too often                                      (429)
    └── Busy ── NotReady            still loading                                                 (503)
"""

from __future__ import annotations

import logging
import math
import sqlite3
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException

from evals import errors as evals_errors
from indexes import errors as indexes_errors
from indexes.disk import disk_error
from indexes.errors import Busy, CoalesceError, Conflict, InvalidInput
from indexes.messages import Message, parts_of
from rag import errors as rag_errors

logger = logging.getLogger("coalesce.api")


class PortInUse(Conflict):
    """Another program listens on the address."""


class UnsafeBind(InvalidInput):
    """The address is open to other machines and no key is set."""


class NoKey(CoalesceError):
    """No API key was given, or an unknown one."""


class ForeignOrigin(CoalesceError):
    """The request may come from another site's page in the user's browser."""


class NotAllowed(CoalesceError):
    """A learner's key asks for what belongs to another learner, or to everyone."""


class RateLimited(Busy):
    """The client asks more often than the limit allows."""


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
    indexes_errors.DatabaseUnavailable: (503, "database_unavailable"),
    indexes_errors.StorageUnavailable: (503, "storage_unavailable"),
    rag_errors.ArmUnavailable: (409, "arm_unavailable"),
    rag_errors.ModelCannotLoad: (409, "model_cannot_load"),
    rag_errors.AdapterMismatch: (409, "adapter_mismatch"),
    rag_errors.PromptTooLong: (413, "prompt_too_long"),
    rag_errors.DoesNotFitInMemory: (413, "does_not_fit_in_memory"),
    rag_errors.GenerationFailed: (503, "generation_failed"),
    rag_errors.EngineRefuses: (503, "generation_failed"),
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
    400: ("invalid_input", "See /docs for what this call takes."),
    404: ("not_found", "See /docs for the calls that exist."),
    405: ("method_not_allowed", "See /docs for the methods of this path."),
    408: ("too_slow", "Send it without pauses."),
    413: ("too_large", "Send less."),
    415: ("unsupported_format", "See /docs for what this call takes."),
    431: ("too_large", "Send less."),
}
UNKNOWN_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    SQLAlchemyError,
    TypeError,
    ValueError,
    sqlite3.Error,
)
"""The roots of nearly all errors that are faults of the program."""
RETRY_AFTER_S = 5
FOR_NOW = (429, 503)
"""Statuses of calls that may be tried again."""
REFUSED = "coalesce.refused"
"""The key of a call's ASGI scope under which `reply_for` leaves the type of such a reply, for who counts them."""


def sentence(text: str) -> str:
    """A message or hint as a whole sentence; names, paths and commands at its start stay as they are."""
    first = text.split(" ", 1)[0]
    if first.isalpha() and first != "coalesce":
        text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "?", "!", "…")) else f"{text}."


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error as a reply: status, the three fields of its body, and headers."""

    status: int
    type: str
    message: str
    hint: str
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def body(self) -> dict[str, Any]:
        """`{"error": {"type", "message", "hint"}}`, with the parts of the texts that have some."""
        texts = {"message": self.message, "hint": self.hint}
        return {"error": {"type": self.type, **texts, **parts_beside(**texts)}}

    @property
    def event(self) -> dict[str, Any]:
        """The body of a stream that has begun: with `retry_after_s`, which a plain reply has as a header."""
        wait = self.headers.get("Retry-After")
        return {"error": self.body["error"] | ({} if wait is None else {"retry_after_s": int(wait)})}

    def response(self) -> JSONResponse:
        """The reply for a plain call."""
        return JSONResponse(self.body, self.status, headers=self.headers)


def parts_beside(**texts: str) -> dict[str, object]:
    """The key and the arguments of each text that has some, as `NAME_parts`: clients may say it in another language."""
    return {f"{name}_parts": parts_of(text) for name, text in texts.items() if isinstance(text, Message)}


def known_error(error: BaseException) -> CoalesceError | None:
    """The error as a `CoalesceError`; None when it is a bug.

    A full disk and a folder that cannot be written may reach the edge as `OSError`.
    """
    if isinstance(error, CoalesceError):
        return error
    return disk_error(error, getattr(error, "filename", None) or "the home")


def describe(error: BaseException) -> ErrorReply:
    """The reply to an error. A fault of the program becomes a 500 that shows nothing of the program."""
    known = known_error(error)
    if known is None:
        return ErrorReply(
            500,
            "internal_error",
            f"an error inside Coalesce: {type(error).__name__}",
            "The server's log has the details.",
        )
    status, kind = next(ERROR_TABLE[cls] for cls in type(known).__mro__ if cls in ERROR_TABLE)
    headers = {}
    if status in FOR_NOW:
        headers["Retry-After"] = str(math.ceil(getattr(known, "retry_after_s", RETRY_AFTER_S)))
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return ErrorReply(status, kind, known.message, known.hint, headers)


def describe_validation(error: RequestValidationError) -> ErrorReply:
    """The reply to a malformed body or query: the field, what is wrong, and the value."""
    first = error.errors()[0]
    kind = str(first["type"])
    if kind == "json_invalid":
        where = first["loc"][-1] if first["loc"] else 0
        return ErrorReply(
            400, "invalid_json", f"the body is not JSON: {_reason(first)} (at character {where})", "Send JSON."
        )
    path = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path")) or "the body"
    if kind == "missing":
        return ErrorReply(422, "invalid_input", f"{path} is missing", "See /docs for what this call takes.")
    if kind == "extra_forbidden":
        return ErrorReply(
            422, "invalid_input", f"{path} is not a field of this call", "See /docs for the fields it takes."
        )
    shown = "" if first.get("input") is None else f" (got {_show(first['input'])})"
    return ErrorReply(422, "invalid_input", f"{path}: {_reason(first)}{shown}", "See /docs for what this call takes.")


def _reason(detail: dict[str, Any]) -> str:
    message = str(detail.get("ctx", {}).get("error") or detail["msg"])
    return message[:1].lower() + message[1:]


def _show(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def install_handlers(app: FastAPI) -> None:
    """Makes `app` answer every error with `{"error": {"type", "message", "hint"}}`."""

    @app.exception_handler(CoalesceError)
    async def _ours(request: Request, error: CoalesceError) -> JSONResponse:
        return reply_for(request, describe(error))

    @app.exception_handler(RequestValidationError)
    async def _form(request: Request, error: RequestValidationError) -> JSONResponse:
        return reply_for(request, describe_validation(error))

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> JSONResponse:
        kind, hint = HTTP_ERRORS.get(error.status_code, ("invalid_input", "See /docs for what this call takes."))
        message = f"{request.method} {request.url.path}: {error.detail}"
        reply = ErrorReply(error.status_code, kind, message, hint, dict(error.headers or {}))
        return reply_for(request, reply)

    async def _unknown(request: Request, error: Exception) -> JSONResponse:
        reply = describe(error)
        if reply.status == 500:
            logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return reply_for(request, reply)

    # By name: Starlette answers every other `Exception` outside its own error handling, and the connection is dropped.
    for kind in (*UNKNOWN_ERRORS, Exception):
        app.add_exception_handler(kind, _unknown)


def reply_for(request: Request, reply: ErrorReply) -> JSONResponse:
    """The reply in the form that the client reads: OpenAI's calls have two more fields."""
    if reply.status in FOR_NOW:
        request.scope[REFUSED] = reply.type
    response = reply.response()
    if request.url.path.startswith(("/v1/chat/", "/v1/models")):
        response = JSONResponse(openai_body(reply), reply.status, headers=reply.headers)
    if reply.status == 409:
        response.headers["x-should-retry"] = "false"  # OpenAI's clients retry a 409, which here stays one
    return response


def openai_body(reply: ErrorReply) -> dict[str, Any]:
    """The body with OpenAI's `param` and `code` added."""
    return {"error": {**reply.body["error"], "param": None, "code": reply.type}}
