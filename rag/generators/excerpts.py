"""What a small model is shown of the passages: their best sentences, the best passage first.

A small model makes little use of a long prompt, and a CPU takes many seconds to read one. So it is given what the
sentence reader would quote, with the passages' own numbers. Longer prompts scored no better (docs/decisions.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from rag.generators.protocol import Excerpt, GenerationRequest
from rag.models.memory import estimate_memory
from rag.sentence_reader import SentenceReader, Unit

SMALL_PARAMETERS = 1e9
"""Models below this are prompted in short sentences, and shown excerpts."""
EXCERPT_TOKENS = 160
"""Most tokens of all excerpts together; the best sentence is shown whatever its length."""

_COUNTED = 4096
"""Texts whose tokens are remembered: counting those of five passages took 8 ms, a fifth of a decoding step."""


def is_small(config: Any) -> bool:
    """Whether a model, by its transformers config, is prompted as a small one."""
    return estimate_memory(config, context_tokens=1).num_parameters < SMALL_PARAMETERS


class Excerpts:
    """Chooses excerpts. Threads may share it.

    Args:
        count_tokens: of a text, by the model's tokenizer.
    """

    def __init__(
        self, reader: SentenceReader, count_tokens: Callable[[str], int], most_tokens: int = EXCERPT_TOKENS
    ) -> None:
        self._reader = reader
        self._count_tokens = lru_cache(_COUNTED)(count_tokens)  # the same passages are found again and again
        self._most_tokens = most_tokens

    def of(self, request: GenerationRequest) -> GenerationRequest:
        """The request with its excerpts; as it is where the passages are short anyway."""
        if sum(self._count_tokens(passage.text) for passage in request.passages) <= self._most_tokens:
            return request
        left = self._most_tokens
        chosen: dict[int, list[Unit]] = {}  # by passage, the one with the best sentence first
        for item in self._reader.read(request.standalone_question or request.question, request.passages):
            size = self._count_tokens(item.unit.text)
            if chosen and size > left:
                continue
            left -= size
            chosen.setdefault(item.unit.passage, []).append(item.unit)
        return replace(request, excerpts=tuple(_excerpt(passage, units) for passage, units in chosen.items()))


def _excerpt(passage: int, units: list[Unit]) -> Excerpt:
    ordered = sorted(units, key=lambda unit: unit.place)
    return Excerpt(passage + 1, units[0].section, " ".join(unit.text for unit in ordered))
