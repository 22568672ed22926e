"""Between OpenAI's messages and our questions: the last user message is the question, the others are its turns."""

from __future__ import annotations

from typing import Literal

from api.schemas.answers import filters_of
from api.schemas.openai import ChatIn, ChatMessageIn, ChatUsage
from api.text_input import refuse_controls
from indexes.errors import InvalidInput, NotFound
from rag.types import ARMS, Answer, Question

MODEL_PREFIX = "coalesce-"
DEFAULT_TOP_K = 5


def question_of(body: ChatIn) -> Question:
    """The question that a request asks.

    Raises:
        NotFound: a model that is no arm.
        InvalidInput: messages that hold no question, or a wish that cannot be met.
    """
    if body.n not in (None, 1):
        raise InvalidInput(f"n={body.n}: one answer a request is given", hint="leave out `n`")
    if body.tools:
        raise InvalidInput("`tools` are not called here", hint="leave out `tools`")
    arm = next((arm for arm in ARMS if body.model == MODEL_PREFIX + arm), None)
    if arm is None:
        known = ", ".join(MODEL_PREFIX + arm for arm in ARMS)
        raise NotFound(f"no model has the id {body.model!r}", hint=f"use one of {known}")
    spoken = [message for message in body.messages if message.role in ("user", "assistant")]
    if not spoken or spoken[-1].role != "user":
        raise InvalidInput("the last message is not a user's", hint="end the messages with a user message")
    return Question(
        refuse_controls(_text(spoken[-1]), "question"),
        arm=arm,
        adapter=body.adapter,
        top_k=body.top_k or DEFAULT_TOP_K,
        filters=filters_of(body.filters),
        turns=_turns(spoken[:-1]),
        max_tokens=body.max_completion_tokens or body.max_tokens,
        temperature=body.temperature or 0.0,
        sampling_top_p=1.0 if body.top_p is None else body.top_p,
        seed=body.seed,
        stop=tuple(body.stop or ()),
    )


def usage_of(answer: Answer) -> ChatUsage:
    """The answer's tokens in OpenAI's words."""
    usage = answer.usage
    return ChatUsage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details={"cached_tokens": usage.cached_prompt_tokens},
    )


def _turns(messages: list[ChatMessageIn]) -> tuple[tuple[str, str], ...]:
    """Pairs of question and answer; neighbouring messages of one role are joined, an unanswered question is kept."""
    turns: list[tuple[str, str]] = []
    for message in messages:
        text = _text(message)
        if message.role == "user" and (not turns or turns[-1][1]):
            turns.append((text, ""))
        elif message.role == "user":
            turns[-1] = (f"{turns[-1][0]}\n\n{text}", "")
        elif turns:
            earlier = turns[-1][1]
            turns[-1] = (turns[-1][0], f"{earlier}\n\n{text}" if earlier else text)
    return tuple(turns)


def _text(message: ChatMessageIn) -> str:
    if message.content is None:
        return ""
    if isinstance(message.content, str):
        return message.content
    unread = next((part.type for part in message.content if part.type != "text" or part.text is None), None)
    if unread is not None:
        raise InvalidInput(f"content of type {unread!r} is not read", hint="send text only")
    return "\n".join(part.text or "" for part in message.content)


def finish_reason(answer: Answer, max_tokens: int) -> Literal["stop", "length"]:
    """`length` when the answer was cut off by its bound, the client's or the server's own."""
    return "length" if answer.usage.completion_tokens >= max_tokens else "stop"
