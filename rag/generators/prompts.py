"""The words that are put to a language model: system text, passages, conversation, question, in this order.

What repeats comes first, so that the keys and values of a prefix can be kept: the system text is the same for every
question, the passages for every turn that finds the same ones, the conversation grows at its end, the question is last.
It knows nothing of tokenizers; a generator turns messages into its own tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

from rag.generators.protocol import GenerationRequest
from rag.retrieval.language import is_chinese
from rag.types import Passage, Turn


class Message(TypedDict):
    """One message of a chat, as every chat template and OpenAI-compatible engine reads it."""

    role: Literal["system", "user", "assistant"]
    content: str


SYSTEM_WITH_PASSAGES = (
    "You answer questions about GPU programming from the numbered passages of the user's books. "
    "Use only what the passages say. After every sentence that rests on a passage, put its number in square brackets, "
    "for example [2]. Give no number that is not among the passages. Copy identifiers, numbers and code exactly. "
    "If the passages do not answer the question, say so in one sentence and cite nothing. Be brief and precise."
)
SYSTEM_WITHOUT_PASSAGES = (
    "You answer questions about GPU programming briefly and precisely. If you do not know, say so in one sentence."
)
ANSWER_IN_CHINESE = "Answer in Chinese; leave identifiers and code as they are."
ANSWER_IN_ENGLISH = "Answer in English."
CHOICE_LETTERS = "ABCDEFGHIJ"


def render_messages(request: GenerationRequest) -> list[Message]:
    """The chat for one request; the last message is the user's question."""
    messages: list[Message] = [{"role": "system", "content": _system(request.passages)}]
    for turn in request.turns:
        messages.append({"role": "user", "content": turn.question})
        messages.append({"role": "assistant", "content": turn.answer})
    messages.append({"role": "user", "content": _question(request.question)})
    return messages


def render_text(request: GenerationRequest) -> str:
    """The same as plain text, for a model without a chat template; ends where the answer begins."""
    parts = [_system(request.passages)]
    parts.extend(_turn_text(turn) for turn in request.turns)
    parts.append(f"Question: {_question(request.question)}\nAnswer:")
    return "\n\n".join(parts)


def render_passages(passages: Sequence[Passage]) -> str:
    """Numbered passages, each under its source line."""
    return "\n\n".join(f"[{number}] {_source(passage)}\n{passage.text}" for number, passage in enumerate(passages, 1))


def render_choices(question: str, choices: Sequence[str]) -> str:
    """A choice question with lettered options that asks for one letter."""
    options = "\n".join(f"{letter}. {choice}" for letter, choice in zip(CHOICE_LETTERS, choices, strict=False))
    ask = "只回答正确选项的字母。" if is_chinese(question) else "Answer with the letter of the right option only."
    return f"{question}\n{options}\n{ask}"


def _system(passages: Sequence[Passage]) -> str:
    if not passages:
        return SYSTEM_WITHOUT_PASSAGES
    return f"{SYSTEM_WITH_PASSAGES}\n\nPassages:\n\n{render_passages(passages)}"


def _source(passage: Passage) -> str:
    where = " > ".join((passage.title, *passage.section))
    return f"{where}, p. {passage.page_label or passage.page_start}" if passage.page_start else where


def _question(question: str) -> str:
    return f"{question}\n\n{ANSWER_IN_CHINESE if is_chinese(question) else ANSWER_IN_ENGLISH}"


def _turn_text(turn: Turn) -> str:
    return f"Question: {turn.question}\nAnswer: {turn.answer}"
