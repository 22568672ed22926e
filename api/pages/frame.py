"""What every view shares: head, navigation, language, theme, the wait until the server is ready, errors in words."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from pathlib import Path
from urllib.parse import quote, urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse
from nicegui import Client, app, ui
from nicegui.element import Element

from api.pages.controls import button, link, select, set_attributes, tag
from api.pages.texts import HTML_LANGUAGES, LANGUAGES, Texts, cookie_text, language_of, texts_of
from api.security import LOGOUT_PATH, caller_of, client_of
from api.services import Services
from evals.learners import DEFAULT_LEARNER, MAX_LEARNER_CHARACTERS
from evals.study import Study
from indexes.errors import CoalesceError, NotFound
from rag.conversations import ConversationStore

logger = logging.getLogger("coalesce.pages")
TITLE = "Coalesce"
VIEWS = ("ask", "compare", "library", "study", "reports", "settings")
PATHS = {"ask": "/"} | {name: f"/{name}" for name in VIEWS if name != "ask"}
THEMES = ("auto", "light", "dark")
READY_POLL_S = 0.2
STATIC = Path(__file__).parent / "static"
STATIC_URL = "/assets"


@dataclass(frozen=True, slots=True)
class Visit:
    """One browser tab.

    Attributes:
        services: the same services that REST calls.
        t: the texts of the reader's language.
        learner: whose exams and cards are shown.
        owner: the learner whose key the reader has, who sees only their own; None for any other reader.
        asker: who asks, for the rate limit.
    """

    services: Services
    t: Texts
    learner: str
    owner: str | None
    asker: str
    client: Client

    @property
    def conversations(self) -> ConversationStore:
        """The conversations that the reader may see."""
        return self.services.conversations(self.owner)

    @property
    def study(self) -> Study:
        """Studying as the reader may see it."""
        return self.services.study.seen_by(self.owner)


Build = Callable[[Visit], None]


def install(services: Services) -> None:
    """Gives the views their services, and every page its style and script."""
    app.state.services = services
    app.add_static_files(STATIC_URL, STATIC, max_cache_age=86_400)

    def address(name: str) -> str:
        return f"{STATIC_URL}/{name}?v={sha256((STATIC / name).read_bytes()).hexdigest()[:8]}"

    ui.add_head_html(
        f'<link rel="stylesheet" href="{address("style.css")}"><script src="{address("page.js")}"></script>',
        shared=True,
    )


def open_view(request: Request, view: str, build: Build, *, title: str = "") -> None:
    """Draws a view: head, then what `build` makes, as soon as the server is ready."""
    visit = _visit(request)
    t = visit.t
    frame = visit.client.content.parent_slot
    if frame is not None:
        frame.parent.tag = "div"  # Quasar's own <main> and ours would be two
    _head(visit, request, view, title or t(f"nav.{view}"))
    with tag("main", "", f"view {view}", id="main", tabindex="-1") as main:
        _when_ready(visit, main, build)


def book_path(document_id: str, **place: int | str) -> str:
    """The address of a book, or of a place in it: `part`, `chapter`, or `node` with its `quote` and `page`."""
    return f"/book/{quote(document_id, safe='')}{'?' if place else ''}{urlencode(place, quote_via=quote)}"


def show_problem(visit: Visit, error: BaseException) -> None:
    """Shows what went wrong and how to fix it."""
    tag("p", visit.t.error(error), "problem", role="alert")


def sign_out(visit: Visit) -> None:
    """A button that forgets the key in this browser, where one is asked for."""
    if visit.services.settings.asks_for_keys:
        with tag("form", "", "", method="post", action=LOGOUT_PATH):
            tag("button", visit.t("sign_out"), "button", type="submit")


def empty_state(title: str, text: str) -> Element:
    """What to do where there is nothing yet; use as a context for its buttons."""
    block = tag("section", "", "empty")
    with block:
        tag("h2", title)
        tag("p", text)
    return block


def _visit(request: Request) -> Visit:
    client = ui.context.client
    cookies = request.cookies
    language = language_of(cookies.get("coalesce_lang"), request.headers.get("accept-language", ""))
    # The page object is shared by all visits of a path; language and theme are this visit's own.
    client.page = copy.copy(client.page)
    client.page.language = HTML_LANGUAGES[language]  # type: ignore[assignment]  # NiceGUI types only its own list
    owner = caller_of(request.scope).learner
    learner = owner or cookie_text(cookies.get("coalesce_learner")).strip()[:MAX_LEARNER_CHARACTERS] or DEFAULT_LEARNER
    state = app.state
    return Visit(state.services, texts_of(language), learner, owner, client_of(request), client)


def _head(visit: Visit, request: Request, view: str, title: str) -> None:
    t = visit.t
    ui.page_title(f"{title} · {TITLE}")
    theme = request.cookies.get("coalesce_theme", "auto")
    theme = theme if theme in THEMES else "auto"
    if theme != "auto":
        ui.add_head_html(f"<style>:root{{color-scheme:{theme} !important}}</style>")
    link(t("skip"), "#main", "skip")
    with tag("header", "", "head"):
        with link("", "/", "brand", aria_label=TITLE):
            ui.html(_LOGO, sanitize=False, tag="span").props["aria-hidden"] = "true"
            tag("span", TITLE)
        with tag("nav", "", "views", aria_label=t("nav.label")):
            for name in VIEWS:
                link(t(f"nav.{name}"), PATHS[name], aria_current="page" if name == view else None)
        with tag("div", "", "head-tools"):
            select(
                LANGUAGES.items(),
                lambda value: ui.run_javascript(f"coalesce.prefer('lang', {value!r})") if value in LANGUAGES else None,
                value=t.language,
                aria_label=t("language"),
                id="language",
            )
            following = THEMES[(THEMES.index(theme) + 1) % len(THEMES)]
            toggle = button("", icon_name="sun", kind="quiet", label=t(f"theme.{theme}"), id="theme")
            toggle.on("click", js_handler=f"() => coalesce.prefer('theme', '{following}')")


def _when_ready(visit: Visit, main: Element, build: Build) -> None:
    preparation = visit.services.preparation
    if preparation.answering:
        _build(visit, main, build)
        return
    with tag("section", "", "empty", role="status") as waiting:
        tag("h1", visit.t("waiting.title"))
        step = tag("p", preparation.step)
        bar = tag("progress", "", "bar", aria_label=visit.t("waiting.title"))

    def look() -> None:
        counted = f" ({preparation.done:,} / {preparation.total:,})" if preparation.total else ""
        step.set_text(visit.t.either(f"waiting.{preparation.step}", preparation.step) + counted)
        set_attributes(bar, max=preparation.total or None, value=preparation.done if preparation.total else None)
        if preparation.answering or preparation.error is not None:
            timer.deactivate()
            waiting.delete()
            _build(visit, main, build)

    timer = ui.timer(READY_POLL_S, look)


def _build(visit: Visit, main: Element, build: Build) -> None:
    with main:
        try:
            build(visit)
        except NotFound:
            with empty_state(visit.t("missing.title"), visit.t("missing.text")):
                link(visit.t("missing.back"), "/", "button primary")
        except CoalesceError as error:
            show_problem(visit, error)


async def not_found(request: Request, _: Exception) -> HTMLResponse:
    """What a browser is shown for an unknown address."""
    return _plain_page(request, "missing", 404)


async def failed(request: Request, error: Exception) -> HTMLResponse:
    """What a browser is shown for an error of the program."""
    logger.error("%s failed", request.url.path, exc_info=error)
    return _plain_page(request, "failed", 500)


def _plain_page(request: Request, what: str, status: int) -> HTMLResponse:
    t = texts_of(language_of(request.cookies.get("coalesce_lang"), request.headers.get("accept-language", "")))
    theme = request.cookies.get("coalesce_theme", "auto")
    page = _PLAIN_PAGE.format(
        language=HTML_LANGUAGES[t.language],
        theme=theme if theme in ("light", "dark") else "light dark",
        title=escape(t(f"{what}.title")),
        text=escape(t(f"{what}.text")),
        back=escape(t("missing.back")),
        links="".join(f'<a href="{path}">{escape(t(f"nav.{name}"))}</a>' for name, path in PATHS.items()),
    )
    return HTMLResponse(page, status)


_LOGO = (
    '<svg viewBox="0 0 24 24" width="26" height="26" fill="none" stroke="currentColor" stroke-width="1.6" '
    'stroke-linejoin="round"><path d="M4 6c3.3-1.3 5.8-.9 8 1.1 2.2-2 4.7-2.4 8-1.100v12c-3.3-1.3-5.8-.9-8 '
    '1.1-2.2-2-4.7-2.4-8-1.100zM12 7.100v12"/></svg>'
)
_PLAIN_PAGE = """<!doctype html>
<html lang="{language}"><head><meta charset="utf-8"><title>{title} · Coalesce</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="stylesheet" href="/assets/style.css">
<style>:root{{color-scheme:{theme} !important}}</style></head>
<body><header class="head"><a class="brand" href="/">Coalesce</a><nav class="views">{links}</nav></header>
<main class="view"><section class="empty"><h1>{title}</h1><p>{text}</p>
<a class="button primary" href="/">{back}</a></section></main></body></html>"""
