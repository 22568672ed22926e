"""`/healthz`, `/readyz`, `/metrics`, `/docs` and the login page."""

from __future__ import annotations

import re
from html import escape
from typing import Annotated

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse
from prometheus_client import CONTENT_TYPE_LATEST

from api.deps import ServicesDep
from api.errors import NotReady, describe
from api.pages.texts import HTML_LANGUAGES, Texts, language_of, texts_of
from api.schemas.base import error_responses
from api.security import COOKIE, LOGIN_PATH, LOGOUT_PATH, KeyRing, cookie_value

router = APIRouter(tags=["service"])


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
            "waiting_for": preparation.step,
            "done": preparation.done,
            "total": preparation.total,
        }
        return JSONResponse(reply.body | waiting, reply.status, headers=reply.headers)


@router.get("/metrics", response_class=PlainTextResponse)
def read_metrics(services: ServicesDep) -> Response:
    """Counters, histograms and gauges of this server."""
    return Response(services.metrics.text(), media_type=CONTENT_TYPE_LATEST)


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
    secure = request.url.scheme == "https"
    reply.set_cookie(COOKIE, cookie_value(key), httponly=True, samesite="strict", secure=secure)
    return reply


@router.post(LOGOUT_PATH, include_in_schema=False)
async def log_out() -> Response:
    """Forgets the key in this browser."""
    reply = RedirectResponse(LOGIN_PATH, status_code=303)
    reply.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return reply


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
