"""How sure the search is that the library answers a question, and what to say if it is not.

Evidence is a score from 0 to 1, a logistic function of a few signals; two thresholds separate `strong`, `weak` and
`none`, whatever writes the answer: small language models invent where the passages do not answer. Weights and
thresholds are in `evidence_calibration.json`; no signal depends on the embedder. The number and length of the passages
judged are fixed (`JUDGED_PASSAGES`), whatever a generator can read.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

from indexes.words import STOP_WORDS, is_chinese, terms_of, without_index_marks
from rag.query import Query, english_query
from rag.retrieval import PassageBudget, Retrieval
from rag.sentence_reader import SentenceReader
from rag.types import Evidence, Passage, Quoted, SearchableLibrary
from rag.wording import translate_terms, unknown_nouns

JUDGED_PASSAGES = 5
JUDGED_BUDGET = PassageBudget()
NAMED_SECTIONS = 3
"""Sections that a refusal names."""
BEARING_SHARE = 0.3
"""A sentence that scores under this share of the best one is beside the question."""
CLEARLY_BEST = 0.01
"""Distance of the two best readings from which an option is named: 56 % of the bank's 322 choice questions for testing
are that clear, and of those 80 % are named rightly; with strong evidence, which is asked for too, 82.5 % of 120."""
_ASKS_WHAT_IS_WRONG = re.compile(
    r"\b(?:not|except|false|incorrect|wrong|least|never)\b|n't\b|不|错误|除了", re.IGNORECASE
)
_CAPITAL = re.compile(r"\b[A-Z][A-Za-z0-9]+\b", re.ASCII)
_SENTENCE_START = re.compile(r"(?:^|[.!?:;])[\s\"'(\[*]*$")

_NOT_FOUND = ("The library does not answer this question.", "书库中没有能回答这个问题的内容。")
_NEAREST = ("{said} The nearest sections: {sections}.", "{said}最接近的章节：{sections}。")
_WEAK = ("The books may not say this; check the sources.", "书中可能没有说到这一点，请核对出处。")
_ANYWAY = (
    "The library does not seem to answer this question; the answer comes from the nearest passages.",
    "书库中似乎没有这个问题的答案，以下内容来自最接近的段落。",
)
_NOTHING_THERE = (
    "Nothing in the library matches these filters, so there is nothing to answer from.",
    "书库中没有符合这些筛选条件的内容，因此无法回答。",
)
_EMPTY = (
    "The library is empty, so there is nothing to answer from. Add a book first: coalesce add PATH",
    "书库是空的，因此无法回答。请先添加一本书：coalesce add PATH",
)
_FITS = (
    "Of the options, {letter} (“{option}”) fits these passages best. Check it: when one fits this clearly, some 80 of "
    "100 are right.",
    "在各选项中，{letter}（“{option}”）与这些段落最相符。请核对：这样明确时，约有 80% 是对的。",
)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Weights by signal name and the intercept.

    Attributes:
        threshold: least score that is answered; strong: least score of strong evidence.
    """

    weights: dict[str, float]
    intercept: float
    threshold: float
    strong: float

    def score(self, signals: dict[str, float]) -> float:
        """Evidence from 0 to 1."""
        total = self.intercept + sum(weight * signals[name] for name, weight in self.weights.items())
        return 1.0 / (1.0 + math.exp(-max(min(total, 50.0), -50.0)))


@cache
def load_calibration() -> Calibration:
    """The calibration that ships; `python -m tools.evidence_calibration` fits it."""
    text = files("rag").joinpath("evidence_calibration.json").read_text(encoding="utf-8")
    return Calibration(**json.loads(text))


@dataclass(frozen=True, slots=True)
class Judgement:
    """How sure the search is, and what to say about it.

    Attributes:
        refusal: what to say instead of answering; None when the question is answered.
        note: what to say beside the answer.
        score: the evidence from 0 to 1; None where nothing was found that could be judged.
    """

    evidence: Evidence
    refusal: str | None = None
    note: str | None = None
    score: float | None = None


