"""The job queue: what it does when a job's end cannot be kept, and how long work will still take."""

from __future__ import annotations

import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from api_fakes import PATIENCE_S, wait_until

from api.jobs import Job, JobQueue, JobStore, TimeLeft
from indexes.errors import Conflict, IndexCorrupt, StorageFull
from indexes.messages import msg


def wait_for(queue: JobQueue, job: Job) -> Job:
    wait_until(lambda: queue.get(job.id).final, "the job ends")
    return queue.get(job.id)


def test_a_job_whose_end_cannot_be_kept_ends_and_the_queue_goes_on(tmp_path, monkeypatch):
    queue = JobQueue(tmp_path)
    queue.start()
    save = JobStore.save

    def full_once(store: JobStore, job: Job) -> None:
        if job.kind == "first" and job.final:
            raise StorageFull("the disk is full")
        save(store, job)

    monkeypatch.setattr(JobStore, "save", full_once)
    first, second = (queue.submit(kind, lambda _: "finished") for kind in ("first", "second"))
    assert wait_for(queue, first).state == "done"
    assert wait_for(queue, second).state == "done"
    queue.close()


def test_jobs_are_kept_as_they_are_now_and_forgotten_when_asked(store_place: Path | str) -> None:
    store = JobStore(store_place)
    error = {"type": "busy", "message": msg("the {} is busy", "queue"), "hint": ""}
    for number in range(4):
        time = f"2026-01-0{number + 1}T00:00:00.000000+00:00"
        job = Job(f"j{number}", "add", "running", 0, 9, msg("page {}", 3), None, None, time, time)
        store.save(job)
        store.save(replace(job, state="failed" if number else "done", done=9, error=error))
    kept = JobStore(store_place)
    assert [(job.id, job.done, job.message, job.error) for job in kept.list()] == [
        (f"j{number}", 9, "page 3", error) for number in (3, 2, 1, 0)
    ]
    kept.forget(kept.get("j2"))
    assert [job.id for job in store.list()] == ["j3", "j0"]
    kept.forget_before(datetime(2026, 1, 2, tzinfo=UTC))
    assert [job.id for job in store.list()] == ["j3"]


def test_a_damaged_list_of_jobs_is_set_aside_and_one_of_a_later_version_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite3"
    path.write_bytes(b"garbage " * 1000)
    queue = JobQueue(tmp_path)
    queue.start()
    assert wait_for(queue, queue.submit("first", lambda _: "finished")).state == "done"
    queue.close()
    assert [kept.read_bytes()[:7] for kept in tmp_path.glob("jobs.sqlite3.damaged-*")] == [b"garbage"]
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = 'jobs_99'")
    with pytest.raises(IndexCorrupt, match="jobs_99"):
        JobQueue(tmp_path).start()
    assert path.exists()


def test_a_job_whose_traces_cannot_be_removed_ends_and_the_queue_goes_on(tmp_path: Path) -> None:
    queue = JobQueue(tmp_path)
    queue.start()

    def fail(*_: object) -> str:
        raise RuntimeError("no")

    first = queue.submit("first", fail, undo=fail)
    assert wait_for(queue, first).state == "failed"
    assert wait_for(queue, queue.submit("second", lambda _: "finished")).state == "done"
    queue.close()


def test_two_jobs_that_read_books_run_at_once_and_any_other_alone(tmp_path: Path) -> None:
    queue, go_on, lock = JobQueue(tmp_path, side_by_side=2), threading.Event(), threading.Lock()
    running: list[str] = []
    seen: list[list[str]] = []

    def work(kind: str) -> str:
        with lock:
            running.append(kind)
            seen.append(sorted(running))
        go_on.wait(PATIENCE_S)
        with lock:
            running.remove(kind)
        return ""

    kinds = ("add", "renew", "add", "compare", "tune", "add")
    jobs = [queue.submit(kind, lambda _, kind=kind: work(kind)) for kind in kinds]
    queue.start()
    wait_until(lambda: len(seen) == 2, "two run")
    time.sleep(0.1)  # time for a third to begin
    assert [queue.get(job.id).state for job in jobs] == ["running"] * 2 + ["queued"] * 4
    go_on.set()
    assert [wait_for(queue, job).state for job in jobs] == ["done"] * 6
    assert all(len(together) == 1 for together in seen if {"compare", "tune"} & set(together))
    assert max(map(len, seen)) == 2
    queue.close()


def test_a_waiting_job_that_is_cancelled_leaves_nothing_once_it_is_seen_ended_and_holds_up_no_other(tmp_path) -> None:
    queue, go_on = JobQueue(tmp_path, side_by_side=2), threading.Event()
    seen: list[str] = []
    first = queue.submit("add", lambda _: str(go_on.wait(PATIENCE_S)))
    alone = queue.submit("compare", lambda _: "", undo=lambda: seen.append(queue.get(alone.id).state))
    behind = queue.submit("add", lambda _: "")
    queue.start()
    wait_until(lambda: queue.get(first.id).state == "running", "the first runs")
    assert (queue.cancel(alone.id).state, queue.cancel(alone.id).state, seen) == ("cancelled", "cancelled", ["queued"])
    assert (wait_for(queue, behind).state, queue.get(first.id).state) == ("done", "running")
    go_on.set()
    queue.close()


def test_a_job_of_another_server_of_the_home_is_cancelled_there_alone(tmp_path: Path) -> None:
    one, other = JobQueue(tmp_path), JobQueue(tmp_path)
    job = one.submit("add", lambda _: "finished")
    with pytest.raises(Conflict, match="another server"):
        other.cancel(job.id)
    assert one.cancel(job.id).state == "cancelled" == other.cancel(job.id).state
    one.close()
    other.close()


def test_of_jobs_that_stand_alone_only_one_is_queued_however_many_ask_at_once(tmp_path: Path) -> None:
    queue = JobQueue(tmp_path)

    def ask(_: int) -> str:
        try:
            return queue.submit_alone("alone", lambda _: "", lambda job: Conflict(job.id)).id
        except Conflict as refused:
            return str(refused)

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(ask, range(32)))) == 1
    assert [job.kind for job in queue.list()] == ["alone"]
    queue.close()


def test_time_left_follows_the_speed_of_each_stage_and_is_not_told_too_early() -> None:
    now = 100.0
    left = TimeLeft(lambda: now)
    for later_s, stage, done, total, expected in (
        (0, "reading", 0, 10, None),
        (4, "reading", 2, 10, 16.0),  # two seconds a step, eight steps to go
        (0, "embedding", 0, 100, None),
        (1, "embedding", 50, 100, None),
        (9, "embedding", 100, 100, 0.0),
        (0, "embedding", 0, 5, None),  # the stage of the next book
        (3, "embedding", 1, 5, 12.0),
        (0, "fetching", 0, 1000, None),
        (9, "fetching", 9, 1000, None),  # less than a hundredth tells nothing
        (1, "fetching", 10, 1000, 990.0),
    ):
        now += later_s
        assert left.seconds_left(stage, done, total) == expected
