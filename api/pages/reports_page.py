"""`/reports` and `/reports/{id}`: comparisons that were run with `coalesce eval`, and the readers' own verdicts."""

from __future__ import annotations

from urllib.parse import quote as url_quote

from fastapi import Request
from nicegui import ui

from api.pages.controls import link, set_attributes, tag
from api.pages.frame import PageServices, Visit, empty_state, open_view
from evals.report import list_reports, read_report

FIT_FRAME = "(e) => { e.target.style.height = e.target.contentDocument.body.scrollHeight + 40 + 'px'; }"


def register(page: PageServices) -> None:
    """Adds the views to NiceGUI's own application."""

    @ui.page("/reports")
    def reports(request: Request) -> None:
        open_view(page, request, "reports", _show_list)

    @ui.page("/reports/{report_id}")
    def report(request: Request, report_id: str) -> None:
        open_view(page, request, "reports", lambda visit: _show_one(visit, report_id))


def _show_list(visit: Visit) -> None:
    t = visit.t
    tag("h1", t("nav.reports"))
    found = list_reports(visit.page.studying.reports)
    if not found:
        with empty_state(t("reports.none"), t("reports.none_text")):
            tag("code", "coalesce eval --arms base,rag,tuned,rag+tuned --quick", "command")
    for report in found:
        with tag("article", "", "card"), link("", f"/reports/{url_quote(report['id'])}", "report-link"):
            tag("h2", report["verdict"])
            made = report["created_at"][:16].replace("T", " ")
            tag("p", f"{made} · {report['generator']} · {report['model']}", "soft")
            tag("p", ", ".join(report["arms"]), "soft")
    _feedback(visit)


def _show_one(visit: Visit, report_id: str) -> None:
    t = visit.t
    read_report(visit.page.studying.reports, report_id)
    address = f"/v1/reports/{url_quote(report_id)}"
    with tag("div", "", "row"):
        link(t("reports.back"), "/reports")
        link(t("reports.alone"), f"{address}/page", target="_blank")
        link("JSON", address, target="_blank")
    tag("h1", t("reports.one"), "sr-only")
    frame = tag("iframe", "", "report-frame", src=f"{address}/page", title=t("reports.one"))
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
