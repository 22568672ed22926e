"""Turns a request into the model's tokens with its chat template, and into smaller ones: until it fits, or excerpts."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from indexes.messages import msg
from rag.errors import ModelCannotLoad
from rag.generators.prompts import Message, render_messages
from rag.generators.protocol import Excerpt, GenerationRequest
from rag.generators.stream_text import REASONING_BLOCKS, REASONING_MARKS, ReasoningBlock
from rag.models.memory import estimate_memory
from rag.query import english_query
from rag.sentence_reader import SentenceReader, Unit, units_of
from rag.types import Passage

SMALL_PARAMETERS = 1e9
"""Models below this are prompted in short sentences."""
EXCERPT_PARAMETERS = 4e9
"""Models below this are shown excerpts, larger ones whole passages."""

_COUNTED = 4096
"""Texts whose tokens are remembered: counting those of five passages took 8 ms, a fifth of a decoding step."""


def ever_smaller(request: GenerationRequest, *, fewest_passages: int = 0) -> Iterator[GenerationRequest]:
    """The request, then without its lowest passages one by one, then also without its oldest turns."""
    fewest = min(fewest_passages, len(request.passages))
    for count in range(len(request.passages), fewest - 1, -1):
        yield replace(request, passages=request.passages[:count])
    for start in range(1, len(request.turns) + 1):
        yield replace(request, passages=request.passages[:fewest], turns=request.turns[start:])


class ChatPrompt:
    """Tokenizes chats. Threads may share it: a lock guards the tokenizer, which is not thread-safe.

    Args:
        brief: in the words for small models.
    """

    def __init__(self, tokenizer: Any, model_name: str, *, brief: bool = False) -> None:
        self._tokenizer = tokenizer
        self._model_name = model_name
        self.brief = brief
        known = {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}
        self._control = tuple(sorted(token for token in known if token.strip()))  # some vocabularies add runs of blanks
        self._lock = threading.Lock()

    def tokens(self, request: GenerationRequest) -> list[int]:
        """The prompt's tokens, ending where the answer begins.

        Raises:
            ModelCannotLoad: the chat template does not accept the messages.
        """
        return self.message_tokens(render_messages(request, brief=self.brief, control=self._control))

    def message_tokens(self, messages: list[Message], *, answer_follows: bool = True) -> list[int]:
        """As `tokens`, for any messages; with `answer_follows=False` the last one is the answer (for training)."""
        with self._lock:
            try:
                return self._apply(messages, answer_follows)
            except Exception as first:  # noqa: BLE001 - templates raise errors of jinja's classes
                try:
                    return self._apply(
                        _without_system(messages), answer_follows
                    )  # some chat templates have no system role
                except Exception:  # noqa: BLE001 - the first error is the one to show
                    raise ModelCannotLoad(
                        msg("The chat template of {} fails: {}", self._model_name, first),
                        hint="Repair the template in the model's folder, or use another model.",
                    ) from first

    def text_tokens(self, text: str) -> list[int]:
        """Tokens of plain text, without special ones."""
        with self._lock:
            return list(self._tokenizer.encode(text, add_special_tokens=False))

    def open_block(self, prompt: list[int]) -> ReasoningBlock | None:
        """The block of reasoning that the template opened at the prompt's end."""
        tail = self._tail(prompt)
        return next((block for block in REASONING_BLOCKS if tail.endswith(block.opening)), None)

    def may_think(self, prompt: list[int]) -> bool:
        """Whether reasoning may follow: the model has marks for it, and the template has not closed it already."""
        known = str(self._tokenizer.chat_template), self._tokenizer.get_added_vocab()
        marked = any(block.opening in each for block in REASONING_BLOCKS for each in known)
        return marked and not self._tail(prompt).endswith(tuple(block.closing for block in REASONING_BLOCKS))

    def _tail(self, prompt: list[int]) -> str:
        with self._lock:
            return str(self._tokenizer.decode(prompt[-8:])).rstrip()

    def close_tokens(self, block: ReasoningBlock) -> list[int]:
        """Tokens that end a block of reasoning."""
        return self.text_tokens(block.close)

    def reasoning_marks(self) -> dict[int, str]:
        """Special tokens that mark reasoning, which decoding would leave out, with their text."""
        special = set(self._tokenizer.all_special_ids)
        with self._lock:
            found = {self._tokenizer.convert_tokens_to_ids(mark): mark for mark in REASONING_MARKS}
            return {
                token: mark
                for token, mark in found.items()
                if token in special and self._tokenizer.convert_ids_to_tokens(token) == mark
            }

    def _apply(self, messages: list[Message], answer_follows: bool) -> list[int]:
        return list(
            self._tokenizer.apply_chat_template(
                messages, tokenize=True, add_generation_prompt=answer_follows, return_dict=False, enable_thinking=False
            )
        )


