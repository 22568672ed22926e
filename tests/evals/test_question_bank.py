"""The bundled bank passes every check, and each check catches the fault it is there for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from fakes import hash_embed

from evals.question_checks import FLOOR_BOUNDS, CheckReport, bundled_encoder, check_questions
from evals.questions import BankQuestion, load_bank

BANK = load_bank()
CHAPTER = tuple(question for question in BANK if question.chapter == 5)
TUNED = next(q for q in CHAPTER if q.split == "tune" and q.choices)
TESTED = next(q for q in CHAPTER if q.split == "test" and q.answerable and not q.seen)


def chapter_with(*changed: BankQuestion) -> tuple[BankQuestion, ...]:
    by_id = {question.id: question for question in changed}
    return tuple(by_id.get(question.id, question) for question in CHAPTER)


def found(questions: Sequence[BankQuestion], check: str, question_id: str) -> list[str]:
    report = check_questions(questions, embed=hash_embed, whole_bank=False)
    return [f.detail for f in report.findings if (f.check, f.question_id) == (check, question_id)]


def floors_found(report: CheckReport) -> set[str]:
    return {finding.detail.split()[0] for finding in report.findings if finding.check == "floors"}


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


def test_the_unplanted_chapter_is_clean() -> None:
    assert check_questions(CHAPTER, embed=hash_embed, whole_bank=False).findings == ()


@pytest.mark.parametrize(
    ("check", "fault"),
    [
        ("duplicates", {"question": TUNED.question}),
        ("duplicates", {"question": TUNED.paraphrases[0].upper() + "?!"}),
        ("duplicates", {"question": " ".join(reversed(TUNED.question.split()))}),
        ("answer_key", {"answer_index": (TESTED.answer_index or 0) ^ 1}),
        ("key_facts", {"key_facts": ("the",)}),
        ("key_facts", {"key_facts": ()}),
        ("key_facts", {"key_facts": (TESTED.choices[(TESTED.answer_index or 0) - 1],)}),
        ("key_facts", {"key_facts": (*TESTED.key_facts, "a fact of its own")}),
        ("evidence", {"gold": (replace(TESTED.gold[0], evidence="words that the book does not hold"),)}),
        ("evidence", {"gold": (replace(TESTED.gold[0], heading="No such section"),)}),
        ("evidence", {"gold": (replace(TESTED.gold[0], file="15-nothing.md"),)}),
        ("evidence", {"gold": (replace(TESTED.gold[0], evidence=""),)}),
        ("evidence", {"gold": ()}),
        ("evidence", {"section": TUNED.section}),
        ("evidence", {"needs_two_passages": True}),
        ("evidence", {"answerable": False}),
        ("splits", {"gold": TUNED.gold, "section": TUNED.section}),
        ("splits", {"seen": True}),
        ("splits", {"paraphrases": ("once", "twice")}),
        ("wording", {"question": "What does the figure above show about the ridge?"}),
        ("wording", {"question": f"Is it so that {' and '.join(f.split('|')[0] for f in TESTED.key_facts)}?"}),
        ("wording", {"question_zh": "The same in English"}),
    ],
)
def test_a_planted_fault_is_found(check: str, fault: dict[str, object]) -> None:
    planted = replace(TESTED, **fault)  # type: ignore[arg-type]
    assert found(chapter_with(planted), check, TESTED.id)


def test_eight_words_shared_across_splits_are_found() -> None:
    stolen = " ".join(TUNED.question.split()[:9])
    planted = replace(TESTED, question=f"{stolen}, and what else could be asked of a machine of another kind?")
    assert any("shares" in detail for detail in found(chapter_with(planted), "duplicates", TESTED.id))


def test_a_tune_question_without_its_two_paraphrases_is_found() -> None:
    assert found(chapter_with(replace(TUNED, paraphrases=())), "splits", TUNED.id)


def test_a_dev_question_on_a_tuned_section_is_found() -> None:
    dev = next(question for question in CHAPTER if question.split == "dev")
    assert found(chapter_with(replace(dev, gold=TUNED.gold, section=TUNED.section)), "splits", dev.id)


def keyed(change: Callable[[BankQuestion, int], BankQuestion]) -> list[BankQuestion]:
    return [q if q.answer_index is None else change(q, q.answer_index) for q in CHAPTER]


def longest_right(question: BankQuestion, index: int) -> BankQuestion:
    choices = [choice + " and so on, at length" * (place == index) for place, choice in enumerate(question.choices)]
    return replace(question, choices=tuple(choices))


def always_first(question: BankQuestion, index: int) -> BankQuestion:
    right = question.choices[index]
    others = [choice for choice in question.choices if choice != right]
    return replace(question, choices=(right, *others), answer_index=0)


def right_in_the_middle(question: BankQuestion, index: int) -> BankQuestion:
    wrong = iter(("amber amber", "copper copper", "silver silver"))
    choices = ["amber copper silver" if place == index else next(wrong) for place in range(len(question.choices))]
    return replace(question, choices=tuple(choices))


def repeats_the_question(question: BankQuestion, index: int) -> BankQuestion:
    choices = [question.question if place == index else choice for place, choice in enumerate(question.choices)]
    return replace(question, choices=tuple(choices))


@pytest.mark.parametrize(
    ("floor", "change"),
    [
        ("longest_option", longest_right),
        ("frequent_position", always_first),
        ("options_centroid", right_in_the_middle),
        ("question_overlap", repeats_the_question),
    ],
)
def test_a_shortcut_to_the_right_option_is_found(
    floor: str, change: Callable[[BankQuestion, int], BankQuestion]
) -> None:
    report = check_questions(keyed(change), embed=hash_embed)
    assert floor in floors_found(report)
    assert report.floors[floor] > 0.9


def test_a_bank_that_is_too_small_is_found() -> None:
    report = check_questions(CHAPTER)
    assert {finding.detail for finding in report.findings if finding.check == "totals"} >= {
        "46 questions, needs 620",
        "26 test questions, needs 340",
    }


def test_ties_count_as_a_fair_pick_between_the_tied_options() -> None:
    level = [replace(q, choices=("a", "b", "c", "d"), answer_index=0) for q in CHAPTER if q.choices]
    assert check_questions(level, whole_bank=False).floors["longest_option"] == pytest.approx(0.25)
