"""The seam for choosing sentences: question and passages in, sentences with scores out, best first.

The reader here lets a cross-encoder read the most promising sentences with the question. Which are promising, four
signals say that cost nothing: the question's terms in the sentence, in its heading, in a neighbour, and the passage's
rank (`docs/decisions.md`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from indexes.sentences import SpanKind, split_spans
from indexes.words import terms_of
from rag.answer_forms import TermWeights, gives_number
from rag.cross_encoder import Pair
from rag.question import defines, question_kind, subject_of
from rag.types import Passage

TERMS_WEIGHT = 0.7
HEADING_WEIGHT = 0.56
"""For terms of the question in the heading of the sentence's section, but not in the sentence."""
NEIGHBOUR_WEIGHT = 0.4
"""For the better of the two neighbours: an answer often follows what repeats the question."""
PLACE_WEIGHT = 0.16
"""For the first passage; a half for the second, a third for the third."""
FORM_WEIGHT = 0.4
"""For a sentence that gives a number where one is asked for, when it is chosen what is read."""
READ_UNITS = 16
"""Most units that are read with the question. Reading takes most of an answer's time."""
READ_LISTINGS = 6
"""Most of them that are listings, where code is asked for; other answers bring a listing along with a sentence."""
READ_CHARACTERS = 600
"""More than the model reads; spares the tokenizer a long listing."""
REMEMBERED = 64
"""Readings kept, so that whoever asks again about the same passages does not wait again."""

ScorePairs = Callable[[str, Sequence[Pair]], NDArray[np.float32]]
"""A question and pairs to how likely each sentence answers, 0 to 1, `(len(pairs),)`."""


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


class LearnedReader:
    """Reads the units with the best signals by a model. Threads may share it.

    Args:
        score: the model, loaded when first called.
    """

    def __init__(self, score: ScorePairs) -> None:
        self._score = score
        self._readings: OrderedDict[tuple[str, tuple[str, ...]], list[ScoredUnit]] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, question: str, passages: Sequence[Passage]) -> list[ScoredUnit]:
        """At most `READ_UNITS` units, best first."""
        key = (question, tuple(passage.text for passage in passages))
        with self._lock:
            if key in self._readings:
                return self._readings[key]
        units, pairs = candidates(question, passages)
        if question_kind(question) == "code":
            listings, shown = candidates(question, passages, listings=True)
            units, pairs = listings[:READ_LISTINGS] + units, shown[:READ_LISTINGS] + pairs
        units, pairs = units[:READ_UNITS], pairs[:READ_UNITS]
        scores = self._score(question, pairs) if pairs else np.zeros(0, dtype=np.float32)
        read = [ScoredUnit(unit, float(score)) for unit, score in zip(units, scores, strict=True)]
        read.sort(key=lambda item: (-item.score, item.unit.passage, item.unit.place))
        with self._lock:
            self._readings[key] = read
            while len(self._readings) > REMEMBERED:
                self._readings.popitem(last=False)
        return read


def candidates(question: str, passages: Sequence[Passage], *, listings: bool = False) -> tuple[list[Unit], list[Pair]]:
    """The units of the passages that a model may read, and the same as pairs: what defines the name asked about first,
    then the best signals.

    Args:
        listings: the listings, instead of everything else; headings are in neither.
    """
    every = units_of(passages)
    places = [place for place, unit in enumerate(every) if unit.kind != "heading"]
    units = [every[place] for place in places]
    signals = _signals(question, units)
    subject = subject_of(question)
    counts = question_kind(question) == "number"
    order = sorted(
        (i for i, unit in enumerate(units) if (unit.kind == "code") == listings),
        key=lambda i: (
            not (subject and defines(subject, units[i].text)),
            -signals[i] - (FORM_WEIGHT * gives_number(question, units[i].text) if counts else 0.0),
        ),
    )
    pairs = []
    for i in order:
        unit, place = units[i], places[i]
        before = every[place - 1] if place else None
        adjoins = before is not None and before.passage == unit.passage and before.kind != "heading"
        pairs.append(
            Pair(
                unit.text[:READ_CHARACTERS],
                " > ".join(unit.section[-2:]),
                before.text[-READ_CHARACTERS:] if before is not None and adjoins else "",
                signals[i],
            )
        )
    return [units[i] for i in order], pairs


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


def _signals(question: str, units: Sequence[Unit]) -> list[float]:
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
