"""Conversations, their answers, and feedback."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query, Response
from starlette.concurrency import run_in_threadpool

from api.deps import CallerDep, ConversationsDep, ServicesDep
from api.paging import USUAL_LIMIT, Cursor, Limit, decoded, encoded
from api.schemas.answers import (
    AnswerOut,
    ConversationDetail,
    ConversationIn,
    ConversationsOut,
    FeedbackCountOut,
    FeedbackIn,
    RenameIn,
)
from api.schemas.base import attached, error_responses
from api.schemas.study import Learner
from evals.export import feedback_cases
from indexes.errors import NotFound
from indexes.jsonl import to_jsonl
from rag.conversations import MOST_SEARCHED, Conversation, Feedback, Place, conversation_markdown
from rag.question import reject_control_characters

router = APIRouter(prefix="/v1", tags=["conversations"])
SEARCHED = f"only those whose title or text holds it, of the newest {MOST_SEARCHED:,}, or those behind the cursor"
BegunIn = Annotated[Place | None, Query(description="`page`: without those begun by programs and commands")]


@router.get("/conversations", responses=error_responses(400, 422, 503))
def list_conversations(
    store: ConversationsDep,
    search: Annotated[str, Query(max_length=200, description=SEARCHED)] = "",
    begun_in: BegunIn = None,
    limit: Limit = USUAL_LIMIT,
    cursor: Cursor = None,
) -> ConversationsOut:
    """The conversations that the key may see, the one used last first. An open key sees everyone's, by `owner`."""
    after = None
    if cursor is not None:
        moment, _, last = decoded(cursor).partition(" ")
        after = (moment, last)
    found = store.list(search, of_the_page=begun_in == "page", limit=limit + 1, after=after)
    shown = found[:limit]
    more = encoded(f"{shown[-1].updated_at} {shown[-1].id}") if len(found) > limit else None
    return ConversationsOut.model_validate({"conversations": shown, "next_cursor": more})


@router.delete("/conversations", status_code=204, responses=error_responses(403, 422, 503))
def delete_conversations(
    services: ServicesDep,
    caller: CallerDep,
    begun_in: BegunIn = None,
    learner: Annotated[Learner | None, Query(description="whose; by default the caller's own")] = None,
) -> None:
    """Removes the caller's own conversations with their answers, or with an open key those of the learner named."""
    owner = learner if caller.learner is None else caller.learner_for(learner)
    services.delete_conversations(owner, of_the_page=begun_in == "page")


@router.post("/conversations", status_code=201, responses=error_responses(400, 422, 503))
def start_conversation(store: ConversationsDep, body: ConversationIn | None = None) -> Conversation:
    """Starts an empty conversation; without a title it takes the first question's words."""
    wanted = body or ConversationIn()
    return store.create(reject_control_characters(wanted.title, "title"), wanted.begun_in)


@router.get("/conversations/{conversation_id}", responses=error_responses(404, 503))
def get_conversation(conversation_id: str, store: ConversationsDep, services: ServicesDep) -> ConversationDetail:
    """A conversation with its answers as they were given."""
    unfinished = services.answering.unfinished(conversation_id)  # before its answers: one that ends now is among them
    conversation = asdict(store.get(conversation_id))
    answers = [AnswerOut.model_validate(answer) for answer in store.answers(conversation_id)]
    if unfinished is not None and any(answer.id == unfinished.id for answer in answers):
        unfinished = None
    return ConversationDetail(
        **conversation,
        answers=answers,
        ratings=store.ratings(conversation_id),
        unfinished=unfinished,
    )


@router.patch("/conversations/{conversation_id}", responses=error_responses(400, 404, 422, 503))
def rename_conversation(conversation_id: str, body: RenameIn, services: ServicesDep, caller: CallerDep) -> Conversation:
    """Gives a conversation another title."""
    return services.rename_conversation(conversation_id, body.title, caller.learner)


@router.delete("/conversations/{conversation_id}", status_code=204, responses=error_responses(404, 503))
def delete_conversation(conversation_id: str, services: ServicesDep, caller: CallerDep) -> None:
    """Removes a conversation with its answers and their feedback."""
    services.delete_conversation(conversation_id, caller.learner)


@router.get("/conversations/{conversation_id}/export.md", response_class=Response, responses=error_responses(404, 503))
def export_conversation(conversation_id: str, store: ConversationsDep) -> Response:
    """A conversation as Markdown, its sources as footnotes."""
    text = conversation_markdown(store.get(conversation_id).title, store.answers(conversation_id))
    return attached(text, "text/markdown; charset=utf-8", "conversation.md")


@router.delete("/answers/{answer_id}", status_code=204, responses=error_responses(404, 503))
async def remove_answer(answer_id: str, store: ConversationsDep, services: ServicesDep, caller: CallerDep) -> None:
    """Removes an answer from its conversation, to ask again or otherwise; stops one that is being written."""
    if services.answering.stop(answer_id, caller.learner):
        return
    try:
        await run_in_threadpool(store.remove_answer, answer_id)
    except NotFound:
        if not await services.answering.stop_elsewhere(answer_id, caller.learner):
            await run_in_threadpool(store.remove_answer, answer_id)  # it may have ended meanwhile


@router.post("/feedback", status_code=201, responses=error_responses(400, 404, 422, 503))
def give_feedback(body: FeedbackIn, services: ServicesDep, caller: CallerDep) -> Feedback:
    """Keeps a thumb up or down; a second one on the same answer replaces the first."""
    return services.give_feedback(body.answer_id, body.rating, body.comment or "", caller.learner)


@router.get("/feedback", responses=error_responses(503))
def count_feedback(store: ConversationsDep) -> FeedbackCountOut:
    """How many thumbs up and down the key may see."""
    ratings = [feedback.rating for feedback, _ in store.feedback()]
    return FeedbackCountOut(up=ratings.count("up"), down=ratings.count("down"))


@router.get("/feedback/cases.jsonl", response_class=Response, responses=error_responses(503))
def export_cases(store: ConversationsDep) -> Response:
    """All feedback as evaluation cases, for `coalesce eval --questions FILE`."""
    return attached(to_jsonl(feedback_cases(store.feedback())), "application/jsonl", "coalesce-feedback.jsonl")
