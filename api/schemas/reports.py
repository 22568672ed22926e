"""Wire forms of the comparisons that were run."""

from __future__ import annotations

from api.schemas.base import WireOut


class StepOut(WireOut):
    """What one arm brings over another in accuracy: shares from -1 to 1, with a 95 % interval."""

    control: str
    treatment: str
    difference: float | None
    low: float | None
    high: float | None
    verdict: str


class ReportSummaryOut(WireOut):
    """A comparison that was run."""

    id: str
    created_at: str
    verdict: str
    generator: str
    model: str
    arms: list[str]
    choice_questions: int
    comparisons: list[StepOut]


class ReportsOut(WireOut):
    """Comparisons that were run, newest first."""

    reports: list[ReportSummaryOut]
