"""Draws an exam from questions, and marks its answers.

The same questions and the same seed give the same exam in the same order. Only answerable questions are drawn. A choice
earns 1 for the right option; an open answer earns what `evals/marking.py` grades it.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from evals.marking import AskJudge, By, Grade, grade_answers
from evals.questions import TYPES, BankQuestion
from evals.text_match import Embed, normalize
from indexes.errors import InvalidInput
from indexes.messages import msg
from rag.question import reject_control_characters
from rag.types import Passage

MAX_QUESTIONS = 500
USUAL_COUNT = 10
MAX_ANSWER_CHARACTERS = 4000
PASSED = 0.999
"""Least share of the points that counts as right."""

Given: TypeAlias = int | str | None
"""An answer as handed in: an option's index from 0, a text, or nothing."""


@dataclass(frozen=True, slots=True)
class ExamPlan:
    """What an exam is made of.

    Attributes:
        chapters: chapter ordinals; empty takes all.
        types: question types; empty takes all.
        count: number of questions, 1 to `MAX_QUESTIONS`; None takes `USUAL_COUNT`, or all where there are fewer.
        weights: share of each chapter (any positive scale); empty draws from all alike.
        time_limit_s: seconds until answers come too late; None sets no limit.
        ids: of the questions that are asked, in this order, whatever the rest says; empty draws them.
    """

    count: int | None = None
    chapters: tuple[int, ...] = ()
    types: tuple[str, ...] = ()
    seed: int = 0
    weights: Mapping[int, float] = field(default_factory=dict)
    time_limit_s: float | None = None
    ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Mark:
    """The mark of one question.

    Attributes:
        score: 0.0 to `max_score`.
        answer: what was handed in.
        answer_index: the right option of a choice question.
        by: how it was marked.
        needs_check: uncertain; the learner decides, or the teacher of a class.
        requested: the share of the points that the learner of a class asks for instead.
        facts_met, facts_missed: the first wording of each key fact of an open question, where key facts made the mark.
        passage: where the book answers the question.
    """

    question_id: str
    score: float
    answer: Given
    reference_answer: str
    answer_index: int | None = None
    facts_met: tuple[str, ...] = ()
    facts_missed: tuple[str, ...] = ()
    passage: Passage | None = None
    max_score: float = 1.0
    by: By = "key_facts"
    needs_check: bool = False
    requested: float | None = None

    @property
    def share(self) -> float:
        """The score as a share of `max_score`, 0.0 to 1.0."""
        return self.score / self.max_score

    @property
    def passed(self) -> bool:
        """Whether the answer counts as right."""
        return self.share >= PASSED


@dataclass(frozen=True, slots=True)
class Result:
    """The marks of an exam, in the order of its questions."""

    marks: tuple[Mark, ...]

    @property
    def score(self) -> float:
        """Points earned."""
        return round(sum(mark.score for mark in self.marks), 4)

    @property
    def max_score(self) -> float:
        """Most points that can be earned."""
        return sum(mark.max_score for mark in self.marks)


def draw_exam(questions: Sequence[BankQuestion], plan: ExamPlan) -> tuple[BankQuestion, ...]:
    """The questions of an exam, in the order they are asked.

    Raises:
        InvalidInput: a plan that cannot be met, saying what there is.
    """
    _check_plan(plan)
    if plan.ids:
        return _named(questions, plan.ids)
    pool = [question for question in questions if _fits(question, plan)]
    if plan.count is None:
        plan = replace(plan, count=min(USUAL_COUNT, max(len(pool), 1)))
    count = plan.count or 0
    if len(pool) < count:
        raise InvalidInput(
            msg("an exam of {} questions was asked for, {} fit the chapters and types", count, len(pool)),
            hint="ask for fewer questions, or more chapters or types",
        )
    if sure := [question for question in pool if question.checked or question.accepted]:
        pool = sure if len(sure) >= count else pool
    generator = random.Random(plan.seed)
    pool.sort(key=lambda question: question.id)
    if not plan.weights:
        return tuple(generator.sample(pool, count))
    drawn: list[BankQuestion] = []
    for chapter, number in _apportion(pool, plan, count).items():
        of_chapter = [question for question in pool if question.chapter == chapter]
        drawn += generator.sample(of_chapter, number)
    generator.shuffle(drawn)
    return tuple(drawn)


def _named(questions: Sequence[BankQuestion], ids: Sequence[str]) -> tuple[BankQuestion, ...]:
    by_id = {question.id: question for question in questions if question.answerable}
    missing = [name for name in ids if name not in by_id]
    if missing:
        raise InvalidInput(
            msg("question {} is not among those that the exam is made from", repr(missing[0])[:80]),
            hint="name questions of one source, by the ids that it lists",
        )
    if len(set(ids)) != len(ids) or len(ids) > MAX_QUESTIONS:
        raise InvalidInput("a question is named twice", hint=msg("name 1 to {} different ones", MAX_QUESTIONS))
    return tuple(by_id[name] for name in ids)


