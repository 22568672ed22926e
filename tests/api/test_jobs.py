"""The job queue: what it does when a job's end cannot be kept."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from api_fakes import wait_until

from api.job_store import Job, JobStore
from api.jobs import JobQueue
from indexes.errors import Conflict, StorageFull


def wait_for(queue: JobQueue, job: Job) -> Job:
    wait_until(lambda: queue.get(job.id).final, "the job ends")
    return queue.get(job.id)


def test_a_job_whose_end_cannot_be_kept_ends_and_the_queue_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_job_whose_traces_cannot_be_removed_ends_and_the_queue_goes_on(tmp_path: Path) -> None:
    queue = JobQueue(tmp_path)
    queue.start()

    def fail(*_: object) -> str:
        raise RuntimeError("no")

    first = queue.submit("first", fail, undo=fail)
    assert wait_for(queue, first).state == "failed"
    assert wait_for(queue, queue.submit("second", lambda _: "finished")).state == "done"
    queue.close()


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
