"""`/login`: where a browser gives its API key. The cookie it gets holds a digest of the key and goes nowhere else."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from api.deps import ServicesDep
from api.security import COOKIE, LOGIN_PATH, KeyRing, cookie_value

router = APIRouter(include_in_schema=False)
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Coalesce</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>body{{font:1rem/1.6 system-ui,sans-serif;max-width:24rem;margin:15vh auto;padding:0 1rem}}
input,button{{font:inherit;padding:.5rem;width:100%;box-sizing:border-box;margin:.25rem 0}}</style></head>
<body><h1>Coalesce</h1><form method="post"><label for="key">API key</label>
<input id="key" name="key" type="password" autocomplete="current-password" required autofocus>
<button>Open</button></form><p role="alert">{note}</p></body></html>"""


@router.get(LOGIN_PATH)
async def show_login() -> HTMLResponse:
    """The form."""
    return HTMLResponse(_PAGE.format(note=""))


@router.post(LOGIN_PATH)
async def log_in(key: Annotated[str, Form(max_length=1000)], request: Request, services: ServicesDep) -> Response:
    """Sets the cookie for a known key."""
    if not KeyRing(services.settings.server.api_keys).has_key(key.encode()):
        return HTMLResponse(_PAGE.format(note="This key is not known."), 401)
    reply = RedirectResponse("/", status_code=303)
    secure = request.url.scheme == "https"
    reply.set_cookie(COOKIE, cookie_value(key), httponly=True, samesite="strict", secure=secure)
    return reply
