"""Messages into the model's own tokens, by the chat template that came with its tokenizer."""

from __future__ import annotations

import threading
from typing import Any

from rag.errors import ModelCannotLoad
from rag.generators.prompts import Message, render_messages
from rag.generators.protocol import GenerationRequest


class ChatPrompt:
    """Tokenizes requests. Safe from any thread: tokenizers are not, so one lock guards it."""

    def __init__(self, tokenizer: Any, model_name: str) -> None:
        self._tokenizer = tokenizer
        self._model_name = model_name
        self._lock = threading.Lock()

    def tokens(self, request: GenerationRequest) -> list[int]:
        """The prompt's tokens, ending where the answer begins."""
        return self.message_tokens(render_messages(request))

    def message_tokens(self, messages: list[Message]) -> list[int]:
        """As `tokens`, for any messages.

        Raises:
            ModelCannotLoad: the chat template does not take the messages.
        """
        return self._render(messages, answer_follows=True)

    def whole_tokens(self, messages: list[Message]) -> list[int]:
        """Tokens of a chat that ends with its answer, for training; errors as for `message_tokens`."""
        return self._render(messages, answer_follows=False)

    def opens_reasoning(self, prompt: list[int]) -> bool:
        """True when the prompt ends inside a `<think>` block that the template opened."""
        with self._lock:
            tail: str = self._tokenizer.decode(prompt[-8:])
        return tail.rstrip().endswith("<think>")

    def text_tokens(self, text: str) -> list[int]:
        """Tokens of plain text, without special ones."""
        with self._lock:
            return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _render(self, messages: list[Message], *, answer_follows: bool) -> list[int]:
        with self._lock:
            try:
                return self._apply(messages, answer_follows)
            except Exception as first:  # noqa: BLE001 - templates raise errors of jinja's classes
                try:
                    return self._apply(_without_system(messages), answer_follows)  # several know no system role
                except Exception:  # noqa: BLE001 - the first error is the one to show
                    raise ModelCannotLoad(
                        f"The chat template of {self._model_name} fails: {first}",
                        hint="Repair the template in the model's folder, or use another model.",
                    ) from first

    def _apply(self, messages: list[Message], answer_follows: bool) -> list[int]:
        return list(
            self._tokenizer.apply_chat_template(
                messages, tokenize=True, add_generation_prompt=answer_follows, return_dict=False, enable_thinking=False
            )
        )


def _without_system(messages: list[Message]) -> list[Message]:
    """The system text put before the first question."""
    if len(messages) < 2 or messages[0]["role"] != "system":
        return messages
    first: Message = {"role": "user", "content": f"{messages[0]['content']}\n\n{messages[1]['content']}"}
    return [first, *messages[2:]]
