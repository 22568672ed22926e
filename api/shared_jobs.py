"""Jobs that the servers and workers of one database share: each is held by one of them, by a lease that it renews.

A lease that runs out, because its holder died or hangs, lets another take the job, from its last whole step: a book
that was stored stays stored. All times are the database's. Takers lock one row, and pass over those that are locked.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy import delete, insert, select, update

from api.jobs import (
    FINAL_STATES,
    INTERRUPTED,
    SIDE_BY_SIDE,
    STOP_TIMEOUT_S,
    Errand,
    Job,
    JobQueue,
    JobStore,
    Live,
    Work,
    job_of,
    jobs_table,
    row_of,
    save_job,
)
from api.server_state import NOW, SERVERS, leases
from indexes.errors import CoalesceError
from indexes.postgres import PostgresDatabase

logger = logging.getLogger("coalesce.jobs")
LEASE_S = 15.0
"""How long a holder that is not heard of keeps its jobs."""
BEAT_S = 1.0
"""How often it is heard of."""
TAKE_EVERY_S = 0.5
"""How often an idle process looks for a job."""
MOST_TAKERS = 3
"""A job whose takers all died is not given to more: it may be what kills them."""

GIVEN_BACK = ("interrupted", "database_unavailable")
"""Ends that are none for an errand: whoever takes it next goes on."""

_FREE = leases.c.until < NOW


@dataclass(frozen=True, slots=True)
class Held:
    """A job that was taken.

    Attributes:
        errand: what is to be done; None where only a process that has ended could.
        asked_to_stop: before it was taken.
        takers: how many have taken it, this one too.
    """

    job: Job
    errand: Errand | None
    asked_to_stop: bool
    takers: int


class SharedJobs(JobStore):
    """The jobs of a database, for one holder of leases. Raises as `PostgresDatabase.open`.

    Args:
        url: of the database.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._servers = PostgresDatabase(url, SERVERS)
        self._me = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"

    def add(self, job: Job, errand: Errand | None, *, alone_about: str | None = None, alone: bool = False) -> Job:
        """Queues a job, held here from the start where it has no errand. Gives it, or the one that it would stand by.

        Args:
            alone: only where no job of its kind is unfinished, or about `alone_about`.
        """
        self._servers.open()
        with self._database.writing() as connection:  # one writer at a time: nobody queues another meanwhile
            if alone:
                unfinished = _unfinished(job.kind, alone_about)
                if (other := connection.execute(unfinished).first()) is not None:
                    return job_of(other)
            save_job(connection, job)
            lease = {"job_id": job.id, "kind": job.kind, "created_at": job.created_at}
            values = (
                {"until": 0.0, "takers": 0} if errand else {"until": NOW + LEASE_S, "takers": 1, "holder": self._me}
            )
            stored = {"errand": [errand.name, errand.arguments]} if errand else {}
            connection.execute(insert(leases).values(lease | values | stored))
        return job

    def get(self, job_id: str) -> Job:
        """One job, as its holder told of it last. Raises NotFound."""
        job = super().get(job_id)
        if job.state != "running":
            return job
        self._servers.open()
        with self._servers.connected() as connection:
            left = connection.scalar(select(leases.c.seconds_left).where(leases.c.job_id == job_id))
        return replace(job, seconds_left=left)

    def take(
        self, kinds: Iterable[str] | None, besides: Iterable[str] = (), *, only_waiting: bool = False
    ) -> Held | None:
        """The oldest job that nobody holds, held from now on; None where there is none, or it is not of these kinds.

        Args:
            besides: jobs that this process is at, if it still is after their leases ran out.
            only_waiting: none whose lease ran out.
        """
        free = (leases.c.until == 0.0 if only_waiting else _FREE) & leases.c.job_id.not_in(list(besides))
        oldest = select(leases.c.job_id).where(free).order_by(leases.c.created_at, leases.c.job_id).limit(1)
        wanted = leases.c.job_id == oldest.with_for_update(skip_locked=True).scalar_subquery()
        return self._take(wanted if kinds is None else wanted & leases.c.kind.in_(list(kinds)))

    def take_waiting(self, job_id: str) -> Held | None:
        """A job that nobody holds, held from now on; None where it is held, or unknown."""
        return self._take((leases.c.job_id == job_id) & _FREE)

    def ask_to_stop(self, job_id: str) -> bool:
        """Lets whoever holds a job know that it should stop; False where nobody does it any more."""
        self._servers.open()
        with self._servers.connected() as connection:
            asked = update(leases).where(leases.c.job_id == job_id).values(asked_to_stop=1)
            return bool(connection.execute(asked).rowcount)

    def renew(self, jobs: Iterable[Job]) -> dict[str, bool]:
        """Renews the leases of jobs, and tells how they are; of those still held here, whether they should stop."""
        held = {}
        for job in jobs:
            with self._servers.connected() as connection:
                mine = (leases.c.job_id == job.id) & (leases.c.holder == self._me)
                renewed = update(leases).where(mine).values(until=NOW + LEASE_S, seconds_left=job.seconds_left)
                found = connection.execute(renewed.returning(leases.c.asked_to_stop)).first()
                if found is None:
                    continue
                held[job.id] = bool(found[0])
                going_on = (jobs_table.c.id == job.id) & jobs_table.c.state.not_in(FINAL_STATES)
                if not job.final:  # and its end is not kept at this moment
                    connection.execute(update(jobs_table).where(going_on).values(row_of(job)))
        return held

    def give_back(self, job: Job) -> None:
        """Lets another take a job that is held here; it did not die of it."""
        mine = (leases.c.job_id == job.id) & (leases.c.holder == self._me)
        free = {"until": 0.0, "holder": None, "takers": leases.c.takers - 1, "seconds_left": None}
        with self._servers.writing() as connection:
            if connection.execute(update(leases).where(mine).values(free)).rowcount:
                connection.execute(update(jobs_table).where(jobs_table.c.id == job.id).values(row_of(job)))

    def end(self, job: Job) -> None:
        """Keeps the end of a job, unless another holds it by now."""
        mine = (leases.c.job_id == job.id) & (leases.c.holder == self._me)
        with self._database.writing() as connection:
            if connection.execute(delete(leases).where(mine)).rowcount:
                save_job(connection, job)

    def unfinished(self, kind: str, document_id: str | None) -> Job | None:
        """A queued or running job of a kind, about a book where it is named."""
        with self._database.reading() as connection:
            found = connection.execute(_unfinished(kind, document_id)).first()
        return None if found is None else job_of(found)

    def lost(self) -> list[Job]:
        """Jobs without an end that nobody can take: those of a home that was moved here."""
        self._servers.open()
        held = select(leases.c.job_id)
        nobody = jobs_table.c.state.not_in(FINAL_STATES) & jobs_table.c.id.not_in(held)
        with self._database.reading() as connection:
            return [job_of(row) for row in connection.execute(select(jobs_table).where(nobody))]

    def _take(self, wanted: Any) -> Held | None:
        self._servers.open()
        values = {"holder": self._me, "until": NOW + LEASE_S, "takers": leases.c.takers + 1}
        taken = update(leases).where(wanted).values(values)
        with self._servers.connected() as connection:
            lease = connection.execute(taken.returning(leases)).first()
        if lease is None:
            return None
        errand = None if lease.errand is None else Errand(*lease.errand)
        return Held(self.get(lease.job_id), errand, bool(lease.asked_to_stop), lease.takers)


