"""Hands an exam in when its time is over, whether or not a tab is open: what was answered counts."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from nicegui import background_tasks

from api.pages.exam_drafts import Drafts
from api.studying import Studying
from evals.study_store import StoredExam
from indexes.errors import CoalesceError

HAND_IN_BEFORE_S = 2.0
"""An exam is handed in by itself this long before its end, so that what is there is not late."""
TIMER_ERROR_S = 0.5
"""A loop's timer and the clock on the wall differ by less."""


class ExamEnds:
    """Exams whose end is waited for. Lives on the event loop."""

    def __init__(self, studying: Studying, drafts: Drafts) -> None:
        self._studying = studying
        self._drafts = drafts
        self._waiting: dict[str, asyncio.Task[None]] = {}

    def watch(self, exam: StoredExam) -> None:
        """Begins to wait for an exam's end; a second tab changes nothing, and neither does an exam without one."""
        if exam.deadline is not None and exam.id not in self._waiting:
            task = background_tasks.create(self._end(exam, exam.deadline), name=f"end of {exam.id}")
            self._waiting[exam.id] = task
            task.add_done_callback(lambda _: self._waiting.pop(exam.id, None))

    async def ended(self, exam_id: str) -> None:
        """Returns when a watched exam has been handed in."""
        task = self._waiting.get(exam_id)
        if task is not None:
            await asyncio.wait({task})

    async def _end(self, exam: StoredExam, deadline: datetime) -> None:
        left_s = (deadline - datetime.now(UTC)).total_seconds() - HAND_IN_BEFORE_S
        await asyncio.sleep(max(left_s, 0.0))
        with suppress(CoalesceError):  # handed in before: nothing is left to do
            answers = self._drafts.of(exam.id)
            await asyncio.to_thread(self._studying.study.hand_in, exam.id, answers, exam.learner)
        self._drafts.forget(exam.id)


def ended_by_itself(exam: StoredExam) -> bool:
    """Whether an exam was handed in because its time was over."""
    if exam.deadline is None or exam.handed_in_at is None:
        return False
    return exam.handed_in_at >= exam.deadline - timedelta(seconds=HAND_IN_BEFORE_S + TIMER_ERROR_S)
