"""How well each sentence of the passages answers the question: by embedding, by wording, by where it stands.

The score is a weighted sum. The weights were chosen by the key facts in the answers to 282 development questions over
eight open GPU texts, each in two languages; what each brings stands in `docs/decisions-retrieval.md`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rag.generators.table_rows import answering_rows
from rag.generators.vector_memory import Embed, VectorMemory
from rag.sentences import Span, split_spans
from rag.types import Passage
from rag.wording import Wording, wording

EMBEDDED_UNITS = 20
"""Units embedded for one question; the rest are out by wording and place alone. Embedding is what an answer costs."""
EMBEDDED_CHARACTERS = 240
"""Of a unit, its beginning is embedded."""
COSINE_WEIGHT = 0.44
WORDING_WEIGHT = 0.7
NEAR_WEIGHT = 0.4
"""For the wording of the better of the two neighbours: what answers often stands beside what repeats the question."""
PLACE_WEIGHT = 0.16
"""For the first passage; a half for the second, a third for the third."""
BEFORE_WEIGHT = 0.06
"""For the cosine of the sentence before: what answers often follows what names the subject."""
NUMBER_BONUS = 0.12
"""For a number in a sentence when the question asks for one."""
QUESTION_PENALTY = 0.15
"""For a question, and for the promise of an answer ('How to measure time')."""
LABEL_PENALTY = 0.4
"""For a bold line that only names what follows."""
DEFINITION_BONUS = 0.15
"""For a sentence that says what the thing is when the question asks just that."""
ANNOUNCEMENT_PENALTY = 0.12
"""Under a heading that announces (outline, objectives) or sends elsewhere (references) instead of telling."""
TIMETABLE_PENALTY = 1.2
FRAGMENT_PENALTY = 0.2
FRAGMENT_WORDS = 4
HEADING_SHARE = 0.8
"""A piece of the question that stands in the heading counts this much for every sentence under it."""
SIGNATURE_SHARE = 0.8
"""The same for a name or signature on a line of its own, as reference manuals have above each description."""

_ASKS_FOR_NUMBER = re.compile(
    r"\bhow (many|much|long|large|big|fast|wide|often|deep)\b|\b(number|size|factor|percentage|ratio|bandwidth) of\b"
    r"|\bwhat (size|speedup|factor|number|percentage)\b",
    re.IGNORECASE,
)


_ASKS_WHAT = re.compile(
    r"^\W*(?:what(?:\s+(?:is|are)|'s)(?:\s+(?:an?|the))?|define|explain)\s+(?P<subject>\S+(?:\s+\S+){0,3}?)"
    r"(?:\s+in\s+\S+(?:\s+\S+)?)?\W*$",
    re.IGNORECASE,
)
_SAYS_WHAT = re.compile(r"\b(?:is|are|refers? to|means|denotes?|stands? for)\b", re.IGNORECASE)
DEFINED_WITHIN = 60
"""Characters of a sentence before its `is`; what comes later is said of something else."""
_ANNOUNCES = re.compile(
    r"\b(?:outline|agenda|schedule|timetable|objectives?|learning (?:goals|outcomes)|table of contents|contents|"
    r"further reading|references|bibliography|web resources|see also|useful links)\b",
    re.IGNORECASE,
)
_ASKS_FOR_PLAN = re.compile(
    r"\b(?:when|what time|course|lesson|lecture|workshop|book|chapter|learn|read|link|url)\b", re.IGNORECASE
)
_ANNOUNCED = re.compile(r"(?:how|why|when|where)\b(?!.*[,;:])[^.]*$", re.IGNORECASE)
_LABEL = re.compile(r"(\*\*|__)(?!\s).{1,120}(?<!\s)\1:?")
_SIGNATURE = re.compile(r"(?:\*\*)?`[^`\n]{2,200}`(?:\*\*)?:?")
_CLOCK = re.compile(r"(?<![\d.])\d{1,2}[:.]\d{2}(?![\d.])")


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
        self._embed = VectorMemory(embed)

    def score(self, question: str, passages: Sequence[Passage]) -> ScoredUnits:
        """Relevance of the most promising units; at most `EMBEDDED_UNITS` of them.

        Args:
            question: in the language of the passages.
        """
        units = [_as_asked(question, unit) for unit in units_of(passages) if unit.span.kind != "heading"]
        if not units:
            return ScoredUnits((), np.zeros(0), np.zeros((0, 1), np.float32))
        shares = wording_shares(question, units, passages)
        without_cosine = [
            WORDING_WEIGHT * shares[i]
            + NEAR_WEIGHT * max((shares[n] for n in (i - 1, i + 1) if _beside(units, i, n)), default=0.0)
            + PLACE_WEIGHT / (1 + unit.passage)
            + _bonus(question, unit)
            + _kind_of_place(question, unit, passages[unit.passage].part_at(unit.span.start).section)
            for i, unit in enumerate(units)
        ]
        read = sorted(sorted(range(len(units)), key=lambda i: -without_cosine[i])[:EMBEDDED_UNITS])
        kept = tuple(units[i] for i in read)
        vectors = self._embed([question, *(unit.text[:EMBEDDED_CHARACTERS] for unit in kept)])
        cosine = vectors[1:] @ vectors[0]
        scores = [
            without_cosine[i]
            + COSINE_WEIGHT * cosine[n]
            + BEFORE_WEIGHT * (cosine[n - 1] if _beside(kept, n, n - 1) else 0.0)
            for n, i in enumerate(read)
        ]
        return ScoredUnits(kept, np.array(scores, np.float64), vectors[1:])


def units_of(passages: Sequence[Passage]) -> list[Unit]:
    """Every sentence, item, listing, table and heading of the passages, in order."""
    return [
        Unit(number, place, span, text, wording(text))
        for number, passage in enumerate(passages)
        for place, span in enumerate(split_spans(passage.text))
        if (text := passage.text[span.start : span.end])
    ]


def wording_shares(question: str, units: Sequence[Unit], passages: Sequence[Passage]) -> list[float]:
    """Share, 0 to 1, of the question's wording that each unit holds, rare pieces weighing more.

    What stands in the heading of its section counts by `HEADING_SHARE`, in the signature above it by
    `SIGNATURE_SHARE`.
    """
    asked = wording(question).pieces
    if not asked:
        return [0.0] * len(units)
    frequency = Counter(piece for unit in units for piece in asked & unit.words.pieces)
    weight = {piece: math.log(1 + len(units) / (0.5 + frequency[piece])) for piece in asked}
    total = sum(weight.values())
    shares = []
    described: tuple[int, Sequence[str], frozenset[str]] = (-1, (), frozenset())
    for unit in units:
        own = asked & unit.words.pieces
        section = passages[unit.passage].part_at(unit.span.start).section
        if is_signature(unit):
            described = unit.passage, section, own
        above = (asked & wording(" ".join(section)).pieces) - own
        named = described[2] - own - above if described[:2] == (unit.passage, section) else frozenset()
        shares.append(
            (_sum(weight, own) + HEADING_SHARE * _sum(weight, above) + SIGNATURE_SHARE * _sum(weight, named)) / total
        )
    return shares


def is_signature(unit: Unit) -> bool:
    """Whether a unit is a name or signature alone, which what follows describes."""
    return unit.span.kind == "sentence" and bool(_SIGNATURE.fullmatch(unit.text))


def _sum(weight: Mapping[str, float], pieces: Iterable[str]) -> float:
    return sum(weight[piece] for piece in pieces)


def _as_asked(question: str, unit: Unit) -> Unit:
    """The unit; a long table only with the rows that answer, for by all its words it would fit any question."""
    if unit.span.kind != "table" or (text := answering_rows(question, unit.text)) == unit.text:
        return unit
    return replace(unit, text=text, words=wording(text))


def _bonus(question: str, unit: Unit) -> float:
    bonus = 0.0
    if unit.words.numbers and _ASKS_FOR_NUMBER.search(question):
        bonus += NUMBER_BONUS
    if unit.span.kind in ("sentence", "item"):
        if unit.text.rstrip("\"' ").endswith(("?", "？")) or _ANNOUNCED.match(unit.text):
            bonus -= QUESTION_PENALTY
        if _LABEL.fullmatch(unit.text) and not is_signature(unit):
            bonus -= LABEL_PENALTY
        if len(unit.text.split()) <= FRAGMENT_WORDS and not any("\u3400" <= c <= "\u9fff" for c in unit.text):
            bonus -= FRAGMENT_PENALTY
        if _defines(question, unit.text):
            bonus += DEFINITION_BONUS
    return bonus


def _defines(question: str, sentence: str) -> bool:
    """Whether a sentence begins by saying what the thing is that the question asks for, and for nothing more."""
    asked = _ASKS_WHAT.match(question)
    says = _SAYS_WHAT.search(sentence[: DEFINED_WITHIN + 10])
    if asked is None or says is None or says.start() > DEFINED_WITHIN:
        return False
    subject = wording(asked["subject"]).stems
    return bool(subject) and subject <= wording(sentence[: says.start()]).stems


def _kind_of_place(question: str, unit: Unit, section: Sequence[str]) -> float:
    """What it costs to stand where books announce, or in a timetable, unless the question asks for that."""
    if _ASKS_FOR_PLAN.search(question) or _ANNOUNCES.search(question):
        return 0.0
    if unit.span.kind == "table" and 2 * len(_CLOCK.findall(unit.text)) >= unit.text.count("\n"):
        return -TIMETABLE_PENALTY
    return -ANNOUNCEMENT_PENALTY if section and _ANNOUNCES.search(section[-1]) else 0.0


def _beside(units: Sequence[Unit], one: int, other: int) -> bool:
    """Whether the units with these two numbers stand right beside each other in one passage."""
    if not (0 <= one < len(units) and 0 <= other < len(units)) or units[one].passage != units[other].passage:
        return False
    return abs(units[one].place - units[other].place) == 1
