"""`POST /v1/ask`: a cited answer, whole or as server-sent events `passages`, `delta`, `done`, `error`."""

from __future__ import annotations

from collections.abc import AsyncIterator

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from api.answering import client_of
from api.deps import AnsweringDep, CallerDep
from api.errors import describe
from api.schemas.answers import AnswerOut, AskIn, PassagesOut, filters_of
from api.schemas.base import error_responses
from api.streaming import EventPump, EventStreamResponse, sse
from api.text_input import refuse_controls
from rag.types import AnswerDone, Event, PassagesFound, Question, TextDelta

router = APIRouter(prefix="/v1", tags=["answers"])
CLIENT_LEFT = 499
"""The status of a call whose client has gone; nobody reads it but the metrics."""


@router.post("/ask", response_model=AnswerOut, responses=error_responses(400, 404, 409, 413, 422, 429, 503))
async def ask(body: AskIn, request: Request, answering: AnsweringDep, caller: CallerDep) -> Response:
    """Answers a question with citations; with `stream: true` as it is written."""
    question = _question(body, caller.learner)
    if not body.stream:
        answer = await answering.answer(question, request)
        if answer is None:
            return Response(status_code=CLIENT_LEFT)
        return JSONResponse(AnswerOut.of(answer).model_dump(mode="json"))
    pump = answering.stream(question, client_of(request))
    first = await pump.next()  # before the reply begins, so that an error still has its status
    return EventStreamResponse(_encoded(first, pump))


async def _encoded(first: Event | None, pump: EventPump[Event]) -> AsyncIterator[bytes]:
    try:
        if first is not None:
            yield _encode(first)
        async for event in pump:
            yield _encode(event)
    except Exception as error:  # noqa: BLE001  the reply has begun: the error goes as its last event
        yield sse(describe(error).body, "error")
    finally:
        pump.stop()


def _encode(event: Event) -> bytes:
    match event:
        case PassagesFound(passages):
            return sse(PassagesOut.of(passages).model_dump(mode="json"), "passages")
        case TextDelta(text):
            return sse({"text": text}, "delta")
        case AnswerDone(answer):
            return sse(AnswerOut.of(answer).model_dump(mode="json"), "done")


def _question(body: AskIn, owner: str | None) -> Question:
    return Question(
        refuse_controls(body.question, "question"),
        arm=body.arm,
        adapter=body.adapter,
        top_k=body.top_k,
        filters=filters_of(body.filters),
        conversation_id=body.conversation_id,
        max_tokens=body.max_tokens,
        temperature=body.temperature,
        seed=body.seed,
        owner=owner,
    )
