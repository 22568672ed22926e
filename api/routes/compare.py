"""`POST /v1/compare`: one question through several arms, in the order asked; one that cannot run refuses the whole."""

from __future__ import annotations

import json

from fastapi import APIRouter, Request, Response

from api.deps import AnsweringDep, CallerDep, ServicesDep
from api.schemas.answers import AnswerOut, AnswersOut, CompareIn, filters_of
from api.schemas.base import error_responses
from api.text_input import refuse_controls
from rag.types import Question
from rag.votes import VoteStore

router = APIRouter(prefix="/v1", tags=["answers"])


@router.post("/compare", responses=error_responses(400, 404, 409, 413, 422, 429, 503))
async def compare(
    body: CompareIn, request: Request, services: ServicesDep, answering: AnsweringDep, caller: CallerDep
) -> AnswersOut:
    """Answers with every arm asked for; without `arms`, with those that can run here."""
    engine = services.engine
    question = Question(
        refuse_controls(body.question, "question"),
        adapter=body.adapter,
        top_k=body.top_k,
        filters=filters_of(body.filters),
        max_tokens=body.max_tokens,
        seed=body.seed,
        owner=caller.learner,
    )
    answers = await answering.run_for(request, lambda gone: engine.compare(question, body.arms or (), gone))
    answering.count(answers)
    return AnswersOut(answers=[AnswerOut.of(answer) for answer in answers])


@router.get("/compare/votes.jsonl", response_class=Response, responses=error_responses(403, 503))
def export_votes(services: ServicesDep, caller: CallerDep) -> Response:
    """Readers' votes between arms, with the answers they were between; everyone's, so not for a learner's key."""
    caller.need_open_key("read everyone's votes")
    lines = [
        json.dumps(
            {
                "at": vote.at,
                "question": vote.question,
                "winner": vote.winner or None,
                "blind": vote.blind,
                "answers": {answer.arm: answer.answer for answer in vote.answers},
            },
            ensure_ascii=False,
        )
        for vote in VoteStore(services.settings.rag.conversations_path).all()
    ]
    headers = {"Content-Disposition": 'attachment; filename="coalesce-votes.jsonl"'}
    return Response("".join(f"{line}\n" for line in lines), media_type="application/jsonl", headers=headers)
