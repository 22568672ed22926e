"""Checks questions: the bank's evidence, keys, shortcuts, duplicates and splits; and what tuning data gives away.

A floor is the share of choice questions that a rule gets right without reading the book: the longest option, the most
frequent position, the option nearest the centroid of the options, the option with most words of the question. A tie
counts as a fair pick among the tied options.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evals.questions import BankQuestion, sections_of
from evals.scoring import token_f1
from evals.text_match import NEAR_DUPLICATE_COSINE, Embed, fact_met, ngrams, tokens
from indexes.sample import SAMPLE_PATH
from indexes.words import CJK

FLOOR_BOUNDS = {"longest_option": 0.32, "frequent_position": 0.30, "options_centroid": 0.35, "question_overlap": 0.40}
MAX_ACCIDENTAL_FACTS = 0.02
SHARED_WORDS = 8
"""Words in a row in common that make two questions of different splits duplicates."""
KEY_MARGIN = 0.25
"""How much closer (token F1) another option must be to the reference answer to doubt the key."""
NEAREST_PAIRS = 10


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault: the check that found it, the question's id (or `bank`), and what is wrong."""

    check: str
    question_id: str
    detail: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Findings, the shortcut floors by name, and the number of questions in each split."""

    findings: tuple[Finding, ...]
    floors: dict[str, float]
    counts: dict[str, int]


def check_questions(
    questions: Sequence[BankQuestion], *, book: Path = SAMPLE_PATH, embed: Embed | None = None, whole_bank: bool = True
) -> CheckReport:
    """Runs every check: those on vectors only with `embed`, those on totals and floors only with `whole_bank`."""
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


def _overlaps(question: BankQuestion) -> list[float]:
    asked = {word for word in tokens(question.question) if len(word) > 3}
    return [float(len(asked & set(tokens(choice)))) for choice in question.choices]


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
    """Finds swapped keys (another option is closer to the reference answer) and wrong options with all key facts."""
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
    pointing = re.compile(
        r"according to the (text|book|chapter)|in (this|the) (chapter|figure|listing|section)"
        r"|figure above|(listing|code|kernel) above|as (shown|described) above",
        re.IGNORECASE,
    )
    for question in questions:
        match = pointing.search(question.question)
        if match:
            yield Finding("wording", question.id, f"points outside itself: {match.group(0)!r}")
        if question.key_facts and all(fact_met(fact, question.question) for fact in question.key_facts):
            yield Finding("wording", question.id, "its own wording states all its key facts")
        if not question.question_zh or not re.search(f"[{CJK}]", question.question_zh):
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
            yield Finding("splits", question.id, f"uses a dev section: {sorted(sections & dev)[0]}")
        if question.split == "dev" and sections & tuned:
            yield Finding("splits", question.id, f"dev question on a tuned section: {question.section}")
        if (question.split == "tune") != (len(question.paraphrases) == 2):
            yield Finding(
                "splits", question.id, f"{question.split} question with {len(question.paraphrases)} paraphrases"
            )


def _check_duplicates(questions: Sequence[BankQuestion], embed: Embed | None) -> Iterator[Finding]:
    wordings = [(q, text) for q in questions for text in (q.question, *q.paraphrases)]
    exact: dict[str, str] = {}
    grams: dict[tuple[str, ...], BankQuestion] = {}
    for question, text in wordings:
        levelled = " ".join(tokens(text))
        if exact.setdefault(levelled, question.id) != question.id:
            yield Finding("duplicates", question.id, f"same wording as {exact[levelled]}")
        for gram in ngrams(text, SHARED_WORDS):
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
            yield Finding("duplicates", second.id, f"embedding close to that of {first.id} (cosine {cosine:.2f})")


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
