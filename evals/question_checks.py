"""Checks that the question bank could fail: evidence, key facts, shortcut floors, duplicates, split purity.

`coalesce questions check` prints the findings and ends with status 1 when there is one; the tests run the same checks.

Floors (share of choice questions that a rule which has not read the book gets right):
    longest option                    at most 0.32
    most frequent position            at most 0.30
    embedding centroid of the options at most 0.35
    most words shared with question   at most 0.40
Ties count as the expected value of a fair pick among the tied options.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from evals.book_sections import sections_of
from evals.metrics.key_facts import fact_met, normalize
from evals.metrics.text_overlap import token_f1
from evals.questions import BankQuestion
from indexes.sample import SAMPLE_PATH

Embed = Callable[[Sequence[str]], NDArray[np.float32]]
"""Texts to unit vectors, float32 `(num_texts, dim)`."""

FLOOR_BOUNDS = {"longest_option": 0.32, "frequent_position": 0.30, "options_centroid": 0.35, "question_overlap": 0.40}
MAX_ACCIDENTAL_FACTS = 0.02
NEAR_DUPLICATE_COSINE = 0.95
NGRAM = 8
KEY_MARGIN = 0.25
"""How much nearer (token F1) another option must be to the reference answer to doubt the key."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing wrong: the check, the question's id (or `bank`), and what it is."""

    check: str
    question_id: str
    detail: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Findings, the shortcut floors by name, and how many questions each split holds."""

    findings: tuple[Finding, ...]
    floors: dict[str, float]
    counts: dict[str, int]


def check_questions(
    questions: Sequence[BankQuestion], *, book: Path = SAMPLE_PATH, embed: Embed | None = None, whole_bank: bool = True
) -> CheckReport:
    """Runs every check; those that need vectors only with `embed`, those of bank totals only with `whole_bank`."""
    floors = shortcut_floors(questions, embed)
    findings = [
        *_check_evidence(questions, book),
        *_check_key_facts(questions),
        *_check_answer_keys(questions),
        *_check_splits(questions),
        *_check_duplicates(questions, embed),
        *_check_wording(questions),
    ]
    if whole_bank:
        findings += [*_check_floors(floors), *_check_totals(questions)]
    return CheckReport(tuple(findings), floors, dict(Counter(question.split for question in questions)))


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


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9_]+", normalize(text))


def _overlaps(question: BankQuestion) -> list[float]:
    asked = {word for word in _words(question.question) if len(word) > 3}
    return [float(len(asked & set(_words(choice)))) for choice in question.choices]


def _check_evidence(questions: Sequence[BankQuestion], book: Path) -> Iterator[Finding]:
    chapters: dict[str, dict[str, str]] = {}
    for question in questions:
        if question.answerable and not question.gold:
            yield Finding("evidence", question.id, "is answerable but names no gold section")
        if not question.answerable and (question.gold or question.key_facts or question.choices):
            yield Finding("evidence", question.id, "is unanswerable but has gold, key facts or choices")
        for gold in question.gold:
            path = book / gold.file
            if not path.is_file():
                yield Finding("evidence", question.id, f"gold file {gold.file!r} is not in the book")
                continue
            if gold.file not in chapters:
                chapters[gold.file] = sections_of(path)
            section = chapters[gold.file].get(gold.heading)
            if section is None:
                yield Finding("evidence", question.id, f"no section {gold.heading!r} in {gold.file}")
            elif not gold.evidence or gold.evidence not in section:
                yield Finding("evidence", question.id, f"evidence not in {gold.heading!r}: {gold.evidence!r:.90}")
        named = f"{question.gold[0].file}#{question.gold[0].heading}" if question.gold else None
        if question.section != named:
            yield Finding("evidence", question.id, f"section is {question.section!r}, gold says {named!r}")
        if question.needs_two_passages != (len(question.parts) > 1):
            yield Finding("evidence", question.id, f"needs_two_passages disagrees with its parts {question.parts}")


def _check_key_facts(questions: Sequence[BankQuestion]) -> Iterator[Finding]:
    answers = [question.answer for question in questions]
    accidental, pairs = 0, 0
    for index, question in enumerate(questions):
        if not question.answerable:
            continue
        if not question.key_facts:
            yield Finding("key_facts", question.id, "is answerable but has no key facts")
            continue
        missing = [fact for fact in question.key_facts if not fact_met(fact, question.answer)]
        if missing:
            yield Finding("key_facts", question.id, f"reference answer does not state {missing[0]!r}")
        met = [
            other
            for other, answer in enumerate(answers)
            if other != index and all(fact_met(fact, answer) for fact in question.key_facts)
        ]
        accidental += len(met)
        pairs += len(questions) - 1
        if len(questions) > 1 and len(met) / (len(questions) - 1) > MAX_ACCIDENTAL_FACTS and len(met) > 1:
            where = ", ".join(questions[other].id for other in met[:4])
            yield Finding("key_facts", question.id, f"{len(met)} other answers state all of them ({where})")
    if pairs and accidental / pairs > MAX_ACCIDENTAL_FACTS:
        yield Finding("key_facts", "bank", f"other answers state all key facts in {accidental / pairs:.1%} of pairs")


def _check_answer_keys(questions: Sequence[BankQuestion]) -> Iterator[Finding]:
    """A swapped key (another option is nearer the reference answer), or key facts that a wrong option states."""
    for question in questions:
        if question.answer_index is None or not question.choices:
            continue
        facts = [sum(fact_met(fact, choice) for fact in question.key_facts) for choice in question.choices]
        words = [token_f1(choice, question.answer) or 0.0 for choice in question.choices]
        best = max(range(len(facts)), key=lambda index: (facts[index], words[index]))
        keyed = question.answer_index
        if facts[best] > facts[keyed] or words[best] > words[keyed] + KEY_MARGIN:
            yield Finding("answer_key", question.id, f"keys option {keyed}, its reference answer says option {best}")
        loose = [
            i for i, met in enumerate(facts) if i != keyed and question.key_facts and met == len(question.key_facts)
        ]
        if loose:
            yield Finding("key_facts", question.id, f"wrong option {loose[0]} states all of them")


def _check_wording(questions: Sequence[BankQuestion]) -> Iterator[Finding]:
    leaning = re.compile(
        r"according to the (text|book|chapter)|in (this|the) (chapter|figure|listing|section)"
        r"|figure above|(listing|code|kernel) above|as (shown|described) above",
        re.IGNORECASE,
    )
    for question in questions:
        match = leaning.search(question.question)
        if match:
            yield Finding("wording", question.id, f"does not stand alone: {match.group(0)!r}")
        if question.key_facts and all(fact_met(fact, question.question) for fact in question.key_facts):
            yield Finding("wording", question.id, "its own wording states all its key facts")
        if not question.question_zh or not re.search(r"[\u4e00-\u9fff]", question.question_zh):
            yield Finding("wording", question.id, "has no Chinese wording")


def _check_splits(questions: Sequence[BankQuestion]) -> Iterator[Finding]:
    tuned = {question.section for question in questions if question.split == "tune"}
    dev = {question.section for question in questions if question.split == "dev"}
    for question in questions:
        sections = {f"{gold.file}#{gold.heading}" for gold in question.gold}
        if question.split == "test" and bool(sections & tuned) != question.seen:
            state = "is not marked seen" if sections & tuned else "is marked seen on an untuned section"
            yield Finding("splits", question.id, f"{state}: {question.section}")
        if question.split == "test" and sections & dev:
            yield Finding("splits", question.id, f"stands on a dev section: {sorted(sections & dev)[0]}")
        if question.split == "dev" and sections & tuned:
            yield Finding("splits", question.id, f"dev question on a tuned section: {question.section}")
        if (question.split == "tune") != (len(question.paraphrases) == 2):
            yield Finding(
                "splits", question.id, f"{question.split} question with {len(question.paraphrases)} paraphrases"
            )


def _ngrams(text: str) -> set[tuple[str, ...]]:
    words = _words(text)
    return {tuple(words[start : start + NGRAM]) for start in range(len(words) - NGRAM + 1)}


def _check_duplicates(questions: Sequence[BankQuestion], embed: Embed | None) -> Iterator[Finding]:
    wordings = [(q, text) for q in questions for text in (q.question, *q.paraphrases)]
    exact: dict[str, str] = {}
    grams: dict[tuple[str, ...], BankQuestion] = {}
    for question, text in wordings:
        levelled = " ".join(_words(text))
        if exact.setdefault(levelled, question.id) != question.id:
            yield Finding("duplicates", question.id, f"same wording as {exact[levelled]}")
        for gram in _ngrams(text):
            other = grams.setdefault(gram, question)
            if other.id != question.id and other.split != question.split:
                yield Finding("duplicates", question.id, f"shares {' '.join(gram)!r} with {other.id} ({other.split})")
                break
    if embed is None:
        return
    vectors = embed([text for _, text in wordings])
    close = np.argwhere(np.triu(vectors @ vectors.T, k=1) >= NEAR_DUPLICATE_COSINE)
    for left, right in close.tolist():
        first, second = wordings[left][0], wordings[right][0]
        if first.id != second.id and first.split != second.split:
            cosine = float(vectors[left] @ vectors[right])
            yield Finding("duplicates", second.id, f"embedding nearly that of {first.id} (cosine {cosine:.2f})")


def _check_floors(floors: dict[str, float]) -> Iterator[Finding]:
    for name, value in floors.items():
        if value > FLOOR_BOUNDS[name]:
            yield Finding("floors", "bank", f"{name} {value:.3f} is above {FLOOR_BOUNDS[name]:.2f}")


def _check_totals(questions: Sequence[BankQuestion]) -> Iterator[Finding]:
    test = [question for question in questions if question.split == "test"]
    totals = {
        "questions": (len(questions), 620),
        "test questions": (len(test), 340),
        "tune questions": (sum(question.split == "tune" for question in questions), 220),
        "answerable test questions with choices": (sum(bool(q.choices) and q.answerable for q in test), 300),
        "test questions that need two passages": (sum(question.needs_two_passages for question in questions), 40),
        "seen test questions": (sum(question.seen for question in test), 40),
    }
    for name, (have, need) in totals.items():
        if have < need:
            yield Finding("totals", "bank", f"{have} {name}, needs {need}")
    unanswerable = sum(not question.answerable for question in test)
    if test and unanswerable / len(test) < 0.1:
        yield Finding("totals", "bank", f"{unanswerable} of {len(test)} test questions are unanswerable, needs 10 %")
    for chapter, count in sorted(Counter(question.chapter for question in questions).items()):
        if count < 42:
            yield Finding("totals", "bank", f"chapter {chapter} has {count} questions, needs 42")


def bundled_encoder() -> Embed:
    """The embedded encoder, which the floors are stated for, whatever the settings name. Loads a model."""
    from indexes.embedder import load_embedder
    from indexes.settings import IndexSettings

    with tempfile.TemporaryDirectory() as home:
        return load_embedder(IndexSettings(home=Path(home))).encode
