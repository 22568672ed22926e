"""Whether tuning data and test questions overlap. No verdict is printed when this has not run, or finds a leak.

Checks, each test question against each tuning question (paraphrases included):
    exact        the same string
    normalized   the same words
    8-gram       8 words in a row in common, and
    13-gram      13 words in a row in common (the recipe of GPT-3, Brown et al. 2020, appendix C)
    embedding    cosine at least `NEAR_DUPLICATE_COSINE`; the nearest pairs are listed for a human eye
Questions on one section may stand on both sides only where the test question is marked `seen`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evals.errors import LeakageFound
from evals.metrics.text_overlap import tokens
from evals.questions import BankQuestion

Embed = Callable[[Sequence[str]], NDArray[np.float32]]
NEAR_DUPLICATE_COSINE = 0.95
NEAREST_PAIRS = 10


@dataclass(frozen=True, slots=True)
class Leak:
    """A test question that tuning data gives away: the check that found it and the tuning text."""

    check: str
    question_id: str
    question: str
    tuning_text: str


@dataclass(frozen=True, slots=True)
class LeakageReport:
    """What was compared and what was found.

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
        """No leak was found."""
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
    """Compares every tuning text with every test question."""
    leaks: list[Leak] = []
    exact = dict.fromkeys(tuning_texts)
    normalized = {" ".join(tokens(text)): text for text in tuning_texts}
    grams = {size: {g: text for text in tuning_texts for g in _ngrams(text, size)} for size in (8, 13)}
    sections = set(tuned_sections)
    for question in test_questions:
        wording = question.question
        shared = {
            size: next((grams[size][g] for g in _ngrams(wording, size) if g in grams[size]), None) for size in grams
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


def require_clean(report: LeakageReport | None) -> None:
    """Lets a verdict through only after a clean check.

    Raises:
        LeakageFound: the check has not run, or found a leak (the first is named).
    """
    if report is None:
        raise LeakageFound("leakage between tuning data and test questions was not checked", hint="run coalesce eval")
    if not report.clean:
        first = report.leaks[0]
        raise LeakageFound(
            f"{len(report.leaks)} test questions overlap the tuning data; first: {first.question_id} ({first.check})",
            hint="take them out of the tuning data, tune again, then run coalesce eval",
        )


def _ngrams(text: str, size: int) -> list[tuple[str, ...]]:
    words = tokens(text)
    return [tuple(words[start : start + size]) for start in range(len(words) - size + 1)]


def _digest(texts: Sequence[str]) -> str:
    return hashlib.sha256("\x1f".join(texts).encode()).hexdigest()