def _check_plan(plan: ExamPlan) -> None:
    if plan.count is not None and not 1 <= plan.count <= MAX_QUESTIONS:
        raise InvalidInput(
            msg("an exam cannot have {} questions", plan.count), hint=msg("ask for 1 to {} questions", MAX_QUESTIONS)
        )
    unknown = [kind for kind in plan.types if kind not in TYPES]
    if unknown:
        raise InvalidInput(
            msg("question type {} is not known", repr(unknown[0])), hint=msg("types are {}", ", ".join(TYPES))
        )
    if any(not weight > 0 for weight in plan.weights.values()):
        raise InvalidInput(
            msg("weights of chapters must be above 0, not {}", dict(plan.weights)),
            hint="Give each chapter a weight above 0, or leave it out.",
        )
    if plan.time_limit_s is not None and not plan.time_limit_s > 0:
        raise InvalidInput(
            msg("time_limit_s must be above 0, not {}", plan.time_limit_s),
            hint="Give a number of seconds, or leave it out.",
        )


def _fits(question: BankQuestion, plan: ExamPlan) -> bool:
    chapters = (
        set(plan.chapters) & set(plan.weights) if plan.chapters and plan.weights else plan.chapters or plan.weights
    )
    return (
        question.answerable
        and (not chapters or question.chapter in chapters)
        and (not plan.types or question.type in plan.types)
    )


def _apportion(pool: Sequence[BankQuestion], plan: ExamPlan, count: int) -> dict[int, int]:
    """Questions per chapter by largest remainder; what a small chapter cannot give goes to the others."""
    available: dict[int, int] = defaultdict(int)
    for question in pool:
        available[question.chapter] += 1
    given = dict.fromkeys(sorted(available), 0)
    while (left := count - sum(given.values())) > 0:
        open_chapters = [chapter for chapter in given if given[chapter] < available[chapter]]
        total = sum(plan.weights.get(chapter, 0.0) for chapter in open_chapters)
        shares = {chapter: left * plan.weights.get(chapter, 0.0) / total for chapter in open_chapters}
        for chapter, share in shares.items():
            given[chapter] += min(int(share), available[chapter] - given[chapter])
        if count - sum(given.values()) == left:  # every share is below one: one more to the largest
            largest = max(open_chapters, key=lambda chapter: (shares[chapter] - int(shares[chapter]), -chapter))
            given[largest] += 1
    return given


def mark_answers(
    questions: Sequence[BankQuestion], given: Mapping[str, Given], embed: Embed, judge: AskJudge | None = None
) -> tuple[Mark, ...]:
    """Marks the answers to all questions, without passages; nothing handed in is 0.

    Args:
        given: by question id.
        embed, judge: as for `evals.marking.grade_answers`.

    Raises:
        InvalidInput: an option that does not exist, a text beyond `MAX_ANSWER_CHARACTERS`, or control characters.
    """
    answers = [readable_answer(question, given.get(question.id)) for question in questions]
    written = [(q, answer) for q, answer in zip(questions, answers, strict=True) if isinstance(answer, str)]
    grades = iter(grade_answers(written, embed, judge))
    return tuple(
        _mark(question, answer, next(grades) if isinstance(answer, str) else None)
        for question, answer in zip(questions, answers, strict=True)
    )


def _mark(question: BankQuestion, answer: Given, grade: Grade | None) -> Mark:
    """The mark of a readable answer; `grade` is that of a text."""
    mark = Mark(question.id, 0.0, answer, question.answer)
    if question.type == "choice":
        return replace(
            mark, by="choice", score=float(answer == question.answer_index), answer_index=question.answer_index
        )
    if grade is None:
        return mark
    facts = list(zip(question.key_facts, grade.met, strict=False)) if grade.by == "key_facts" else []
    return replace(
        mark,
        score=round(grade.share, 4),
        by=grade.by,
        needs_check=grade.needs_check,
        facts_met=tuple(_first_wording(fact) for fact, met in facts if met),
        facts_missed=tuple(_first_wording(fact) for fact, met in facts if not met),
    )


def readable_answer(question: BankQuestion, given: Given) -> Given:
    """The answer as it is marked: an index for a choice question, a text for an open one, None for nothing.

    A choice question also takes an option's own text. Raises as `mark_answers`.
    """
    if isinstance(given, str):
        reject_control_characters(given, f"answer to {question.id}")
    if given is None or (isinstance(given, str) and not given.strip()):
        return None
    if question.type == "choice":
        return _option(question, given)
    text = str(given)
    if len(text) > MAX_ANSWER_CHARACTERS:
        raise InvalidInput(
            msg(
                "the answer to {} has {} characters, at most {} are marked",
                question.id,
                len(text),
                MAX_ANSWER_CHARACTERS,
            ),
            hint="shorten the answer",
        )
    return text


def _option(question: BankQuestion, given: int | str) -> int:
    index = given
    if isinstance(given, str):
        options = [normalize(choice) for choice in question.choices]
        index = options.index(normalize(given)) if normalize(given) in options else given
    if isinstance(index, str) or not 0 <= index < len(question.choices):
        raise InvalidInput(
            msg(
                "the answer to {} is {}, not one of its {} options",
                question.id,
                f"{given!r:.60}",
                len(question.choices),
            ),
            hint=msg("hand in an index from 0 to {}", len(question.choices) - 1),
        )
    return index


def _first_wording(fact: str) -> str:
    return fact.split("|")[0].strip()
