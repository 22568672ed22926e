"""`/v1/conversations`: list, start, reload with answers and citations, rename, delete."""

from __future__ import annotations

from fastapi import APIRouter

from api.deps import ConversationsDep
from api.schemas.answers import AnswerOut
from api.schemas.base import error_responses
from api.schemas.conversations import ConversationDetailOut, ConversationIn, ConversationOut, ConversationsOut, RenameIn
from api.text_input import refuse_controls
from rag.conversations import Conversation

router = APIRouter(prefix="/v1/conversations", tags=["conversations"])


@router.get("", responses=error_responses(503))
def list_conversations(store: ConversationsDep) -> ConversationsOut:
    """Every conversation the key may know of, the one used last first."""
    return ConversationsOut(conversations=[_out(item) for item in store.list()])


@router.post("", status_code=201, responses=error_responses(422, 503))
def start_conversation(store: ConversationsDep, body: ConversationIn | None = None) -> ConversationOut:
    """An empty conversation; without a title it takes the first question's words."""
    title = refuse_controls(body.title, "title") if body is not None else ""
    return _out(store.create(title))


@router.get("/{conversation_id}", responses=error_responses(404, 503))
def get_conversation(conversation_id: str, store: ConversationsDep) -> ConversationDetailOut:
    """A conversation with its answers as they were given."""
    conversation = store.get(conversation_id)
    answers = [AnswerOut.of(answer) for answer in store.answers(conversation_id)]
    return ConversationDetailOut(**_out(conversation).model_dump(), answers=answers)


@router.patch("/{conversation_id}", responses=error_responses(400, 404, 422, 503))
def rename_conversation(conversation_id: str, body: RenameIn, store: ConversationsDep) -> ConversationOut:
    """Gives it another title."""
    return _out(store.rename(conversation_id, refuse_controls(body.title, "title")))


@router.delete("/{conversation_id}", status_code=204, responses=error_responses(404, 503))
def delete_conversation(conversation_id: str, store: ConversationsDep) -> None:
    """Removes it with its answers and their feedback."""
    store.delete(conversation_id)


def _out(value: Conversation) -> ConversationOut:
    return ConversationOut(
        id=value.id,
        title=value.title,
        created_at=value.created_at,
        updated_at=value.updated_at,
        num_answers=value.num_answers,
    )
