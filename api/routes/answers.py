"""Questions, searches, comparisons, votes, explanations, conversations and feedback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from sse_starlette import ServerSentEvent

from api.chosen_generator import GeneratorChoice
from api.deps import CallerDep, ConversationsDep, ServicesDep
from api.errors import describe
from api.schemas.answers import (
    AdapterIn,
    AnswerOut,
    AnswersOut,
    AskIn,
    ChooseIn,
    CompareIn,
    ConversationDetailOut,
    ConversationIn,
    ConversationOut,
    ConversationsOut,
    ExplainIn,
    ExplanationOut,
    FeedbackIn,
    FeedbackOut,
    GeneratorIn,
    GeneratorOut,
    PassagesEventOut,
    PassagesOut,
    PicksOut,
    RenameIn,
    ReportIn,
    SearchIn,
    VoteIn,
    VoteOut,
    VotesOut,
    filters_of,
)
from api.schemas.base import JobStartedOut, error_responses
from api.security import client_of
from api.services import BANK_TUNE
from api.streaming import event_stream, sse, unless_gone
from evals.export import feedback_cases
from indexes.errors import InvalidInput
from indexes.jsonl import to_jsonl
from rag.conversations import conversation_markdown
from rag.question import reject_control_characters
from rag.types import Answer, AnswerDone, Event, PassagesFound, Question, TextDelta, Thinking, Waiting

router = APIRouter(prefix="/v1", tags=["answers"])
ANSWER_ID = "X-Answer-Id"
"""The header of a streamed answer that names the id to follow it by, should the connection be lost."""
CLIENT_LEFT = 499
"""The status of a call whose client has left; only the metrics see it."""


@router.post("/ask", response_model=AnswerOut, responses=error_responses(400, 404, 409, 413, 422, 429, 503))
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
        replaces=body.replaces,
    )
    run = services.answering.start(question, client_of(request))
    if body.stream:
        return await _streamed(run.events(), run.id)
    answer = await unless_gone(request, run.answer())
    if answer is None:
        return Response(status_code=CLIENT_LEFT)
    return JSONResponse(AnswerOut.model_validate(answer).model_dump(mode="json"))


@router.get("/answers/{answer_id}/events", response_class=Response, responses=error_responses(404, 409, 503))
async def follow_answer(answer_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    """The events of an answer that is being written or has just ended, from the start."""
    return await _streamed(services.answering.find(answer_id, caller.learner).events(), answer_id)


@router.post("/search", responses=error_responses(400, 404, 413, 422, 429, 503))
async def search(body: SearchIn, request: Request, services: ServicesDep) -> PassagesOut:
    """Finds passages for a query, best first."""
    engine = services.engine
    filters = filters_of(body.filters)
    passages = await services.answering.run(lambda: engine.search(body.query, body.top_k, filters), client_of(request))
    return PassagesOut.model_validate({"passages": passages})


@router.post("/compare", response_model=AnswersOut, responses=error_responses(400, 404, 409, 413, 422, 429, 503))
async def compare(body: CompareIn, request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """Answers with every arm or variant named, or with all arms that can run; if a named one cannot, none is asked."""
    question = Question(
        body.question,
        adapter=body.adapter,
        top_k=body.top_k,
        filters=filters_of(body.filters),
        max_tokens=body.max_tokens,
        seed=body.seed,
        owner=caller.learner,
    )

    async def answered() -> list[Answer]:
        comparing = services.answering.compare(question, body.arms or (), client_of(request), body.ways())
        async with aclosing(comparing) as runs:
            return [await run.answer() async for run in runs]

    answers = await unless_gone(request, answered())
    if answers is None:
        return Response(status_code=CLIENT_LEFT)
    kept = await asyncio.to_thread(services.engine.keep_together, answers, caller.learner)
    return JSONResponse(
        AnswersOut.model_validate({"answers": kept, "variants": [answer.variant for answer in kept]}).model_dump(
            mode="json"
        )
    )


@router.post("/choose", responses=error_responses(400, 404, 409, 413, 422, 429, 503))
async def choose(body: ChooseIn, request: Request, services: ServicesDep) -> PicksOut:
    """Which option of a choice question each arm takes: with a language model by likelihood, else with the encoder."""
    chooser = services.engine.chooser
    choose = partial(services.choose, body.question, body.choices, body.arms, adapter=body.adapter, top_k=body.top_k)
    picks = await services.answering.run(choose, client_of(request))
    return PicksOut.model_validate({"generator": chooser.name, "model": chooser.model_name, "picks": picks})


@router.post("/votes", status_code=201, responses=error_responses(400, 404, 422, 503))
def vote(body: VoteIn, services: ServicesDep, caller: CallerDep) -> VoteOut:
    """Keeps a reader's vote between answers to one question."""
    kept = services.vote(body.answer_ids, body.preferred, caller.learner, blind=body.blind)
    return VoteOut(question=kept.question, winner=kept.winner or None, blind=kept.blind, at=kept.at)


