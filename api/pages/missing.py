"""What a browser is shown for an address that is not there, and for an error of a view: in words, with the way back."""

from __future__ import annotations

import logging
from html import escape

from fastapi import Request
from fastapi.responses import HTMLResponse

from api.pages.texts import HTML_LANGUAGES, language_of, texts_of

logger = logging.getLogger("coalesce.pages")
_PAGE = """<!doctype html>
<html lang="{language}"><head><meta charset="utf-8"><title>{title} · Coalesce</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="stylesheet" href="/assets/style.css">
<style>:root{{color-scheme:{theme} !important}}</style></head>
<body><header class="head"><a class="brand" href="/">Coalesce</a><nav class="views">{links}</nav></header>
<main class="view"><section class="empty"><h1>{title}</h1><p>{text}</p>
<a class="button primary" href="/">{back}</a></section></main></body></html>"""


async def not_found(request: Request, _: Exception) -> HTMLResponse:
    """The page for an unknown address."""
    return _page(request, "missing", 404)


async def failed(request: Request, error: Exception) -> HTMLResponse:
    """The page for an error of the program."""
    logger.error("%s failed", request.url.path, exc_info=error)
    return _page(request, "failed", 500)


def _page(request: Request, what: str, status: int) -> HTMLResponse:
    t = texts_of(language_of(request.cookies.get("coalesce_lang"), request.headers.get("accept-language", "")))
    theme = request.cookies.get("coalesce_theme", "auto")
    paths = {"ask": "/"} | {name: f"/{name}" for name in ("compare", "library", "study", "reports", "settings")}
    page = _PAGE.format(
        language=HTML_LANGUAGES[t.language],
        theme=theme if theme in ("light", "dark") else "light dark",
        title=escape(t(f"{what}.title")),
        text=escape(t(f"{what}.text")),
        back=escape(t("missing.back")),
        links="".join(f'<a href="{path}">{escape(t(f"nav.{name}"))}</a>' for name, path in paths.items()),
    )
    return HTMLResponse(page, status)
