"""Exams, cards and progress, with a clock that the test turns."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
import time
import zipfile
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import fsrs
import pytest
from fakes import FakeLibrary, hash_embed, make_node

from evals.anki import anki_deck, cards_csv
from evals.errors import ExamClosed
from evals.exam import ExamPlan, Given, Mark, Result, draw_exam, mark_answers
from evals.questions import BankQuestion, Gold, own_question, parse_question, parse_questions, questions_file
from evals.schedule import review
from evals.study import Study, class_marks_csv, justify
from evals.study_store import Attempt, StoredExam, StudyStore
from indexes.errors import Conflict, InvalidInput, NotFound
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
def study(tmp_path: Path, clock: Clock) -> Study:
    return Study(StudyStore(tmp_path / "study.sqlite3"), passage_of, lambda: BANK, clock, hash_embed)


def mark_one(question: BankQuestion, answer: Given) -> Mark:
    return mark_answers([question], {question.id: answer}, hash_embed)[0]


def passage_of(question: BankQuestion) -> Passage:
    return Passage("node", "book", "Book", ("Part",), "12", 20, 20, question.answer, 1.0)


def test_the_same_seed_gives_the_same_questions_in_the_same_order() -> None:
    plan = ExamPlan(count=12, seed=7)
    first, second = draw_exam(BANK, plan), draw_exam(tuple(reversed(BANK)), plan)
    assert [q.id for q in first] == [q.id for q in second]
    assert [q.id for q in first] != [q.id for q in draw_exam(BANK, replace(plan, seed=8))]


def test_chapters_types_and_weights_decide_what_is_drawn() -> None:
    drawn = draw_exam(BANK, ExamPlan(count=5, chapters=(2,), types=("choice",)))
    assert {(q.chapter, q.type) for q in drawn} == {(2, "choice")}
    weighted = draw_exam(BANK, ExamPlan(count=8, weights={1: 3.0, 3: 1.0}))
    assert [sum(q.chapter == c for q in weighted) for c in (1, 2, 3)] == [6, 0, 2]
    overflowing = draw_exam(BANK, ExamPlan(count=14, weights={1: 9.0, 2: 1.0}))
    assert [sum(q.chapter == c for q in overflowing) for c in (1, 2)] == [10, 4]


def test_unanswerable_questions_are_never_drawn() -> None:
    bank = (*BANK[:3], replace(BANK[3], answerable=False))
    assert "01-004" not in {q.id for q in draw_exam(bank, ExamPlan(count=3))}
    with pytest.raises(InvalidInput, match="3 fit"):
        draw_exam(bank, ExamPlan(count=4))


@pytest.mark.parametrize(
    "plan",
    [
        ExamPlan(count=0),
        ExamPlan(count=501),
        ExamPlan(count=1, types=("essay",)),
        ExamPlan(count=1, weights={1: 0.0}),
        ExamPlan(count=1, weights={1: float("nan")}),
        ExamPlan(count=1, time_limit_s=-1),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(plan: ExamPlan) -> None:
    with pytest.raises(InvalidInput):
        draw_exam(BANK, plan)


def test_choices_are_marked_by_index_or_by_their_own_text() -> None:
    question = make_question(1)
    assert mark_one(question, 0).score == 1.0
    assert mark_one(question, " VALUE1 ").score == 1.0
    assert mark_one(question, 3).score == 0.0
    for wrong in (4, -1, "none of them"):
        with pytest.raises(InvalidInput, match="not one of"):
            mark_one(question, wrong)


def test_an_exam_is_marked_with_its_passage_and_misses_are_due_at_once(study: Study) -> None:
    exam = study.start_exam(ExamPlan(count=6, seed=1))
    first = exam.questions[0]
    result = study.hand_in(exam.id, {first.id: 0 if first.choices else first.answer})
    assert (result.score, result.max_score) == (1.0, 6.0)
    assert all(mark.passage and mark.passage.text == mark.reference_answer for mark in result.marks)
    missed = {mark.question_id for mark in result.marks if mark.score < 1}
    assert {card.question_id for card in study.due_cards()} == missed
    assert study.exam(exam.id).result == result


def test_answers_twice_late_or_of_another_exam_are_refused_and_change_nothing(study: Study, clock: Clock) -> None:
    exam = study.start_exam(ExamPlan(count=2, time_limit_s=60))
    with pytest.raises(InvalidInput, match="not in exam"):
        study.hand_in(exam.id, {"99-999": 1})
    assert study.exam(exam.id).handed_in_at is None
    clock.now += timedelta(seconds=61)
    with pytest.raises(ExamClosed, match="closed at"):
        study.hand_in(exam.id, {})
    other = study.start_exam(ExamPlan(count=2))
    study.hand_in(other.id, {})
    with pytest.raises(ExamClosed, match="was handed in"):
        study.hand_in(other.id, {})


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
    exam = study.start_exam(ExamPlan(count=1))
    study.hand_in(exam.id, {})
    card = study.review_card(study.due_cards()[0].id, 3)
    with pytest.raises(Conflict, match="before the card's last review"):
        study.review_card(card.id, 3, at=START - timedelta(days=1))
    clock.now = START - timedelta(days=400)
    with pytest.raises(Conflict):
        study.review_card(card.id, 3)
    clock.now = START
    with pytest.raises(InvalidInput, match="rating"):
        study.review_card(card.id, 5)
    assert study.cards()[0].fsrs_json == card.fsrs_json


def test_progress_counts_by_chapter_and_names_weak_sections(study: Study, clock: Clock) -> None:
    exam = study.start_exam(ExamPlan(count=10, chapters=(1,)))
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


def test_chapters_of_several_books_are_told_apart(study: Study) -> None:
    made = [replace(question, id=f"made-{question.id}", book="own") for question in BANK if question.chapter == 1]
    unseen = [replace(question, id=f"made-2-{question.id}", book="unseen") for question in BANK]
    study.hand_in(study.start_exam(ExamPlan(count=2, chapters=(1,))).id, {})
    study.hand_in(study.start_exam(ExamPlan(count=3), questions=made).id, {})
    found = {(item.book, item.chapter): item for item in study.progress(made=made + unseen).chapters}
    assert list(found) == [("", 1), ("", 2), ("", 3), ("own", 1)]
    assert [(item.questions, item.seen, item.due) for item in found.values()] == [
        (10, 2, 2),
        (10, 0, 0),
        (10, 0, 0),
        (10, 3, 3),
    ]


def test_a_draft_is_replaced_survives_a_restart_and_goes_with_the_hand_in(tmp_path: Path) -> None:
    path = tmp_path / "study.sqlite3"
    exam = StoredExam("e", "ada", START, START + timedelta(hours=1), BANK[:1])
    store = StudyStore(path)
    store.add_exams([exam])
    assert store.draft("e") == {}
    store.keep_draft("e", {"q": 1}, START)
    store.keep_draft("e", {"q": "线程"}, START + timedelta(minutes=1))
    store.close()
    store = StudyStore(path)
    assert store.draft("e") == {"q": "线程"}
    assert store.keep_draft("e", {"r": 2}, START, beside=True) == {"q": "线程", "r": 2}
    assert store.keep_draft("e", {"q": None}, START, beside=True) == {"r": 2}
    store.close_exam(exam, Result(()), [], [], START)
    assert store.draft("e") == {}
    with pytest.raises(ExamClosed):
        store.keep_draft("e", {"q": 2}, START)
    with pytest.raises(NotFound):
        store.keep_draft("other", {"q": 2}, START)


def right_answers(exam: StoredExam) -> dict[str, int | str | None]:
    return {question.id: question.answer_index if question.choices else question.answer for question in exam.questions}


def test_an_exam_past_its_deadline_is_closed_with_its_draft_after_a_restart(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "study.sqlite3"
    study = Study(StudyStore(path), passage_of, lambda: BANK, clock)
    exam = study.start_exam(ExamPlan(count=2, time_limit_s=60), "ada")
    first = exam.questions[0].id
    study.keep_draft(exam.id, {first: right_answers(exam)[first]}, "ada")
    study.close()
    clock.now += timedelta(seconds=61)
    closed = Study(StudyStore(path), passage_of, lambda: BANK, clock).exam(exam.id, "ada")
    assert closed.closed_by_deadline
    assert closed.handed_in_at == exam.deadline
    assert closed.result is not None
    assert (closed.result.score, closed.result.max_score) == (1.0, 2.0)


@pytest.mark.parametrize("read", ["exams", "due_cards", "progress"])
def test_whatever_is_read_next_closes_an_exam_whose_time_ran_out(study: Study, clock: Clock, read: str) -> None:
    study.start_exam(ExamPlan(count=2, time_limit_s=60), "ada")
    clock.now += timedelta(seconds=61)
    assert study.due_cards("bob") == ()
    found = {
        "exams": lambda: len(study.exams("ada")[0].result.marks),
        "due_cards": lambda: len(study.due_cards("ada")),
        "progress": lambda: sum(chapter.seen for chapter in study.progress("ada").chapters),
    }
    assert found[read]() == 2


def test_a_draft_is_refused_late_or_with_answers_that_cannot_be_marked(study: Study, clock: Clock) -> None:
    exam = study.start_exam(ExamPlan(count=1, types=("choice",), time_limit_s=60))
    question = exam.questions[0].id
    for wrong in ({question: 9}, {"99-999": 1}, {question: "\ud800"}):
        with pytest.raises(InvalidInput):
            study.keep_draft(exam.id, wrong)
    assert study.draft(exam.id) == {}
    assert study.keep_answer(exam, question, 0) == {question: 0}
    clock.now += timedelta(seconds=61)
    with pytest.raises(ExamClosed, match="closed at"):
        study.keep_answer(exam, question, 1)
    result = study.exam(exam.id).result
    assert result is not None
    assert result.marks[0].answer == 0


@pytest.mark.slow
def test_five_thousand_due_cards_are_listed_in_200_ms_of_processor_time(tmp_path: Path, clock: Clock) -> None:
    store = StudyStore(tmp_path / "study.sqlite3")
    bank = tuple(make_question(n, chapter) for chapter in range(1, 6) for n in range(1000))
    study = Study(store, lambda _: None, lambda: bank, clock)
    exam = StoredExam("e", "default", START, None, ())
    store.add_exams([exam])
    store.close_exam(exam, Result(()), [], bank, START)
    seconds = []
    for _ in range(3):
        start = time.process_time()
        assert len(study.due_cards(limit=5000)) == 5000
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.2


def test_the_anki_deck_keeps_its_ids_and_renders_code_formulas_and_quotes(tmp_path: Path) -> None:
    made = parse_question(
        {
            "id": "made-1",
            "chapter": 3,
            "question": "Which `name` waits $k < n$ times?",
            "type": "choice",
            "choices": ["`a`", "b", "c", "d"],
            "answer": "b",
            "answer_index": 1,
            "book": "b1",
            "gold": [{"file": "My Book", "heading": "Waiting", "evidence": "*b* waits <i>long</i>."}],
        },
        where="test:1",
    )

    def notes(deck: bytes) -> dict[str, tuple[str, str]]:
        with zipfile.ZipFile(io.BytesIO(deck)) as package:
            (tmp_path / "deck.sqlite").write_bytes(package.read("collection.anki2"))
        with closing(sqlite3.connect(tmp_path / "deck.sqlite")) as database:
            assert database.execute("SELECT count(*) FROM cards").fetchone()[0] == len(BANK) + 1
            decks = json.loads(database.execute("SELECT decks FROM col").fetchone()[0])
            assert {"Coalesce::My Book", "Coalesce::Questions"} <= {deck["name"] for deck in decks.values()}
            return {
                guid: (fields, tags) for guid, fields, tags in database.execute("SELECT guid, flds, tags FROM notes")
            }

    first, second = notes(anki_deck([*BANK, made])), notes(anki_deck([*BANK, made]))
    assert first == second
    assert any("&lt;b&gt;chapter&lt;/b&gt;" in fields for fields, _ in first.values())
    ((fields, tags),) = [note for note in first.values() if "made-1" in note[0]]
    question, answer, quote, source, _ = fields.split("\x1f")
    assert "<code>name</code>" in question
    assert "\\(k &lt; n\\)" in question
    assert answer == "<b>B.</b> b"
    assert quote == "<i>b</i> waits &lt;i&gt;long&lt;/i&gt;."
    assert source == "My Book · chapter 3 · Waiting"
    assert tags.split() == ["book::My_Book", "chapter::03"]


def test_the_csv_holds_every_question_once() -> None:
    rows = list(csv.DictReader(io.StringIO(cards_csv(BANK))))
    assert [row["id"] for row in rows] == [question.id for question in BANK]
    assert rows[0]["choices"] == "value1 | b | c | d"


def test_a_proof_that_begins_inside_a_listing_shows_code_as_code_and_prose_as_prose() -> None:
    opened = make_node("Before.\n\n```c\nint first = 1;", 0, heading_path=("Part",))
    evidence = "The second constant of this listing is two."
    rest = make_node(f"int second = 2;\n```\n\n{evidence}", 1, heading_path=("Part",))
    question = replace(make_question(2, kind="short"), gold=(Gold(file="book.md", heading="Part", evidence=evidence),))
    passage = justify(question, FakeLibrary([opened, rest]))
    assert passage is not None
    assert (passage.node_id, passage.text) == (rest.node_id, f"```\n{rest.text}")


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
    exam = study.start_exam(ExamPlan(count=1, types=("short",)))
    (question,) = exam.questions
    study.hand_in(exam.id, {question.id: "nothing of the kind"})
    for share, due in ((0.5, 1), (1.0, 0), (0.0, 1), (0.5, 1), (1.0, 0)):
        clock.now += timedelta(minutes=20)
        study.decide(exam.id, question.id, share)
        assert study.count_due() == due, share
    clock.now += timedelta(days=1)
    assert study.count_due() == 0


def test_a_card_from_before_is_due_as_its_last_review_said_when_a_miss_is_overruled(study: Study, clock: Clock) -> None:
    study.hand_in((exam := study.start_exam(ExamPlan(count=1, types=("short",), chapters=(1,), seed=3))).id, {})
    (card,) = study.cards()
    known = study.review_card(card.id, 4)
    clock.now += timedelta(hours=1)
    again = study.start_exam(ExamPlan(count=1, types=("short",), chapters=(1,), seed=3))
    assert again.questions == exam.questions
    study.hand_in(again.id, {})
    assert study.count_due() == 1
    study.decide(again.id, card.question_id, 1.0)
    assert study.cards() == (known,)
    saved = study.save_card(BANK[1])
    clock.now += timedelta(hours=1)
    own = study.start_exam(ExamPlan(count=1), questions=[BANK[1]])
    study.hand_in(own.id, {})
    study.decide(own.id, BANK[1].id, 1.0)
    assert saved in study.cards(), "it was due before the exam"


def test_a_verdict_on_an_old_exam_leaves_the_card_of_a_later_miss(study: Study, clock: Clock) -> None:
    older, newer = (study.start_exam(ExamPlan(count=1), questions=[BANK[0]]) for _ in range(2))
    for exam in (older, newer):
        clock.now += timedelta(hours=1)
        study.hand_in(exam.id, {})
    study.decide(older.id, BANK[0].id, 1.0)
    assert study.count_due() == 1
    study.decide(newer.id, BANK[0].id, 1.0)
    assert study.count_due() == 0


def test_a_card_that_was_rated_meanwhile_is_not_rated_twice(study: Study, clock: Clock) -> None:
    card = study.save_card(own_question("Why?", "So."))
    study.review_card(card.id, 3)
    with pytest.raises(Conflict):
        study._store.keep_review(
            card, review(card.fsrs_json, 3, clock.now), 3, Attempt.of(card.question, 1.0, clock.now)
        )
    study.undo_review(card.id)
    with pytest.raises(Conflict):
        study.undo_review(card.id)


def test_a_review_is_undone_with_its_attempt(study: Study, clock: Clock) -> None:
    card = study.save_card(BANK[0])
    with pytest.raises(Conflict, match="not reviewed yet"):
        study.undo_review(card.id)
    study.review_card(card.id, 3)
    clock.now += timedelta(days=5)
    before = study.cards()
    study.review_card(card.id, 1)
    assert (study.undo_review(card.id).fsrs_json != before[0].fsrs_json) is (before[0].due > clock.now)
    assert study.count_due() == 1
    study.undo_review(card.id)
    assert study.progress().chapters[0].seen == 0
    assert study.due_cards()[0].state == "learning"


def test_a_suspended_card_is_not_due_anywhere(study: Study) -> None:
    card = study.save_card(BANK[0])
    assert study.change_card(card.id, suspended=True).state == "suspended"
    assert (study.count_due(), study.due_cards(), sum(c.due for c in study.progress().chapters)) == (0, (), 0)
    assert study.change_card(card.id, suspended=False).state == "learning"
    assert study.count_due() == 1


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


def test_progress_of_a_book_counts_its_own_questions_alone(study: Study) -> None:
    exam = study.start_exam(ExamPlan(count=1, chapters=(2,)))
    study.hand_in(exam.id, {})
    other = [question for question in BANK if question.chapter == 1]
    assert {c.chapter for c in study.progress(about=other).chapters} == {1}
    assert sum(c.seen for c in study.progress(about=other).chapters) == 0
    assert sum(c.seen for c in study.progress().chapters) == 1


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
    assert [(row["learner"], row["score"], row["max_score"]) for row in rows] == [
        ("ada", "1.0", "2.0"),
        ("bob", "", "2"),
    ]
    assert [row[f"1. {ada.questions[0].question}"] for row in rows] == ["1.0", ""]
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
    (again,) = parse_questions(table, "again.csv")
    assert (again.question, again.answer) == (formula, formula)
