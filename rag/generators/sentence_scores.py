"""How well each sentence of the passages answers the question: by embedding, by wording, by where it stands."""

from __future__ import annotations

import math
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rag.sentences import Span, split_spans
from rag.types import Passage
from rag.wording import Wording, wording

Embed = Callable[[Sequence[str]], NDArray[np.float32]]
"""Texts to unit vectors, float32 `(len(texts), dim)`."""

EMBEDDED_UNITS = 28
"""Units embedded for one question; the rest are out by wording and place alone. Keeps an answer under 100 ms."""
CACHED_VECTORS = 20_000
DENSE_WEIGHT = 0.6
LEXICAL_WEIGHT = 0.4
PLACE_WEIGHT = 0.1


@dataclass(frozen=True, slots=True)
class Unit:
    """A sentence, listing or table of a passage.

    Attributes:
        passage: index of the passage, from 0.
        place: index among the units of its passage.
    """

    passage: int
    place: int
    span: Span
    text: str
    words: Wording


@dataclass(frozen=True, slots=True)
class ScoredUnits:
    """Units with their relevance `(n,)` and unit vectors `(n, dim)`, aligned."""

    units: tuple[Unit, ...]
    scores: NDArray[np.float64]
    vectors: NDArray[np.float32]


class SentenceScorer:
    """Scores the units of passages for a question; vectors of sentences seen before are kept."""

    def __init__(self, embed: Embed) -> None:
        self._embed = embed
        self._vectors: OrderedDict[str, NDArray[np.float32]] = OrderedDict()
        self._lock = threading.Lock()

    def score(self, question: str, passages: Sequence[Passage]) -> ScoredUnits:
        """Relevance of the most promising units; at most `EMBEDDED_UNITS` of them.

        Args:
            question: in the language of the passages.
        """
        units = units_of(passages)
        if not units:
            return ScoredUnits((), np.zeros(0), np.zeros((0, 1), np.float32))
        lexical = lexical_scores(question, units, passages)
        place = np.array([1.0 / (1 + unit.passage) for unit in units])
        order = np.argsort(-(lexical + PLACE_WEIGHT * place), kind="stable")[:EMBEDDED_UNITS]
        kept = tuple(units[i] for i in sorted(order))
        index = np.array(sorted(order))
        vectors = self.embed([question, *(unit.text for unit in kept)])
        cosine = vectors[1:] @ vectors[0]
        scores = DENSE_WEIGHT * cosine + LEXICAL_WEIGHT * lexical[index] + PLACE_WEIGHT * place[index]
        return ScoredUnits(kept, scores.astype(np.float64), vectors[1:])

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors `(len(texts), dim)`, from memory where they were asked before."""
        with self._lock:
            known = {text: self._vectors[text] for text in texts if text in self._vectors}
        missing = [text for text in dict.fromkeys(texts) if text not in known]
        if missing:
            fresh = self._embed(missing)
            known.update(zip(missing, fresh, strict=True))
            with self._lock:
                self._vectors.update(zip(missing, fresh, strict=True))
                while len(self._vectors) > CACHED_VECTORS:
                    self._vectors.popitem(last=False)
        return np.stack([known[text] for text in texts])


def units_of(passages: Sequence[Passage]) -> list[Unit]:
    """Every sentence, item, listing and table of the passages, in order."""
    return [
        Unit(number, place, span, text, wording(text))
        for number, passage in enumerate(passages)
        for place, span in enumerate(split_spans(passage.text))
        if (text := passage.text[span.start : span.end])
    ]


def lexical_scores(question: str, units: Sequence[Unit], passages: Sequence[Passage]) -> NDArray[np.float64]:
    """Share of the question's wording, rare pieces weighing more, that each unit or half its heading holds: 0 to 1."""
    asked = wording(question).pieces
    if not asked:
        return np.zeros(len(units))
    frequency = Counter(piece for unit in units for piece in asked & unit.words.pieces)
    weight = {piece: math.log(1 + len(units) / (0.5 + frequency[piece])) for piece in asked}
    total = sum(weight.values())
    headings = [wording(" ".join(passage.section)).pieces for passage in passages]
    scores = []
    for unit in units:
        own = unit.words.pieces
        held = sum(weight[p] for p in asked & own) + 0.5 * sum(
            weight[p] for p in (asked & headings[unit.passage]) - own
        )
        scores.append(held / total)
    return np.array(scores)