def _without_system(messages: list[Message]) -> list[Message]:
    """The messages with the system text moved in front of the first question."""
    if len(messages) < 2 or messages[0]["role"] != "system":
        return messages
    first: Message = {"role": "user", "content": f"{messages[0]['content']}\n\n{messages[1]['content']}"}
    return [first, *messages[2:]]


@dataclass(frozen=True, slots=True)
class PromptForm:
    """How a model is prompted.

    Attributes:
        brief: in short sentences.
        excerpt_tokens: most tokens of all excerpts together; the best sentence is shown whatever its length. None shows
            whole passages.
        neighbours: excerpts take in what stands before and after each sentence.
    """

    brief: bool = False
    excerpt_tokens: int | None = None
    neighbours: bool = False


def prompt_form(num_parameters: float) -> PromptForm:
    """The form for a model of this size (docs/decisions.md has what it was measured with)."""
    if num_parameters < SMALL_PARAMETERS:
        return PromptForm(brief=True, excerpt_tokens=160)
    if num_parameters < EXCERPT_PARAMETERS:
        return PromptForm(excerpt_tokens=500, neighbours=True)
    return PromptForm()


def form_of(config: Any) -> PromptForm:
    """The form for a model, by its transformers config."""
    return prompt_form(estimate_memory(config, context_tokens=1).num_parameters)


class Excerpts:
    """Chooses what a model is shown of the passages: their best sentences, the best passage first.

    A model of few billion weights makes little use of a long prompt, and a CPU takes many seconds to read one. So it is
    given what the sentence reader would quote, with the passages' own numbers. Threads may share it.

    Args:
        reader: chooses the sentences; without one, passages are shown whole.
        count_tokens: of a text, by the model's tokenizer.
    """

    def __init__(self, reader: SentenceReader | None, count_tokens: Callable[[str], int], form: PromptForm) -> None:
        self._reader = reader
        self._count_tokens = lru_cache(_COUNTED)(count_tokens)  # the same passages are found again and again
        self.form = form

    def of(self, request: GenerationRequest) -> GenerationRequest:
        """The request with its excerpts; as it is where passages are shown whole, or are short anyway."""
        left = self.form.excerpt_tokens
        if self._reader is None or left is None:
            return request
        if sum(self._count_tokens(passage.text) for passage in request.passages) <= left:
            return request
        query = request.query or english_query(request.question)
        units = [item.unit for item in self._reader.read(query, request.passages)]
        if self.form.neighbours:
            units = _with_neighbours(units, request.passages)
        chosen: dict[int, list[Unit]] = {}  # by passage, the one with the best sentence first
        for unit in units:
            size = self._count_tokens(unit.text)
            if chosen and size > left:
                continue
            left -= size
            chosen.setdefault(unit.passage, []).append(unit)
        return replace(request, excerpts=tuple(_excerpt(request.passages[n], chosen[n]) for n in chosen))


def _with_neighbours(units: Sequence[Unit], passages: Sequence[Passage]) -> list[Unit]:
    """Each unit, then what stands before and after it, up to a heading; each once."""
    at = {(unit.passage, unit.place): unit for unit in units_of(passages) if unit.kind != "heading"}
    near = (at.get((unit.passage, unit.place + step)) for unit in units for step in (0, -1, 1))
    return list(dict.fromkeys(unit for unit in near if unit is not None))


def _excerpt(passage: Passage, units: Sequence[Unit]) -> Excerpt:
    """Units of one passage in reading order; what is between two that adjoin is as in the passage."""
    ordered = sorted(units, key=lambda unit: unit.place)
    text = ordered[0].text
    for before, unit in itertools.pairwise(ordered):
        text += passage.text[before.end : unit.start] if unit.place == before.place + 1 else " "
        text += unit.text
    return Excerpt(units[0].passage + 1, units[0].section, text)
