"""Jobs as rows of a SQLite file in the home, so that their ends are known after a restart."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias

from sqlalchemy import Column, Index, Integer, MetaData, Table, Text, delete, insert, select

from indexes.database import Database, JsonText, Schema
from indexes.errors import NotFound

JobState: TypeAlias = Literal["queued", "running", "done", "failed", "cancelled"]
FINAL_STATES: frozenset[str] = frozenset({"done", "failed", "cancelled"})
KEPT_JOBS = 1000

_TABLES = MetaData()
_jobs = Table(
    "jobs",
    _TABLES,
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("done", Integer, nullable=False),
    Column("total", Integer, nullable=False),
    Column("message", Text, nullable=False),
    Column("error", JsonText),
    Column("document_id", Text),
    Column("created_at", Text, nullable=False),
    Column("updated_at", Text, nullable=False),
    Column("title", Text, nullable=False, server_default=""),
    Index("jobs_by_time", "created_at"),
)
JOBS = Schema("jobs_2", _TABLES)


@dataclass(frozen=True, slots=True)
class Job:
    """A piece of work.

    Attributes:
        done, total: steps of the stage that `message` names; total is 0 while it is not known.
        error: `type`, `message` and `hint` of a job that failed.
        document_id: the book it is about, if any.
        created_at, updated_at: ISO 8601 in UTC.
        title: the name of what it works on, "" where the kind says all.
        seconds_left: of the stage, while it runs and as far as it can be known; not kept.
    """

    id: str
    kind: str
    state: JobState
    done: int
    total: int
    message: str
    error: dict[str, str] | None
    document_id: str | None
    created_at: str
    updated_at: str
    title: str = ""
    seconds_left: float | None = None

    @property
    def final(self) -> bool:
        """True when it will not change any more."""
        return self.state in FINAL_STATES

    def changed(self, **fields: object) -> Job:
        """The job with other values, and now as its time."""
        return replace(self, **{"seconds_left": None} | fields, updated_at=now())  # type: ignore[arg-type]  # the callers name known fields


class JobStore:
    """All jobs of one home. Light to make; the file is created at the first call."""

    def __init__(self, path: Path) -> None:
        self._database = Database(path, JOBS)

    def save(self, job: Job) -> None:
        """Keep a job as it is now, and forget all but the newest jobs."""
        row = asdict(job)
        del row["seconds_left"]
        newest = select(_jobs.c.id).order_by(_jobs.c.created_at.desc()).limit(KEPT_JOBS)
        with self._database.writing() as connection:
            connection.execute(delete(_jobs).where(_jobs.c.id == job.id))
            connection.execute(insert(_jobs), row)
            connection.execute(delete(_jobs).where(_jobs.c.id.not_in(newest)))

    def get(self, job_id: str) -> Job:
        """One job. Raises NotFound."""
        with self._database.reading() as connection:
            row = connection.execute(select(_jobs).where(_jobs.c.id == job_id)).one_or_none()
        if row is None:
            raise NotFound(f"no job has the id {job_id!r}", hint="use the `job_id` that the upload replied")
        return Job(*row)

    def list(self) -> list[Job]:
        """Every job kept, newest first."""
        with self._database.reading() as connection:
            rows = connection.execute(select(_jobs).order_by(_jobs.c.created_at.desc()))
            return [Job(*row) for row in rows]

    def forget(self, failed: Job) -> None:
        """Forget a job that failed, and those of its kind that failed before it."""
        same = (_jobs.c.kind == failed.kind, _jobs.c.state == "failed", _jobs.c.created_at <= failed.created_at)
        with self._database.writing() as connection:
            connection.execute(delete(_jobs).where(*same))

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        self._database.close()


def now() -> str:
    """The time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="microseconds")
