"""Prompts of language models: system text, passages, conversation and question, in this order; and a model's refusal.

What repeats comes first, so that keys and values of a prefix can be kept: the system text is the same for every
question, the passages for every turn that finds the same ones, the conversation grows at its end, the question is last.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, TypedDict

from indexes.sentences import split_spans
from rag.citations import MARKER
from rag.generators.protocol import Excerpt, GenerationRequest
from rag.question import asks_in_chinese
from rag.types import Passage


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
BRIEF_WITH_PASSAGES = (
    "Answer the question from the passages.\n"
    "Write one or two sentences.\n"
    "End each sentence with the number of its passage, for example [1].\n"
    "If they do not answer it, write: The passages do not answer this question."
)
BRIEF_WITHOUT_PASSAGES = "Answer the question about GPU programming in one or two sentences."
"""For models below `SMALL_PARAMETERS`, which lose their way in long rules."""
ANSWER_IN_CHINESE = "Answer in Chinese; leave identifiers and code as they are."
ANSWER_IN_ENGLISH = "Answer in English."
CHOICE_LETTERS = "ABCDEFGHIJ"

_MOST_CHARACTERS = 400
_WHO = r"(?:passages?|texts?|books?|contexts?|documents?|excerpts?|sources?|information|material|library|I|we)"
_NOT = r"(?:(?:do(?:es)?|did|is|are|was|were|can|could)(?: not|n['’]t)|cannot)"
_DENIES = re.compile(
    rf"\b{_WHO}\b[^.]{{0,40}}\b{_NOT}\b[^.]{{0,60}}"
    r"\b(?:answer|contain|mention|say|state|provide|specify|cover|discuss|describe|address|include|give|find|know|explain"
    r"|define|indicate|determine|sure|enough|sufficient)"
    rf"|\b{_NOT} be (?:answered|found|determined)\b"
    rf"|\b{_NOT} (?:given|in|part of)\b[^.]{{0,30}}\b(?:passages?|texts?|books?|context|documents?)\b"
    r"|\bno (?:information|mention|answer|passage)\b|\bnothing (?:in|about)\b"
    r"|\bnot (?:answered|mentioned|covered|stated)\b"
    r"|\bdon['’]t know\b|\bunable to (?:answer|find|determine)\b"
    r"|没有(?:提到|提及|说明|回答|包含|给出|涉及|相关)|未(?:提到|提及|说明|涉及|给出)|无法(?:回答|确定|从)|不知道",
    re.IGNORECASE,
)
_ONLY_DENIES = re.compile(
    r"(?:(?:the|these|this|given|provided)\s+)*(?:passages?|question)\b"
    r"(?!.*(?:\b(?:but|however|although|though|while|instead|only)\b|[:;]))"
    r"|[这该些给定的]*段落(?!.*(?:但|不过|只|：|；))",
    re.IGNORECASE | re.DOTALL,
)
"""A sentence that begins with the passages (or the question) and has no second half that could answer."""


def render_messages(request: GenerationRequest, *, brief: bool = False) -> list[Message]:
    """The chat for one request; the last message is the user's question.

    Args:
        brief: in the words for small models.
    """
    messages: list[Message] = [{"role": "system", "content": _system(request, brief)}]
    for turn in request.turns:
        messages.append({"role": "user", "content": turn.question})
        messages.append({"role": "assistant", "content": turn.answer})
    messages.append({"role": "user", "content": _question(request.question, brief)})
    return messages


def render_passages(passages: Sequence[Passage]) -> str:
    """Numbered passages, each under its source line."""
    return "\n\n".join(f"[{number}] {_source(passage)}\n{passage.text}" for number, passage in enumerate(passages, 1))


def render_choices(question: str, choices: Sequence[str]) -> str:
    """A choice question with lettered options that asks for one letter."""
    options = "\n".join(f"{letter}. {choice}" for letter, choice in zip(CHOICE_LETTERS, choices, strict=False))
    ask = "只回答正确选项的字母。" if asks_in_chinese(question) else "Answer with the letter of the right option only."
    return f"{question}\n{options}\n{ask}"


def says_unknown(answer: str) -> bool:
    """True when a short answer says that the passages (or the model) do not know; a cited one must say only that."""
    text = answer.strip()
    if not 0 < len(text) <= _MOST_CHARACTERS:
        return False
    if not MARKER.search(text):
        return bool(_DENIES.search(text))
    uncited = re.sub(rf"\s*{MARKER.pattern}", "", text)
    sentences = [uncited[span.start : span.end] for span in split_spans(uncited)]
    return bool(sentences) and all(_ONLY_DENIES.match(each) and _DENIES.search(each) for each in sentences)


def render_excerpts(excerpts: Sequence[Excerpt]) -> str:
    """Numbered excerpts, each behind its nearest heading."""
    return "\n".join(f"[{each.number}] {': '.join((*each.section[-1:], each.text))}" for each in excerpts)


def _system(request: GenerationRequest, brief: bool) -> str:
    if not request.passages:
        return BRIEF_WITHOUT_PASSAGES if brief else SYSTEM_WITHOUT_PASSAGES
    excerpts = [each for each in request.excerpts if each.number <= len(request.passages)]
    shown = render_excerpts(excerpts) if excerpts else render_passages(request.passages)
    return f"{BRIEF_WITH_PASSAGES if brief else SYSTEM_WITH_PASSAGES}\n\nPassages:\n\n{shown}"


def _source(passage: Passage) -> str:
    where = " > ".join((passage.title, *passage.section))
    return f"{where}, p. {passage.page_label or passage.page_start}" if passage.page_start else where


def _question(question: str, brief: bool) -> str:
    if asks_in_chinese(question):
        return f"{question}\n\n{ANSWER_IN_CHINESE}"
    return question if brief else f"{question}\n\n{ANSWER_IN_ENGLISH}"
