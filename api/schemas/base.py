"""Shared by all wire forms: strict requests, ids with a length limit, and the form of an error."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field

MAX_ID_CHARS = 200

Id = Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARS)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


class WireIn(BaseModel):
    """Base of what clients send."""

    model_config = ConfigDict(strict=True, extra="forbid")


class WireOut(BaseModel):
    """Base of what clients get and no dataclass says; `model_validate` makes one from a dataclass with these fields."""

    # Defaults are sent too, and pydantic gives this configuration to dataclasses inside a form.
    model_config = ConfigDict(from_attributes=True, json_schema_serialization_defaults_required=True)


SOME_LEFT_OUT = ConfigDict(json_schema_serialization_defaults_required=False)
"""Of a form whose defaults are not sent."""


class MessageParts(WireOut):
    """How a text was made, so that a client may say it in another language."""

    key: str = Field(description="the English text with `{}` in place of each argument")
    arguments: list[str | MessageParts] = Field(description="what stands in the gaps, in order")


class ErrorDetail(WireOut):
    """What went wrong, and the command or change that helps."""

    model_config = SOME_LEFT_OUT

    type: str
    message: str
    hint: str
    message_parts: MessageParts | None = Field(None, description="left out where the text has no arguments")
    hint_parts: MessageParts | None = Field(None, description="left out where the text has no arguments")


class ErrorOut(WireOut):
    """Every error's body."""

    error: ErrorDetail


class SignInIn(WireIn):
    """Body of `POST /v1/session`."""

    key: Annotated[str, Field(min_length=1, max_length=1000)]


class SessionOut(WireOut):
    """Who the caller is: `learner` is null for an open key, and where none is asked for."""

    learner: str | None
    asks_for_keys: bool
    learners: list[str] = Field(description="who have keys of their own; empty for a learner's key")
    home: str | None = Field(description="the folder that everything is kept in; null for a learner's key")


class JobStartedOut(WireOut):
    """The job that does what was asked: GET /v1/jobs/{job_id}."""

    job_id: str


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses=` of a route that may answer with these statuses; `/openapi.json` lists them."""
    return {status: {"model": ErrorOut} for status in statuses}


def listed(value: WireOut) -> Response:
    """A long list as a reply: FastAPI would validate every item a second time."""
    return Response(value.model_dump_json(), media_type="application/json")


def attached(content: str | bytes, media_type: str, name: str) -> Response:
    """A file as a reply, to be kept under this name."""
    return Response(content, media_type=media_type, headers={"Content-Disposition": f'attachment; filename="{name}"'})
