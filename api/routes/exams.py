"""`/v1/exams`: make one, hand in answers, see the marks with the passage that justifies each."""

from __future__ import annotations

import secrets

from fastapi import APIRouter

from api.deps import CallerDep, OwnerDep, StudyingDep
from api.schemas.base import error_responses
from api.schemas.study import AnswersIn, ExamIn, ExamOut, ResultOut
from api.text_input import whole_number
from indexes.errors import InvalidInput

router = APIRouter(prefix="/v1/exams", tags=["study"])


@router.post("", status_code=201, responses=error_responses(400, 403, 404, 422, 503))
def start_exam(body: ExamIn, studying: StudyingDep, caller: CallerDep) -> ExamOut:
    """Draws an exam. The same seed gives the same questions in the same order under a new id."""
    unreadable = [chapter for chapter in body.weights or {} if whole_number(chapter) is None]
    if unreadable:
        raise InvalidInput(f"weights name chapter {unreadable[0]!r:.40}", hint="name chapters by their numbers")
    plan = body.plan(secrets.randbelow(2**31))
    learner = caller.learner_for(body.learner)
    return ExamOut.of(studying.study.start_exam(plan, learner, studying.questions(body.question_file)))


@router.get("/{exam_id}", responses=error_responses(400, 403, 404, 422, 503))
def get_exam(exam_id: str, studying: StudyingDep, owner: OwnerDep) -> ExamOut:
    """An exam as it was set, with its marks once it was handed in."""
    return ExamOut.of(studying.study.exam(exam_id, owner))


@router.post("/{exam_id}/answers", responses=error_responses(400, 403, 404, 409, 422, 503))
def hand_in(exam_id: str, body: AnswersIn, studying: StudyingDep, caller: CallerDep) -> ResultOut:
    """Marks the answers; what was missed becomes cards that are due at once. A second time, or late, is a 409."""
    return ResultOut(**studying.study.hand_in(exam_id, body.answers, caller.owner_for(body.learner)))
