"""The bundled bank passes every check, and is as large and as mixed as its comparisons need."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from evals.question_checks import bundled_encoder, shortcut_floors
from evals.questions import load_bank
from tools.bank_checks import FLOOR_BOUNDS, check_questions

BANK = load_bank()


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


def test_a_shortcut_is_the_right_option_in_one_place_and_ties_count_as_a_fair_pick() -> None:
    chapter = [question for question in BANK if question.chapter == 5]
    first = [replace(q, choices=("a", "b", "c", "d"), answer_index=0) for q in chapter if q.choices]
    floors = shortcut_floors(first)
    assert (floors["frequent_position"], floors["longest_option"]) == (1.0, pytest.approx(0.25))
    assert shortcut_floors(chapter)["frequent_position"] < 0.5
