"""Prompts of language models: system text, conversation, passages and question, in this order; and a model's refusal.

What repeats comes first, so that the KV cache of a prefix can be reused: the system text is the same for every
question, the conversation grows at its end, passages and question are last. Passages are data, not rules, so they stand
in the user's turn; only the brief prompt has them behind its rules.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
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


REFUSAL = "The passages do not answer this question."
REFUSAL_IN_CHINESE = "这些段落没有回答这个问题。"
"""What a model is told to write, and nothing else, where the passages do not answer."""
SYSTEM_WITH_PASSAGES = (
    "You answer questions about GPU programming from the numbered passages of the user's books. "
    "Use only what the passages say. After every sentence that rests on a passage, put its number in square brackets, "
    "for example [2]. Give no number that is not among the passages. Copy identifiers, numbers and code exactly. "
    f"If the passages do not answer the question, write only: {REFUSAL} Be brief and precise."
)
SYSTEM_WITHOUT_PASSAGES = (
    "You answer questions about GPU programming briefly and precisely. If you do not know, say so in one sentence."
)
BRIEF_WITH_PASSAGES = (
    "Answer the question from the passages.\n"
    "Write one or two sentences.\n"
    "End each sentence with the number of its passage, for example [1].\n"
    f"If they do not answer it, write: {REFUSAL}"
)
BRIEF_WITHOUT_PASSAGES = "Answer the question about GPU programming in one or two sentences."
"""For models below `SMALL_PARAMETERS`, which lose their way in long rules."""
ANSWER_IN_CHINESE = "Answer in Chinese; leave identifiers and code as they are."
REFUSE_IN_CHINESE = f"If the passages do not answer, write only: {REFUSAL_IN_CHINESE}"
ANSWER_IN_ENGLISH = "Answer in English."
CHOICE_LETTERS = "ABCDEFGHIJ"


_CONTROL = re.compile(
    r"<(?=[|｜]|/?(?:s|bos|eos|pad|unk|think|(?:start|end)_of_turn)>)|\[(?=/?(?:INST|SYSTEM_PROMPT|THINK)\])"
)
"""What control tokens of the families begin with, where a model's own list of them is not at hand."""
_PASSAGE_NUMBER = re.compile(r"^([ \t]*)\[(\d{1,3})\]", re.MULTILINE)
_JOINER = "\u2060"
"""A word joiner: not seen, and no part of a control token."""


def render_messages(request: GenerationRequest, *, brief: bool = False, control: Collection[str] = ()) -> list[Message]:
    """The chat for one request; the last message is the user's question. Control tokens in it are text.

    Args:
        brief: in the words for small models.
        control: the model's control tokens.
    """
    told = "\n\n".join(filter(None, (_system(request, brief), request.system)))
    messages: list[Message] = [{"role": "system", "content": told}]
    for turn in request.turns:
        messages.append({"role": "user", "content": turn.question})
        messages.append({"role": "assistant", "content": turn.answer})
    messages.append({"role": "user", "content": _question(request, brief)})
    return [{"role": one["role"], "content": _as_text(one["content"], control)} for one in messages]


def _as_text(text: str, control: Collection[str]) -> str:
    """A text of which a tokenizer makes no control token: a book, a question or an earlier answer may hold some."""
    text = _CONTROL.sub(lambda found: found[0] + _JOINER, text)
    for token in control:
        if len(token) > 1 and token in text:
            text = text.replace(token, token[0] + _JOINER + token[1:])
    return text


def render_passages(passages: Sequence[Passage]) -> str:
    """Numbered passages, each under its source line."""
    return "\n\n".join(
        f"[{number}] {_source(passage)}\n{_unnumbered(passage.text)}" for number, passage in enumerate(passages, 1)
    )


def render_choices(question: str, choices: Sequence[str]) -> str:
    """A choice question with lettered options that asks for one letter."""
    options = "\n".join(f"{letter}. {choice}" for letter, choice in zip(CHOICE_LETTERS, choices, strict=False))
    ask = "只回答正确选项的字母。" if asks_in_chinese(question) else "Answer with the letter of the right option only."
    return f"{question}\n{options}\n{ask}"


def says_unknown(answer: str) -> bool:
    """Whether an answer's first sentence is the one that a model is told to refuse with, and says no more than that.

    Case and punctuation are free. A refusal in a model's own words is an answer: no list of wordings was measured.
    """
    said = MARKER.sub("", answer)
    return any(_letters(said[first.start : first.end]) in _REFUSALS for first in split_spans(said)[:1])


def _letters(text: str) -> str:
    return "".join(character for character in text.casefold() if character.isalnum())


_REFUSALS = (_letters(REFUSAL), _letters(REFUSAL_IN_CHINESE))


def render_excerpts(excerpts: Sequence[Excerpt]) -> str:
    """Numbered excerpts, each behind its nearest heading."""
    return "\n".join(f"[{each.number}] {': '.join((*each.section[-1:], _unnumbered(each.text)))}" for each in excerpts)


def _unnumbered(text: str) -> str:
    """A passage without lines that begin as another passage does."""
    return _PASSAGE_NUMBER.sub(r"\1(\2)", text)


def _system(request: GenerationRequest, brief: bool) -> str:
    if not brief:
        return SYSTEM_WITH_PASSAGES if request.passages else SYSTEM_WITHOUT_PASSAGES
    return f"{BRIEF_WITH_PASSAGES}\n\n{_shown(request)}" if request.passages else BRIEF_WITHOUT_PASSAGES


def _shown(request: GenerationRequest) -> str:
    excerpts = [each for each in request.excerpts if each.number <= len(request.passages)]
    return f"Passages:\n\n{render_excerpts(excerpts) if excerpts else render_passages(request.passages)}"


def _source(passage: Passage) -> str:
    where = " > ".join((passage.title, *passage.section))
    return f"{where}, p. {passage.page_label or passage.page_start}" if passage.page_start else where


def _question(request: GenerationRequest, brief: bool) -> str:
    if brief:
        return f"{request.question}\n\n{ANSWER_IN_CHINESE}" if request.chinese else request.question
    rules = ANSWER_IN_ENGLISH
    if request.chinese:
        rules = f"{ANSWER_IN_CHINESE} {REFUSE_IN_CHINESE}" if request.passages else ANSWER_IN_CHINESE
    asked = f"{request.question}\n\n{rules}"
    return f"{_shown(request)}\n\nQuestion: {asked}" if request.passages else asked
