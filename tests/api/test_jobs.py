"""The job queue: what it does when a job's end cannot be kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from api_fakes import wait_until

from api.job_store import Job, JobStore
from api.jobs import JobQueue
from indexes.errors import StorageFull


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
