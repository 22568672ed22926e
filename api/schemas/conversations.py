"""Wire forms of conversations and of feedback on their answers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from api.schemas.answers import AnswerOut
from api.schemas.base import Id, WireIn, WireOut

MAX_TITLE_CHARS = 300


class ConversationIn(WireIn):
    """Body of `POST /v1/conversations`."""

    title: Annotated[str, Field(max_length=MAX_TITLE_CHARS)] = ""


class RenameIn(WireIn):
    """Body of `PATCH /v1/conversations/{id}`."""

    title: Annotated[str, Field(min_length=1, max_length=MAX_TITLE_CHARS)]


class ConversationOut(WireOut):
    """A conversation in the list."""

    id: str
    title: str
    created_at: str
    updated_at: str
    num_answers: int


class ConversationsOut(WireOut):
    """Every conversation, the newest first."""

    conversations: list[ConversationOut]


class ConversationDetailOut(ConversationOut):
    """A conversation with its answers, citations and all."""

    answers: list[AnswerOut]


class FeedbackIn(WireIn):
    """Body of `POST /v1/feedback`."""

    answer_id: Id
    rating: Literal["up", "down"]
    comment: str | None = None


class FeedbackOut(WireOut):
    """The feedback as it is kept."""

    answer_id: str
    rating: Literal["up", "down"]
    comment: str
    created_at: str
