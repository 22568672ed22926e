"""Jobs as rows of a SQLite file in the home, so that their ends are known after a restart."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias

from indexes.errors import NotFound
from indexes.state_file import StateFile

JobState: TypeAlias = Literal["queued", "running", "done", "failed", "cancelled"]
FINAL_STATES: frozenset[str] = frozenset({"done", "failed", "cancelled"})
KEPT_JOBS = 1000

_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, state TEXT NOT NULL, done INTEGER NOT NULL, total INTEGER NOT NULL,
    message TEXT NOT NULL, error TEXT, document_id TEXT, created_at TEXT NOT NULL, updated_at TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS jobs_by_time ON jobs(created_at);
"""
_SAVE = """
INSERT OR REPLACE INTO jobs VALUES
    (:id, :kind, :state, :done, :total, :message, :error, :document_id, :created_at, :updated_at)
"""


@dataclass(frozen=True, slots=True)
class Job:
    """A piece of work.

    Attributes:
        done, total: steps of the stage that `message` names; total is 0 while it is not known.
        error: `type`, `message` and `hint` of a job that failed.
        document_id: the book it is about, if any.
        created_at, updated_at: ISO 8601 in UTC.
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
        self._file = StateFile(path, lambda connection: connection.executescript(_SCHEMA))

    def save(self, job: Job) -> None:
        """Keeps a job as it is now, and forgets all but the newest."""
        error = json.dumps(job.error) if job.error is not None else None
        with self._file.transaction() as db:
            db.execute(_SAVE, asdict(job) | {"error": error})
            db.execute(
                "DELETE FROM jobs WHERE id IN (SELECT id FROM jobs ORDER BY created_at DESC LIMIT -1 OFFSET ?)",
                (KEPT_JOBS,),
            )

    def get(self, job_id: str) -> Job:
        """One job.

        Raises:
            NotFound: no job has this id.
        """
        with self._file.transaction() as db:
            row = db.execute("SELECT * FROM jobs WHERE id = ?", (job_id,)).fetchone()
        if row is None:
            raise NotFound(f"no job has the id {job_id!r}", hint="a job's id stands in the reply to an upload")
        return _job(row)

    def list(self) -> list[Job]:
        """Every job kept, the newest first."""
        with self._file.transaction() as db:
            rows = db.execute("SELECT * FROM jobs ORDER BY created_at DESC").fetchall()
        return [_job(row) for row in rows]

    def close(self) -> None:
        """Closes the file; the next call opens it again."""
        self._file.close()


def now() -> str:
    """The time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _job(row: sqlite3.Row) -> Job:
    fields = dict(row)
    return Job(**fields | {"error": json.loads(fields["error"]) if fields["error"] else None})
