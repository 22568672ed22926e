"""Comparisons that were run and their reports, votes between answers, and adapters tuned on questions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from fastapi.responses import HTMLResponse

from api.deps import CallerDep, ServicesDep, StudyDep
from api.page_files import hashes
from api.paging import USUAL_LIMIT, Cursor, Limit, page_of
from api.questions import BANK_TUNE
from api.schemas.answers import AdapterIn, AdaptersOut, LossOut, ReportIn, VoteIn, VoteOut
from api.schemas.base import JobStartedOut, attached, error_responses
from api.schemas.study import ReportsOut, ReportSummaryOut
from api.security import REPORT_POLICY
from api.translation import report_in_chinese, report_text_in_chinese
from evals.study import Asked
from indexes.errors import InvalidInput
from indexes.jsonl import to_jsonl
from rag.conversations import Wins

router = APIRouter(prefix="/v1", tags=["evaluation"])
LanguageQuery = Annotated[Literal["en", "zh"], Query()]


@router.get("/reports", responses=error_responses(400, 422, 503))
def get_reports(
    services: ServicesDep, language: LanguageQuery = "en", limit: Limit = USUAL_LIMIT, cursor: Cursor = None
) -> ReportsOut:
    """Comparisons that were run with `coalesce eval`, newest first."""
    from evals.report import list_reports

    every = list_reports(services.reports_folder())
    found, more = page_of(every, lambda report: str(report["id"]), limit, cursor)
    if language == "zh":
        found = [report | {"verdict": report_text_in_chinese(report["verdict"])} for report in found]
    return ReportsOut(reports=[ReportSummaryOut(**report) for report in found], next_cursor=more)


@router.post("/reports", status_code=202, responses=error_responses(403, 404, 409, 422, 503))
def run_comparison(services: ServicesDep, caller: CallerDep, body: ReportIn | None = None) -> JobStartedOut:
    """Runs the quick comparison with what answers now, on the bank or on a book's questions; the job's last message is
    the id of its report."""
    caller.need_open_key("run comparisons")
    return JobStartedOut(job_id=services.run_comparison(body.document_id if body is not None else None).id)


@router.get("/reports/{report_id}", responses=error_responses(404, 503))
def get_report(report_id: str, services: ServicesDep, study: StudyDep) -> dict[str, Any]:
    """One report, all its numbers."""
    from evals.report import read_report

    return _without(read_report(services.reports_folder(), report_id), study.asked_now())


@router.get("/reports/{report_id}/page", response_class=Response, responses=error_responses(404, 503))
def get_report_page(
    report_id: str, services: ServicesDep, study: StudyDep, language: LanguageQuery = "en"
) -> HTMLResponse:
    """One report as a page."""
    from evals.report import read_report, render, report_page

    folder = services.reports_folder()
    report = read_report(folder, report_id)
    shown = _without(report, study.asked_now())
    page = report_page(folder, report_id) if shown == report else render(shown, "report.html.j2")
    page = report_in_chinese(page) if language == "zh" else page
    return HTMLResponse(page, headers={"Content-Security-Policy": REPORT_POLICY.format(styles=hashes(page, "style"))})


def _without(report: dict[str, Any], asked: Asked) -> dict[str, Any]:
    """The report without its examples, which name the right option, of questions that are asked now."""
    if not asked:
        return report
    flips = [
        {name: [each for each in side if each["id"] not in asked.ids] if isinstance(side, list) else side
         for name, side in table.items()}
        for table in report.get("flips", ())
    ]  # fmt: skip
    return report | {"flips": flips}


@router.post("/votes", status_code=201, responses=error_responses(400, 404, 422, 503))
def vote(body: VoteIn, services: ServicesDep, caller: CallerDep) -> VoteOut:
    """Keeps a reader's vote between answers to one question."""
    kept = services.answering.vote(body.answer_ids, body.preferred, caller.learner, blind=body.blind)
    return VoteOut.model_validate(kept)


@router.get("/votes", responses=error_responses(503))
def count_votes(services: ServicesDep) -> Wins:
    """The table of wins: of everyone's votes, how often each arm or variant was preferred."""
    return services.engine.conversations.wins()


@router.get("/compare/votes.jsonl", response_class=Response, responses=error_responses(403, 503))
def export_votes(services: ServicesDep, caller: CallerDep) -> Response:
    """All votes with the answers they were between. Needs an open key: they are everyone's."""
    caller.need_open_key("read everyone's votes")
    votes = [
        {
            "at": vote.at,
            "question": vote.question,
            "winner": vote.winner or None,
            "blind": vote.blind,
            "answers": {answer.name: answer.answer for answer in vote.answers},
        }
        for vote in services.engine.conversations.votes()
    ]
    return attached(to_jsonl(votes), "application/jsonl", "coalesce-votes.jsonl")


@router.post("/adapters", status_code=202, responses=error_responses(400, 403, 404, 409, 422, 503))
def tune_adapter(body: AdapterIn, services: ServicesDep, caller: CallerDep) -> JobStartedOut:
    """Tunes an adapter of the local model that answers; PUT /v1/generator then takes it by its name."""
    caller.need_open_key("tune adapters")
    if body.document_ids and body.questions is not None:
        raise InvalidInput("`document_ids` and `questions` both name questions", hint="Name one of them.")
    questions = services.questions.for_tuning(body.document_ids or (), body.questions or BANK_TUNE)
    return JobStartedOut(job_id=services.adapters.start(body.name, questions, body.epochs).id)


@router.get("/adapters", responses=error_responses(503))
def list_adapters(services: ServicesDep) -> AdaptersOut:
    """The adapters that were tuned on the local model that answers, as `PUT /v1/generator` takes them."""
    return AdaptersOut.model_validate(services.adapters.offered())


@router.get("/adapters/{name}/loss", responses=error_responses(404, 503))
def get_loss(name: str, services: ServicesDep, response: Response) -> LossOut:
    """The loss of an adapter that was tuned here, step by step, so far while it is being tuned."""
    response.headers["Cache-Control"] = "no-store"
    return LossOut.model_validate({"points": services.adapters.points(name)})


@router.get("/adapters/{name}/loss.svg", response_class=Response, responses=error_responses(404, 503))
def draw_loss(name: str, services: ServicesDep) -> Response:
    """The loss curve of an adapter that was tuned here, so far while it is being tuned."""
    return Response(services.adapters.curve(name), media_type="image/svg+xml", headers={"Cache-Control": "no-store"})
