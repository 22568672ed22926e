"""The seam for choosing sentences: question and passages in, sentences with scores out, best first.

The reader here weighs five signals: cosine, terms of the question in the sentence, in its heading, in a neighbour, and
the passage's rank. They do what twenty-nine hand-set ones did (`docs/decisions.md`).
"""

from __future__ import annotations

import math
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from indexes.sentences import SpanKind, split_spans
from indexes.words import terms_of
from rag.types import Passage

COSINE_WEIGHT = 0.44
TERMS_WEIGHT = 0.7
HEADING_WEIGHT = 0.56
"""For terms of the question in the heading of the sentence's section, but not in the sentence."""
NEIGHBOUR_WEIGHT = 0.4
"""For the better of the two neighbours: an answer often follows what repeats the question."""
PLACE_WEIGHT = 0.16
"""For the first passage; a half for the second, a third for the third."""
EMBEDDED_UNITS = 20
"""Most units embedded for one question, those best by the other terms. Embedding takes most of an answer's time."""
EMBEDDED_CHARACTERS = 240
"""Only the beginning of a longer unit is embedded."""
CACHED_VECTORS = 20_000
BATCH = 8
"""Texts of similar length that are embedded at once: a batch costs as much as if all its texts were as long as the
longest, and a dozen sentences and one listing together took four times as long as apart."""

Embed = Callable[[Sequence[str]], NDArray[np.float32]]
"""Texts to unit vectors, float32 `(len(texts), dim)`."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A sentence, list item, listing, table, formula or heading of a passage.

    Attributes:
        passage: index of the passage, from 0.
        place: index among the units of its passage; `place - 1` is the unit before it.
        start, end: offsets in the passage's text.
        paragraph: ordinal of the paragraph that it belongs to.
        section: heading path over it.
        pieces: its terms, for comparing.
    """

    passage: int
    place: int
    start: int
    end: int
    kind: SpanKind
    paragraph: int
    section: tuple[str, ...]
    text: str
    pieces: frozenset[str]


@dataclass(frozen=True, slots=True)
class ScoredUnit:
    """A unit and how well it answers the question; higher is better, 0 and below is irrelevant."""

    unit: Unit
    score: float


class SentenceReader(Protocol):
    """Chooses the sentences that answer a question."""

    def read(self, question: str, passages: Sequence[Passage]) -> list[ScoredUnit]:
        """The promising units of the passages, best first; headings are never among them.

        Args:
            question: in the language of the passages.
        """
        ...


class FiveSignalsReader:
    """Scores units by a weighted sum of five signals; keeps the vectors of recent sentences."""

    def __init__(self, embed: Embed) -> None:
        self._embed = VectorMemory(embed)

    def read(self, question: str, passages: Sequence[Passage]) -> list[ScoredUnit]:
        """At most `EMBEDDED_UNITS` units, best first."""
        units = [unit for unit in units_of(passages) if unit.kind != "heading"]
        if not units:
            return []
        scores = _scores_without_cosine(question, units)
        kept = sorted(range(len(units)), key=lambda i: -scores[i])[:EMBEDDED_UNITS]
        vectors = self._embed([question, *(units[i].text[:EMBEDDED_CHARACTERS] for i in kept)])
        cosines = vectors[1:] @ vectors[0]
        read = [
            ScoredUnit(units[i], scores[i] + COSINE_WEIGHT * float(cosine))
            for i, cosine in zip(kept, cosines, strict=True)
        ]
        return sorted(read, key=lambda item: (-item.score, item.unit.passage, item.unit.place))


def units_of(passages: Sequence[Passage]) -> list[Unit]:
    """Every unit of the passages, in order."""
    units: list[Unit] = []
    for number, passage in enumerate(passages):
        for place, span in enumerate(split_spans(passage.text)):
            text = passage.text[span.start : span.end]
            section = passage.part_at(span.start).section
            pieces = terms_of(text).pieces
            units.append(Unit(number, place, span.start, span.end, span.kind, span.paragraph, section, text, pieces))
    return units


def _scores_without_cosine(question: str, units: Sequence[Unit]) -> list[float]:
    asked = terms_of(question).pieces
    weights = TermWeights([unit.pieces for unit in units])
    own = [weights.share(asked, unit.pieces) for unit in units]
    headings = {section: terms_of(" ".join(section)).pieces for section in {unit.section for unit in units}}
    return [
        TERMS_WEIGHT * own[i]
        + HEADING_WEIGHT * weights.share(asked, headings[unit.section], beside=unit.pieces)
        + NEIGHBOUR_WEIGHT * max((own[n] for n in (i - 1, i + 1) if _adjacent(units, i, n)), default=0.0)
        + PLACE_WEIGHT / (1 + unit.passage)
        for i, unit in enumerate(units)
    ]


def _adjacent(units: Sequence[Unit], one: int, other: int) -> bool:
    if not 0 <= other < len(units) or units[one].passage != units[other].passage:
        return False
    return abs(units[one].place - units[other].place) == 1


class TermWeights:
    """Inverse frequency of terms among some texts: rare terms weigh more.

    Args:
        texts: the terms of each text.
    """

    def __init__(self, texts: Sequence[frozenset[str]]) -> None:
        self._frequency = Counter(piece for text in texts for piece in text)
        self._num_texts = len(texts)

    def share(self, wanted: frozenset[str], held: frozenset[str], *, beside: frozenset[str] = frozenset()) -> float:
        """Weighted share, 0 to 1, of `wanted` that `held` holds and `beside` does not; 0.0 when nothing is wanted."""
        total = sum(map(self._weight, wanted))
        return sum(map(self._weight, (wanted & held) - beside)) / total if total else 0.0

    def _weight(self, piece: str) -> float:
        return math.log(1 + self._num_texts / (0.5 + self._frequency[piece]))


class VectorMemory:
    """An embedding function that keeps the vectors of the last `CACHED_VECTORS` texts. Threads may share it."""

    def __init__(self, embed: Embed) -> None:
        self._embed = embed
        self._vectors: OrderedDict[str, NDArray[np.float32]] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors `(len(texts), dim)`, from memory where they were asked before."""
        with self._lock:
            known = {text: self._vectors[text] for text in texts if text in self._vectors}
        missing = [text for text in dict.fromkeys(texts) if text not in known]
        if missing:
            fresh = self._embed_by_length(missing)
            known.update(fresh)
            with self._lock:
                self._vectors.update(fresh)
                while len(self._vectors) > CACHED_VECTORS:
                    self._vectors.popitem(last=False)
        return np.stack([known[text] for text in texts])

    def _embed_by_length(self, texts: Sequence[str]) -> Mapping[str, NDArray[np.float32]]:
        fresh: dict[str, NDArray[np.float32]] = {}
        by_length = sorted(texts, key=len)
        for first in range(0, len(by_length), BATCH):
            batch = by_length[first : first + BATCH]
            fresh.update(zip(batch, self._embed(batch), strict=True))
        return fresh
