"""Draws an exam from questions: by chapter, type, number, weights and seed.

The same questions and the same seed give the same exam in the same order. Only answerable questions are drawn.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evals.questions import TYPES, BankQuestion
from indexes.errors import InvalidInput

MAX_QUESTIONS = 500


@dataclass(frozen=True, slots=True)
class ExamPlan:
    """What an exam is made of.

    Attributes:
        chapters: chapter ordinals; empty takes all.
        types: question types; empty takes all.
        count: number of questions, 1 to `MAX_QUESTIONS`.
        weights: share of each chapter (any positive scale); empty draws from all alike.
        time_limit_s: seconds until answers come too late; None sets no limit.
    """

    count: int
    chapters: tuple[int, ...] = ()
    types: tuple[str, ...] = ()
    seed: int = 0
    weights: Mapping[int, float] = field(default_factory=dict)
    time_limit_s: float | None = None


def draw_exam(questions: Sequence[BankQuestion], plan: ExamPlan) -> tuple[BankQuestion, ...]:
    """The questions of an exam, in the order they are asked.

    Raises:
        InvalidInput: a plan that cannot be met, saying what there is.
    """
    _check_plan(plan)
    pool = [question for question in questions if _fits(question, plan)]
    if len(pool) < plan.count:
        raise InvalidInput(
            f"an exam of {plan.count} questions was asked for, {len(pool)} fit the chapters and types",
            hint="ask for fewer questions, or more chapters or types",
        )
    generator = random.Random(plan.seed)
    pool.sort(key=lambda question: question.id)
    if not plan.weights:
        return tuple(generator.sample(pool, plan.count))
    drawn: list[BankQuestion] = []
    for chapter, number in _apportion(pool, plan).items():
        of_chapter = [question for question in pool if question.chapter == chapter]
        drawn += generator.sample(of_chapter, number)
    generator.shuffle(drawn)
    return tuple(drawn)


def _check_plan(plan: ExamPlan) -> None:
    if not 1 <= plan.count <= MAX_QUESTIONS:
        raise InvalidInput(f"count is {plan.count}", hint=f"ask for 1 to {MAX_QUESTIONS} questions")
    unknown = [kind for kind in plan.types if kind not in TYPES]
    if unknown:
        raise InvalidInput(f"question type {unknown[0]!r} is not known", hint=f"types are {', '.join(TYPES)}")
    if any(not weight > 0 for weight in plan.weights.values()):
        raise InvalidInput(f"weights are {dict(plan.weights)}", hint="give each chapter a weight above 0")
    if plan.time_limit_s is not None and not plan.time_limit_s > 0:
        raise InvalidInput(f"time_limit_s is {plan.time_limit_s}", hint="give a number of seconds above 0")


def _fits(question: BankQuestion, plan: ExamPlan) -> bool:
    chapters = (
        set(plan.chapters) & set(plan.weights) if plan.chapters and plan.weights else plan.chapters or plan.weights
    )
    return (
        question.answerable
        and (not chapters or question.chapter in chapters)
        and (not plan.types or question.type in plan.types)
    )


def _apportion(pool: Sequence[BankQuestion], plan: ExamPlan) -> dict[int, int]:
    """Questions a chapter by largest remainder; what a small chapter cannot give goes to the others."""
    available: dict[int, int] = defaultdict(int)
    for question in pool:
        available[question.chapter] += 1
    given = dict.fromkeys(sorted(available), 0)
    while (left := plan.count - sum(given.values())) > 0:
        open_chapters = [chapter for chapter in given if given[chapter] < available[chapter]]
        total = sum(plan.weights.get(chapter, 0.0) for chapter in open_chapters)
        shares = {chapter: left * plan.weights.get(chapter, 0.0) / total for chapter in open_chapters}
        for chapter, share in shares.items():
            given[chapter] += min(int(share), available[chapter] - given[chapter])
        if plan.count - sum(given.values()) == left:  # every share is below one: one more to the largest
            largest = max(open_chapters, key=lambda chapter: (shares[chapter] - int(shares[chapter]), -chapter))
            given[largest] += 1
    return given
