"""The job queue: one job after another, with progress, time left and cancel, its end kept in the home.

Jobs that read books run side by side, two at once: one whose book takes long does not keep out the next.

A job that was running when the server stopped is `failed` after the next start: its work is one transaction of the
library, so nothing of it was kept. Two servers may share a home; only the first one there marks such jobs.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

from filelock import FileLock, Timeout
from sqlalchemy import Column, Connection, Index, Integer, MetaData, Row, Table, Text, delete, insert, select

from api.errors import describe
from indexes.database import JsonText, Schema, damage, set_aside
from indexes.errors import Cancelled, CoalesceError, Conflict, IndexCorrupt, NotFound
from indexes.messages import dump, load, msg
from indexes.postgres import store_at

logger = logging.getLogger("coalesce.jobs")
STOP_TIMEOUT_S = 10.0
SOON_S = 2.0
"""No estimate before this: the first steps of a stage load models and are slow."""


class TimeLeft:
    """Estimates the time left of work in stages, each stage by its own speed.

    Args:
        clock: a monotonic clock in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stage = ""
        self._began_at_s = 0.0
        self._began_with = 0
        self._last = 0

    def seconds_left(self, stage: str, done: int, total: int) -> float | None:
        """Seconds until the stage ends; None while that cannot be estimated: in its first hundredth."""
        now = self._clock()
        if stage != self._stage or done < self._last:
            self._stage, self._began_at_s, self._began_with = stage, now, done
        self._last = done
        steps = done - self._began_with
        if steps < max(1, total / 100) or now - self._began_at_s < SOON_S:
            return None
        return (now - self._began_at_s) / steps * max(total - done, 0)


JobState: TypeAlias = Literal["queued", "running", "done", "failed", "cancelled"]
FINAL_STATES: frozenset[str] = frozenset({"done", "failed", "cancelled"})
KEPT_JOBS = 1000
JOBS_FILE = "jobs.sqlite3"
OWNER_LOCK = "jobs.lock"
"""A file of the home that its first server holds."""
INTERRUPTED = {
    "message": "interrupted",
    "error": {
        "type": "interrupted",
        "message": "the server stopped before the job was done; nothing of it was kept",
        "hint": "Start it again.",
    },
}
SIDE_BY_SIDE = frozenset({"add", "renew"})
"""Kinds of jobs that may run beside each other: they read in processes of their own, and store one after the other."""

