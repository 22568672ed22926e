"""The document of the calls: every error that any of them may answer, in the one form that errors have."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

ERRORS = {
    "401": "No key, or an unknown one, where the server asks for keys",
    "403": "What this key may not do, or a page of another site",
    "422": "A field that cannot be used",
    "429": "Too many questions, or too many unknown keys",
    "503": "Busy, not ready, or the home cannot be read or written; `Retry-After` says when to come back",
}
OF_A_PLACE = {
    "404": "Nothing of this id",
    "405": "A method that this path does not have; a path without its id is another",
}
OF_A_BODY = {
    "400": "Not JSON, or what cannot be used",
    "408": "The body comes too slowly",
    "413": "The body is too large",
}
STREAMED = frozenset({"/v1/ask", "/v1/chat/completions", "/v1/compare"})
"""Calls that answer with events where the body says `stream`."""
_FORM = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorOut"}}}
_EVENT = {
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string", "description": "JSON"}},
    "required": ["data"],
}
_OF_FASTAPI = ("HTTPValidationError", "ValidationError")


def document(app: FastAPI) -> None:
    """Adds to `/openapi.json` what no route says of itself: middleware answers before it, and FastAPI for it."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = make()
            for path, operations in made["paths"].items():
                for operation in operations.values():
                    _add_errors(operation, OF_A_PLACE if "{" in path else {}, of_api=path.startswith("/v1"))
                if path in STREAMED:
                    operations["post"]["responses"]["200"]["content"]["text/event-stream"] = {"schema": _EVENT}
            for name in _OF_FASTAPI:
                made["components"]["schemas"].pop(name, None)
        return make()

    # FastAPI's own way to extend the document.
    app.openapi = openapi  # type: ignore[method-assign]


def _add_errors(operation: dict[str, Any], more: dict[str, str], *, of_api: bool) -> None:
    responses = operation["responses"]
    wanted = ERRORS | more if of_api else {}
    if "requestBody" in operation:
        wanted = wanted | OF_A_BODY
    for status, description in wanted.items():
        if status != "422" or status in responses:
            responses.setdefault(status, {"description": description, "content": _FORM})
    if "422" in responses:
        responses["422"]["content"] = _FORM
