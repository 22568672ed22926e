"""Jobs of servers and workers over one database: done once, watched and stopped anywhere, outliving their holder."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from api_fakes import PATIENCE_S, wait_until

from api import shared_jobs
from api.jobs import Errand, Job, JobHandle
from api.shared_jobs import SharedJobQueue, SharedJobs
from indexes.errors import Cancelled, Conflict, DatabaseUnavailable
from indexes.postgres import PostgresDatabase

pytestmark = pytest.mark.integration
New = Callable[..., SharedJobQueue]


class Work:
    """What the processes of a test do: it holds until `go_on`, and notes what it did and what was undone."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.begun: list[str] = []
        self.done: list[str] = []
        self.undone: list[str] = []

    def hold(self, handle: JobHandle, name: str) -> str:
        handle.progress(3, 9, "reading")
        self.begun.append(name)
        while not self.go_on.wait(0.01):
            if handle.cancelled():
                raise Cancelled("stopped")
        self.done.append(name)
        return f"{name} is done"

    def undo(self, name: str) -> None:
        self.undone.append(name)


@pytest.fixture
def new(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[New]:
    """Makes a process of the database: it has a queue, which takes jobs unless told otherwise."""
    for name, seconds in {"LEASE_S": 2.0, "BEAT_S": 0.05, "TAKE_EVERY_S": 0.02}.items():
        monkeypatch.setattr(shared_jobs, name, seconds)
    monkeypatch.setattr(SharedJobs, "close", lambda _: None)  # all share the connections of an address
    with ExitStack() as queues:

        def make(work: Work, *, takes: bool = True) -> SharedJobQueue:
            queue = SharedJobQueue(tmp_path, database_url)
            queue.does("hold", work.hold, work.undo)
            queue.start()
            if takes:
                queue.take_errands()
            queues.enter_context(closing(queue))
            return queue

        yield make


def held(queue: SharedJobQueue, name: str = "a", kind: str = "add") -> Job:
    return queue.submit(kind, Errand("hold", {"name": name}), title=name)


def ended(queue: SharedJobQueue, job: Job) -> Job:
    wait_until(lambda: queue.get(job.id).final, "the job ends")
    return queue.get(job.id)


def kill(queue: SharedJobQueue) -> None:
    """It is not heard of any more, and hears nothing."""
    queue._takes = False
    queue._over.set()


def test_every_job_is_done_once_however_many_take_and_nowhere_where_nobody_takes(new: New) -> None:
    work = Work()
    work.go_on.set()
    server = new(work, takes=False)
    jobs = [held(server, str(number), kind="add" if number % 3 else "compare") for number in range(30)]
    assert {job.state for job in server.list()} == {"queued"}
    workers = [new(work) for _ in range(4)]
    assert {ended(server, job).state for job in jobs} == {"done"}
    assert sorted(work.done, key=int) == [str(number) for number in range(30)] and not work.undone
    assert [job.message for job in workers[0].list()] == [f"{number} is done" for number in reversed(range(30))]


def test_a_job_is_watched_and_stopped_through_any_server(new: New) -> None:
    work = Work()
    server, worker = new(work, takes=False), new(work)
    job = held(server)
    wait_until(lambda: server.get(job.id).done == 3, "progress is seen at the server")
    assert (server.get(job.id).state, server.get(job.id).message) == ("running", "reading")
    assert server.unfinished("add") and server.cancel(job.id).state == "running"
    assert (ended(worker, job).state, work.undone) == ("cancelled", ["a"])
    assert server.cancel(job.id).state == "cancelled"  # a second time changes nothing
    worker.close()
    waiting = held(server, "b")
    assert (server.cancel(waiting.id).state, work.undone, work.done) == ("cancelled", ["a", "b"], [])
    assert server.unfinished("add") is None


def test_a_lease_that_ran_out_while_no_process_had_the_database_is_still_its_holders(
    new: New, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, others = Work(), Work()
    holder = new(work)
    job = held(holder)
    wait_until(lambda: work.begun == ["a"], "the job is begun")
    taker = new(others)
    with monkeypatch.context() as away:

        def is_away(_: object) -> Iterator[None]:
            raise DatabaseUnavailable("away")

        away.setattr(PostgresDatabase, "connected", is_away)
        time.sleep(2.2)  # longer than a lease
    time.sleep(0.3)
    work.go_on.set()
    assert (ended(taker, job).state, others.begun) == ("done", [])


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_job_whose_holder_ends_goes_on_elsewhere_and_nothing_of_it_is_undone(how: str, new: New) -> None:
    first, second = Work(), Work()
    second.go_on.set()
    worker = new(first)
    job = held(worker)
    wait_until(lambda: first.begun == ["a"], "it is begun")
    if how == "killed":
        kill(worker)
    else:
        worker.close()
    other = new(second)
    assert (ended(other, job).state, second.done) == ("done", ["a"])
    if how == "killed":
        first.go_on.set()
        wait_until(lambda: first.done == ["a"], "the one that hung goes on, too late")
        worker.close()
    assert ended(other, job).state == "done" and (first.undone, second.undone) == ([], [])


def test_a_job_goes_on_when_the_database_is_back(new: New, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work()
    worker = new(work)
    renew, away, asked = SharedJobs.renew, threading.Event(), threading.Event()

    def renew_unless_away(store: SharedJobs, jobs: Iterable[Job]) -> dict[str, bool]:
        if away.is_set():
            asked.set()
            raise DatabaseUnavailable("it does not answer", hint="")
        return renew(store, jobs)

    def away_once(handle: JobHandle) -> str:
        if asked.is_set():
            return "stored"
        away.set()
        raise DatabaseUnavailable("it does not answer", hint="")

    monkeypatch.setattr(SharedJobs, "renew", renew_unless_away)
    worker.does("away", away_once)
    job = worker.submit("add", Errand("away", {}))
    assert asked.wait(PATIENCE_S)
    away.clear()
    assert ended(worker, job).message == "stored"


def test_a_job_that_ends_each_of_its_takers_and_one_that_only_a_dead_server_could_do_fail(
    new: New, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_jobs, "LEASE_S", 0.2)
    work = Work()
    server = new(work, takes=False)
    own = server.submit("add", lambda handle: work.hold(handle, "own"))
    wait_until(lambda: work.begun == ["own"], "it is begun")
    kill(server)
    job = held(server, "poison")
    for number in range(1, shared_jobs.MOST_TAKERS + 1):
        worker = new(work)
        wait_until(lambda number=number: work.begun.count("poison") == number, "it is taken")
        kill(worker)
    server = new(work)
    for one in (job, own):
        assert ended(server, one).error["type"] == "interrupted"
    assert work.undone == ["poison"]
    work.go_on.set()


def test_work_of_one_process_waits_for_no_errand_that_came_later(new: New) -> None:
    work = Work()
    server = new(work, takes=False)
    server.submit("add", lambda handle: work.hold(handle, "a"))
    wait_until(lambda: work.begun == ["a"], "it is begun")
    own = server.submit("report", lambda handle: work.hold(handle, "own"))
    errand = held(server, "b")
    server.take_errands()
    time.sleep(0.2)  # enough to take it
    work.go_on.set()
    assert {ended(server, job).state for job in (own, errand)} == {"done"}
    assert work.done == ["a", "own", "b"]


def test_of_jobs_that_stand_alone_one_is_queued_among_all_servers(new: New) -> None:
    work = Work()
    servers = [new(work, takes=False) for _ in range(2)]
    arguments: Any = ("questions", Errand("hold", {"name": "a"}), lambda other: Conflict(other.id))
    first = servers[0].submit_alone(*arguments, about="book")
    with pytest.raises(Conflict, match=first.id):
        servers[1].submit_alone(*arguments, about="book")
    assert servers[1].submit_alone(*arguments, about="another").document_id == "another"
