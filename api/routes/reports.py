"""`/v1/reports`: comparisons that were run."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from api.deps import StudyingDep
from api.schemas.base import error_responses
from api.schemas.reports import ReportsOut, ReportSummaryOut
from evals.report import list_reports, read_report, report_page

router = APIRouter(prefix="/v1/reports", tags=["reports"])


@router.get("", responses=error_responses(503))
def get_reports(studying: StudyingDep) -> ReportsOut:
    """Comparisons that were run with `coalesce eval`, newest first."""
    return ReportsOut(reports=[ReportSummaryOut(**report) for report in list_reports(studying.reports)])


@router.get("/{report_id}", responses=error_responses(404, 503))
def get_report(report_id: str, studying: StudyingDep) -> dict[str, Any]:
    """One report, all its numbers."""
    return read_report(studying.reports, report_id)


@router.get("/{report_id}/page", response_class=HTMLResponse, responses=error_responses(404, 503))
def get_report_page(report_id: str, studying: StudyingDep) -> HTMLResponse:
    """One report as a page."""
    return HTMLResponse(report_page(studying.reports, report_id))
