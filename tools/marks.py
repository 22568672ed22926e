"""How fairly open answers are marked: `python -m tools.marks` over the judged student answers.

    right answers that get half of the points or more         target: at least 80 %
    right answers at 0 without a request to check             at most 10 %
    wrong answers at 0                                        at least 90 %
    marks to be checked                                       at most 25 %

Each with n and a 95 % Wilson interval, then by kind of variation. `--fit` fits the weights of `evals/marking.py` on the
development half and prints them; it needs scikit-learn, which comes with the encoder.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from evals.errors import MalformedQuestions
from evals.marking import Grade, Reading, features, grade_answers
from evals.question_checks import bundled_encoder
from evals.questions import BANK_FOLDER, BankQuestion, load_bank, load_question_set, load_questions
from evals.statistics import Interval, wilson_interval
from evals.text_match import Embed
from indexes.jsonl import read_jsonl

QUESTION_SETS = BANK_FOLDER.parent / "question_sets"
FOLDER = QUESTION_SETS / "marks"
FLOORS = {"credited": (0.8, 1.0), "silent": (0.0, 0.1), "refused": (0.9, 1.0), "to_check": (0.0, 0.25)}
"""Least and most of each share on the report half: the targets."""


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """A student's answer with a person's judgement, `right`, `part` or `wrong`, and the kind of variation."""

    question: BankQuestion
    answer: str
    label: str
    kind: str


@dataclass(frozen=True, slots=True)
class Figures:
    """Shares with their intervals: `credited`, `silent` of right answers, `refused` of wrong, `to_check` of all."""

    credited: Interval
    silent: Interval
    refused: Interval
    to_check: Interval


def load_answers(half: str) -> tuple[JudgedAnswer, ...]:
    """The answers of `dev`, `hard`, `report` or `second`."""
    known = {question.id: question for question in load_bank()}
    for path in sorted(
        path for folder in ("fit", "judged", "fresh") for path in (QUESTION_SETS / folder).glob("*.jsonl")
    ):
        known |= {question.id: question for question in load_question_set(path)}
    known |= {question.id: question for question in load_questions(FOLDER / "questions.jsonl")}
    rows = read_jsonl(FOLDER / f"{half}.jsonl", MalformedQuestions)
    return tuple(JudgedAnswer(known[row["question_id"]], row["answer"], row["label"], row["kind"]) for _, row in rows)


def grade_all(answers: Sequence[JudgedAnswer], embed: Embed) -> list[Grade]:
    """Grades every answer without a judge; an empty one gets nothing, as in an exam."""
    graded = iter(grade_answers([(row.question, row.answer) for row in answers if row.answer.strip()], embed))
    return [next(graded) if row.answer.strip() else Grade(0.0, "key_facts", False, ()) for row in answers]


def measure(answers: Sequence[JudgedAnswer], grades: Sequence[Grade]) -> Figures:
    """The four figures."""
    right = [grade for row, grade in zip(answers, grades, strict=True) if row.label == "right"]
    wrong = [grade for row, grade in zip(answers, grades, strict=True) if row.label == "wrong"]
    return Figures(
        _share([grade.share >= 0.5 for grade in right]),
        _share([grade.share == 0 and not grade.needs_check for grade in right]),
        _share([grade.share == 0 for grade in wrong]),
        _share([grade.needs_check for grade in grades]),
    )


def _share(hits: Sequence[bool]) -> Interval:
    return wilson_interval(sum(hits), len(hits))


def fit(answers: Sequence[JudgedAnswer], embed: Embed) -> tuple[dict[str, float], float]:
    """The regression's weights and constant: right against wrong answers."""
    from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]
    from sklearn.pipeline import make_pipeline  # type: ignore[import-untyped]
    from sklearn.preprocessing import StandardScaler  # type: ignore[import-untyped]

    judged = [row for row in answers if row.label != "part" and row.answer.strip()]
    rows = features([Reading(row.question, row.answer) for row in judged], embed)
    model = make_pipeline(StandardScaler(), LogisticRegression())
    model.fit([list(row.values()) for row in rows], [row.label == "right" for row in judged])
    scaler, regression = model[0], model[1]
    weights = regression.coef_[0] / scaler.scale_
    named = {name: round(float(weight), 3) for name, weight in zip(rows[0], weights, strict=True)}
    return named, round(float(regression.intercept_[0] - weights @ scaler.mean_), 3)


def describe(answers: Sequence[JudgedAnswer], grades: Sequence[Grade]) -> list[str]:
    """The figures as lines, then for each kind its n, how many get half or more, and how many are to be checked."""
    figures = measure(answers, grades)
    n = Counter(row.label for row in answers)
    sizes = {"credited": n["right"], "silent": n["right"], "refused": n["wrong"], "to_check": len(answers)}
    lines = []
    for name, size in sizes.items():
        value: Interval = getattr(figures, name)
        lines.append(f"{name:10} {value.value:6.1%}  [{value.low:.1%}, {value.high:.1%}]  n = {size}")
    by_kind: dict[tuple[str, str], list[Grade]] = defaultdict(list)
    for row, grade in zip(answers, grades, strict=True):
        by_kind[row.label, row.kind].append(grade)
    for (label, kind), marked in sorted(by_kind.items()):
        half = sum(grade.share >= 0.5 for grade in marked)
        check = sum(grade.needs_check for grade in marked)
        lines.append(f"{label:6} {kind:17} n = {len(marked):3}  half or more {half:3}  to check {check:3}")
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the figures of the report half, or fits on the development half."""
    parser = argparse.ArgumentParser(description="How fairly open answers are marked.")
    parser.add_argument("--half", choices=("dev", "hard", "report", "second"), default="report")
    parser.add_argument("--fit", action="store_true", help="fit the weights on the development half and print them")
    given = parser.parse_args(arguments)
    embed = bundled_encoder()
    if given.fit:
        weights, constant = fit(load_answers("dev"), embed)
        sys.stdout.write(json.dumps({"weights": weights, "constant": constant}, indent=4) + "\n")
        return
    answers = load_answers(given.half)
    sys.stdout.write("\n".join(describe(answers, grade_all(answers, embed))) + "\n")


if __name__ == "__main__":
    main()
