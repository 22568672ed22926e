"""The OpenAI-compatible calls: each arm is a model, citations ride along beside the content.

The messages of a request are its conversation: earlier user and assistant messages become turns, the last user
message is the question. The prompt is Coalesce's own, so system messages do not change it. Such answers are not kept
among the conversations, which the client keeps itself.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from api.answering import client_of
from api.chat_messages import MODEL_PREFIX, finish_reason, question_of, usage_of
from api.deps import AnsweringDep, ServicesDep
from api.errors import describe, openai_body
from api.routes.ask import CLIENT_LEFT
from api.schemas.answers import PassageOut, citations_of
from api.schemas.base import error_responses
from api.schemas.openai import ChatChoice, ChatIn, ChatMessageOut, ChatOut, ModelOut, ModelsOut
from api.services import Services
from api.streaming import EventPump, EventStreamResponse, sse
from indexes.errors import NotFound
from rag.types import ARMS, TUNED_ARMS, Answer, AnswerDone, Event, TextDelta

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
    raise NotFound(f"no model has the id {model_id!r}", hint="GET /v1/models lists them")


@router.post("/chat/completions", response_model=ChatOut, responses=error_responses(400, 404, 409, 413, 422, 429, 503))
async def complete(body: ChatIn, request: Request, answering: AnsweringDep, services: ServicesDep) -> Response:
    """Answers the last user message, whole or streamed."""
    question = question_of(body)
    bound = question.max_tokens or services.settings.max_tokens
    if not body.stream:
        answer = await answering.answer(question, request, keep=False)
        if answer is None:
            return Response(status_code=CLIENT_LEFT)
        return JSONResponse(_completion(answer, body.model, bound).model_dump(mode="json"))
    pump = answering.stream(question, client_of(request), keep=False)
    first = await pump.next()
    include_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
    return EventStreamResponse(_chunks(first, pump, body.model, bound, include_usage=include_usage))


def _model(services: Services, arm: str) -> ModelOut:
    generator = services.engine.generator
    return ModelOut(
        id=MODEL_PREFIX + arm,
        created=STARTED_S,
        available=arm in generator.arms,
        generator=generator.name,
        base_model=generator.model_name,
        adapters=list(generator.adapters) if arm in TUNED_ARMS else [],
    )


def _completion(answer: Answer, model: str, max_tokens: int) -> ChatOut:
    message = ChatMessageOut(
        content=answer.answer,
        citations=citations_of(answer),
        passages=[PassageOut.of(passage) for passage in answer.passages],
        refused=answer.refused,
    )
    choice = ChatChoice(message=message, finish_reason=finish_reason(answer, max_tokens))
    return ChatOut(
        id=f"chatcmpl-{answer.id}", created=int(time.time()), model=model, choices=[choice], usage=usage_of(answer)
    )


async def _chunks(
    first: Event | None, pump: EventPump[Event], model: str, max_tokens: int, *, include_usage: bool
) -> AsyncIterator[bytes]:
    """OpenAI's chunks: role, text, then one with the finish reason, citations and usage; `[DONE]` ends them."""
    head: dict[str, Any] = {
        "id": f"chatcmpl-{id(pump):x}{time.time_ns():x}",
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": model,
    }

    def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
        return sse(head | {"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]} | more)

    try:
        yield chunk({"role": "assistant", "content": ""})
        if isinstance(first, TextDelta):
            yield chunk({"content": first.text})
        async for event in pump:
            if isinstance(event, TextDelta):
                yield chunk({"content": event.text})
            elif isinstance(event, AnswerDone):
                whole = _completion(event.answer, model, max_tokens)
                message = whole.choices[0].message.model_dump(mode="json", include={"citations", "passages", "refused"})
                usage = whole.usage.model_dump(mode="json")
                # Clients that read `choices[0]` of every chunk break on a usage-only one: it comes only when asked for.
                if include_usage:
                    yield chunk(message, whole.choices[0].finish_reason, usage=None)
                    yield sse(head | {"choices": [], "usage": usage})
                else:
                    yield chunk(message, whole.choices[0].finish_reason, usage=usage)
        yield sse("[DONE]")
    except Exception as error:  # noqa: BLE001  the reply has begun: the error goes as its last event
        yield sse(json.dumps(openai_body(describe(error))))
    finally:
        pump.stop()
