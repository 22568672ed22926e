"""Wire forms of the OpenAI-compatible calls, as far as they mean something here.

Unlike our own calls, these accept unknown fields: clients of this API send many.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from api.schemas.answers import FiltersIn, MaxTokens, PassageOut, TopK, WhatAnswers
from api.schemas.base import Id, Seed, WireOut
from rag.types import Citation, Evidence, Finish

MAX_MESSAGES = 1000
MAX_STOP_STRINGS = 16
StopStrings = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=200)]],
    Field(max_length=MAX_STOP_STRINGS),
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
]
"""One string or several; one is a list of one from here on."""


class OpenAIIn(BaseModel):
    """Base of what OpenAI clients send."""

    model_config = ConfigDict(strict=True, extra="ignore")


class ContentPart(OpenAIIn):
    """A piece of a message's content."""

    type: str
    text: str | None = None


class ChatMessageIn(OpenAIIn):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None


class StreamOptions(OpenAIIn):
    """`include_usage` asks for a last chunk that holds nothing but the usage."""

    include_usage: bool | None = None


class ChatIn(OpenAIIn):
    """Body of `POST /v1/chat/completions`.

    `adapter`, `num_passages`, `filters`, `answer_anyway` and `answers` are ours.
    What is `Any` is there to be refused by its name where it asks for what is not done.
    """

    model: Annotated[str, Field(min_length=1, max_length=300)]
    messages: Annotated[list[ChatMessageIn], Field(min_length=1, max_length=MAX_MESSAGES)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Seed | None = None
    stop: StopStrings | None = None
    top_k: Annotated[int, Field(ge=-1, le=1_000_000, description="of sampling; 0 and -1 set no bound")] | None = None
    n: Any = None
    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    logprobs: Any = None
    top_logprobs: Any = None
    response_format: Any = None
    logit_bias: Any = None
    presence_penalty: Any = None
    frequency_penalty: Any = None
    modalities: Any = None
    audio: Any = None
    prediction: Any = None
    web_search_options: Any = None
    adapter: Id | None = None
    num_passages: TopK | None = None
    filters: FiltersIn | None = None
    answer_anyway: bool = False
    answers: WhatAnswers | None = None


class ModelOut(WireOut):
    """An arm as a model.

    `quantization` is what a model in this process is held in: `none`, `int8`, `nf4`, or a GGUF file's own (`q4_k`).
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "coalesce"
    generator: str
    base_model: str
    quantization: str | None = None
    adapters: list[str]


class ModelsOut(WireOut):
    """The arms that can answer."""

    object: Literal["list"] = "list"
    data: list[ModelOut]


class ChatUsage(WireOut):
    """Tokens, in OpenAI's words."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: dict[str, int]


class ChatMessageOut(WireOut):
    """The answer, with its citations and passages, and what `AnswerOut` says beside it."""

    role: Literal["assistant"] = "assistant"
    content: Annotated[str, Field(validation_alias="answer")]
    refusal: None = None
    citations: list[Citation]
    passages: list[PassageOut]
    refused: bool
    written: bool
    evidence: Evidence | None
    note: str | None


class ChatChoice(WireOut):
    """The one choice there is."""

    index: int = 0
    message: ChatMessageOut
    logprobs: None = None
    finish_reason: Finish


class ChatOut(WireOut):
    """A whole completion."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: ChatUsage
