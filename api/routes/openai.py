"""The OpenAI-compatible calls: each arm is a model; the message carries `citations` beside `content`.

The last user message is the question, earlier user and assistant messages are its turns. The prompt is Coalesce's own:
what a system message says is added for a language model, and without one a note says that it was not used. These
answers are not kept in conversations: the client keeps its own.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from sse_starlette import ServerSentEvent

from api.chat_clients import MarkersFromOne, for_client, task_reply, without_sources
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
from rag.question import asks_in_chinese
from rag.types import (
    ARMS,
    TUNED_ARMS,
    Answer,
    AnswerDone,
    Event,
    Finish,
    PassagesFound,
    Question,
    TextDelta,
    Timings,
    Usage,
)

MODEL_PREFIX = "coalesce-"
DEFAULT_TOP_K = 5
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "n": (1,), "tools": ([],), "functions": ([],), "tool_choice": ("none", "auto"), "function_call": ("none", "auto"),
    "logprobs": (False,), "top_logprobs": (0,), "response_format": ({"type": "text"},), "logit_bias": ({},),
    "presence_penalty": (0,), "frequency_penalty": (0,), "modalities": (["text"],), "audio": (), "prediction": (),
    "web_search_options": (),
}  # fmt: skip
"""What is not done, each with the values that ask for nothing."""
_SYSTEM_UNUSED = {
    False: "The system message was not used: no language model answers here.",
    True: "没有使用系统消息：这里没有语言模型作答。",
}

router = APIRouter(prefix="/v1", tags=["OpenAI-compatible"])
STARTED_S = int(time.time())


@router.get("/models", responses=error_responses(503))
def list_models(services: ServicesDep) -> ModelsOut:
    """The arms that can answer here."""
    return ModelsOut(data=[_model(services, arm) for arm in services.engine.arms])


@router.get("/models/{model_id}", responses=error_responses(404, 503))
def get_model(model_id: str, services: ServicesDep) -> ModelOut:
    """One arm."""
    for arm in services.engine.arms:
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
    note = _unused(question, services)
    if (reply := task_reply(question.text)) is not None:
        done = _said(question, reply)
        if body.stream:
            return event_stream(_chunks(done.id, None, _events_of(done), body, bound, note))
        return JSONResponse(_completion(done, body.model, bound).model_dump(mode="json"))
    run = services.answering.start(question, client_of(request), keep=False)
    if body.stream:
        events = run.events()
        first = await anext(events, None)  # before the reply begins, so that an error still has its status
        return event_stream(_chunks(run.id, first, events, body, bound, note))
    answer = await unless_gone(request, run.answer())
    if answer is None:
        return Response(status_code=CLIENT_LEFT)
    markers = MarkersFromOne(len(answer.passages))
    answer = for_client(answer, markers, markers.feed(answer.answer) + markers.finish())
    return JSONResponse(_completion(_noted(answer, note), body.model, bound).model_dump(mode="json"))


def _unused(question: Question, services: Services) -> str:
    """What to say of a system message where no language model answers."""
    if not question.system or "base" in services.engine.generator.arms:
        return ""
    return _SYSTEM_UNUSED[asks_in_chinese(question.text)]


def _noted(answer: Answer, note: str) -> Answer:
    return replace(answer, note=" ".join(filter(None, (answer.note, note))) or None)


def _said(question: Question, reply: str) -> Answer:
    """A reply that nothing was asked for."""
    return Answer(
        id=uuid.uuid4().hex,
        conversation_id="",
        question=question.text,
        answer=reply,
        refused=False,
        arm=question.arm,
        generator="none",
        model="",
        adapter=None,
        citations=(),
        passages=(),
        timings=Timings(0.0, 0.0, 0.0),
        usage=Usage(0, 0, 0),
        tokens_per_s=0.0,
        peak_memory_bytes=0,
    )


async def _events_of(answer: Answer) -> AsyncGenerator[Event]:
    yield TextDelta(answer.answer)
    yield AnswerDone(answer)


def question_of(body: ChatIn) -> Question:
    """The question that a request asks.

    Raises:
        NotFound: the model does not name an arm.
        InvalidInput: the messages hold no question, or ask for something that is not supported.
    """
    for name, harmless in _UNSUPPORTED.items():
        value = getattr(body, name)
        if value is not None and value not in harmless:
            raise InvalidInput(
                msg("{} is not supported, and was {}", f"`{name}`", f"{value!r:.80}"),
                hint=msg("Leave out {}.", f"`{name}`"),
            )
    arm = next((arm for arm in ARMS if body.model == MODEL_PREFIX + arm), None)
    if arm is None:
        known = ", ".join(MODEL_PREFIX + arm for arm in ARMS)
        raise NotFound(f"no model has the id {body.model!r}", hint=msg("Use one of {}.", known))
    spoken = [message for message in body.messages if message.role in ("user", "assistant")]
    if not spoken or spoken[-1].role != "user":
        raise InvalidInput("the last message is not a user's", hint="End the messages with a user message.")
    system = "\n\n".join(_text(message) for message in body.messages if message.role in ("system", "developer"))
    return Question(
        _text(spoken[-1]),
        arm=arm,
        adapter=body.adapter,
        top_k=body.num_passages or DEFAULT_TOP_K,
        filters=filters_of(body.filters),
        turns=_turns(spoken[:-1]),
        max_tokens=body.max_completion_tokens or body.max_tokens,
        temperature=body.temperature or 0.0,
        sampling_top_p=1.0 if body.top_p is None else body.top_p,
        sampling_top_k=max(body.top_k or 0, 0),
        system=system.strip(),
        seed=body.seed,
        stop=tuple(body.stop or ()),
        answer_anyway=body.answer_anyway,
        answers=body.answers,
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
        text = _text(message) if message.role == "user" else without_sources(_text(message))
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


async def _after(first: Event | None, events: AsyncGenerator[Event]) -> AsyncIterator[Event]:
    if first is not None:
        yield first
    async for event in events:
        yield event


async def _chunks(
    answer_id: str,
    first: Event | None,
    events: AsyncGenerator[Event],
    body: ChatIn,
    max_tokens: int,
    note: str,
) -> AsyncIterator[ServerSentEvent]:
    """OpenAI's chunks: role, text, its sources, then one with the finish reason, citations and usage; `[DONE]` ends
    them."""
    include_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
    head: dict[str, Any] = {
        "id": f"chatcmpl-{answer_id}",
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": body.model,
    }
    markers = MarkersFromOne(0)
    sent = ""

    def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> ServerSentEvent:
        return sse(head | {"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]} | more)

    async with aclosing(events):
        try:
            yield chunk({"role": "assistant", "content": ""})
            async for event in _after(first, events):
                if isinstance(event, PassagesFound):
                    markers = MarkersFromOne(len(event.passages))
                elif isinstance(event, TextDelta):
                    if text := markers.feed(event.text):
                        sent += text
                        yield chunk({"content": text})
                elif isinstance(event, AnswerDone):
                    answer = for_client(event.answer, markers, sent + markers.finish())
                    if rest := answer.answer[len(sent) :]:
                        yield chunk({"content": rest})
                    whole = _completion(_noted(answer, note), body.model, max_tokens)
                    finish = whole.choices[0].finish_reason
                    parts = {"citations", "passages", "refused", "written", "evidence", "note"}
                    message = whole.choices[0].message.model_dump(mode="json", include=parts)
                    usage = whole.usage.model_dump(mode="json")
                    # Clients that read `choices[0]` of every chunk break on one with usage alone: only when asked for.
                    yield chunk(message, finish, usage=None if include_usage else usage)
                    if include_usage:
                        yield sse(head | {"choices": [], "usage": usage})
            yield sse("[DONE]")
        except Exception as error:  # noqa: BLE001  the reply has begun: the error goes as its last event
            yield sse(openai_body(describe(error)))
