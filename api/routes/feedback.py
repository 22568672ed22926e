"""`POST /v1/feedback`: a reader's verdict on an answer, kept with it."""

from __future__ import annotations

from fastapi import APIRouter, Response

from api.deps import ConversationsDep
from api.schemas.base import error_responses
from api.schemas.conversations import FeedbackIn, FeedbackOut
from api.text_input import refuse_controls
from evals.feedback_cases import feedback_cases

router = APIRouter(prefix="/v1", tags=["conversations"])


@router.post("/feedback", status_code=201, responses=error_responses(400, 404, 422, 503))
def give_feedback(body: FeedbackIn, store: ConversationsDep) -> FeedbackOut:
    """Keeps a thumb up or down; a second one on the same answer replaces the first."""
    comment = refuse_controls(body.comment or "", "comment")
    kept = store.give_feedback(body.answer_id, body.rating, comment)
    return FeedbackOut(answer_id=kept.answer_id, rating=kept.rating, comment=kept.comment, created_at=kept.created_at)


@router.get("/feedback/cases.jsonl", response_class=Response, responses=error_responses(503))
def export_cases(store: ConversationsDep) -> Response:
    """All feedback as evaluation cases, for `coalesce eval --questions FILE`."""
    lines = feedback_cases(store.feedback())
    headers = {"Content-Disposition": 'attachment; filename="coalesce-feedback.jsonl"'}
    return Response("".join(f"{line}\n" for line in lines), media_type="application/jsonl", headers=headers)
