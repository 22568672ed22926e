"""Puts every view on the page's own application. Importing this imports NiceGUI."""

from __future__ import annotations

from fastapi import FastAPI
from nicegui import ui

from api.answering import Answering
from api.books import Books
from api.pages import (
    ask_page,
    cards_page,
    compare_page,
    exam_page,
    library_page,
    page_images,
    progress_page,
    reports_page,
    settings_page,
    study_page,
)
from api.pages.exam_drafts import Drafts
from api.pages.exam_end import ExamEnds
from api.pages.frame import TITLE, PageServices, install_assets
from api.pages.icons import FAVICON
from api.pages.runs import Runs
from api.services import Services
from api.studying import Studying

REGISTERS = tuple(
    view.register
    for view in (
        *(ask_page, compare_page, library_page, reports_page, settings_page),
        *(study_page, exam_page, cards_page, progress_page),
    )
)


def make_shell(
    services: Services, answering: Answering, books: Books, studying: Studying, reconnect_s: float
) -> FastAPI:
    """The page's application; one of a process, because NiceGUI keeps its own for all."""
    drafts = Drafts()
    ends = ExamEnds(studying, drafts)
    page = PageServices(services, answering, books, studying, Runs(answering), drafts, ends)
    install_assets()
    page_images.register(services)
    for register in REGISTERS:
        register(page)
    shell = FastAPI(openapi_url=None)
    ui.run_with(
        shell,
        title=TITLE,
        favicon=FAVICON,
        dark=None,
        tailwind=False,
        binding_refresh_interval=None,
        reconnect_timeout=reconnect_s,
        show_welcome_message=False,
    )
    return shell
