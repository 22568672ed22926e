"""Any of our generators as a llama-index LLM, for programs that are built on llama-index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseGen,
    LLMMetadata,
    MessageRole,
)
from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.core.llms import CustomLLM
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback

from indexes.errors import InvalidInput
from rag.generators.protocol import GenerationRequest, Generator, TextPiece
from rag.types import Arm, Turn


class GeneratorLLM(CustomLLM):
    """A llama-index LLM over a `Generator`: prompts go to the bare model (`base`), or through an adapter (`tuned`).

    A chat's last user message is the question and earlier exchanges are its turns; system messages are left to the
    generator's own prompt.
    """

    context_window: int = Field(default=4096, description="Tokens of prompt and answer together.")
    max_tokens: int = Field(default=512, description="Longest answer.")
    temperature: float = Field(default=0.0, description="0 is greedy.")
    adapter: str | None = Field(default=None, description="Name of the LoRA adapter, None for the bare model.")
    _generator: Generator = PrivateAttr()

    def __init__(self, generator: Generator, **fields: Any) -> None:
        super().__init__(**fields)
        self._generator = generator

    @property
    def metadata(self) -> LLMMetadata:
        """What llama-index plans prompts with."""
        return LLMMetadata(
            context_window=self.context_window,
            num_output=self.max_tokens,
            is_chat_model=True,
            model_name=self._generator.model_name,
        )

    @classmethod
    def class_name(cls) -> str:
        """llama-index's name of the class."""
        return "CoalesceGenerator"

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:  # noqa: ARG002
        """The whole answer to a prompt; raises what the generator raises."""
        return CompletionResponse(text="".join(self._pieces(self._request(prompt, (), kwargs))))

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:  # noqa: ARG002
        """The answer as it is written."""

        def responses() -> CompletionResponseGen:
            text = ""
            for piece in self._pieces(self._request(prompt, (), kwargs)):
                text += piece
                yield CompletionResponse(text=text, delta=piece)

        return responses()

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """The whole answer to a chat's last message."""
        text = "".join(self._pieces(self._chat_request(messages, kwargs)))
        return ChatResponse(message=ChatMessage(role=MessageRole.ASSISTANT, content=text))

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        """The answer to a chat's last message as it is written."""

        def responses() -> ChatResponseGen:
            text = ""
            for piece in self._pieces(self._chat_request(messages, kwargs)):
                text += piece
                yield ChatResponse(message=ChatMessage(role=MessageRole.ASSISTANT, content=text), delta=piece)

        return responses()

    def _pieces(self, request: GenerationRequest) -> Any:
        return (piece.text for piece in self._generator.stream(request) if isinstance(piece, TextPiece))

    def _chat_request(self, messages: Sequence[ChatMessage], kwargs: dict[str, Any]) -> GenerationRequest:
        turns: list[Turn] = []
        question: str | None = None
        for message in messages:
            if message.role == MessageRole.USER:
                question = message.content or ""
            elif message.role == MessageRole.ASSISTANT and question is not None:
                turns.append(Turn(question, message.content or ""))
                question = None
        if not question:
            raise InvalidInput("The chat does not end with a question.", hint="Let the last message be the user's.")
        return self._request(question, tuple(turns), kwargs)

    def _request(self, question: str, turns: tuple[Turn, ...], kwargs: dict[str, Any]) -> GenerationRequest:
        arm: Arm = "tuned" if self.adapter else "base"
        return GenerationRequest(
            question,
            arm,
            turns=turns,
            adapter=self.adapter,
            max_tokens=kwargs.get("max_tokens", self.max_tokens),
            temperature=kwargs.get("temperature", self.temperature),
        )
