"""Hand labels of answers: a sheet to fill, its reading, and how often a judge gives the same grade (Cohen's kappa)."""

from __future__ import annotations

import json
import math
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.errors import MalformedQuestions
from evals.questions import BankQuestion
from evals.records import Record
from evals.statistics import wilson_interval

GRADES: Mapping[str, float] = {"correct": 1.0, "partial": 0.5, "wrong": 0.0}
LABEL_SHEET = "to_label.jsonl"
SHEET_ANSWERS = 50
AnswerKey = tuple[str, str, int]
"""Question id, arm, repetition."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How a judge's grades meet hand labels.

    Attributes:
        n: answers with both; unscored: labelled answers that the judge gave no grade.
        agreed: share of equal grades with its Wilson interval `low`, `high`; NaN without labels.
        kappa: Cohen's kappa over the three grades, chance taken out; NaN where both gave one grade only.
        confusion: counts by (hand label, judge's grade).
    """

    n: int
    unscored: int
    agreed: float
    low: float
    high: float
    kappa: float
    confusion: Mapping[tuple[str, str], int]

    def to_json(self) -> dict[str, Any]:
        """Plain values; a share that does not exist is None."""
        shares = {name: getattr(self, name) for name in ("agreed", "low", "high", "kappa")}
        return {
            "n": self.n,
            "unscored": self.unscored,
            **{name: None if math.isnan(value) else round(value, 4) for name, value in shares.items()},
            "confusion": [
                {"label": label, "grade": grade, "count": count}
                for (label, grade), count in sorted(self.confusion.items())
            ],
        }


def answer_key(record: Record) -> AnswerKey:
    """What names the answer that a record holds."""
    return (record.question_id, record.arm, record.repetition)


def is_graded(record: Record, questions: Mapping[str, BankQuestion]) -> bool:
    """Whether a judge has something to grade: an answer in words to a question that the book answers."""
    question = questions.get(record.question_id)
    return (
        question is not None and question.answerable and record.mode == "open" and not record.error
        and not record.refused
    )  # fmt: skip


def write_label_sheet(
    path: Path, records: Iterable[Record], questions: Mapping[str, BankQuestion], seed: int = 0
) -> int:
    """Writes answers for a person to label, as many of each arm, drawn by `seed`, in mixed order; gives their number.

    The judge's grades are not in it, and the arm stands last, so that neither leads the hand. A sheet that is there
    already is left alone: somebody may be filling it.
    """
    if path.exists():
        return 0
    by_arm: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if is_graded(record, questions) and record.repetition == 0:
            by_arm[record.arm].append(record)
    if not by_arm:
        return 0
    draw = random.Random(seed)
    each = max(1, SHEET_ANSWERS // len(by_arm))
    picked = [record for listed in by_arm.values() for record in draw.sample(listed, min(each, len(listed)))]
    draw.shuffle(picked)
    lines = []
    for record in picked:
        question = questions[record.question_id]
        lines.append(
            {
                "label": "",
                "question": question.question,
                "reference_answer": question.answer,
                "answer": record.answer,
                "question_id": record.question_id,
                "repetition": record.repetition,
                "arm": record.arm,
            }
        )
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    return len(lines)


def read_labels(path: Path) -> dict[AnswerKey, str]:
    """Hand labels of a filled sheet; lines whose label is empty are left out.

    Raises:
        MalformedQuestions: no such file, a line that is no label, or a label that is no grade; file and line are named.
    """
    if not path.is_file():
        raise MalformedQuestions(
            f"there is no label file {path}",
            hint=f"fill the labels of a report folder's {LABEL_SHEET} and give its path",
        )
    labels: dict[AnswerKey, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            label = str(value["label"]).strip().lower()
            key = (str(value["question_id"]), str(value["arm"]), int(value.get("repetition", 0)))
        except (ValueError, KeyError, TypeError) as error:
            raise MalformedQuestions(
                f"{path.name}:{number} is no label ({error})", hint="one JSON object a line, as the sheet was written"
            ) from None
        if label and label not in GRADES:
            raise MalformedQuestions(
                f"{path.name}:{number}: label {label!r} is no grade", hint=f"use {', '.join(GRADES)}"
            )
        if label:
            labels[key] = label
    return labels


def agreement(grades: Mapping[AnswerKey, str | None], labels: Mapping[AnswerKey, str]) -> Agreement:
    """Compares a judge's grades to hand labels of the same answers (kappa: Cohen 1960, unweighted)."""
    confusion: dict[tuple[str, str], int] = defaultdict(int)
    unscored = 0
    for key, label in labels.items():
        if key not in grades:
            continue
        grade = grades[key]
        if grade is None:
            unscored += 1
        else:
            confusion[label, grade] += 1
    n = sum(confusion.values())
    if not n:
        return Agreement(0, unscored, math.nan, math.nan, math.nan, math.nan, {})
    equal = sum(count for (label, grade), count in confusion.items() if label == grade)
    interval = wilson_interval(equal, n)
    by_chance = sum(
        sum(c for (label, _), c in confusion.items() if label == name)
        * sum(c for (_, grade), c in confusion.items() if grade == name)
        for name in GRADES
    ) / (n * n)
    kappa = (equal / n - by_chance) / (1 - by_chance) if by_chance < 1 else math.nan
    return Agreement(n, unscored, equal / n, interval.low, interval.high, kappa, dict(confusion))
