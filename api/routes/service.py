"""The running server: whether it is ready, its metrics, who calls, jobs and the generator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from sse_starlette import ServerSentEvent

from api.chosen_generator import GeneratorChoice
from api.deps import CallerDep, ServicesDep
from api.errors import NoKey, NotReady, describe, parts_beside
from api.generator import Generators
from api.jobs import Job, JobQueue
from api.paging import USUAL_LIMIT, Cursor, Limit, page_of
from api.schemas.answers import GeneratorIn
from api.schemas.base import JobStartedOut, SessionOut, SignInIn, error_responses
from api.schemas.books import JobOut, JobsOut
from api.security import COOKIE, Caller, address_of, cookie_value
from api.settings import CoalesceSettings
from api.streaming import event_stream, sse

router = APIRouter(tags=["service"])
"""Open to all, as far as `api.security` leaves them so."""
api_router = APIRouter(prefix="/v1", tags=["service"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/readyz", responses=error_responses(503))
def readyz(services: ServicesDep) -> Response:
    """200 with what runs, or 503 with the step that it waits for."""
    try:
        return JSONResponse(services.runtime_info())
    except NotReady as error:
        reply = describe(error)
        preparation = services.preparation
        waiting = {
            "status": "failed" if preparation.error else "starting",
            "answering": preparation.answering,
            "waiting_for": preparation.step,
            "done": preparation.done,
            "total": preparation.total,
        }
        return JSONResponse(reply.body | waiting, reply.status, headers=reply.headers)


@router.get("/metrics", response_class=PlainTextResponse)
def read_metrics(services: ServicesDep) -> Response:
    """Counters, histograms and gauges of this server."""
    return Response(services.metrics.text(), media_type=CONTENT_TYPE_LATEST)


@api_router.get("/session", responses=error_responses(401))
def get_session(services: ServicesDep, caller: CallerDep) -> SessionOut:
    """Who the caller is."""
    return _session(caller, services.settings)


@api_router.post("/session", responses=error_responses(401, 422, 429))
def sign_in(body: SignInIn, request: Request, response: Response, services: ServicesDep) -> SessionOut:
    """Lets a browser in: sets a cookie for a known key."""
    key = body.key.strip()
    caller = services.guesses.caller(key.encode(), address_of(request.scope))
    if caller is None:
        raise NoKey("this key is not known", hint="Ask the person who runs this server for yours.")
    _set_cookie(response, key, request)
    return _session(caller, services.settings)


def _session(caller: Caller, settings: CoalesceSettings) -> SessionOut:
    is_open = caller.learner is None
    return SessionOut(
        learner=caller.learner,
        asks_for_keys=settings.asks_for_keys,
        learners=sorted(settings.learner_keys) if is_open else [],
        home=str(settings.home) if is_open else None,
    )


@api_router.delete("/session", status_code=204)
def sign_out(response: Response) -> None:
    """Forgets the key in this browser."""
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")


@api_router.get("/jobs", response_model_exclude_unset=True, responses=error_responses(400, 422))
def list_jobs(services: ServicesDep, limit: Limit = USUAL_LIMIT, cursor: Cursor = None) -> JobsOut:
    """The jobs that are kept, the newest first."""
    shown, more = page_of(services.jobs.list(), lambda job: job.id, limit, cursor)
    return JobsOut(jobs=[_on_the_wire(job) for job in shown], next_cursor=more)


@api_router.get("/jobs/{job_id}", response_model_exclude_unset=True, responses=error_responses(404))
def get_job(job_id: str, services: ServicesDep) -> JobOut:
    """One job as it is now."""
    return _on_the_wire(services.jobs.get(job_id))


def _on_the_wire(job: Job) -> JobOut:
    """A job with the parts of its texts, as errors have them."""
    found = asdict(job) | parts_beside(message=job.message)
    if job.error is not None:
        found["error"] = job.error | parts_beside(message=job.error["message"], hint=job.error["hint"])
    return JobOut.model_validate(found)


def _event(job: Job, name: str) -> ServerSentEvent:
    return sse(_on_the_wire(job).model_dump(exclude_unset=True), name)


@api_router.delete("/jobs/{job_id}", response_model_exclude_unset=True, responses=error_responses(403, 404, 409))
def cancel_job(job_id: str, services: ServicesDep, caller: CallerDep) -> JobOut:
    """Cancels a queued or running job; a running one stops at its next safe point.

    A failed one is forgotten, with those of its kind that failed before it: what it said has been read.
    """
    caller.need_open_key("cancel jobs")
    job = services.jobs.get(job_id)
    if job.state == "failed":
        services.jobs.forget(job_id)
        return _on_the_wire(job)
    return _on_the_wire(services.jobs.cancel(job_id))


@api_router.get("/jobs/{job_id}/events", response_class=Response, responses=error_responses(404))
async def watch_job(job_id: str, services: ServicesDep) -> Response:
    """`progress` at every change and `done` at the end, each with the whole job."""
    first = await asyncio.to_thread(services.jobs.get, job_id)
    return event_stream(_watched(first, services.jobs))


async def _watched(job: Job, jobs: JobQueue) -> AsyncIterator[ServerSentEvent]:
    while not job.final:
        yield _event(job, "progress")
        seen = job
        while job == seen:
            await asyncio.sleep(jobs.watched_every_s)
            job = await asyncio.to_thread(jobs.get, job.id)
    yield _event(job, "done")


@api_router.get("/generator", responses=error_responses(503))
def get_generator(services: ServicesDep) -> Generators:
    """What answers now, and the engines, models and adapters found on this machine."""
    return services.generators.found()


@api_router.put("/generator", status_code=202, responses=error_responses(400, 403, 404, 409, 422, 503))
def put_generator(body: GeneratorIn, services: ServicesDep, caller: CallerDep) -> JobStartedOut:
    """Loads another generator while the old one answers; a failure keeps the old one, and the job says why."""
    caller.need_open_key("change what answers")
    named = body.model_dump()
    if body.generator == "auto":
        named["generator"] = "local"
    as_set = body.generator == "auto" and body.model is None
    return JobStartedOut(job_id=services.generators.switch(None if as_set else GeneratorChoice(**named)).id)


def _set_cookie(reply: Response, key: str, request: Request) -> None:
    secure = request.url.scheme == "https"
    reply.set_cookie(COOKIE, cookie_value(key), httponly=True, samesite="strict", secure=secure)
