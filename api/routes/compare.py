"""`POST /v1/compare`: one question through several arms, in the order asked; one that cannot run refuses the whole."""

from __future__ import annotations

from fastapi import APIRouter, Request

from api.deps import AnsweringDep, ServicesDep
from api.schemas.answers import AnswerOut, AnswersOut, CompareIn, filters_of
from api.schemas.base import error_responses
from api.text_input import refuse_controls
from rag.types import Question

router = APIRouter(prefix="/v1", tags=["answers"])


@router.post("/compare", responses=error_responses(400, 404, 409, 413, 422, 429, 503))
async def compare(body: CompareIn, request: Request, services: ServicesDep, answering: AnsweringDep) -> AnswersOut:
    """Answers with every arm asked for; without `arms`, with those that can run here."""
    engine = services.engine
    question = Question(
        refuse_controls(body.question, "question"),
        adapter=body.adapter,
        top_k=body.top_k,
        filters=filters_of(body.filters),
        max_tokens=body.max_tokens,
        seed=body.seed,
    )
    answers = await answering.run_for(request, lambda gone: engine.compare(question, body.arms or (), gone))
    answering.count(answers)
    return AnswersOut(answers=[AnswerOut.of(answer) for answer in answers])
