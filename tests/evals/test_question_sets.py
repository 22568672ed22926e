"""The bundled bank passes every check; the sets over open texts agree with their evidence, none is in both halves."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from evals.question_checks import shortcut_floors
from evals.questions import load_bank, load_questions
from evals.text_match import fact_met
from indexes.sample import SAMPLE_PATH
from tools.bank_checks import check_questions

BANK = load_bank()
SETS = Path(__file__).resolve().parents[2] / "evals" / "question_sets"
FILES = sorted(path for half in ("fit", "judged") for path in (SETS / half).glob("*.jsonl"))
FRESH = sorted((SETS / "fresh").glob("*.jsonl"))
NEWCOMERS = sorted((SETS / "newcomers").glob("*.jsonl"))
KINDS = {"define", "number", "why", "how", "compare", "list", "code", "yes_no", "fact", "unanswerable", "off_topic"}
STYLES = {"plain", "chatty", "typo", "terse", "own_words"}


def test_no_book_is_both_fitted_and_judged() -> None:
    fit, judged = ({path.name for path in FILES if path.parent.name == half} for half in ("fit", "judged"))
    assert fit and judged
    assert not fit & judged


@pytest.mark.parametrize("path", [*FILES, *FRESH], ids=lambda path: path.stem)
def test_kinds_and_styles_are_known_and_every_key_fact_is_in_the_evidence(path: Path) -> None:
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        assert record["kind"] in KINDS and record["style"] in STYLES, record["id"]
        assert record["answerable"] == (record["kind"] not in ("unanswerable", "off_topic")), record["id"]
    for question in load_questions(path) if path in FILES else ():
        evidence = "\n".join(gold.evidence for gold in question.gold)
        missing = [fact for fact in question.key_facts if not fact_met(fact, evidence)]
        assert not missing, (question.id, missing)
        assert question.answerable == bool(question.gold) and question.question_zh, question.id


def test_evidence_about_the_bundled_book_is_verbatim() -> None:
    for question in load_questions(SETS / "fit" / "sample-book.jsonl"):
        for gold in question.gold:
            assert gold.evidence in (SAMPLE_PATH / gold.file).read_text(encoding="utf-8"), question.id


@pytest.mark.parametrize("path", NEWCOMERS, ids=lambda path: path.stem)
def test_newcomers_questions_have_a_good_sentence_exactly_where_they_are_answerable(path: Path) -> None:
    assert path.stem in {file.stem for file in FILES}
    for record in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        assert record["kind"] in KINDS and record["question"] and record["question_zh"], record["id"]
        assert record["answerable"] == bool(record["good"]), record["id"]
        assert not set(record["good"]) & set(record["part"]), record["id"]


@pytest.mark.integration  # not in `make check`: 644 questions against the whole book take seconds
def test_the_bank_has_nothing_to_mend() -> None:
    report = check_questions(BANK)
    assert report.findings == ()
    assert set(report.floors) == {"longest_option", "frequent_position", "question_overlap"}


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