class EvidenceJudge:
    """Says how sure the search is.

    Args:
        reader: reads the passages; the score of the sentence that answers best is the strongest signal.
        threshold: the least score that is answered, instead of the calibrated one; 0 answers everything, more than 1
            nothing.
    """

    def __init__(self, reader: SentenceReader, threshold: float | None = None) -> None:
        self._calibration = load_calibration()
        self._reader = reader
        self.threshold = self._calibration.threshold if threshold is None else threshold
        self.strong = self._calibration.strong

    @property
    def reader(self) -> SentenceReader:
        """What reads the passages."""
        return self._reader

    def judge(
        self,
        retrieval: Retrieval,
        passages: Sequence[Passage],
        library: SearchableLibrary,
        *,
        answer_anyway: bool = False,
    ) -> Judgement:
        """How sure the search is, and what to say about it in the question's language.

        Args:
            passages: `JUDGED_PASSAGES` of `JUDGED_BUDGET`.
            answer_anyway: refuse only where nothing at all was found.
        """
        chinese = retrieval.query.chinese
        if not passages:
            return Judgement("none", (_NOTHING_THERE if library.documents() else _EMPTY)[chinese])
        score = self.score(retrieval, passages)
        evidence = self.evidence(score)
        if evidence == "strong":
            return Judgement(evidence, score=score)
        if evidence == "weak":
            return Judgement(evidence, note=_WEAK[chinese], score=score)
        if answer_anyway:
            return Judgement(evidence, note=_ANYWAY[chinese], score=score)
        return Judgement(evidence, not_found(chinese, passages), score=score)

    def score(self, retrieval: Retrieval, passages: Sequence[Passage]) -> float:
        """Evidence from 0 to 1; less than strong where no good sentence is about the name that is to be defined."""
        score = self._calibration.score(self.signals(retrieval, passages))
        about = self._is_about(retrieval.query, passages)
        return score if about else min(score, math.nextafter(self.strong, 0.0))

    def signals(self, retrieval: Retrieval, passages: Sequence[Passage]) -> dict[str, float]:
        """All signals by name; `read` is the score of the sentence or listing that answers best.

        The reader learned from English: of another language it counts for as much of the question as was found.
        """
        read = self._reader.read(retrieval.query, passages)
        best = max((item.score for item in read), default=0.0)
        signals = evidence_signals(retrieval, passages)
        return signals | {"read": best * signals["coverage_all"] if is_chinese(retrieval.query.english) else best}

    def _is_about(self, query: Query, passages: Sequence[Passage]) -> bool:
        """Whether one of the best sentences, with its headings, holds all words of the name to define, if any."""
        wanted = terms_of(query.subject).pieces
        read = self._reader.read(query, passages) if wanted else []
        least = BEARING_SHARE * max((item.score for item in read), default=0.0)
        return not wanted or any(
            item.score >= least
            and wanted
            <= item.unit.pieces | terms_of(" ".join((passages[item.unit.passage].title, *item.unit.section))).pieces
            for item in read
        )

    def is_relevant(self, query: Query, passages: Sequence[Passage], quoted: Quoted) -> bool:
        """Whether a quote bears on the question: one of its sentences reads nearly as well as the best."""
        read = self._reader.read(query, passages)
        least = BEARING_SHARE * max((item.score for item in read), default=0.0)
        return any(
            item.score >= least
            and item.unit.passage == quoted.passage - 1
            and item.unit.start < quoted.end
            and quoted.start < item.unit.end
            for item in read
        )

    def evidence(self, score: float) -> Evidence:
        """The step that a score belongs to."""
        if score < self.threshold:
            return "none"
        return "strong" if score >= self.strong else "weak"


def not_found(chinese: bool, passages: Sequence[Passage]) -> str:
    """The refusal, in the question's language; names the nearest sections."""
    named = ("、" if chinese else ", ").join(f"“{section}”" for section in nearest_sections(passages))
    said = _NOT_FOUND[chinese]
    return _NEAREST[chinese].format(said=said, sections=named) if named else said


