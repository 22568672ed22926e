"""What tuning data gives away of the test questions, and what shortcuts score on choice questions.

A floor is the share of choice questions that a rule gets right without reading the book: the longest option, the most
frequent position, the option nearest the centroid of the options, the option with most words of the question. A tie
counts as a fair pick among the tied options.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evals.questions import BankQuestion
from evals.text_match import NEAR_DUPLICATE_COSINE, Embed, ngrams, tokens

NEAREST_PAIRS = 10


def shortcut_floors(questions: Sequence[BankQuestion], embed: Embed | None = None) -> dict[str, float]:
    """Share of choice questions that each rule gets right without the book, 0.0 to 1.0; empty without choices."""
    asked = [(question, question.answer_index) for question in questions if question.choices]
    keyed = [(question, index) for question, index in asked if index is not None]
    if not keyed:
        return {}
    positions = Counter(index for _, index in keyed)
    floors = {
        "longest_option": _mean(_credit([len(choice) for choice in q.choices], index) for q, index in keyed),
        "frequent_position": max(positions.values()) / len(keyed),
        "question_overlap": _mean(_credit(_overlaps(q), index) for q, index in keyed),
    }
    if embed is not None:
        vectors = embed([choice for question, _ in keyed for choice in question.choices])
        options = vectors.reshape(len(keyed), -1, vectors.shape[1])
        floors["options_centroid"] = _mean(
            _credit((row @ row.mean(axis=0)).tolist(), index) for row, (_, index) in zip(options, keyed, strict=True)
        )
    return floors


def _mean(values: Iterator[float]) -> float:
    return float(np.mean(list(values)))


def _credit(scores: Sequence[float], answer_index: int) -> float:
    best = max(scores)
    tied = [index for index, score in enumerate(scores) if score >= best - 1e-9]
    return 1 / len(tied) if answer_index in tied else 0.0


def _overlaps(question: BankQuestion) -> list[float]:
    asked = {word for word in tokens(question.question) if len(word) > 3}
    return [float(len(asked & set(tokens(choice)))) for choice in question.choices]


@dataclass(frozen=True, slots=True)
class Leak:
    """A test question that the tuning data gives away: the check that found it, and the tuning text."""

    check: str
    question_id: str
    question: str
    tuning_text: str


@dataclass(frozen=True, slots=True)
class LeakageReport:
    """What the check compared and found.

    Attributes:
        nearest: `(cosine, test question, tuning text)` of the nearest pairs.
        tuning_sha256, test_sha256: of the texts compared, in order.
        seen, unseen: test questions on tuned sections, and the others.
    """

    leaks: tuple[Leak, ...]
    nearest: tuple[tuple[float, str, str], ...]
    tuning_texts: int
    test_questions: int
    seen: int
    unseen: int
    tuning_sha256: str
    test_sha256: str

    @property
    def clean(self) -> bool:
        """Whether no leak was found."""
        return not self.leaks

    def to_json(self) -> dict[str, Any]:
        """The report as plain values."""
        return {"checked": True, "clean": self.clean, **asdict(self)}


def check_leakage(
    tuning_texts: Sequence[str],
    tuned_sections: Sequence[str],
    test_questions: Sequence[BankQuestion],
    embed: Embed,
) -> LeakageReport:
    """Compares every tuning text, paraphrases included, with every test question.

    Leaks by check:
        exact        the same string
        normalized   the same words
        8-gram       8 words in a row in common
        13-gram      13 words in a row in common (the recipe of GPT-3, Brown et al. 2020, appendix C)
        embedding    cosine at least `NEAR_DUPLICATE_COSINE`; the nearest pairs are listed for a person to read
        section      the same section of the book, unless the test question is marked `seen`
    """
    leaks: list[Leak] = []
    exact = dict.fromkeys(tuning_texts)
    normalized = {" ".join(tokens(text)): text for text in tuning_texts}
    grams = {size: {g: text for text in tuning_texts for g in ngrams(text, size)} for size in (8, 13)}
    sections = set(tuned_sections)
    for question in test_questions:
        wording = question.question
        shared = {
            size: next((grams[size][g] for g in ngrams(wording, size) if g in grams[size]), None) for size in grams
        }
        if wording in exact:
            leaks.append(Leak("exact", question.id, wording, wording))
        elif (same := normalized.get(" ".join(tokens(wording)))) is not None:
            leaks.append(Leak("normalized", question.id, wording, same))
        elif shared[13] is not None:
            leaks.append(Leak("13-gram", question.id, wording, shared[13]))
        elif shared[8] is not None:
            leaks.append(Leak("8-gram", question.id, wording, shared[8]))
        if question.section in sections and not question.seen:
            leaks.append(Leak("section", question.id, wording, question.section or ""))
    nearest: list[tuple[float, str, str]] = []
    if tuning_texts and test_questions:
        cosines = embed([q.question for q in test_questions]) @ embed(list(tuning_texts)).T
        best = cosines.argmax(axis=1)
        known = {leak.question_id for leak in leaks}
        for row in np.argsort(-cosines.max(axis=1), kind="stable").tolist():
            question, cosine = test_questions[row], float(cosines[row, best[row]])
            if len(nearest) < NEAREST_PAIRS:
                nearest.append((round(cosine, 4), question.question, tuning_texts[best[row]]))
            if cosine >= NEAR_DUPLICATE_COSINE and question.id not in known:
                leaks.append(Leak("embedding", question.id, question.question, tuning_texts[best[row]]))
    seen = sum(question.seen for question in test_questions)
    return LeakageReport(
        tuple(leaks),
        tuple(nearest),
        len(tuning_texts),
        len(test_questions),
        seen,
        len(test_questions) - seen,
        _digest(tuning_texts),
        _digest([question.question for question in test_questions]),
    )


def _digest(texts: Sequence[str]) -> str:
    return hashlib.sha256("\x1f".join(texts).encode()).hexdigest()


def bundled_encoder() -> Embed:
    """Loads the embedded encoder, which the floors are stated for, whatever embedder the settings name."""
    from indexes.embedder import load_embedder
    from indexes.settings import IndexSettings

    with tempfile.TemporaryDirectory() as home:
        return load_embedder(IndexSettings(home=Path(home))).encode
