"""The optional judge: what it grades, what it does with nonsense, and how its agreement with hand labels is counted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evals.errors import MalformedQuestions
from evals.judge import (
    JUDGEMENTS_FILE,
    Judge,
    agreement,
    parse_grade,
    read_labels,
    write_label_sheet,
)
from evals.questions import BankQuestion, parse_question
from evals.records import Record
from evals.scoring import score_records
from rag.errors import EngineUnreachable
from rag.generators.protocol import GenerationDone, GenerationRequest, TextPiece
from rag.types import Usage


class ScriptedJudge:
    """A generator that replies what `reply` says and counts what it was asked."""

    name = "remote"
    model_name = "judge-1"
    arms = ("base",)
    adapters: tuple[str, ...] = ()

    def __init__(self, reply: Callable[[GenerationRequest], str]) -> None:
        self.reply = reply
        self.asked: list[GenerationRequest] = []

    def check(self, request: GenerationRequest) -> None:
        pass

    def stream(self, request: GenerationRequest) -> Iterator[TextPiece | GenerationDone]:
        self.asked.append(request)
        yield TextPiece(self.reply(request))
        yield GenerationDone(Usage(), 0.0, 0)

    def close(self) -> None:
        pass


def make_question(number: int, answerable: bool = True) -> BankQuestion:
    record = {"id": f"q{number}", "question": f"How many lanes has warp {number}?", "answer": f"It has {number} lanes."}
    return parse_question(record | {"answerable": answerable}, where="test:1")


QUESTIONS = {f"q{number}": make_question(number) for number in range(4)}


def open_record(number: int, answer: str = "32 lanes", arm: str = "rag", **fields: Any) -> Record:
    return Record(f"q{number}", arm, 0, "open", answer=answer, **fields)


def said(grade: str) -> Callable[[GenerationRequest], str]:
    return lambda _request: f"It says so.\nGRADE: {grade}"


@pytest.mark.parametrize(
    ("written", "grade"),
    [
        ("It is right.\nGRADE: correct", "correct"),
        ("**Grade: Partial**", "partial"),
        ("GRADE: correct\nOn reflection.\nGRADE: wrong.", "wrong"),
        ("The grade could be correct or wrong.", None),
        ("GRADE: excellent", None),
        ("GRADE: correct\nGRADE: 7", None),
        ("", None),
    ],
)
def test_only_a_grade_line_is_a_grade(written: str, grade: str | None) -> None:
    assert parse_grade(written) == grade


def test_grades_become_scores(tmp_path: Path) -> None:
    judge = ScriptedJudge(lambda request: f"GRADE: {'correct' if 'right' in request.question else 'wrong'}")
    records = [open_record(0, "right"), open_record(1, "nothing of the kind")]
    grades, error = Judge(judge, tmp_path / JUDGEMENTS_FILE).grade(records, QUESTIONS)
    rows = score_records(records, QUESTIONS, grades)
    assert [row.metrics["judge_score"] for row in rows] == [1.0, 0.0]
    assert error is None


def test_nonsense_is_asked_once_more_and_then_unscored(tmp_path: Path) -> None:
    judge = ScriptedJudge(lambda _request: "banana")
    records = [open_record(0)]
    grades, _ = Judge(judge, tmp_path / JUDGEMENTS_FILE).grade(records, QUESTIONS)
    assert len(judge.asked) == 2
    assert score_records(records, QUESTIONS, grades)[0].metrics["judge_score"] is None


def test_a_refusal_is_wrong_without_asking_and_failures_are_not_graded(tmp_path: Path) -> None:
    judge = ScriptedJudge(said("correct"))
    questions = QUESTIONS | {"q9": make_question(9, answerable=False)}
    records = [
        open_record(0, "I do not know", refused=True),
        open_record(1, error="out of memory"),
        open_record(9, "It has nine."),
        Record("q2", "rag", 0, "choice", picked=0),
    ]
    grades, _ = Judge(judge, tmp_path / JUDGEMENTS_FILE).grade(records, questions)
    rows = score_records(records, questions, grades)
    assert judge.asked == []
    assert rows[0].metrics["judge_score"] == 0.0
    assert all("judge_score" not in row.metrics for row in rows[1:])


def test_a_judge_that_goes_away_loses_nothing_and_is_asked_no_answer_twice(tmp_path: Path) -> None:
    def leaves(request: GenerationRequest) -> str:
        if "warp 2" in request.question:
            raise EngineUnreachable("the engine is away", hint="start it")
        return "GRADE: partial"

    records = [open_record(number) for number in range(4)]
    file = tmp_path / JUDGEMENTS_FILE
    grades, error = Judge(ScriptedJudge(leaves), file).grade(records, QUESTIONS)
    assert error == "the engine is away"
    assert list(grades.values()) == ["partial", "partial", None, None]
    file.write_bytes(file.read_bytes() + b'{"key": "cut by a ki')
    again = ScriptedJudge(said("correct"))
    grades, error = Judge(again, file).grade(records, QUESTIONS)
    assert list(grades.values()) == ["partial", "partial", "correct", "correct"]
    assert len(again.asked) == 2
    assert all(json.loads(line)["grade"] for line in file.read_text().splitlines())


def test_another_model_grades_again(tmp_path: Path) -> None:
    file = tmp_path / JUDGEMENTS_FILE
    Judge(ScriptedJudge(said("correct")), file).grade([open_record(0)], QUESTIONS)
    other = ScriptedJudge(said("wrong"))
    other.model_name = "judge-2"
    grades, _ = Judge(other, file).grade([open_record(0)], QUESTIONS)
    assert list(grades.values()) == ["wrong"]


def test_agreement_by_hand() -> None:
    labels = {(f"q{n}", "rag", 0): label for n, label in enumerate(["correct"] * 5 + ["wrong"] * 4 + ["partial"])}
    grades: dict[tuple[str, str, int], str | None] = dict.fromkeys(labels, "correct")
    for number in (5, 6, 7):
        grades["q" + str(number), "rag", 0] = "wrong"
    grades["q9", "rag", 0] = None
    found = agreement(grades, labels)
    assert (found["n"], found["unscored"]) == (9, 1)
    assert found["agreed"] == pytest.approx(8 / 9, abs=1e-4)
    chance = (5 * 6 + 4 * 3) / 81
    assert found["kappa"] == pytest.approx((8 / 9 - chance) / (1 - chance), abs=1e-4)
    assert found["low"] < 8 / 9 < found["high"]
    assert agreement(grades, {})["agreed"] is None, "no labels are no agreement"


def test_a_sheet_is_written_filled_and_read(tmp_path: Path) -> None:
    sheet = tmp_path / "to_label.jsonl"
    records = [open_record(number, arm=arm) for number in range(4) for arm in ("rag", "tuned")]
    assert write_label_sheet(sheet, records, QUESTIONS) == 8
    assert read_labels(sheet) == {}
    lines = [json.loads(line) for line in sheet.read_text(encoding="utf-8").splitlines()]
    lines[0]["label"] = " Correct "
    sheet.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    assert write_label_sheet(sheet, records, QUESTIONS) == 0  # what a person filled is never overwritten
    assert read_labels(sheet) == {(lines[0]["question_id"], lines[0]["arm"], 0): "correct"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"label": "good", "question_id": "q1", "arm": "rag"}', "labels.jsonl:1: label 'good'"),
        ('{"label": "wrong"}', "labels.jsonl:1"),
        ("no json", "labels.jsonl:1"),
    ],
)
def test_a_broken_label_is_named_by_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(MalformedQuestions, match=message):
        read_labels(path)
    with pytest.raises(MalformedQuestions, match=r"gone\.jsonl"):
        read_labels(tmp_path / "gone.jsonl")