def without_nearest(text: str) -> str:
    """A refusal without its nearest sections, for where they are listed beside it; any other text as it is."""
    for said, nearest in zip(_NOT_FOUND, _NEAREST, strict=True):
        if text.startswith(nearest.format(said=said, sections="\0").partition("\0")[0]):
            return said
    return text


def nearest_sections(passages: Sequence[Passage]) -> tuple[str, ...]:
    """The sections of the first passages, at most `NAMED_SECTIONS`, each by its last two headings."""
    named = (" › ".join(passage.section[-2:]) or passage.title for passage in passages)
    return tuple(dict.fromkeys(named))[:NAMED_SECTIONS]


def clear_option(query: Query, passages: Sequence[Passage], reader: SentenceReader) -> tuple[Query, str] | None:
    """The pasted option with which a sentence of the passages answers best: as a query, and a note that names it.

    Returns:
        None where none fits clearly best, or where the wrong one is asked for.
    """
    if len(query.options) < 2 or _ASKS_WHAT_IS_WRONG.search(query.standalone):
        return None
    own = is_chinese(query.english)
    english = [option if own else translate_terms(option) or option for option in query.options]
    asked = [english_query(f"{query.english.rstrip('?.: ')}? {option}") for option in english]
    fits = [max((item.score for item in reader.read(each, passages)), default=0.0) for each in asked]
    best, second = sorted(range(len(fits)), key=lambda number: -fits[number])[:2]
    if fits[best] - fits[second] < CLEARLY_BEST:
        return None
    note = _FITS[query.chinese].format(letter="ABCDEFGH"[best], option=query.options[best])
    return replace(query, english=asked[best].english), note


def evidence_signals(retrieval: Retrieval, passages: Sequence[Passage]) -> dict[str, float]:
    """The signals of words, by name.

    `coverage_all`: share of the question's terms in the passages together. `unknown`: share of its words that are
    Chinese nouns, not in the glossary, and in no passage: they were not searched for. `unnamed`: 1 when the question
    has an identifier such as `gfx90a`, or a word with a capital (`NCCL`, `Metal`), that no passage holds; else 0.
    """
    question = retrieval.query.english
    shown = "\n".join(" ".join((passage.title, *passage.section, passage.text)) for passage in passages)
    return {
        "coverage_all": _share(terms_of(question).pieces, terms_of(shown).pieces),
        "unknown": _unknown(retrieval.query.standalone, question, shown),
        "unnamed": float(_unnamed(question, retrieval.query.standalone, without_index_marks(shown.lower()))),
    }


def _unknown(asked: str, english: str, shown: str) -> float:
    unknown = [word for word in unknown_nouns(asked) if word not in shown]
    return len(unknown) / (len(unknown) + len(terms_of(english).pieces)) if unknown else 0.0


def _unnamed(english: str, asked: str, shown: str) -> bool:
    if any(name not in shown for name in terms_of(english).identifiers):
        return True
    names = (without_index_marks(name).removesuffix("s") for name in proper_names(asked))
    return any(not re.search(rf"(?<![a-z0-9]){re.escape(name)}", shown) for name in names)


def proper_names(text: str) -> frozenset[str]:
    """Words with a capital, lower case: `numba`, `nccl`.

    An ordinary first word of a sentence does not count, except in Chinese.
    """
    chinese = is_chinese(text)
    found = () if text.isupper() else _CAPITAL.finditer(text)
    return (
        frozenset(
            match.group().lower()
            for match in found
            if chinese or not (match.group()[1:].islower() and _SENTENCE_START.search(text[: match.start()]))
        )
        - STOP_WORDS
    )


def _share(wanted: frozenset[str], held: frozenset[str]) -> float:
    return len(wanted & held) / len(wanted) if wanted else 0.0
