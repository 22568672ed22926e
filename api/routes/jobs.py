"""`GET/DELETE /v1/jobs/{id}` and its live progress as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict

from fastapi import APIRouter, Response

from api.deps import CallerDep, JobsDep
from api.job_store import Job
from api.jobs import JobQueue
from api.schemas.base import error_responses
from api.schemas.jobs import JobOut, JobsOut
from api.streaming import EventStreamResponse, sse

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
POLL_S = 0.1
"""How often a watched job is looked at: quicker than anyone can read, and nothing beside the work itself."""


@router.get("")
def list_jobs(jobs: JobsDep) -> JobsOut:
    """The jobs that are kept, the newest first."""
    return JobsOut(jobs=[_out(job) for job in jobs.list()])


@router.get("/{job_id}", responses=error_responses(404))
def get_job(job_id: str, jobs: JobsDep) -> JobOut:
    """One job as it is now."""
    return _out(jobs.get(job_id))


@router.delete("/{job_id}", responses=error_responses(403, 404, 409))
def cancel_job(job_id: str, jobs: JobsDep, caller: CallerDep) -> JobOut:
    """Cancels a queued or running job; a running one stops at its next safe point."""
    caller.need_open_key("cancel jobs")
    return _out(jobs.cancel(job_id))


@router.get("/{job_id}/events", response_class=Response, responses=error_responses(404))
async def watch_job(job_id: str, jobs: JobsDep) -> Response:
    """`progress` for every change and `done` when the job has come to its end, each with the whole job."""
    first = await asyncio.to_thread(jobs.get, job_id)
    return EventStreamResponse(_watched(first, jobs))


async def _watched(job: Job, jobs: JobQueue) -> AsyncIterator[bytes]:
    while not job.final:
        yield sse(_out(job).model_dump(mode="json"), "progress")
        seen = job
        while job == seen:
            await asyncio.sleep(POLL_S)
            job = await asyncio.to_thread(jobs.get, job.id)
    yield sse(_out(job).model_dump(mode="json"), "done")


def _out(job: Job) -> JobOut:
    return JobOut(**asdict(job))
