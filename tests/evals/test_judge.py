"""The optional judge: what it grades, what it does with nonsense, and how its agreement with hand labels is counted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes import ScriptedGenerator

from evals.errors import MalformedQuestions
from evals.judge import Judge, agreement, answer_id, parse_grade, read_labels, reader_scores, write_label_sheet
from evals.questions import parse_question
from evals.records import Record
from evals.scoring import score_records
from rag.errors import EngineUnreachable
from rag.generators.protocol import GenerationDone, GenerationRequest, TextPiece

QUESTIONS = {
    f"q{n}": parse_question(
        {"id": f"q{n}", "question": f"Has warp {n} lanes?", "answer": f"{n} lanes.", "answerable": n < 9},
        where="test:1",
    )
    for n in (0, 1, 2, 3, 9)
}


class ReplyingGenerator(ScriptedGenerator):
    """Writes what `reply` says of the request, or this grade."""

    def __init__(self, reply: Callable[[GenerationRequest], str] | str, model_name: str = "judge-1") -> None:
        super().__init__()
        self.reply, self.model_name = reply, model_name

    def stream(self, request: GenerationRequest) -> Iterator[TextPiece | GenerationDone]:
        reply = self.reply
        self.pieces = (f"It says so.\nGRADE: {reply}" if isinstance(reply, str) else reply(request),)
        return super().stream(request)


def open_record(number: int, answer: str = "32 lanes", arm: str = "rag", **fields: Any) -> Record:
    return Record(f"q{number}", arm, 0, "open", answer=answer, **fields)


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


def test_grades_become_scores_and_a_refusal_is_wrong_without_asking(tmp_path: Path) -> None:
    judge = ReplyingGenerator(lambda request: f"GRADE: {'correct' if 'yes' in request.question else 'wrong'}")
    records = [
        open_record(0, "yes"),
        open_record(2, "no"),
        open_record(0, "I do not know", "tuned", refused=True),
        open_record(1, error="out of memory"),
        open_record(9, "It has nine."),
        Record("q2", "rag", 0, "choice", picked=0),
    ]
    grades, error = Judge(judge, tmp_path / "j.jsonl").grade(records, QUESTIONS)
    rows = score_records(records, QUESTIONS, grades)
    assert [row.metrics.get("judge_score") for row in rows] == [1.0, 0.0, 0.0, None, None, None]
    assert (len(judge.requests), error) == (2, None)
    assert "judge_score" not in score_records(records, QUESTIONS)[0].metrics, "without a judge there is no grade"


def test_nonsense_is_asked_once_more_and_then_unscored(tmp_path: Path) -> None:
    judge, record = ReplyingGenerator(lambda _: "banana"), open_record(0)
    grades, _ = Judge(judge, tmp_path / "j.jsonl").grade([record], QUESTIONS)
    assert len(judge.requests) == 2
    assert score_records([record], QUESTIONS, grades)[0].metrics["judge_score"] is None


def test_a_judge_that_goes_away_loses_nothing_and_is_asked_no_answer_twice(tmp_path: Path) -> None:
    def leaves(request: GenerationRequest) -> str:
        if "warp 2" in request.question:
            raise EngineUnreachable("the engine is away", hint="start it")
        return "GRADE: partial"

    records, file = [open_record(number) for number in range(4)], tmp_path / "j.jsonl"
    grades, error = Judge(ReplyingGenerator(leaves), file).grade(records, QUESTIONS)
    assert error == "the engine is away"
    assert list(grades.values()) == ["partial", "partial", None, None]
    file.write_bytes(file.read_bytes() + b'{"key": "cut by a ki')
    again = ReplyingGenerator("correct")
    grades, _ = Judge(again, file).grade(records, QUESTIONS)
    assert list(grades.values()) == ["partial", "partial", "correct", "correct"]
    assert len(again.requests) == 2
    other, _ = Judge(ReplyingGenerator("wrong", "judge-2"), file).grade(records, QUESTIONS)
    assert set(other.values()) == {"wrong"}, "another model grades again"


def test_agreement_by_hand() -> None:
    labels = {f"q{n}": label for n, label in enumerate(["correct"] * 5 + ["wrong"] * 4 + ["partial"])}
    grades: dict[str, str | None] = dict.fromkeys(labels, "correct")
    grades |= {f"q{n}": "wrong" for n in (5, 6, 7)} | {"q9": None}
    found = agreement(grades, labels)
    assert (found["n"], found["unscored"]) == (9, 1)
    assert found["agreed"] == pytest.approx(8 / 9, abs=1e-4)
    chance = (5 * 6 + 4 * 3) / 81
    assert found["kappa"] == pytest.approx((8 / 9 - chance) / (1 - chance), abs=1e-4)
    assert found["low"] < 8 / 9 < found["high"]
    assert agreement(grades, {})["agreed"] is None, "no labels are no agreement"


def test_a_sheet_names_no_arm_and_the_same_answer_once(tmp_path: Path) -> None:
    sheet = tmp_path / "to_label.jsonl"
    records = [
        open_record(n, f"{n if arm == 'base' else 32} lanes", arm) for arm in ("base", "rag", "tuned") for n in range(4)
    ]
    assert write_label_sheet(sheet, [*records, open_record(0, refused=True, arm="quotes")], QUESTIONS) == 8
    text = sheet.read_text(encoding="utf-8")
    assert not any(arm in text for arm in ("base", "rag", "tuned"))
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["question"] for line in lines[::2]] == [line["question"] for line in lines[1::2]], (
        "question by question"
    )
    assert write_label_sheet(sheet, records[:8], QUESTIONS) == 8, "nobody has labelled one yet"
    lines[0]["label"] = " Correct "
    sheet.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    assert write_label_sheet(sheet, records, QUESTIONS) == 0
    assert read_labels(sheet) == {lines[0]["id"]: "correct"}


def test_readers_grades_are_averaged_and_a_refusal_of_what_they_read_is_wrong() -> None:
    records = [
        open_record(0), open_record(0, arm="tuned"), open_record(0, "no", "base"), open_record(1), open_record(9),
        open_record(0, arm="quotes", refused=True), open_record(1, arm="quotes", refused=True),
    ]  # fmt: skip
    same, other = answer_id(records[0]), answer_id(records[2])
    scores = reader_scores([{same: "correct", other: "wrong"}, {same: "partial"}], records, QUESTIONS)
    assert {arm: score for (_, arm, _), score in scores.items()} == {
        "rag": 0.75,
        "tuned": 0.75,
        "base": 0.0,
        "quotes": 0.0,
    }
    assert {question for question, _, _ in scores} == {"q0"}
    found = [row.metrics.get("reader_score") for row in score_records(records, QUESTIONS, readers=scores)]
    assert found == [0.75, 0.75, 0.0, None, None, 0.0, None]


@pytest.mark.parametrize("line", ['{"label": "good", "id": "a"}', '{"label": "wrong"}', "[]", "x"])
def test_a_broken_label_is_named_by_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(MalformedQuestions, match=r"labels\.jsonl:1"):
        read_labels(path)
    with pytest.raises(MalformedQuestions, match=r"gone\.jsonl"):
        read_labels(tmp_path / "gone.jsonl")
