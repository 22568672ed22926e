"""Questions, searches, comparisons of arms, explanations and suggestions."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse
from sse_starlette import ServerSentEvent

from api.answering import named
from api.deps import CallerDep, ServicesDep, check_assistant
from api.errors import describe
from api.schemas.answers import (
    AnswerOut,
    AnswersOut,
    AskIn,
    ChooseIn,
    CompareIn,
    ExplainIn,
    ExplanationOut,
    PassagesOut,
    PicksOut,
    SearchIn,
    filters_of,
)
from api.schemas.base import MAX_ID_CHARS, Id, error_responses
from api.schemas.books import SuggestionsOut
from api.security import client_of
from api.streaming import FollowedTask, Named, event_stream, sse, unless_gone
from rag.types import Answer, Question

router = APIRouter(prefix="/v1", tags=["ask"])
EXAM_ALLOWS = [Depends(check_assistant)]
ANSWER_ID = "X-Answer-Id"
"""The header of a streamed answer that names the id to follow it by, should the connection be lost."""
COMPARISON_ID = "X-Comparison-Id"
"""The same of a comparison."""
CLIENT_LEFT = 499
"""The status of a call whose client has left; only the metrics see it."""


@router.post(
    "/ask",
    response_model=AnswerOut,
    dependencies=EXAM_ALLOWS,
    responses=error_responses(400, 404, 409, 413, 422, 429, 503),
)
async def ask(body: AskIn, request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """Answers a question with citations; with `stream: true` as it is written."""
    question = Question(
        body.question,
        arm=body.arm,
        adapter=body.adapter,
        top_k=body.top_k,
        filters=filters_of(body.filters),
        conversation_id=body.conversation_id,
        max_tokens=body.max_tokens,
        temperature=body.temperature,
        seed=body.seed,
        owner=caller.learner,
        answer_anyway=body.answer_anyway,
        answers=body.answers,
        replaces=body.replaces,
    )
    found = body.stream or body.conversation_id is not None
    run = services.answering.start(question, client_of(request), grace_s=body.grace_s, found=found)
    if body.stream:
        return await _streamed(named(run.events()), **{ANSWER_ID: run.id})
    answer = await unless_gone(request, run.answer())
    if answer is None:
        return Response(status_code=CLIENT_LEFT)
    return JSONResponse(AnswerOut.model_validate(answer).model_dump(mode="json"))


@router.get("/answers/{answer_id}/events", response_class=Response, responses=error_responses(404, 409, 503))
async def follow_answer(answer_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    """The events of an answer that is being written or has just ended, from the start."""
    return await _streamed(services.answering.follow(answer_id, caller.learner), **{ANSWER_ID: answer_id})


@router.post("/search", dependencies=EXAM_ALLOWS, responses=error_responses(400, 404, 409, 413, 422, 429, 503))
async def search(body: SearchIn, request: Request, services: ServicesDep) -> PassagesOut:
    """Finds passages for a query, best first."""
    engine = services.engine
    filters = filters_of(body.filters)
    passages = await services.answering.run(lambda: engine.search(body.query, body.top_k, filters), client_of(request))
    return PassagesOut.model_validate({"passages": passages})


@router.post(
    "/compare",
    response_model=AnswersOut,
    dependencies=EXAM_ALLOWS,
    responses=error_responses(400, 404, 409, 413, 422, 429, 503),
)
async def compare(body: CompareIn, request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """Answers with every arm or variant named, or with all arms that can run; if a named one cannot, none is asked.

    With `stream: true`, `comparing` with the question and what is compared comes first, `answer` with its `index`
    begins each answer, the events of `POST /v1/ask` follow, and `compared` ends the stream with what is returned
    otherwise. The header `X-Comparison-Id` names the id to follow it by, should the connection be lost.
    """
    question = Question(
        body.question,
        adapter=body.adapter,
        top_k=body.top_k,
        filters=filters_of(body.filters),
        max_tokens=body.max_tokens,
        seed=body.seed,
        owner=caller.learner,
    )

    comparing = services.answering.compare(question, body.arms or (), client_of(request), body.ways())

    async def kept(answers: list[Answer]) -> dict[str, Any]:
        together = await asyncio.to_thread(services.engine.keep_together, answers, caller.learner)
        found = {"answers": together, "variants": [answer.variant for answer in together]}
        return AnswersOut.model_validate(found).model_dump(mode="json")

    async def answered() -> list[Answer]:
        async with aclosing(comparing) as runs:
            return [await run.answer() async for run in runs]

    async def written() -> AsyncGenerator[Named]:
        answers: list[Answer] = []
        async with aclosing(comparing) as runs:
            async for run in runs:
                if not answers:
                    yield "comparing", {"question": body.question, "names": body.names()}
                yield "answer", {"index": len(answers), "id": run.id}
                async with aclosing(named(run.events())) as events:
                    async for event in events:
                        yield event
                answers.append(await run.answer())
        yield "compared", await kept(answers)

    if body.stream:
        followed = FollowedTask(written(), body.grace_s)
        comparison_id = uuid.uuid4().hex
        reply = await _streamed(followed.events(), **{COMPARISON_ID: comparison_id})
        services.answering.keep_comparison(comparison_id, caller.learner, followed)
        return reply
    answers = await unless_gone(request, answered())
    return Response(status_code=CLIENT_LEFT) if answers is None else JSONResponse(await kept(answers))


@router.get("/compare/{comparison_id}/events", response_class=Response, responses=error_responses(404, 503))
async def follow_comparison(comparison_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    """The events of a comparison that is being made or has just ended, from the start."""
    events = services.answering.follow_comparison(comparison_id, caller.learner)
    return await _streamed(events, **{COMPARISON_ID: comparison_id})


@router.delete("/compare/{comparison_id}", status_code=204, responses=error_responses(404, 503))
async def stop_comparison(comparison_id: str, services: ServicesDep, caller: CallerDep) -> None:
    """Stops a comparison that is being made."""
    await services.answering.stop_comparison(comparison_id, caller.learner)


@router.post("/choose", dependencies=EXAM_ALLOWS, responses=error_responses(400, 404, 409, 413, 422, 429, 503))
async def choose(body: ChooseIn, request: Request, services: ServicesDep) -> PicksOut:
    """Which option of a choice question each arm takes: with a language model by likelihood, else with the encoder."""
    chooser = services.engine.chooser
    choose = partial(
        services.answering.choose, body.question, body.choices, body.arms, adapter=body.adapter, top_k=body.top_k
    )
    picks = await services.answering.run(choose, client_of(request))
    return PicksOut.model_validate({"generator": chooser.name, "model": chooser.model_name, "picks": picks})


@router.post("/explain", dependencies=EXAM_ALLOWS, responses=error_responses(400, 404, 409, 413, 422, 429, 503))
async def explain(body: ExplainIn, request: Request, services: ServicesDep) -> ExplanationOut:
    """Says why a page or a section was not found: its rank in each search, and the words it lacks."""
    found = await services.answering.run(
        lambda: services.answering.explain(body.question, body.document_id, page=body.page, section=body.section),
        client_of(request),
    )
    return ExplanationOut.model_validate(found)


@router.get("/suggestions", responses=error_responses(404, 422, 503))
def suggest_questions(
    services: ServicesDep,
    caller: CallerDep,
    answer_id: Annotated[str | None, Query(max_length=MAX_ID_CHARS, description="questions after this answer")] = None,
    document_id: Annotated[list[Id] | None, Query(description="questions on these books; by default on all")] = None,
) -> SuggestionsOut:
    """Questions that the books' sections answer: to begin with, or after an answer from the sections around it."""
    if answer_id is not None:
        found = services.reading.suggest_next(services.answering.answer(answer_id, caller.learner))
    else:
        every = [document.document_id for document in services.library.documents()]
        found = services.reading.suggest(document_id or every)
    return SuggestionsOut.model_validate({"suggestions": found})


async def _streamed(events: AsyncGenerator[Named], **headers: str) -> Response:
    """The events as a reply that begins with the first of them, so that an error before it keeps its status."""
    first = await anext(events, None)
    return event_stream(_encoded(first, events), **headers)


async def _encoded(first: Named | None, events: AsyncGenerator[Named]) -> AsyncGenerator[ServerSentEvent]:
    async with aclosing(events):
        try:
            if first is not None:
                yield _encode(first)
            async for event in events:
                yield _encode(event)
        except Exception as error:  # noqa: BLE001  the reply has begun: the error goes as its last event
            yield sse(describe(error).event, "error")


def _encode(event: Named) -> ServerSentEvent:
    name, data = event
    return sse(data, name)
