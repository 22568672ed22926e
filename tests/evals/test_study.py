"""Exams, cards and progress, with a clock that the test turns."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
import zipfile
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fsrs
import pytest
from fakes import hash_embed, section

from evals.anki import anki_deck, cards_csv
from evals.errors import ExamClosed
from evals.exam import ExamPlan, draw_exam, mark_answers
from evals.questions import BankQuestion, Gold, own_question, parse_question, parse_questions, questions_file
from evals.schedule import review
from evals.study import Study, class_marks_csv, justify
from evals.study_store import Attempt, StoredExam, StudyStore
from indexes.errors import Conflict, InvalidInput, NotFound, StorageFull
from rag.types import Passage

START = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)


def make_question(number: int, chapter: int = 1, kind: str = "choice") -> BankQuestion:
    record = {
        "id": f"{chapter:02}-{number:03}",
        "chapter": chapter,
        "type": kind,
        "question": f"Question {number} of <b>chapter</b> {chapter}?",
        "answer": f"It is value{number} with 32 threads.",
        "key_facts": [f"value{number}|wert{number}", "32 threads"],
        "section": f"{chapter:02}.md#Part {number % 3}",
    }
    if kind == "choice":
        record |= {"choices": [f"value{number}", "b", "c", "d"], "answer_index": 0}
    return parse_question(record, where="test:1")


BANK = tuple(
    make_question(number, chapter, "choice" if number % 2 else "short")
    for chapter in (1, 2, 3)
    for number in range(1, 11)
)


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def study(store_place: Path | str, clock: Clock) -> Study:
    return Study(StudyStore(store_place), passage_of, lambda: BANK, clock, hash_embed)


def passage_of(question: BankQuestion) -> Passage:
    return Passage("node", "book", "Book", ("Part",), "12", 20, 20, question.answer, 1.0)


def miss(study: Study, *questions: BankQuestion) -> StoredExam:
    """An exam on these questions, handed in without an answer."""
    exam = study.start_exam(ExamPlan(count=len(questions)), questions=questions)
    study.hand_in(exam.id, {})
    return exam


# --- exams


def test_the_same_seed_draws_the_same_questions_in_the_same_order_and_none_that_has_no_answer() -> None:
    plan = ExamPlan(count=12, seed=7)
    first, second = draw_exam(BANK, plan), draw_exam(tuple(reversed(BANK)), plan)
    assert first == second != draw_exam(BANK, replace(plan, seed=8))
    bank = (*BANK[:3], replace(BANK[3], answerable=False))
    assert bank[3] not in draw_exam(bank, ExamPlan(count=3))
    with pytest.raises(InvalidInput, match="3 fit"):
        draw_exam(bank, ExamPlan(count=4))


@pytest.mark.parametrize(
    ("weights", "count", "drawn"), [({1: 3.0, 3: 1.0}, 8, [6, 0, 2]), ({1: 9.0, 2: 1.0}, 14, [10, 4, 0])]
)
def test_weights_decide_how_many_are_drawn_from_a_chapter(
    weights: dict[int, float], count: int, drawn: list[int]
) -> None:
    questions = draw_exam(BANK, ExamPlan(count=count, weights=weights))
    assert [sum(q.chapter == c for q in questions) for c in (1, 2, 3)] == drawn
    only = draw_exam(BANK, ExamPlan(count=5, chapters=(2,), types=("choice",)))
    assert {(q.chapter, q.type) for q in only} == {(2, "choice")}


@pytest.mark.parametrize(
    "plan",
    [
        {"count": 0}, {"count": 501}, {"types": ("essay",)}, {"weights": {1: 0.0}}, {"weights": {1: float("nan")}},
        {"time_limit_s": -1},
    ],
)  # fmt: skip
def test_a_plan_that_makes_no_sense_is_refused(plan: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        draw_exam(BANK, ExamPlan(**({"count": 1} | plan)))


@pytest.mark.parametrize(
    ("answer", "score"), [(0, 1.0), (" VALUE1 ", 1.0), (3, 0.0), (4, None), (-1, None), ("x", None)]
)
def test_choices_are_marked_by_index_or_by_their_own_text(answer: int | str, score: float | None) -> None:
    question = make_question(1)
    if score is not None:
        assert mark_answers([question], {question.id: answer}, hash_embed)[0].score == score
        return
    with pytest.raises(InvalidInput, match="not one of"):
        mark_answers([question], {question.id: answer}, hash_embed)


def test_schedules_equal_the_library_bit_for_bit_and_survive_a_restart(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "study.sqlite3"
    study = Study(StudyStore(path), lambda _: None, lambda: BANK, clock)
    exam = study.start_exam(ExamPlan(count=1))
    study.hand_in(exam.id, {})
    card_id = study.due_cards()[0].id
    scheduler, expected = fsrs.Scheduler(enable_fuzzing=False), fsrs.Card(card_id=1, due=START)
    for days, rating in ((0, 3), (0.01, 3), (4, 1), (4.1, 2), (9, 4), (60, 3)):
        clock.now = START + timedelta(days=days)
        study = Study(StudyStore(path), lambda _: None, lambda: BANK, clock)
        card = study.review_card(card_id, rating)
        expected, _ = scheduler.review_card(expected, fsrs.Rating(rating), review_datetime=clock.now)
        assert card.fsrs_json == expected.to_json()
        assert card.due == expected.due


def test_a_review_from_the_past_is_refused_and_keeps_the_schedule(study: Study, clock: Clock) -> None:
    card = study.review_card(study.save_card(BANK[0]).id, 3)
    with pytest.raises(Conflict, match="before the card's last review"):
        study.review_card(card.id, 3, at=START - timedelta(days=1))
    with pytest.raises(InvalidInput, match="rating"):
        study.review_card(card.id, 5)
    clock.now = START - timedelta(days=400)
    with pytest.raises(Conflict):
        study.review_card(card.id, 3)
    assert study.cards()[0].fsrs_json == card.fsrs_json


def test_progress_counts_by_chapter_and_names_weak_sections(study: Study, clock: Clock) -> None:
    exam = study.start_exam(ExamPlan(count=10, chapters=(1,)))
    other = [question for question in BANK if question.chapter == 2]
    right = {q.id: (0 if q.choices else q.answer) for q in exam.questions if q.section != "01.md#Part 0"}
    study.hand_in(exam.id, right)
    progress = study.progress()
    first = progress.chapters[0]
    assert (first.questions, first.seen, first.right, first.due) == (10, 10, 7, 3)
    assert progress.weak_sections == (("01.md#Part 0", 3, 3),)
    for card in study.due_cards():
        study.review_card(card.id, 4)
    clock.now += timedelta(hours=1)
    after = study.progress().chapters[0]
    assert (after.right, after.due) == (10, 0)
    assert study.progress("someone else").chapters[0].seen == 0
    assert [(chapter.chapter, chapter.seen) for chapter in study.progress(about=other).chapters] == [(2, 0)]


def test_chapters_of_several_books_are_told_apart(study: Study) -> None:
    made = [replace(question, id=f"made-{question.id}", book="own") for question in BANK if question.chapter == 1]
    unseen = [replace(question, id=f"made-2-{question.id}", book="unseen") for question in BANK]
    study.hand_in(study.start_exam(ExamPlan(count=2, chapters=(1,))).id, {})
    study.hand_in(study.start_exam(ExamPlan(count=3), questions=made).id, {})
    found = study.progress(made=made + unseen).chapters
    assert [(item.book, item.chapter, item.questions, item.seen, item.due) for item in found] == [
        ("", 1, 10, 2, 2), ("", 2, 10, 0, 0), ("", 3, 10, 0, 0), ("own", 1, 10, 3, 3),
    ]  # fmt: skip


def test_an_answer_of_a_draft_is_replaced_added_or_dropped(study: Study) -> None:
    exam = study.start_exam(ExamPlan(count=2, types=("short",)))
    first, second = (question.id for question in exam.questions)
    study.keep_draft(exam.id, {first: "a"})
    study.keep_draft(exam.id, {first: "线程"})
    assert study.keep_answer(exam, second, "b") == study.draft(exam.id) == {first: "线程", second: "b"}
    assert study.keep_answer(exam, first, None) == {second: "b"}
    study.hand_in(exam.id, {})
    assert study.draft(exam.id) == {}
    with pytest.raises(ExamClosed, match="was handed in"):
        study.hand_in(exam.id, {})
    for exam_id, error in ((exam.id, ExamClosed), ("other", NotFound)):  # another server was faster
        with pytest.raises(error):
            study._store.keep_draft(exam_id, {first: "c"}, START)


@pytest.mark.parametrize("read", ["exam", "exams", "due_cards", "progress"])
def test_whatever_is_read_next_closes_an_exam_whose_time_ran_out_with_its_draft(
    tmp_path: Path, clock: Clock, read: str
) -> None:
    path = tmp_path / "study.sqlite3"
    study = Study(StudyStore(path), passage_of, lambda: BANK, clock)
    exam = study.start_exam(ExamPlan(count=2, types=("choice",), time_limit_s=60), "ada")
    first = exam.questions[0].id
    for wrong in ({first: 9}, {"99-999": 1}, {first: "\ud800"}):
        with pytest.raises(InvalidInput):
            study.keep_draft(exam.id, wrong, "ada")
    study.keep_draft(exam.id, {first: 0}, "ada")
    study.close()
    clock.now += timedelta(seconds=61)
    study = Study(StudyStore(path), passage_of, lambda: BANK, clock)
    assert study.due_cards("bob") == ()
    found = {
        "exam": lambda: len(study.exam(exam.id, "ada").result.marks) - 1,
        "exams": lambda: len(study.exams("ada")[0].result.marks) - 1,
        "due_cards": lambda: len(study.due_cards("ada")),
        "progress": lambda: sum(chapter.right for chapter in study.progress("ada").chapters),
    }
    assert found[read]() == 1
    with pytest.raises(ExamClosed, match="closed at"):
        study.keep_answer(exam, first, 1)
    closed = study.exam(exam.id, "ada")
    assert closed.closed_by_deadline and closed.handed_in_at == exam.deadline
    assert closed.result is not None and (closed.result.score, closed.result.marks[0].answer) == (1.0, 0)


def test_a_deck_that_a_full_disk_does_not_hold_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    full = sqlite3.OperationalError("database or disk is full")
    full.sqlite_errorcode = sqlite3.SQLITE_FULL

    def write(*_: object) -> None:
        raise full

    monkeypatch.setattr("genanki.Package.write_to_file", write)
    with pytest.raises(StorageFull):
        anki_deck(BANK)


def test_the_anki_deck_keeps_its_ids_and_renders_code_formulas_and_quotes(tmp_path: Path) -> None:
    record = {
        "id": "made-1", "chapter": 3, "question": "Which `name` waits $k < n$ <b>times</b>?", "type": "choice",
        "choices": ["`a`", "b", "c", "d"], "answer": "b", "answer_index": 1, "book": "b1",
        "gold": [{"file": "My Book", "heading": "Waiting", "evidence": "*b* waits <i>long</i>."}],
    }  # fmt: skip
    found = []
    for _ in range(2):
        with zipfile.ZipFile(io.BytesIO(anki_deck([*BANK, parse_question(record, where="test:1")]))) as package:
            (tmp_path / "deck.sqlite").write_bytes(package.read("collection.anki2"))
        with closing(sqlite3.connect(tmp_path / "deck.sqlite")) as rows:
            found.append({guid: note for guid, *note in rows.execute("SELECT guid, flds, tags FROM notes")})
            assert rows.execute("SELECT count(*) FROM cards").fetchone() == (len(BANK) + 1,)
            names = {deck["name"] for deck in json.loads(rows.execute("SELECT decks FROM col").fetchone()[0]).values()}
    assert {"Coalesce::My Book", "Coalesce::Questions"} <= names
    assert found[0] == found[1]
    ((fields, tags),) = [note for note in found[0].values() if "made-1" in note[0]]
    question, *others, _ = fields.split("\x1f")
    for shown in ("<code>name</code>", "\\(k &lt; n\\)", "&lt;b&gt;times"):
        assert shown in question
    quote = "<i>b</i> waits &lt;i&gt;long&lt;/i&gt;."
    assert others == ["<b>B.</b> b", quote, "My Book · chapter 3 · Waiting"]
    assert tags.split() == ["book::My_Book", "chapter::03"]


def test_a_proof_that_begins_inside_a_listing_shows_code_as_code_and_prose_as_prose(library_of: Any) -> None:
    evidence = "The second constant of this listing is two."
    texts = ("Before.\n\n```c\nint first = 1;", f"int second = 2;\n```\n\n{evidence}")
    question = replace(make_question(2, kind="short"), gold=(Gold(file="book.md", heading="Part", evidence=evidence),))
    passage = justify(question, library_of(*(section(text, "Part") for text in texts)))
    assert passage is not None
    assert passage.text == f"```\n{texts[1]}"


# --- the learner's own verdict


def test_the_learners_own_verdict_is_kept_and_counts_and_an_overruled_miss_leaves_no_card(
    study: Study, clock: Clock
) -> None:
    exam = study.start_exam(ExamPlan(count=2, types=("short",)))
    first, second = exam.questions
    with pytest.raises(Conflict, match="not handed in"):
        study.decide(exam.id, first.id, 1.0)
    study.hand_in(exam.id, {first.id: "nothing of the kind", second.id: second.answer})
    clock.now += timedelta(minutes=1)
    mark = study.decide(exam.id, first.id, 1.0)
    assert (mark.score, mark.by, mark.needs_check) == (1.0, "self", False)
    result = study.exam(exam.id).result
    assert result is not None
    assert (result.score, result.marks[0]) == (2.0, mark)
    assert study.cards() == ()
    assert study.decide(exam.id, first.id, 1.0) == mark
    assert study.cards() == ()
    study.decide(exam.id, second.id, 0.0)
    assert {due.question_id for due in study.due_cards()} == {second.id}
    assert sum(chapter.right for chapter in study.progress().chapters) == 1
    for share, question_id in ((1.5, first.id), (1.0, "99-999")):
        with pytest.raises(InvalidInput):
            study.decide(exam.id, question_id, share)


def test_a_verdict_that_is_changed_leaves_the_cards_as_the_last_one_says(study: Study, clock: Clock) -> None:
    exam = miss(study, BANK[1])
    for share, due in ((0.5, 1), (1.0, 0), (0.0, 1), (0.5, 1), (1.0, 0)):
        clock.now += timedelta(minutes=20)
        study.decide(exam.id, BANK[1].id, share)
        assert study.count_due() == due, share
    clock.now += timedelta(days=1)
    assert study.count_due() == 0


def test_a_card_from_before_is_due_as_its_last_review_said_when_a_miss_is_overruled(study: Study, clock: Clock) -> None:
    before = [study.review_card(study.save_card(BANK[0]).id, 4), study.save_card(BANK[1])]
    clock.now += timedelta(hours=1)
    exam = miss(study, *BANK[:2])
    assert study.count_due() == 2
    for question in BANK[:2]:
        study.decide(exam.id, question.id, 1.0)
    assert sorted(study.cards(), key=str) == sorted(before, key=str)


def test_a_verdict_on_an_old_exam_leaves_the_card_of_a_later_miss(study: Study, clock: Clock) -> None:
    older = miss(study, BANK[0])
    clock.now += timedelta(hours=1)
    newer = miss(study, BANK[0])
    for exam, due in ((older, 1), (newer, 0)):
        study.decide(exam.id, BANK[0].id, 1.0)
        assert study.count_due() == due


# --- cards


def test_a_card_that_was_rated_meanwhile_is_not_rated_twice(study: Study, clock: Clock) -> None:
    card = study.save_card(own_question("Why?", "So."))
    study.review_card(card.id, 3)
    late = review(card.fsrs_json, 3, clock.now), 3, Attempt.of(card.question, 1.0, clock.now)
    with pytest.raises(Conflict):
        study._store.keep_review(card, *late)


def test_reviews_are_undone_one_by_one_with_their_attempts(study: Study, clock: Clock) -> None:
    card = study.save_card(BANK[0])
    once = study.review_card(card.id, 3)
    clock.now += timedelta(days=5)
    study.review_card(card.id, 1)
    assert study.undo_review(card.id).fsrs_json == once.fsrs_json
    assert study.undo_review(card.id).fsrs_json == card.fsrs_json
    assert study.progress().chapters[0].seen == 0
    with pytest.raises(Conflict, match="not reviewed yet"):
        study.undo_review(card.id)


def test_a_suspended_card_is_not_due_anywhere(study: Study) -> None:
    card = study.save_card(BANK[0])
    for suspended, state, due in ((True, "suspended", 0), (False, "learning", 1)):
        assert study.change_card(card.id, suspended=suspended).state == state
        counted = sum(chapter.due for chapter in study.progress().chapters)
        assert study.count_due() == len(study.due_cards()) == counted == due


def test_an_edited_card_keeps_its_schedule_and_a_deleted_one_is_gone(study: Study) -> None:
    card = study.save_card(own_question("What waits?", "A barrier.", "A barrier waits.", title="My Book"))
    assert study.save_card(own_question("What waits?", "Another.")).id == card.id
    edited = study.change_card(card.id, question="Who waits?")
    assert (edited.question.question, edited.due) == ("Who waits?", card.due)
    with pytest.raises(InvalidInput):
        study.change_card(card.id, answer=" ")
    study.delete_card(card.id)
    with pytest.raises(NotFound):
        study.change_card(card.id, suspended=True)


# --- a class, and what leaves


def test_a_class_gets_one_exam_each_whose_time_begins_when_it_is_opened(study: Study, clock: Clock) -> None:
    plan = ExamPlan(count=2, types=("choice",), time_limit_s=600)
    ada, bob = study.start_class_exam(plan, ["bob", " ada ", "ada"])
    assert (ada.learner, bob.learner, ada.questions) == ("ada", "bob", bob.questions)
    assert study.class_ids() == (ada.class_id,)
    clock.now += timedelta(hours=1)
    assert study.open_exam(ada.id, "ada").deadline == clock.now + timedelta(seconds=600)
    clock.now += timedelta(minutes=5)
    assert study.open_exam(ada.id, "ada").deadline == START + timedelta(hours=1, minutes=10)
    assert study.seen_by("ada").asked_now().ids == {question.id for question in ada.questions}
    study.hand_in(ada.id, {ada.questions[0].id: 0}, "ada")
    assert not study.seen_by("ada").asked_now()
    assert study.class_exam(bob.class_id or "")[1].waits
    rows = list(csv.DictReader(io.StringIO(class_marks_csv(study.class_exam(ada.class_id or "")))))
    columns = ("learner", "score", "max_score", f"1. {ada.questions[0].question}")
    assert [[row[name] for name in columns] for row in rows] == [["ada", "1.0", "2.0", "1.0"], ["bob", "", "2", ""]]
    for names in ([], [f"n{number}" for number in range(201)], ["\x00"]):
        with pytest.raises(InvalidInput):
            study.start_class_exam(plan, names)
    with pytest.raises(NotFound):
        study.class_exam("none")


@pytest.mark.parametrize("formula", ["=1+1", "+1", "-1", "@SUM(A1)", "＝1+1"])
def test_no_export_holds_a_cell_that_a_spreadsheet_would_run(study: Study, formula: str) -> None:
    question = replace(BANK[1], question=formula, answer=formula)
    exams = study.start_class_exam(ExamPlan(count=1), [formula], [question])
    table = questions_file([question], ".csv")
    for text in (class_marks_csv(exams), cards_csv([question]), table):
        cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row]
        assert f"'{formula}" in cells
        assert formula not in cells
    (row,) = csv.DictReader(io.StringIO(cards_csv(BANK[:1])))
    assert (row["id"], row["choices"]) == (BANK[0].id, "value1 | b | c | d")
    (again,) = parse_questions(table, "again.csv")
    assert (again.question, again.answer) == (formula, formula)
