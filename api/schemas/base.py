"""What every wire form shares: strict requests, bounded ids, and the form of an error."""

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
    """Base of what clients get."""


class ErrorDetail(WireOut):
    """What went wrong, and the command or change that mends it."""

    type: str
    message: str
    hint: str


class ErrorOut(WireOut):
    """Every error's body."""

    error: ErrorDetail


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses=` of a route that may answer with these statuses, for `/openapi.json`."""
    return {status: {"model": ErrorOut} for status in statuses}


def listed(value: WireOut) -> Response:
    """A long list as it goes over the wire: written once, where FastAPI would check every item a second time."""
    return Response(value.model_dump_json(), media_type="application/json")
