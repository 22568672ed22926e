"""Wire form of work that goes on after the call that started it."""

from __future__ import annotations

from api.job_store import JobState
from api.schemas.base import WireOut


class JobOut(WireOut):
    """Work that goes on after the call that started it."""

    id: str
    kind: str
    state: JobState
    done: int
    total: int
    message: str
    error: dict[str, str] | None = None
    document_id: str | None = None
    created_at: str
    updated_at: str
    seconds_left: float | None = None


class JobsOut(WireOut):
    """Every job kept."""

    jobs: list[JobOut]
