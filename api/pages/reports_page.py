"""`/reports` and `/reports/{id}`: comparisons that were run with `coalesce eval`, and the readers' own verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from operator import setitem
from typing import Any
from urllib.parse import quote as url_quote

from fastapi import Request
from nicegui import ui

from api.jobs import Job
from api.pages.controls import button, field, link, select, set_attributes, tag
from api.pages.frame import Visit, empty_state, open_view
from api.pages.job_row import JobSlot
from api.pages.texts import Texts
from api.translation import report_text_in_chinese
from evals.report import list_reports, points, read_report
from indexes.errors import NotFound

MAIN_STEPS = (("base", "rag"), ("base", "tuned"), ("tuned", "rag"), ("rag", "rag+tuned"))
"""The steps that the list shows; a report holds more."""
FIT_FRAME = """(e) => {
  const inside = e.target.contentDocument;
  inside.documentElement.style.colorScheme = getComputedStyle(document.documentElement).colorScheme;
  e.target.style.height = inside.body.scrollHeight + 40 + 'px';
}"""
"""A report as tall as it is, in the colours that the reader chose."""


@ui.page("/reports")
def reports(request: Request) -> None:
    open_view(request, "reports", _show_list)


@ui.page("/reports/{report_id}")
def report(request: Request, report_id: str) -> None:
    open_view(request, "reports", lambda visit: _show_one(visit, report_id))


def _show_list(visit: Visit) -> None:
    t = visit.t
    tag("h1", t("nav.reports"))
    found = list_reports(visit.services.settings.reports_folder)
    tag("p", t("reports.lead"), "lead")
    if visit.owner is None:
        _quick_comparison(visit)
    if not found:
        with empty_state(t("reports.none"), t("reports.none_text")):
            tag("code", "coalesce eval --quick", "command")
    for report in found:
        _summary(visit, report)
    _feedback(visit)


def _quick_comparison(visit: Visit) -> None:
    """The button that runs the quick comparison, and how far it is."""

    async def show_report(job: Job) -> None:
        ui.navigate.to(f"/reports/{url_quote(job.message)}")

    books = [(book.document_id, book.title) for book in visit.services.questions.books()]
    chosen = {"book": ""}

    async def begin() -> None:
        await slot.start(partial(visit.services.run_comparison, chosen["book"] or None))

    with tag("section", "", "card"):
        if books:
            with field(visit.t("exam.questions_from")):
                select([("", visit.t("exam.bank")), *books], partial(setitem, chosen, "book"))
        with tag("div", "", "row"):
            button(visit.t("reports.run"), begin, kind="primary")
            tag("span", visit.t("reports.run_note"), "soft")
        slot = JobSlot(visit, "report", show_report)
    slot.resume()


def _summary(visit: Visit, report: Mapping[str, Any]) -> None:
    """One report of the list: when and with what, and what each step gained."""
    t = visit.t
    with tag("article", "", "card"):
        with tag("h2"), link("", f"/reports/{url_quote(report['id'])}"):
            title = "reports.of" if len(report["arms"]) > 1 else "reports.of_one"
            tag("span", t(title, when=_local(report["created_at"])))
        name = t.either(f"generator.{report['generator']}", report["generator"])
        questions = t.count("reports.questions", report["choice_questions"])
        source = _source(visit, report["questions"])
        tag("p", " · ".join(part for part in (source, questions, name, report["model"]) if part), "soft")
        steps = [step for pair in MAIN_STEPS for step in report["comparisons"] if _pair(step) == pair]
        if not steps:
            tag("p", report_text_in_chinese(report["verdict"]) if t.language == "zh" else report["verdict"])
            return
        with (
            tag("div", "", "table-box stacked", tabindex="0", role="region", aria_label=t("reports.steps")),
            tag("table"),
        ):
            with tag("thead"), tag("tr"):
                for column in ("step", "difference", "verdict"):
                    tag("th", t(f"reports.{column}"), scope="col")
            with tag("tbody"):
                for step in steps:
                    _step(t, step)


def _source(visit: Visit, questions: str) -> str:
    """The book that a report's questions are about, "" for one that is gone; or the file."""
    if questions.startswith("bank:"):
        return visit.t("exam.bank")
    with suppress(NotFound):
        book = questions.removeprefix("book:")
        return visit.services.library.document(book).title if book != questions else questions
    return ""


def _step(t: Texts, step: Mapping[str, Any]) -> None:
    arms = [t.either(f"arm.{step[side]}", step[side]) for side in ("treatment", "control")]
    with tag("tr"):
        tag("th", t("reports.over", treatment=arms[0], control=arms[1]), scope="row")
        text = f"{points(step['difference'])} [{points(step['low'])}, {points(step['high'])}]"
        tag("td", text.replace("-", "−"), "number-cell")
        word = t.either(f"reports.is.{step['verdict']}", step["verdict"])
        tag("td", word, f"step-verdict {step['verdict'].replace(' ', '-')}")


def _pair(step: Mapping[str, Any]) -> tuple[str, str]:
    return step["control"], step["treatment"]


def _local(moment: str) -> str:
    return datetime.fromisoformat(moment).astimezone().strftime("%Y-%m-%d %H:%M")


def _show_one(visit: Visit, report_id: str) -> None:
    t = visit.t
    read_report(visit.services.settings.reports_folder, report_id)
    address = f"/v1/reports/{url_quote(report_id)}"
    page = f"{address}/page?language={t.language}"
    with tag("div", "", "row"):
        link(t("reports.back"), "/reports")
        link(t("reports.alone"), page, target="_blank")
        link("JSON", address, target="_blank")
    tag("h1", t("reports.one"), "sr-only")
    frame = tag("iframe", "", "report-frame", src=page, title=t("reports.one"))
    # The report is a page of its own: no script of it runs, none is in it.
    set_attributes(frame, sandbox="allow-same-origin")
    frame.on("load", js_handler=FIT_FRAME)


def _feedback(visit: Visit) -> None:
    t = visit.t
    given = visit.conversations.feedback()
    ups = sum(feedback.rating == "up" for feedback, _ in given)
    with tag("section", "", "card"):
        tag("h2", t("reports.feedback"))
        if not given:
            tag("p", t("reports.no_feedback"), "soft")
            return
        tag("p", t("reports.thumbs", up=ups, down=len(given) - ups))
        link(t("reports.cases"), "/v1/feedback/cases.jsonl", download=True)
        tag("p", t("reports.cases_note"), "soft")
