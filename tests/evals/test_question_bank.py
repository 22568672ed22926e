"""The bundled bank passes every check, and each check catches the fault it is there for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from fakes import hash_embed

from evals.question_checks import bundled_encoder, shortcut_floors
from evals.questions import load_bank
from tools.bank_checks import FLOOR_BOUNDS, check_questions

BANK = load_bank()
CHAPTER = tuple(question for question in BANK if question.chapter == 5)
TUNED = next(q for q in CHAPTER if q.split == "tune" and q.choices)
TESTED = next(q for q in CHAPTER if q.split == "test" and q.answerable and not q.seen)


@pytest.mark.integration  # not in `make check`: 644 questions against the whole book take seconds
def test_the_bank_has_nothing_to_mend() -> None:
    report = check_questions(BANK)
    assert report.findings == ()
    assert set(report.floors) == {"longest_option", "frequent_position", "question_overlap"}


@pytest.mark.slow
def test_the_bank_has_nothing_to_mend_for_the_embedder_either() -> None:
    report = check_questions(BANK, embed=bundled_encoder())
    assert report.findings == ()
    assert report.floors["options_centroid"] <= FLOOR_BOUNDS["options_centroid"]


def test_the_bank_is_as_large_and_as_mixed_as_its_comparisons_need() -> None:
    test = [question for question in BANK if question.split == "test"]
    assert Counter(question.split for question in BANK) == {"tune": 238, "dev": 42, "test": 364}
    assert len({question.id for question in BANK}) == len(BANK)
    assert {question.chapter for question in BANK} == set(range(1, 15))
    assert sum(not question.answerable for question in test) == 42
    assert sum(bool(question.choices) for question in test) == 322
    assert sum(question.seen for question in test) == 42
    assert sum(question.needs_two_passages for question in test) >= 40
    assert {question.type for question in test} == {"choice", "short", "why", "code"}


@pytest.mark.parametrize(
    ("check", "fault"),
    [
        ("duplicates", {"question": TUNED.paraphrases[0].upper() + "?!"}),
        ("duplicates", {"question": " ".join(reversed(TUNED.question.split()))}),
        ("answer_key", {"answer_index": (TESTED.answer_index or 0) ^ 1}),
        ("key_facts", {"key_facts": (*TESTED.key_facts, "a fact of its own")}),
        ("evidence", {"gold": (replace(TESTED.gold[0], evidence="words that the book does not hold"),)}),
        ("splits", {"gold": TUNED.gold, "section": TUNED.section}),
        ("wording", {"question": "What does the figure above show about the ridge?"}),
    ],
)
def test_a_planted_fault_is_found(check: str, fault: dict[str, object]) -> None:
    planted = replace(TESTED, **fault)  # type: ignore[arg-type]
    questions = [planted if question.id == TESTED.id else question for question in CHAPTER]
    report = check_questions(questions, embed=hash_embed, whole_bank=False)
    assert (check, TESTED.id) in {(finding.check, finding.question_id) for finding in report.findings}


def test_the_right_option_always_in_one_place_is_a_shortcut() -> None:
    first = [replace(q, choices=("a", "b", "c", "d"), answer_index=0) for q in CHAPTER if q.choices]
    assert shortcut_floors(first)["frequent_position"] == 1.0
    assert shortcut_floors(CHAPTER)["frequent_position"] < 0.5


def test_ties_count_as_a_fair_pick_between_the_tied_options() -> None:
    level = [replace(q, choices=("a", "b", "c", "d"), answer_index=0) for q in CHAPTER if q.choices]
    assert shortcut_floors(level)["longest_option"] == pytest.approx(0.25)
