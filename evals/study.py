"""Studying: exams set and marked, misses turned into cards, cards reviewed, progress by chapter.

Decides nothing about HTTP and nothing about retrieval: what it needs of the library is one function that finds the
passage which justifies an answer.
"""

from __future__ import annotations

import secrets
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from evals.errors import ExamClosed
from evals.exam import ExamPlan, draw_exam
from evals.learners import DEFAULT_LEARNER, checked_learner
from evals.marking import Given, mark_answer
from evals.questions import BankQuestion, parse_question
from evals.schedule import review
from evals.study_store import Attempt, StoredCard, StoredExam, StudyStore
from indexes.errors import InvalidInput

Clock = Callable[[], datetime]
FindPassage = Callable[[BankQuestion], Mapping[str, Any] | None]
"""The passage that justifies a question's answer, in the wire form of a passage, or None."""

FORECAST_DAYS = 7
PASSED = 0.999
"""Least score of an attempt that counts as right and makes no card."""


@dataclass(frozen=True, slots=True)
class ChapterProgress:
    """How far a learner is in one chapter.

    Attributes:
        questions: answerable questions there are; seen: asked at least once; right: newest attempt right.
        due: cards due now; forecast: cards coming due on each of the next `FORECAST_DAYS` days, today's rest first.
    """

    chapter: int
    questions: int
    seen: int
    right: int
    due: int
    forecast: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress by chapter; `weak_sections` are those missed most, worst first: `(section, missed, seen)`."""

    learner: str
    chapters: tuple[ChapterProgress, ...]
    weak_sections: tuple[tuple[str, int, int], ...]


class Study:
    """The one front door to exams, cards and progress."""

    def __init__(
        self,
        store: StudyStore,
        questions: Callable[[], Sequence[BankQuestion]],
        find_passage: FindPassage,
        clock: Clock = lambda: datetime.now(UTC),
    ) -> None:
        self._store = store
        self._questions = questions
        self._find_passage = find_passage
        self._clock = clock

    def start_exam(
        self, plan: ExamPlan, learner: str = DEFAULT_LEARNER, questions: Sequence[BankQuestion] | None = None
    ) -> StoredExam:
        """Draws and keeps an exam, from the bank or from the questions given.

        Raises:
            InvalidInput: a plan that cannot be met, or a name that is none.
        """
        learner = checked_learner(learner)
        drawn = draw_exam(self._questions() if questions is None else questions, plan)
        now = self._clock()
        exam = StoredExam(
            id=f"exam-{secrets.token_hex(8)}",
            learner=learner,
            created_at=now,
            deadline=now + timedelta(seconds=plan.time_limit_s) if plan.time_limit_s is not None else None,
            questions=tuple(asdict(question) for question in drawn),
            handed_in_at=None,
            result=None,
        )
        self._store.add_exam(exam)
        return exam

    def exam(self, exam_id: str, learner: str | None = None) -> StoredExam:
        """An exam, with its result once handed in; of one learner, or of whoever's it is. Raises NotFound."""
        return self._store.exam(exam_id, learner if learner is None else checked_learner(learner))

    def exams(self, learner: str = DEFAULT_LEARNER, limit: int = 20) -> tuple[StoredExam, ...]:
        """The newest exams of a learner, the newest first."""
        return self._store.exams(checked_learner(learner), limit)

    def hand_in(self, exam_id: str, answers: Mapping[str, Given], learner: str | None = None) -> dict[str, Any]:
        """Marks an exam: `{score, max_score, marks}`; what was not answered is 0. Nothing is kept when it raises.

        Raises:
            NotFound: no such exam of this learner.
            ExamClosed: handed in before, or after the deadline.
            InvalidInput: an answer to a question that is not in the exam, or an option that does not exist.
        """
        exam = self.exam(exam_id, learner)
        now = self._clock()
        if exam.handed_in_at is not None:
            raise ExamClosed(
                f"exam {exam.id} was handed in at {exam.handed_in_at.isoformat()}", hint=f"see GET /v1/exams/{exam.id}"
            )
        if exam.deadline is not None and now > exam.deadline:
            raise ExamClosed(
                f"exam {exam.id} closed at {exam.deadline.isoformat()}, it is {now.isoformat()}",
                hint="start another with POST /v1/exams",
            )
        questions = [question_of(record) for record in exam.questions]
        strangers = sorted(set(answers) - {question.id for question in questions})
        if strangers:
            raise InvalidInput(f"question {strangers[0]!r} is not in exam {exam.id}", hint="answer its own questions")
        marks = [mark_answer(question, answers.get(question.id)) for question in questions]
        result = {
            "score": round(sum(mark.score for mark in marks), 4),
            "max_score": sum(mark.max_score for mark in marks),
            "marks": [
                {
                    "question_id": mark.question_id,
                    "score": mark.score,
                    "max_score": mark.max_score,
                    "answer": mark.given,
                    "answer_index": question.answer_index if question.type == "choice" else None,
                    "reference_answer": mark.reference_answer,
                    "facts_met": list(mark.facts_met),
                    "facts_missed": list(mark.facts_missed),
                    "passage": self._find_passage(question),
                }
                for mark, question in zip(marks, questions, strict=True)
            ],
        }
        attempts = [
            Attempt(question.id, question.chapter, question.section, mark.score / mark.max_score, now)
            for mark, question in zip(marks, questions, strict=True)
        ]
        missed = [
            record for record, mark in zip(exam.questions, marks, strict=True) if mark.score < PASSED * mark.max_score
        ]
        self._store.close_exam(exam, result, attempts, missed, now)
        return result

    def due_cards(self, learner: str = DEFAULT_LEARNER, limit: int = 100) -> tuple[StoredCard, ...]:
        """Cards due now, the longest overdue first."""
        return self._store.due_cards(checked_learner(learner), self._clock(), limit)

    def count_due(self, learner: str = DEFAULT_LEARNER) -> int:
        """How many cards are due now."""
        return self._store.count_due(checked_learner(learner), self._clock())

    def cards(self, learner: str = DEFAULT_LEARNER) -> tuple[StoredCard, ...]:
        """All cards of a learner."""
        return self._store.cards(checked_learner(learner))

    def review_card(
        self, card_id: str, rating: int, learner: str | None = None, at: datetime | None = None
    ) -> StoredCard:
        """The card with its next due time.

        Args:
            rating: 1 again, 2 hard, 3 good, 4 easy.
            at: when it was reviewed; None is now.

        Raises:
            NotFound, InvalidInput, Conflict: as `evals.schedule.review`; also InvalidInput for a time ahead of now.
        """
        card = self._store.card(card_id, learner if learner is None else checked_learner(learner))
        now = self._clock()
        try:
            at = at.astimezone(UTC) if at is not None else None
        except OverflowError:
            raise InvalidInput(f"the review is dated {at}, which no calendar holds", hint="leave it out") from None
        if at is not None and at > now + timedelta(minutes=5):
            raise InvalidInput(f"the review is dated {at.isoformat()}, ahead of {now.isoformat()}", hint="leave it out")
        when = at or now
        schedule = review(card.fsrs_json, rating, when)
        question = question_of(card.question)
        attempt = Attempt(question.id, question.chapter, question.section, float(rating > 1), when)
        return self._store.keep_review(card, schedule, rating, attempt)

    def progress(self, learner: str = DEFAULT_LEARNER) -> Progress:
        """What was seen, what was right, what is due and what is coming, by chapter."""
        learner = checked_learner(learner)
        now = self._clock()
        questions = {question.id: question for question in self._questions() if question.answerable}
        totals = Counter(question.chapter for question in questions.values())
        attempts = self._store.latest_attempts(learner)
        seen, right = Counter[int](), Counter[int]()
        missed_in: dict[str, list[bool]] = defaultdict(list)
        for attempt in attempts:
            is_right = attempt.score >= PASSED
            seen[attempt.chapter] += 1
            right[attempt.chapter] += is_right
            if attempt.section:
                missed_in[attempt.section].append(not is_right)
        chapter_of = {attempt.question_id: attempt.chapter for attempt in attempts}
        due: Counter[int] = Counter()
        forecast: dict[int, list[int]] = defaultdict(lambda: [0] * FORECAST_DAYS)
        for question_id, when in self._store.due_times(learner):
            known = questions.get(question_id)
            chapter = known.chapter if known is not None else chapter_of.get(question_id, 0)
            day = int((when - now).total_seconds() // 86_400)
            if when <= now:
                due[chapter] += 1
            elif day < FORECAST_DAYS:
                forecast[chapter][day] += 1
        weak = [(section, sum(missed), len(missed)) for section, missed in missed_in.items() if any(missed)]
        weak.sort(key=lambda row: (-row[1] / row[2], -row[1], row[0]))
        chapters = sorted(set(totals) | set(seen) | set(due))
        return Progress(
            learner,
            tuple(ChapterProgress(c, totals[c], seen[c], right[c], due[c], tuple(forecast[c])) for c in chapters),
            tuple(weak[:10]),
        )


def question_of(record: Mapping[str, Any]) -> BankQuestion:
    """The question that an exam or a card keeps."""
    listed = {key: list(value) if isinstance(value, tuple) else value for key, value in record.items()}
    return parse_question(listed, where=str(record.get("id", "question")))
