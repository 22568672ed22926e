"""`/v1/questions`: the question bank, answers only when they are asked for; and question files of one's own."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, File, Query, Response, UploadFile

from api.deps import ServicesDep, StudyingDep
from api.schemas.base import Id, error_responses, listed
from api.schemas.study import QuestionFileOut, QuestionFilesOut, QuestionKind, QuestionOut, QuestionsOut
from indexes.types import Document

router = APIRouter(prefix="/v1/questions", tags=["study"])
MAX_LIMIT = 5000


@router.get("", response_model=QuestionsOut, responses=error_responses(400, 404, 422, 503))
def list_questions(
    services: ServicesDep,
    studying: StudyingDep,
    document_id: Annotated[Id | None, Query()] = None,
    chapter: Annotated[int | None, Query(ge=0, le=1_000_000)] = None,
    type: Annotated[QuestionKind | None, Query()] = None,  # noqa: A002  the contract's name
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = 100,
    with_answers: bool = False,
    question_file: Annotated[Id | None, Query(description="a file in the home's `questions/` folder")] = None,
) -> Response:
    """Questions in chapter order. The bank is over the bundled book: another book's id gives none."""
    document: Document | None = services.library.document(document_id) if document_id is not None else None
    if document is not None and not document.sample and question_file is None:
        return listed(QuestionsOut(questions=[]))
    chosen = [
        question
        for question in studying.questions(question_file)
        if (chapter is None or question.chapter == chapter) and (type is None or question.type == type)
    ]
    found = [QuestionOut.of(question, with_answer=with_answers) for question in chosen[:limit]]
    return listed(QuestionsOut(questions=found))


@router.get("/files", responses=error_responses(503))
def list_question_files(studying: StudyingDep) -> QuestionFilesOut:
    """Question files in the home, for `question_file` of an exam."""
    return QuestionFilesOut(files=list(studying.question_files()))


@router.post("/files", status_code=201, responses=error_responses(400, 409, 413, 422, 503))
def add_question_file(file: Annotated[UploadFile, File()], studying: StudyingDep) -> QuestionFileOut:
    """Keeps a question file (one JSON object a line). A broken line is a 422 that names it, and nothing is kept."""
    name, questions = studying.add_question_file(file.filename or "", file.file.read())
    return QuestionFileOut(name=name, questions=questions)