@router.post("/reports", status_code=202, responses=error_responses(403, 404, 409, 422, 503))
def run_comparison(services: ServicesDep, caller: CallerDep, body: ReportIn | None = None) -> JobStartedOut:
    """Runs the quick comparison with what answers now, on the bank or on a book's questions; the job's last message is
    the id of its report."""
    caller.need_open_key("run comparisons")
    return JobStartedOut(job_id=services.run_comparison(body.document_id if body is not None else None).id)


@router.post("/adapters", status_code=202, responses=error_responses(400, 403, 404, 409, 422, 503))
def tune_adapter(body: AdapterIn, services: ServicesDep, caller: CallerDep) -> JobStartedOut:
    """Tunes an adapter of the local model that answers; PUT /v1/generator then takes it by its name."""
    caller.need_open_key("tune adapters")
    if body.document_ids and body.questions is not None:
        raise InvalidInput("`document_ids` and `questions` both name questions", hint="Name one of them.")
    source = body.questions or BANK_TUNE
    return JobStartedOut(job_id=services.tune_adapter(body.name, body.epochs, body.document_ids or (), source).id)


@router.get("/adapters/{name}/loss.svg", response_class=Response, responses=error_responses(404, 503))
def draw_loss(name: str, services: ServicesDep) -> Response:
    """The loss curve of an adapter that was tuned here, so far while it is being tuned."""
    return Response(services.adapters.curve(name), media_type="image/svg+xml", headers={"Cache-Control": "no-store"})


@router.get("/votes", responses=error_responses(503))
def count_votes(services: ServicesDep) -> VotesOut:
    """The table of wins: of everyone's votes, how often each arm or variant was preferred."""
    return VotesOut.model_validate(services.engine.conversations.wins())


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
    return _json_lines(votes, "coalesce-votes.jsonl")


@router.post("/explain", responses=error_responses(400, 404, 413, 422, 429, 503))
async def explain(body: ExplainIn, request: Request, services: ServicesDep) -> ExplanationOut:
    """Says why a page or a section was not found: its rank in each search, and the words it lacks."""
    found = await services.answering.run(
        lambda: services.explain(body.question, body.document_id, page=body.page, section=body.section),
        client_of(request),
    )
    return ExplanationOut.model_validate(found)


@router.get("/conversations", responses=error_responses(503))
def list_conversations(
    store: ConversationsDep,
    search: Annotated[str, Query(max_length=200, description="only those whose title or text holds it")] = "",
) -> ConversationsOut:
    """The conversations that the key may see, the one used last first."""
    return ConversationsOut.model_validate({"conversations": store.list(search)})


@router.delete("/conversations", status_code=204, responses=error_responses(503))
def delete_conversations(services: ServicesDep, caller: CallerDep) -> None:
    """Removes every conversation that the key may see, with their answers."""
    services.delete_conversations(caller.learner)


@router.get("/conversations/{conversation_id}/export.md", response_class=Response, responses=error_responses(404, 503))
def export_conversation(conversation_id: str, store: ConversationsDep) -> Response:
    """A conversation as Markdown, its sources as footnotes."""
    text = conversation_markdown(store.get(conversation_id).title, store.answers(conversation_id))
    headers = {"Content-Disposition": 'attachment; filename="conversation.md"'}
    return Response(text, media_type="text/markdown; charset=utf-8", headers=headers)


@router.delete("/answers/{answer_id}", status_code=204, responses=error_responses(404, 503))
def remove_answer(answer_id: str, store: ConversationsDep) -> None:
    """Removes an answer from its conversation, to ask again or otherwise."""
    store.remove_answer(answer_id)


