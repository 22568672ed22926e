"""Checks the bundled bank: evidence, key facts, answer keys, splits, duplicates, wording, shortcuts and totals.

    python -m tools.bank_checks [--chapters 5,6] [--no-embed]

The status is 1 when something is found.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evals.question_checks import bundled_encoder, shortcut_floors
from evals.questions import BankQuestion, load_bank, sections_of
from evals.text_match import NEAR_DUPLICATE_COSINE, Embed, fact_met, ngrams, tokens
from indexes.sample import SAMPLE_PATH
from indexes.words import CJK

FLOOR_BOUNDS = {"longest_option": 0.32, "frequent_position": 0.30, "options_centroid": 0.35, "question_overlap": 0.40}
MAX_ACCIDENTAL_FACTS = 0.02
SHARED_WORDS = 8
"""Words in a row in common that make two questions of different splits duplicates."""
KEY_MARGIN = 0.25
"""How much closer (token F1) another option must be to the reference answer to doubt the key."""


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


def token_f1(answer: str, reference: str) -> float | None:
    """2PR / (P + R) over multisets of tokens (SQuAD), 0.0 to 1.0; None without a token in the reference."""
    wanted = Counter(tokens(reference))
    if not wanted:
        return None
    given = Counter(tokens(answer))
    common = sum((given & wanted).values())
    return 2 * common / (sum(given.values()) + sum(wanted.values()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the findings, the floors and the counts; 1 when something is found."""
    parser = argparse.ArgumentParser(prog="python -m tools.bank_checks", description="Check the bundled bank.")
    parser.add_argument("--chapters", help="chapter numbers by commas (default: the whole bank and its totals)")
    parser.add_argument("--no-embed", action="store_true", help="leave out the checks that need the embedder")
    given = parser.parse_args(arguments)
    wanted = set(given.chapters.split(",")) if given.chapters else None
    questions = [one for one in load_bank() if wanted is None or str(one.chapter) in wanted]
    if not questions:
        parser.error(f"--chapters {given.chapters} names no chapter of the bank")
    embed = None if given.no_embed else bundled_encoder()
    report = check_questions(questions, embed=embed, whole_bank=wanted is None)
    lines = [f"{one.question_id}: {one.check}: {one.detail}" for one in report.findings]
    lines += [f"floor {name}: {value:.3f} (bound {FLOOR_BOUNDS[name]:.2f})" for name, value in report.floors.items()]
    lines.append(f"{len(questions)} questions {report.counts}, {len(report.findings)} findings")
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
