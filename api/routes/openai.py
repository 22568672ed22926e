"""The OpenAI-compatible calls: each arm is a model; the message carries `citations` beside `content`.

The last user message is the question, earlier user and assistant messages are its turns. The prompt is Coalesce's own:
system messages do not change it. These answers are not kept in conversations: the client keeps its own.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from sse_starlette import ServerSentEvent

from api.answering import AnswerRun
from api.deps import ServicesDep
from api.errors import describe, openai_body
from api.routes.ask import CLIENT_LEFT, EXAM_ALLOWS
from api.schemas.answers import filters_of
from api.schemas.base import error_responses
from api.schemas.openai import (
    ChatChoice,
    ChatIn,
    ChatMessageIn,
    ChatMessageOut,
    ChatOut,
    ChatUsage,
    ModelOut,
    ModelsOut,
)
from api.security import client_of
from api.services import Services
from api.streaming import event_stream, sse, unless_gone
from indexes.errors import InvalidInput, NotFound
from indexes.messages import msg
from rag.types import ARMS, TUNED_ARMS, Answer, AnswerDone, Event, Finish, Question, TextDelta

MODEL_PREFIX = "coalesce-"
DEFAULT_TOP_K = 5

router = APIRouter(prefix="/v1", tags=["OpenAI-compatible"])
STARTED_S = int(time.time())


@router.get("/models", responses=error_responses(503))
def list_models(services: ServicesDep) -> ModelsOut:
    """The four arms; `available` tells which can run here."""
    return ModelsOut(data=[_model(services, arm) for arm in ARMS])


@router.get("/models/{model_id}", responses=error_responses(404, 503))
def get_model(model_id: str, services: ServicesDep) -> ModelOut:
    """One arm."""
    for arm in ARMS:
        if model_id == MODEL_PREFIX + arm:
            return _model(services, arm)
    raise NotFound(f"no model has the id {model_id!r}", hint="GET /v1/models lists them.")


@router.post(
    "/chat/completions",
    response_model=ChatOut,
    dependencies=EXAM_ALLOWS,
    responses=error_responses(400, 404, 409, 413, 422, 429, 503),
)
async def complete(body: ChatIn, request: Request, services: ServicesDep) -> Response:
    """Answers the last user message, whole or streamed."""
    question = question_of(body)
    bound = question.max_tokens or services.settings.max_tokens
    run = services.answering.start(question, client_of(request), keep=False)
    if body.stream:
        events = run.events()
        first = await anext(events, None)  # before the reply begins, so that an error still has its status
        include_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        return event_stream(_chunks(run, first, events, body.model, bound, include_usage=include_usage))
    answer = await unless_gone(request, run.answer())
    if answer is None:
        return Response(status_code=CLIENT_LEFT)
    return JSONResponse(_completion(answer, body.model, bound).model_dump(mode="json"))


def question_of(body: ChatIn) -> Question:
    """The question that a request asks.

    Raises:
        NotFound: the model does not name an arm.
        InvalidInput: the messages hold no question, or ask for something that is not supported.
    """
    if body.n not in (None, 1):
        raise InvalidInput(f"n={body.n}, but a request gets one answer", hint="Leave out `n`.")
    if body.tools:
        raise InvalidInput("`tools` are not supported", hint="Leave out `tools`.")
    arm = next((arm for arm in ARMS if body.model == MODEL_PREFIX + arm), None)
    if arm is None:
        known = ", ".join(MODEL_PREFIX + arm for arm in ARMS)
        raise NotFound(f"no model has the id {body.model!r}", hint=msg("Use one of {}.", known))
    spoken = [message for message in body.messages if message.role in ("user", "assistant")]
    if not spoken or spoken[-1].role != "user":
        raise InvalidInput("the last message is not a user's", hint="End the messages with a user message.")
    return Question(
        _text(spoken[-1]),
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
        answer_anyway=body.answer_anyway,
    )


def usage_of(answer: Answer) -> ChatUsage:
    """The answer's tokens in OpenAI's words."""
    usage = answer.usage
    return ChatUsage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details={"cached_tokens": usage.cached_prompt_tokens},
        completion_tokens_details={"reasoning_tokens": usage.reasoning_tokens},
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
        raise InvalidInput(f"content of type {unread!r} is not read", hint="Send text only.")
    return "\n".join(part.text or "" for part in message.content)


def finish_reason(answer: Answer, max_tokens: int) -> Finish:
    """`length` when the answer was cut off at the client's or the server's limit."""
    usage = answer.usage
    return "length" if usage.completion_tokens - usage.reasoning_tokens >= max_tokens else usage.finish


def _model(services: Services, arm: str) -> ModelOut:
    generator = services.engine.generator
    return ModelOut(
        id=MODEL_PREFIX + arm,
        created=STARTED_S,
        available=arm in generator.arms,
        generator=generator.name,
        base_model=generator.model_name,
        quantization=services.generators.now().quantization,
        adapters=list(generator.adapters) if arm in TUNED_ARMS else [],
    )


def _completion(answer: Answer, model: str, max_tokens: int) -> ChatOut:
    message = ChatMessageOut.model_validate(answer)
    choice = ChatChoice(message=message, finish_reason=finish_reason(answer, max_tokens))
    return ChatOut(
        id=f"chatcmpl-{answer.id}", created=int(time.time()), model=model, choices=[choice], usage=usage_of(answer)
    )


async def _chunks(
    run: AnswerRun,
    first: Event | None,
    events: AsyncGenerator[Event],
    model: str,
    max_tokens: int,
    *,
    include_usage: bool,
) -> AsyncIterator[ServerSentEvent]:
    """OpenAI's chunks: role, text, then one with the finish reason, citations and usage; `[DONE]` ends them."""
    head: dict[str, Any] = {
        "id": f"chatcmpl-{run.id}",
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": model,
    }

    def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> ServerSentEvent:
        return sse(head | {"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]} | more)

    async with aclosing(events):
        try:
            yield chunk({"role": "assistant", "content": ""})
            if isinstance(first, TextDelta):
                yield chunk({"content": first.text})
            async for event in events:
                if isinstance(event, TextDelta):
                    yield chunk({"content": event.text})
                elif isinstance(event, AnswerDone):
                    whole = _completion(event.answer, model, max_tokens)
                    finish = whole.choices[0].finish_reason
                    parts = {"citations", "passages", "refused", "evidence", "note"}
                    message = whole.choices[0].message.model_dump(mode="json", include=parts)
                    usage = whole.usage.model_dump(mode="json")
                    # Clients that read `choices[0]` of every chunk break on one with usage alone: only when asked for.
                    yield chunk(message, finish, usage=None if include_usage else usage)
                    if include_usage:
                        yield sse(head | {"choices": [], "usage": usage})
            yield sse("[DONE]")
        except Exception as error:  # noqa: BLE001  the reply has begun: the error goes as its last event
            yield sse(openai_body(describe(error)))