def _unfinished(kind: str, document_id: str | None) -> Any:
    found = select(jobs_table).where(jobs_table.c.kind == kind, jobs_table.c.state.not_in(FINAL_STATES))
    return found if document_id is None else found.where(jobs_table.c.document_id == document_id)


class SharedJobQueue(JobQueue):
    """The jobs of all servers and workers of a database, of which this process does those that it takes, and its own.

    Args:
        folder, side_by_side: as for `JobQueue`.
        url: of the database.
    """

    shared = True
    watched_every_s = 0.5

    def __init__(self, folder: Path, url: str, side_by_side: int = 2) -> None:
        super().__init__(folder, side_by_side)
        self._store: SharedJobs = SharedJobs(url)
        self._taking = threading.Lock()
        self._takes = False
        self._asked_to_stop: set[str] = set()
        self._unkept: dict[str, Job] = {}
        self._away = False
        self._over = threading.Event()
        self._away_at = time.monotonic()  # the database, from here; who holds a job could not tell it so either
        self._beats = threading.Thread(target=self._beat, name="coalesce-jobs-leases", daemon=True)

    def start(self) -> None:
        """Begins to work on this process's own jobs; see `take_errands`. Raises DatabaseUnavailable."""
        for job in self._store.lost():
            self._store.save(job.changed(state="failed", **INTERRUPTED))
        for thread in (*self._threads, self._beats):
            thread.start()

    def take_errands(self) -> None:
        """Begins to take errands: the books are there."""
        with self._turns:
            self._takes = True
            self._turns.notify_all()

    def unfinished(self, kind: str, document_id: str | None = None) -> Job | None:
        """As `JobQueue.unfinished`, of all processes."""
        return self._store.unfinished(kind, document_id)

    def cancel(self, job_id: str) -> Job:
        """As `JobQueue.cancel`, wherever it is done."""
        with self._lock:
            if here := job_id in self._live:
                self._asked_to_stop.add(job_id)
        if here:
            return super().cancel(job_id)
        if (held := self._store.take_waiting(job_id)) is not None:
            live = self._hold(held)
            self._end(live.job.changed(state="cancelled", message="cancelled before it began"))
            return self.get(job_id)
        if self._store.ask_to_stop(job_id):
            return self.get(job_id)
        return super().cancel(job_id)

    def finish(self, most_s: float) -> None:
        """Takes no more, and waits until what runs has ended. `stop` and `close` give back what has not."""
        with self._turns:
            self._takes = False
            self._turns.notify_all()
            self._turns.wait_for(lambda: not self._running, most_s)

    def _await_threads(self) -> None:
        super()._await_threads()
        self._over.set()  # until now their leases are renewed
        if self._beats.is_alive():
            self._beats.join(STOP_TIMEOUT_S)

    def _add(
        self,
        job: Job,
        work: Work | Errand,
        undo: Callable[[], None],
        *,
        alone: bool = False,
        alone_about: str | None = None,
    ) -> Job:
        errand = work if isinstance(work, Errand) and not work.here else None
        kept = self._store.add(job, errand, alone=alone, alone_about=alone_about)
        if kept is job and errand is None:
            self._wait_turn(self._live_of(job, work, undo))
        elif kept is job:
            with self._turns:
                self._turns.notify_all()
        return kept

    def _next(self) -> Live | None:
        with self._taking:  # one thread looks at a time, so that what may run beside what is known
            while True:
                with self._turns:
                    if self._waiting and self._may_run(self._waiting[0]):
                        return self._begin(self._waiting.popleft())
                    if self._closed and not self._waiting:
                        return None
                    kinds = SIDE_BY_SIDE if self._running else None
                    if (
                        not self._takes
                        or self._closed
                        or self._waiting  # which errands that follow each other would keep from its turn
                        or not SIDE_BY_SIDE.issuperset(o.job.kind for o in self._running)
                    ):
                        self._turns.wait()
                        continue
                if (live := self._take(kinds)) is not None:
                    return live
                with self._turns:
                    if not self._waiting and not self._closed:
                        self._turns.wait(TAKE_EVERY_S)

    def _take(self, kinds: Iterable[str] | None) -> Live | None:
        with self._lock:
            here = [*self._live]
        try:
            held = self._store.take(kinds, here, only_waiting=time.monotonic() - self._away_at < LEASE_S)
        except Exception as error:  # noqa: BLE001  whatever a driver raises: without this thread no job is taken
            self._is_away(error)
            return None
        self._away = False
        if held is None:
            return None
        live = self._hold(held)
        if held.errand is None or held.takers > MOST_TAKERS:
            self._end(live.job.changed(state="failed", **INTERRUPTED))
            return None
        if held.asked_to_stop:
            self._asked_to_stop.add(live.job.id)
            live.handle.cancel()
        with self._turns:
            return self._begin(live)

    def _hold(self, held: Held) -> Live:
        live = self._live_of(held.job.changed(done=0, total=0), held.errand or (lambda _: ""))
        with self._lock:
            self._live[held.job.id] = live
        return live

    def _run(self, live: Live) -> Job:
        ended = super()._run(live)
        if live.errand and live.job.id not in self._asked_to_stop and (ended.error or {}).get("type") in GIVEN_BACK:
            return ended.changed(state="queued", done=0, total=0, message="waiting", error=None)
        return ended

    def _end(self, job: Job) -> None:
        """Keeps the end of a job, or gives it back; without the database that waits for the next beat."""
        with self._lock:
            live = self._live[job.id]
        try:
            if self._store.renew([job]):  # else another does it by now, and nothing here is to be undone
                if job.final:
                    self._undo(live, job)
                    self._store.end(job)
                else:
                    self._store.give_back(job)
        except CoalesceError as error:
            self._is_away(error)
            with self._lock:
                live.job = self._unkept[job.id] = job
            return
        with self._lock:
            self._away = False
            self._unkept.pop(job.id, None)
            self._live.pop(job.id, None)
            self._asked_to_stop.discard(job.id)

    def _is_away(self, error: Exception) -> None:
        if not self._away:
            logger.warning("jobs wait: %s", error)
        self._away, self._away_at = True, time.monotonic()

    def _beat(self) -> None:
        """Renews this process's leases each second, reports its jobs, and stops those that somebody cancelled."""
        while not self._over.wait(BEAT_S):
            with self._lock:
                ended = [*self._unkept.values()]
                lives = [live for live in self._live.values() if live.job.id not in self._unkept]
            try:
                held = self._store.renew(live.job for live in lives)
            except Exception as error:  # noqa: BLE001  whatever a driver raises: without this thread every lease runs out
                self._is_away(error)
                continue
            for job in ended:
                self._end(job)
            for live in lives:
                if live.job.id not in held:
                    live.handle.cancel()  # another does it by now
                elif held[live.job.id]:
                    with suppress(CoalesceError):
                        self.cancel(live.job.id)