@router.post("/conversations", status_code=201, responses=error_responses(400, 422, 503))
def start_conversation(store: ConversationsDep, body: ConversationIn | None = None) -> ConversationOut:
    """Starts an empty conversation; without a title it takes the first question's words."""
    title = reject_control_characters(body.title, "title") if body is not None else ""
    return ConversationOut.model_validate(store.create(title))


@router.get("/conversations/{conversation_id}", responses=error_responses(404, 503))
def get_conversation(conversation_id: str, store: ConversationsDep) -> ConversationDetailOut:
    """A conversation with its answers as they were given."""
    conversation = ConversationOut.model_validate(store.get(conversation_id)).model_dump()
    return ConversationDetailOut.model_validate(conversation | {"answers": store.answers(conversation_id)})


@router.patch("/conversations/{conversation_id}", responses=error_responses(400, 404, 422, 503))
def rename_conversation(
    conversation_id: str, body: RenameIn, services: ServicesDep, caller: CallerDep
) -> ConversationOut:
    """Gives a conversation another title."""
    renamed = services.rename_conversation(conversation_id, body.title, caller.learner)
    return ConversationOut.model_validate(renamed)


@router.delete("/conversations/{conversation_id}", status_code=204, responses=error_responses(404, 503))
def delete_conversation(conversation_id: str, services: ServicesDep, caller: CallerDep) -> None:
    """Removes a conversation with its answers and their feedback."""
    services.delete_conversation(conversation_id, caller.learner)


@router.post("/feedback", status_code=201, responses=error_responses(400, 404, 422, 503))
def give_feedback(body: FeedbackIn, services: ServicesDep, caller: CallerDep) -> FeedbackOut:
    """Keeps a thumb up or down; a second one on the same answer replaces the first."""
    kept = services.give_feedback(body.answer_id, body.rating, body.comment or "", caller.learner)
    return FeedbackOut.model_validate(kept)


@router.get("/feedback/cases.jsonl", response_class=Response, responses=error_responses(503))
def export_cases(store: ConversationsDep) -> Response:
    """All feedback as evaluation cases, for `coalesce eval --questions FILE`."""
    return _json_lines(feedback_cases(store.feedback()), "coalesce-feedback.jsonl")


@router.get("/generator", responses=error_responses(503))
def get_generator(services: ServicesDep) -> GeneratorOut:
    """What answers now, and the engines, models and adapters found on this machine."""
    now = asdict(services.generators.now())
    return GeneratorOut.model_validate(now | asdict(services.generators.look_around()))


@router.put("/generator", status_code=202, responses=error_responses(400, 403, 404, 409, 422, 503))
def put_generator(body: GeneratorIn, services: ServicesDep, caller: CallerDep) -> JobStartedOut:
    """Loads another generator while the old one answers; a failure keeps the old one, and the job says why."""
    caller.need_open_key("change what answers")
    named = body.model_dump()
    if body.generator == "auto":
        named["generator"] = "local"
    as_set = body.generator == "auto" and body.model is None
    return JobStartedOut(job_id=services.generators.switch(None if as_set else GeneratorChoice(**named)).id)


async def _streamed(events: AsyncGenerator[Event], answer_id: str) -> Response:
    """The events as a reply that begins with the first of them, so that an error before it keeps its status."""
    first = await anext(events, None)
    return event_stream(_encoded(first, events), **{ANSWER_ID: answer_id})


async def _encoded(first: Event | None, events: AsyncGenerator[Event]) -> AsyncGenerator[ServerSentEvent]:
    async with aclosing(events):
        try:
            if first is not None:
                yield _encode(first)
            async for event in events:
                yield _encode(event)
        except Exception as error:  # noqa: BLE001  the reply has begun: the error goes as its last event
            yield sse(describe(error).event, "error")


def _encode(event: Event) -> ServerSentEvent:
    match event:
        case PassagesFound():
            return sse(PassagesEventOut.model_validate(event).model_dump(mode="json"), "passages")
        case Waiting(before):
            return sse({"before": before}, "waiting")
        case Thinking():
            return sse({}, "thinking")
        case TextDelta(text):
            return sse({"text": text}, "delta")
        case AnswerDone(answer):
            return sse(AnswerOut.model_validate(answer).model_dump(mode="json"), "done")


def _json_lines(records: Iterable[Mapping[str, Any]], name: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(to_jsonl(records), media_type="application/jsonl", headers=headers)