_TABLES = MetaData()
jobs_table = Table(
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
    """All jobs of one home, in a file or the shared database with an address. Light to make; the file is created at
    the first call."""

    def __init__(self, place: Path | str) -> None:
        self._database = store_at(place, JOBS)

    def save(self, job: Job) -> None:
        """Keep a job as it is now, and forget all but the newest jobs."""
        with self._database.writing() as connection:
            save_job(connection, job)

    def get(self, job_id: str) -> Job:
        """One job. Raises NotFound."""
        with self._database.reading() as connection:
            row = connection.execute(select(jobs_table).where(jobs_table.c.id == job_id)).one_or_none()
        if row is None:
            raise NotFound(f"no job has the id {job_id!r}", hint="use the `job_id` that the upload replied")
        return job_of(row)

    def list(self) -> list[Job]:
        """Every job kept, newest first."""
        with self._database.reading() as connection:
            rows = connection.execute(select(jobs_table).order_by(jobs_table.c.created_at.desc()))
            return [job_of(row) for row in rows]

    def forget(self, failed: Job) -> None:
        """Forget a job that failed, and those of its kind that failed before it."""
        same = (
            jobs_table.c.kind == failed.kind,
            jobs_table.c.state == "failed",
            jobs_table.c.created_at <= failed.created_at,
        )
        with self._database.writing() as connection:
            connection.execute(delete(jobs_table).where(*same))

    def forget_before(self, moment: datetime) -> None:
        """Forget the jobs that ended before a moment."""
        old = (
            jobs_table.c.state.in_(FINAL_STATES),
            jobs_table.c.updated_at < moment.isoformat(timespec="microseconds"),
        )
        with self._database.writing() as connection:
            connection.execute(delete(jobs_table).where(*old))

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        self._database.close()


def save_job(connection: Connection, job: Job) -> None:
    """Keep a job as it is now, and forget all that ended but the newest."""
    newest = select(jobs_table.c.id).order_by(jobs_table.c.created_at.desc()).limit(KEPT_JOBS)
    old = (jobs_table.c.id.not_in(newest), jobs_table.c.state.in_(FINAL_STATES))
    connection.execute(delete(jobs_table).where(jobs_table.c.id == job.id))
    connection.execute(insert(jobs_table), row_of(job))
    connection.execute(delete(jobs_table).where(*old))


def row_of(job: Job) -> dict[str, Any]:
    """What the table keeps of a job."""
    row = asdict(job)
    del row["seconds_left"]
    row["message"] = dump(job.message)
    row["error"] = job.error and {name: dump(text) for name, text in job.error.items()}
    return row


def job_of(row: Row[Any]) -> Job:
    """The job of a row of the table."""
    job = Job(*tuple(row))
    error = job.error and {name: load(text) for name, text in job.error.items()}
    return replace(job, message=load(job.message), error=error)


def now() -> str:
    """The time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


@dataclass(slots=True)
class JobHandle:
    """What the work of a job gets: it reports progress and asks whether to stop."""

    _tell: Callable[[int, int, str], None]
    _stop: threading.Event = field(default_factory=threading.Event)

    def progress(self, done: int, total: int, message: str) -> None:
        """Reports progress to everybody who watches the job."""
        self._tell(done, total, message)

    def cancelled(self) -> bool:
        """True when the work should raise `Cancelled` at its next safe point."""
        return self._stop.is_set()

    def cancel(self) -> None:
        """Asks the work to stop."""
        self._stop.set()


Work = Callable[[JobHandle], str]
"""Does the work and returns the last message; raises `Cancelled` when asked to stop."""


@dataclass(frozen=True, slots=True)
class Errand:
    """Work that every process over the same books can do.

    Attributes:
        name: as `JobQueue.does` knows it; arguments: as JSON keeps them.
        here: only this process can do it after all, since others do not have its files.
    """

    name: str
    arguments: dict[str, Any]
    here: bool = False


@dataclass(slots=True, eq=False)
class Live:
    """A job of this process that has not ended."""

    job: Job
    handle: JobHandle
    work: Work
    undo: Callable[[], None]
    errand: bool = False
    left: TimeLeft = field(default_factory=TimeLeft)


class JobQueue:
    """The jobs of one server; those of several are a `SharedJobQueue`'s.

    Args:
        folder: the home, for the jobs' file and the lock that tells servers apart.
        side_by_side: how many jobs of the kinds that read books run at once.
    """

    shared = False
    """Whether other processes may do its errands."""
    watched_every_s = 0.1
    """How often it is worth while to look at a job."""

    def __init__(self, folder: Path, side_by_side: int = 2) -> None:
        self._errands: dict[str, tuple[Callable[..., str], Callable[..., None]]] = {}
        self._path = folder / JOBS_FILE
        self._store = JobStore(self._path)
        self._owner = FileLock(folder / OWNER_LOCK)
        self._lock = threading.Lock()
        self._alone = threading.Lock()
        self._live: dict[str, Live] = {}
        self._turns = threading.Condition(self._lock)
        self._waiting: deque[Live] = deque()
        self._running: list[Live] = []
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run_all, name=f"coalesce-jobs-{number}", daemon=True)
            for number in range(max(1, side_by_side))
        ]

    def start(self) -> None:
        """Marks jobs that an earlier server left unfinished as failed, and begins to work."""
        try:
            self._owner.acquire(timeout=0)
        except Timeout:
            logger.info("another server uses this home: its jobs are not touched")
        except OSError as error:
            logger.warning("the home cannot be written (%s): questions are answered, and nothing is kept", error)
        else:
            self._sweep()
        for thread in self._threads:
            thread.start()

    def does(self, name: str, work: Callable[..., str], undo: Callable[..., None] = lambda **_: None) -> None:
        """Says how an errand is done.

        Args:
            work: as `Work`, with the errand's arguments behind the handle; undo: gets the arguments alone.
        """
        self._errands[name] = (work, undo)

    def take_errands(self) -> None:
        """Begins with the errands of all processes, where there are several."""

    def submit(
        self,
        kind: str,
        work: Work | Errand,
        *,
        document_id: str | None = None,
        title: str = "",
        undo: Callable[[], None] = lambda: None,
    ) -> Job:
        """Queues `work` and returns its job; `undo`, of an errand its own, runs when it does not end as `done`."""
        return self._add(new_job(kind, document_id, title), work, undo)

    def submit_alone(self, kind: str, work: Work | Errand, refusal: Callable[[Job], CoalesceError], **more: Any) -> Job:
        """As `submit_or_find`, but raises what `refusal` makes of the job that is found."""
        job, new = self.submit_or_find(kind, work, **more)
        if not new:
            raise refusal(job)
        return job

    def submit_or_find(
        self,
        kind: str,
        work: Work | Errand,
        *,
        about: str | None = None,
        document_id: str | None = None,
        title: str = "",
        undo: Callable[[], None] = lambda: None,
    ) -> tuple[Job, bool]:
        """As `submit`, or an unfinished job of this kind, and whether the job is new: two may ask at once.

        Args:
            about: a book, where there may be one such job for each.
        """
        job = new_job(kind, document_id or about, title)
        kept = self._add(job, work, undo, alone=True, alone_about=about)
        return kept, kept is job

    def _add(
        self,
        job: Job,
        work: Work | Errand,
        undo: Callable[[], None],
        *,
        alone: bool = False,
        alone_about: str | None = None,
    ) -> Job:
        """Queues a job, or gives the unfinished one of its kind that it would have to stand beside."""
        with self._alone:
            if alone and (other := self.unfinished(job.kind, alone_about)) is not None:
                return other
            self._store.save(job)
            self._wait_turn(self._live_of(job, work, undo))
        return job

    def _live_of(self, job: Job, work: Work | Errand, undo: Callable[[], None] = lambda: None) -> Live:
        handle = JobHandle(lambda done, total, message: self._progress(job.id, done, total, message))
        if not isinstance(work, Errand):
            return Live(job, handle, work, undo)
        do, leave = self._errands[work.name]
        return Live(job, handle, partial(do, **work.arguments), partial(leave, **work.arguments), not work.here)

    def _wait_turn(self, live: Live) -> None:
        with self._turns:
            if self._closed:
                live.handle.cancel()
            self._live[live.job.id] = live
            self._waiting.append(live)
            self._turns.notify_all()

    def get(self, job_id: str) -> Job:
        """A job as it is now; raises NotFound."""
        with self._lock:
            live = self._live.get(job_id)
        return live.job if live is not None else self._store.get(job_id)

    def list(self) -> list[Job]:
        """All stored jobs, newest first."""
        stored = self._store.list()
        with self._lock:
            return [self._live[job.id].job if job.id in self._live else job for job in stored]

    def unfinished(self, kind: str, document_id: str | None = None) -> Job | None:
        """The queued or running job of this kind, about one book where it is named; or None."""
        with self._lock:
            jobs = [live.job for live in self._live.values() if live.job.kind == kind and not live.job.final]
        return next((job for job in jobs if document_id in (None, job.document_id)), None)

    def cancel(self, job_id: str) -> Job:
        """Stops a job: at once while it waits, else at its next safe point. A second call changes nothing.

        Raises:
            NotFound: no job has this id.
            Conflict: it has ended otherwise, or another server of the home does it.
        """
        with self._lock:
            live = self._live.get(job_id)
            dropped = live is not None and live in self._waiting
            if live is not None:
                live.handle.cancel()
                if dropped:
                    self._waiting.remove(live)
                    self._turns.notify_all()  # the next may have waited for this one alone
        if live is not None and dropped:
            ended = live.job.changed(state="cancelled", message="cancelled before it began")
            self._end(ended)
            return ended
        job = self.get(job_id)
        if live is None and not job.final:
            raise Conflict(msg("job {} is another server's", job_id), hint="Cancel it there.")
        if job.final and job.state != "cancelled":
            raise Conflict(msg("job {} is {} already", job_id, job.state), hint="Cancel queued and running jobs only.")
        return job

    def forget(self, job_id: str) -> None:
        """Forgets a failed job that was read, and those of its kind that failed before it. Raises NotFound."""
        self._store.forget(self._store.get(job_id))

    def forget_before(self, moment: datetime) -> None:
        """Forgets the jobs that ended before a moment."""
        self._store.forget_before(moment)

    def stop(self) -> None:
        """Begins no job more, and stops those that run at their next safe point."""
        with self._turns:
            self._closed = True
            for live in self._live.values():
                live.handle.cancel()
            self._turns.notify_all()

    def close(self) -> None:
        """Stops the jobs, waits for their threads, and lets the file go."""
        self.stop()
        self._await_threads()
        self._store.close()
        self._owner.release()

    def _await_threads(self) -> None:
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _sweep(self) -> None:
        try:
            jobs = self._store.list()
        except IndexCorrupt:
            if damage(self._path, JOBS) is None:
                raise  # a later program's
            self._store.close()
            logger.warning("%s was damaged: it is %s now", self._path, set_aside(self._path).name)
            return
        for job in jobs:
            if not job.final:
                self._store.save(job.changed(state="failed", **INTERRUPTED))

    def _run_all(self) -> None:
        while (live := self._next()) is not None:
            try:
                self._end(self._run(live))
            finally:
                with self._turns:
                    self._running.remove(live)
                    self._turns.notify_all()

    def _next(self) -> Live | None:
        """The next job once it may run, as running; None when the queue is closed and every job has ended."""
        with self._turns:
            while True:
                if self._closed and not self._waiting:
                    return None
                if self._waiting and self._may_run(self._waiting[0]):
                    return self._begin(self._waiting.popleft())
                self._turns.wait()

    def _begin(self, live: Live) -> Live:
        live.job = live.job.changed(state="running", message="started")
        self._running.append(live)
        return live

    def _may_run(self, live: Live) -> bool:
        return SIDE_BY_SIDE.issuperset(other.job.kind for other in (live, *self._running)) or not self._running

    def _run(self, live: Live) -> Job:
        try:
            if live.handle.cancelled():
                raise Cancelled("cancelled before it began")
            message = live.work(live.handle)
        except Cancelled as stopped:
            if self._closed:
                return live.job.changed(state="failed", **INTERRUPTED)
            return live.job.changed(state="cancelled", message=stopped.message)
        except Exception as error:  # a failed job must not stop the queue; it keeps its error
            reply = describe(error)
            if reply.status == 500:
                logger.error("job %s (%s) failed", live.job.id, live.job.kind, exc_info=error)
            error_texts = {"type": reply.type, "message": reply.message, "hint": reply.hint}
            return live.job.changed(state="failed", message=reply.message, error=error_texts)
        total = max(live.job.total, 1)
        return live.job.changed(state="done", done=total, total=total, message=message)

    def _progress(self, job_id: str, done: int, total: int, message: str) -> None:
        with self._lock:
            live = self._live.get(job_id)
            if live is not None and not live.job.final:
                left = live.left.seconds_left(message, done, total)
                live.job = live.job.changed(done=done, total=total, message=message, seconds_left=left)

    def _end(self, job: Job) -> None:
        with self._lock:
            live = self._live[job.id]
        self._undo(live, job)
        with self._lock:
            live.job = job
        try:
            self._store.save(job)
        except CoalesceError:
            logger.exception("the result of job %s could not be stored; it is lost when the server stops", job.id)
            return
        with self._lock:
            del self._live[job.id]

    def _undo(self, live: Live, job: Job) -> None:
        """Removes what a job left, before anyone sees it ended: the same content may be sent again at once."""
        if job.state != "done":
            try:
                live.undo()
            except Exception:  # the jobs behind it must not wait for ever
                logger.exception("what job %s left behind could not be removed", job.id)


def new_job(kind: str, document_id: str | None, title: str) -> Job:
    """A job that waits."""
    time = now()
    return Job(uuid.uuid4().hex, kind, "queued", 0, 0, "waiting", None, document_id, time, time, title)
