"""The running server: whether it is ready, its metrics, jobs and generator, and the login page."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from html import escape
from typing import Annotated

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse
from prometheus_client import CONTENT_TYPE_LATEST
from sse_starlette import ServerSentEvent

from api.chosen_generator import GeneratorChoice
from api.deps import CallerDep, ServicesDep
from api.errors import LANGUAGE_HEADER, NoKey, NotReady, describe
from api.generator import Generators
from api.jobs import Job, JobQueue
from api.pages.texts import HTML_LANGUAGES, Texts, language_of, texts_of
from api.schemas.answers import GeneratorIn
from api.schemas.base import JobStartedOut, SessionOut, SignInIn, error_responses
from api.schemas.books import JobsOut
from api.security import COOKIE, LOGIN_PATH, LOGOUT_PATH, Caller, KeyRing, cookie_value
from api.settings import CoalesceSettings
from api.streaming import event_stream, sse
from api.translation import TRANSLATED, translate

router = APIRouter(tags=["service"])
"""Open to all, as far as `api.security` leaves them so."""
api_router = APIRouter(prefix="/v1", tags=["service"])
POLL_S = 0.1
"""How often a watched job is read."""


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


@api_router.post("/session", responses=error_responses(401, 422))
def sign_in(body: SignInIn, request: Request, response: Response, services: ServicesDep) -> SessionOut:
    """Lets a browser in: sets a cookie for a known key."""
    key = body.key.strip()
    caller = KeyRing(services.settings).by_key(key.encode())
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


@api_router.get("/jobs")
def list_jobs(services: ServicesDep, request: Request) -> JobsOut:
    """The jobs that are kept, the newest first."""
    return JobsOut.model_validate({"jobs": [_in_words(job, request) for job in services.jobs.list()]})


@api_router.get("/jobs/{job_id}", responses=error_responses(404))
def get_job(job_id: str, services: ServicesDep, request: Request) -> Job:
    """One job as it is now."""
    return _in_words(services.jobs.get(job_id), request)


def _in_words(job: Job, request: Request) -> Job:
    """The job in the language that the page names, as errors of its calls are."""
    language = request.headers.get(LANGUAGE_HEADER, "")
    if language not in TRANSLATED:
        return job
    error = job.error and {
        name: said if name == "type" else translate(said, language) for name, said in job.error.items()
    }
    return replace(job, message=translate(job.message, language), error=error)


@api_router.delete("/jobs/{job_id}", responses=error_responses(403, 404, 409))
def cancel_job(job_id: str, services: ServicesDep, caller: CallerDep) -> Job:
    """Cancels a queued or running job; a running one stops at its next safe point."""
    caller.need_open_key("cancel jobs")
    return services.jobs.cancel(job_id)


@api_router.get("/jobs/{job_id}/events", response_class=Response, responses=error_responses(404))
async def watch_job(job_id: str, services: ServicesDep) -> Response:
    """`progress` at every change and `done` at the end, each with the whole job."""
    first = await asyncio.to_thread(services.jobs.get, job_id)
    return event_stream(_watched(first, services.jobs))


async def _watched(job: Job, jobs: JobQueue) -> AsyncIterator[ServerSentEvent]:
    while not job.final:
        yield sse(asdict(job), "progress")
        seen = job
        while job == seen:
            await asyncio.sleep(POLL_S)
            job = await asyncio.to_thread(jobs.get, job.id)
    yield sse(asdict(job), "done")


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


_PAGE = """<!doctype html>
<html lang="{language}"><head><meta charset="utf-8"><title>{title} · Coalesce</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>:root{{color-scheme:{theme};--paper:light-dark(#faf8f3,#171614);--ink:light-dark(#23211c,#ebe6dc);
--soft:light-dark(#5f584c,#b5ac9d);--edge:light-dark(#8f8673,#7d7566);--card:light-dark(#fff,#201f1c);
--accent:light-dark(#14594d,#8ad0bd);--accent-ink:light-dark(#fff,#0e211c);--danger:light-dark(#9a2a1d,#f2a093)}}
body{{font:1rem/1.6 system-ui,sans-serif;max-width:24rem;margin:15vh auto;padding:0 1rem;background:var(--paper);
color:var(--ink)}}h1{{font:600 1.7rem/1.25 Palatino,Georgia,serif}}p{{color:var(--soft)}}
input,button{{font:inherit;padding:.5rem .7rem;width:100%;box-sizing:border-box;margin:.25rem 0;border-radius:8px;
border:1px solid var(--edge);background:var(--card);color:var(--ink)}}
button{{background:var(--accent);border-color:var(--accent);color:var(--accent-ink);font-weight:500;cursor:pointer;
margin-top:.75rem}}:focus-visible{{outline:2px solid var(--accent);outline-offset:2px}}
[role=alert]{{color:var(--danger)}}</style></head>
<body><main><h1>Coalesce</h1><p>{lead}</p><form method="post"><label for="key">{label}</label>
<input id="key" name="key" type="password" autocomplete="current-password" required autofocus>
<button>{open}</button></form><p role="alert">{problem}</p></main></body></html>"""


@router.get(LOGIN_PATH, include_in_schema=False)
async def show_login(request: Request) -> HTMLResponse:
    """The form."""
    return HTMLResponse(_page(request))


@router.post(LOGIN_PATH, include_in_schema=False)
async def log_in(key: Annotated[str, Form(max_length=1000)], request: Request, services: ServicesDep) -> Response:
    """Sets the cookie for a known key, and goes on to `next`, a path of this server."""
    key = key.strip()
    if KeyRing(services.settings).by_key(key.encode()) is None:
        return HTMLResponse(_page(request, "login.unknown"), 401)
    wanted = request.query_params.get("next", "/")
    safe = re.fullmatch(r"/(?:[\w\-][^\\\s]*)?", wanted, re.ASCII) is not None  # never another server's
    reply = RedirectResponse(wanted if safe else "/", status_code=303)
    _set_cookie(reply, key, request)
    return reply


@router.post(LOGOUT_PATH, include_in_schema=False)
async def log_out() -> Response:
    """Forgets the key in this browser."""
    reply = RedirectResponse(LOGIN_PATH, status_code=303)
    reply.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return reply


def _set_cookie(reply: Response, key: str, request: Request) -> None:
    secure = request.url.scheme == "https"
    reply.set_cookie(COOKIE, cookie_value(key), httponly=True, samesite="strict", secure=secure)


def _page(request: Request, problem: str = "") -> str:
    language = language_of(request.cookies.get("coalesce_lang"), request.headers.get("accept-language", ""))
    theme = request.cookies.get("coalesce_theme", "auto")
    t: Texts = texts_of(language)
    return _PAGE.format(
        language=HTML_LANGUAGES[language],
        theme=theme if theme in ("light", "dark") else "light dark",
        title=escape(t("login.title")),
        lead=escape(t("login.lead")),
        label=escape(t("settings.keys")),
        open=escape(t("login.open")),
        problem=escape(t(problem)) if problem else "",
    )
