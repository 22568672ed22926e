"""`/v1/questions`, `/v1/exams`, `/v1/cards`, `/v1/progress`, and what is made from a book to study it."""

from __future__ import annotations

import secrets
from collections import Counter
from datetime import UTC, datetime
from typing import Annotated, Literal
from urllib.parse import quote as url_quote

from fastapi import APIRouter, File, Query, Request, Response, UploadFile

from api.deps import CallerDep, FileOwnerDep, LearnerDep, OwnerDep, ServicesDep, StudyDep
from api.page_files import page_texts
from api.paging import Cursor, Limit, page_of
from api.schemas.base import Id, JobStartedOut, attached, error_responses, listed
from api.schemas.study import (
    AnswersIn,
    BookPlaceOut,
    CardChangeIn,
    CardDetailOut,
    CardOut,
    CardsOut,
    ClassExamIn,
    ClassExamOut,
    ClassExamsOut,
    DraftOut,
    ExamIn,
    ExamOut,
    ExamsOut,
    GuideOut,
    MakeIn,
    MarkOut,
    NewCardIn,
    ProgressOut,
    QuestionChangeIn,
    QuestionChapterOut,
    QuestionChaptersOut,
    QuestionFileOut,
    QuestionFilesOut,
    QuestionOut,
    QuestionsOut,
    ResultOut,
    ReviewIn,
    VerdictIn,
    card_out,
)
from api.services import Services
from api.uploads import file_name
from evals.anki import anki_deck, book_of, cards_csv
from evals.exam import ExamPlan
from evals.questions import TYPES, BankQuestion, QuestionType, chapter_titles, questions_file
from evals.schedule import RATINGS, review
from evals.study import Asked, class_marks_csv, justify
from evals.study_guide import GROUPS, guide_markdown
from indexes.errors import InvalidInput, NotFound
from indexes.types import Document
from rag.question import whole_number

router = APIRouter(prefix="/v1", tags=["study"])


@router.get("/questions", response_model=QuestionsOut, responses=error_responses(400, 404, 422, 503))
def list_questions(
    services: ServicesDep,
    study: StudyDep,
    caller: CallerDep,
    document_id: Annotated[Id | None, Query()] = None,
    chapter: Annotated[int | None, Query(ge=0, le=1_000_000)] = None,
    type: Annotated[QuestionType | None, Query()] = None,  # noqa: A002  the contract's name
    limit: Limit = 100,
    cursor: Cursor = None,
    with_answers: bool = False,
    question_file: Annotated[Id | None, Query(description="a file in the home's `questions/` folder")] = None,
) -> Response:
    """Questions of the bank or of a question file, in their order, or those made from a book, best first.

    A learner's key gets no answer to a question of an exam that is not handed in yet.
    """
    document = services.library.document(document_id) if document_id is not None else None
    questions = _questions(services, document, question_file, caller.learner)
    chosen = [
        question
        for question in questions
        if (chapter is None or question.chapter == chapter) and (type is None or question.type == type)
    ]
    asked = study.asked_now() if with_answers else Asked()
    given, more = page_of(chosen, lambda question: question.id, limit, cursor)
    passages = services.questions.passages(given) if with_answers else {}
    found = []
    for question in given:
        shown = with_answers and question not in asked
        out = QuestionOut.of(question, with_answer=shown)
        found.append(out.model_copy(update={"passage": passages.get(question.id) if shown else None}))
    return listed(QuestionsOut(questions=found, next_cursor=more))


@router.get("/questions/choice", responses=error_responses(403, 404, 503))
def draw_choice_question(services: ServicesDep, study: StudyDep, caller: CallerDep) -> QuestionOut:
    """A choice question on one of the books, at random, with its answer. Not one of an exam that is not handed in."""
    caller.need_open_key("see answers before an exam")
    question = services.questions.draw_choice(study.asked_now())
    if question is None:
        raise NotFound(
            "there is no choice question on these books", hint="Make questions: POST /v1/documents/ID/questions."
        )
    return QuestionOut.of(question, with_answer=True)


@router.patch("/questions/{question_id}", responses=error_responses(400, 403, 404, 409, 422, 503))
def change_question(question_id: Id, body: QuestionChangeIn, services: ServicesDep, caller: CallerDep) -> QuestionOut:
    """Changes a question made from a book, and accepts it: it stays when the book is read, or asked, again."""
    caller.need_open_key("change questions")
    change = body.model_dump(exclude_none=True)
    return QuestionOut.of(services.questions.change(question_id, change), with_answer=True)


@router.delete("/questions/{question_id}", status_code=204, responses=error_responses(400, 403, 404, 409, 422, 503))
def drop_question(question_id: Id, services: ServicesDep, caller: CallerDep) -> None:
    """Drops a question made from a book; making some again does not bring it back."""
    caller.need_open_key("drop questions")
    services.questions.drop(question_id)


@router.post("/questions/{question_id}/card", status_code=201, responses=error_responses(400, 403, 404, 422, 503))
def make_card(
    question_id: Id, services: ServicesDep, study: StudyDep, caller: CallerDep, learner: LearnerDep
) -> CardOut:
    """Makes a card of a question made from a book, due now; one that is there becomes due."""
    caller.need_open_key("see answers before an exam")
    return card_out(study.save_card(services.questions.made.one(question_id), learner))


@router.get("/questions/chapters", responses=error_responses(400, 404, 422, 503))
def list_question_chapters(
    services: ServicesDep,
    caller: CallerDep,
    document_id: Annotated[Id | None, Query()] = None,
    question_file: Annotated[Id | None, Query(description="a file in the home's `questions/` folder")] = None,
) -> QuestionChaptersOut:
    """The chapters that an exam can ask about: of the bank, of a question file, or of a book."""
    document = services.library.document(document_id) if document_id is not None else None
    questions = _questions(services, document, question_file, caller.learner)
    of_bank = question_file is None and (document is None or document.sample)
    titles = chapter_titles() if of_bank else {}
    if document is not None and not of_bank:
        titles = {chapter.ordinal: chapter.title for chapter in services.library.chapters(document.document_id)}
    counted = Counter(question.chapter for question in questions if question.answerable)
    held = {question.type for question in questions}
    return QuestionChaptersOut(
        chapters=[
            QuestionChapterOut(chapter=chapter, title=titles.get(chapter, ""), questions=number)
            for chapter, number in sorted(counted.items())
        ],
        types=[kind for kind in TYPES if kind in held],
    )


def _questions(
    services: Services, document: Document | None, question_file: str | None, learner: str | None
) -> tuple[BankQuestion, ...]:
    if document is None or document.sample or question_file is not None:
        return services.questions.files.of(learner).load(question_file)
    return services.questions.made.of(document)


@router.get("/questions/files", responses=error_responses(403, 422, 503))
def list_question_files(services: ServicesDep, whose: FileOwnerDep) -> QuestionFilesOut:
    """The caller's question files, for `question_file` of an exam: a learner's own, or those of all open keys."""
    return QuestionFilesOut(files=list(services.questions.files.of(whose).names()))


@router.post("/questions/files", status_code=201, responses=error_responses(400, 409, 413, 422, 503))
def add_question_file(file: Annotated[UploadFile, File()], services: ServicesDep, caller: CallerDep) -> QuestionFileOut:
    """Keeps a question file: JSON Lines, or a table as CSV. A broken line is a 422 that names it; nothing is kept.

    A learner's files are that learner's alone, and have a bound together.
    """
    name = file_name(file.filename or "")
    kept = services.questions.files.of(caller.learner).add(name, file.file.read())
    return QuestionFileOut(name=name, questions=len(kept))


@router.delete("/questions/files/{name}", status_code=204, responses=error_responses(400, 403, 404, 422, 503))
def remove_question_file(name: str, services: ServicesDep, whose: FileOwnerDep) -> None:
    """Removes a question file of the caller's, or with an open key a learner's; exams drawn from it stay."""
    services.questions.files.of(whose).remove(name)


@router.get(
    "/questions/export.{form}", response_class=Response, responses=error_responses(400, 403, 404, 409, 422, 503)
)
def export_questions(
    form: Literal["jsonl", "csv"],
    services: ServicesDep,
    caller: CallerDep,
    document_id: Annotated[Id | None, Query()] = None,
    question_file: Annotated[Id | None, Query()] = None,
) -> Response:
    """The questions on a book, of a question file or of the bank, with their answers, as a question file."""
    caller.need_open_key("export questions with their answers")
    questions = services.questions.named([] if document_id is None else [document_id], question_file)
    media_type = "text/csv; charset=utf-8" if form == "csv" else "application/jsonl"
    return attached(questions_file(questions, f".{form}").encode(), media_type, f"coalesce-questions.{form}")


@router.post(
    "/documents/{document_id}/questions", status_code=202, responses=error_responses(400, 403, 404, 409, 422, 503)
)
def make_questions(
    document_id: str, services: ServicesDep, caller: CallerDep, body: MakeIn | None = None
) -> JobStartedOut:
    """Makes questions from a book, in place of those made before; the job says how many."""
    caller.need_open_key("make questions")
    wanted = body or MakeIn()
    return JobStartedOut(job_id=services.questions.make(document_id, wanted.count, wanted.types or ()).id)


@router.post(
    "/documents/{document_id}/questions/file",
    status_code=201,
    responses=error_responses(400, 403, 404, 409, 413, 422, 503),
)
def add_questions(
    document_id: str, file: Annotated[UploadFile, File()], services: ServicesDep, caller: CallerDep
) -> QuestionFileOut:
    """Adds the questions of a file (JSON Lines or CSV) to those on a book, in place of those with the same ids."""
    caller.need_open_key("add questions to a book")
    name = file_name(file.filename or "")
    return QuestionFileOut(name=name, questions=services.questions.add(document_id, name, file.file.read()))


@router.get("/documents/{document_id}/guide", responses=error_responses(404, 422, 503))
def read_guide(
    document_id: str,
    services: ServicesDep,
    study: StudyDep,
    chapter: Annotated[int | None, Query(ge=0, le=1_000_000)] = None,
) -> GuideOut:
    """What to know of each chapter of a book, or of one: definitions, numbers, names of code, and sentences."""
    guide = services.questions.guide(document_id, study)
    chapters = [item for item in guide if chapter is None or item.chapter == chapter]
    title = services.library.document(document_id).title
    return GuideOut.model_validate({"document_id": document_id, "title": title, "chapters": chapters})


@router.get("/documents/{document_id}/guide.md", response_class=Response, responses=error_responses(404, 503))
def export_guide(
    document_id: str,
    request: Request,
    services: ServicesDep,
    study: StudyDep,
    language: Annotated[Literal["en", "zh"], Query()] = "en",
) -> Response:
    """The study guide as Markdown; every entry leads to its place in the book."""
    texts = page_texts(language)
    headings = {name: texts[f"guide.{name}"] for name in GROUPS}
    title = f"{services.library.document(document_id).title}: {texts['guide.title']}"
    address = f"{request.base_url}book/{url_quote(document_id, safe='')}"
    text = guide_markdown(title, services.questions.guide(document_id, study), headings, address)
    return attached(text.encode(), "text/markdown; charset=utf-8", "coalesce-guide.md")


@router.post("/exams", status_code=201, responses=error_responses(400, 403, 404, 409, 422, 503))
def start_exam(body: ExamIn, services: ServicesDep, study: StudyDep, caller: CallerDep) -> ExamOut:
    """Draws an exam. The same seed gives the same questions in the same order under a new id."""
    plan, questions = _drawn_from(body, services, caller.learner)
    learner = caller.learner_for(body.learner)
    return ExamOut.of(study.start_exam(plan, learner, questions), to_learner=caller.learner is not None)


def _drawn_from(
    body: ExamIn, services: Services, whose: str | None = None
) -> tuple[ExamPlan, tuple[BankQuestion, ...]]:
    """The plan of an exam, and the questions that it draws from."""
    unreadable = [chapter for chapter in body.weights or {} if whole_number(chapter) is None]
    if unreadable:
        raise InvalidInput(f"weights name chapter {unreadable[0]!r:.40}", hint="Name chapters by their numbers.")
    if body.document_ids is not None and body.question_file is not None:
        raise InvalidInput("`document_ids` and `question_file` both name questions", hint="Name one of them.")
    questions = services.questions.named(body.document_ids or (), body.question_file, whose)
    return body.plan(secrets.randbelow(2**31)), questions


@router.get("/exams", responses=error_responses(400, 403, 422, 503))
def list_exams(
    study: StudyDep, caller: CallerDep, learner: LearnerDep, limit: Limit = 100, cursor: Cursor = None
) -> ExamsOut:
    """The newest exams of a learner, newest first, each with its marks once it was handed in."""
    shown, more = page_of(study.exam_ids(learner), str, limit, cursor)
    exams = study.exams(learner, among=shown)
    return ExamsOut(exams=[ExamOut.of(exam, to_learner=caller.learner is not None) for exam in exams], next_cursor=more)


@router.get("/exams/{exam_id}", responses=error_responses(400, 403, 404, 422, 503))
def get_exam(exam_id: str, study: StudyDep, caller: CallerDep, owner: OwnerDep) -> ExamOut:
    """An exam as it was set, with its marks once it was handed in. Who looks at an exam that `waits` does not begin
    it."""
    return ExamOut.of(study.exam(exam_id, owner), to_learner=caller.learner is not None)


@router.post("/exams/{exam_id}/begin", responses=error_responses(400, 403, 404, 422, 503))
def begin_exam(exam_id: str, study: StudyDep, caller: CallerDep, owner: OwnerDep) -> ExamOut:
    """Begins an exam that `waits`: its questions come, and its time runs. One that has begun is as it was."""
    return ExamOut.of(study.open_exam(exam_id, owner), to_learner=caller.learner is not None)


@router.post("/class-exams", status_code=201, responses=error_responses(400, 403, 404, 409, 422, 503))
def start_class_exam(body: ClassExamIn, services: ServicesDep, caller: CallerDep) -> ClassExamOut:
    """Gives the same exam to every learner named, each with a link; a time limit counts from when they begin."""
    caller.need_open_key("give exams to a class")
    plan, questions = _drawn_from(body, services)
    given = services.study.start_class_exam(plan, body.learners, questions, assistant=body.assistant)
    return ClassExamOut.of(given)


@router.get("/class-exams", responses=error_responses(400, 403, 422, 503))
def list_class_exams(
    services: ServicesDep, caller: CallerDep, limit: Limit = 100, cursor: Cursor = None
) -> ClassExamsOut:
    """The exams given to classes, newest first."""
    caller.need_open_key("see the exams of a class")
    study = services.study
    shown, more = page_of(study.class_ids(None), str, limit, cursor)
    return ClassExamsOut(classes=[ClassExamOut.of(study.class_exam(class_id)) for class_id in shown], next_cursor=more)


@router.get("/class-exams/{class_id}", responses=error_responses(403, 404, 503))
def get_class_exam(class_id: str, services: ServicesDep, caller: CallerDep) -> ClassExamOut:
    """An exam given to a class: who has handed in, with how many points."""
    caller.need_open_key("see the exams of a class")
    return ClassExamOut.of(services.study.class_exam(class_id))


@router.get("/class-exams/{class_id}/marks.csv", response_class=Response, responses=error_responses(403, 404, 503))
def export_class_marks(class_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    """The marks of a class as CSV: a row for each learner, a column for each question."""
    caller.need_open_key("read the marks of a class")
    marks = class_marks_csv(services.study.class_exam(class_id))
    return attached(marks.encode(), "text/csv; charset=utf-8", "coalesce-marks.csv")


@router.get("/exams/{exam_id}/draft", responses=error_responses(400, 403, 404, 422, 503))
def get_draft(exam_id: str, services: ServicesDep, owner: OwnerDep) -> DraftOut:
    """The answers given so far in an open exam; none once it was handed in."""
    return DraftOut(answers=services.study.draft(services.study.exam(exam_id, owner).id))


@router.put("/exams/{exam_id}/draft", status_code=204, responses=error_responses(400, 403, 404, 409, 422, 503))
def keep_draft(exam_id: str, body: AnswersIn, services: ServicesDep, caller: CallerDep) -> None:
    """Keeps the answers given so far, in place of those kept before; they count when the time runs out."""
    services.study.keep_draft(exam_id, body.answers, caller.owner_for(body.learner))


@router.patch("/exams/{exam_id}/draft", responses=error_responses(400, 403, 404, 409, 422, 503))
def keep_answers(exam_id: str, body: AnswersIn, study: StudyDep, caller: CallerDep) -> DraftOut:
    """Keeps some answers beside those kept before, null takes one back; gives all."""
    exam = study.exam(exam_id, caller.owner_for(body.learner))
    return DraftOut(answers=study.keep_answers(exam, body.answers))


@router.post("/exams/{exam_id}/answers", responses=error_responses(400, 403, 404, 409, 422, 503))
def hand_in(exam_id: str, body: AnswersIn, study: StudyDep, caller: CallerDep) -> ResultOut:
    """Marks the answers; what was missed becomes cards that are due at once. A second time, or late, is a 409."""
    owner = caller.owner_for(body.learner)
    questions = study.exam(exam_id, owner).questions
    return ResultOut.of(study.hand_in(exam_id, body.answers, owner), questions)


@router.post("/exams/{exam_id}/marks", responses=error_responses(400, 403, 404, 409, 422, 503))
def decide(exam_id: str, body: VerdictIn, study: StudyDep, caller: CallerDep) -> MarkOut:
    """Keeps the caller's own verdict in place of a mark; the cards are then as if the exam had marked it so. The marks
    of a class's exam are its teacher's: what the learner says stands beside the mark as `requested`."""
    owner = caller.owner_for(body.learner)
    mark = study.decide(exam_id, body.question_id, body.share, owner)
    asked = next(one for one in study.exam(exam_id, owner).questions if one.id == mark.question_id)
    return MarkOut.of(mark, asked)


@router.get("/cards/due", response_model=CardsOut, responses=error_responses(400, 403, 422, 503))
def due_cards(study: StudyDep, learner: LearnerDep, limit: Limit = 100) -> Response:
    """Cards that are due, the longest overdue first; a learner's key does not see those of an open exam."""
    times, now = study.due_times(learner), datetime.now(UTC)
    return listed(
        CardsOut(
            cards=[card_out(card) for card in study.due_cards(learner, limit)],
            due=sum(due <= now for due in times),
            kept=len(times),
            next_due=min(times, default=None),
        )
    )


@router.post("/cards/{card_id}/review", responses=error_responses(400, 403, 404, 409, 422, 503))
def review_card(card_id: str, body: ReviewIn, study: StudyDep, caller: CallerDep) -> CardOut:
    """Rates a card: 1 again, 2 hard, 3 good, 4 easy; gives it with its next due time."""
    at = body.reviewed_at
    if at is not None and at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return card_out(study.review_card(card_id, body.rating, caller.owner_for(body.learner), at))


@router.post("/cards/{card_id}/undo", responses=error_responses(400, 403, 404, 409, 422, 503))
def undo_review(card_id: str, study: StudyDep, owner: OwnerDep) -> CardOut:
    """Takes the newest review of a card back; a card that was not reviewed is a 409."""
    return card_out(study.undo_review(card_id, owner))


@router.post("/cards", status_code=201, responses=error_responses(400, 403, 422, 503))
def save_card(body: NewCardIn, study: StudyDep, caller: CallerDep) -> CardOut:
    """Makes a card of one's own, due now; the same question again makes no second one."""
    return card_out(study.save_card(body.bank_question(), caller.learner_for(body.learner)))


@router.patch("/cards/{card_id}", responses=error_responses(400, 403, 404, 422, 503))
def change_card(card_id: str, body: CardChangeIn, study: StudyDep, caller: CallerDep) -> CardOut:
    """Rewords a card, or keeps it from coming due (`suspended`)."""
    return card_out(
        study.change_card(
            card_id,
            caller.owner_for(body.learner),
            question=body.question,
            answer=body.answer,
            suspended=body.suspended,
        )
    )


@router.delete("/cards/{card_id}", status_code=204, responses=error_responses(400, 403, 404, 422, 503))
def delete_card(card_id: str, study: StudyDep, owner: OwnerDep) -> None:
    """Removes a card with its reviews."""
    study.delete_card(card_id, owner)


@router.get("/progress", responses=error_responses(400, 403, 404, 409, 422, 503))
def progress(
    services: ServicesDep, study: StudyDep, learner: LearnerDep, document_id: Annotated[Id | None, Query()] = None
) -> ProgressOut:
    """What was seen and right, what is due and what is coming, by book and chapter; of one book where it is named."""
    return ProgressOut.of(*services.questions.progress(study, learner, document_id))


@router.get("/cards/export.apkg", response_class=Response, responses=error_responses(400, 403, 422, 503))
def export_anki(study: StudyDep, learner: LearnerDep) -> Response:
    """The learner's cards as an Anki deck; importing a newer one keeps Anki's own history."""
    questions = [card.question for card in study.cards(learner)]
    return attached(anki_deck(questions), "application/octet-stream", "coalesce.apkg")


@router.get("/cards/export.csv", response_class=Response, responses=error_responses(400, 403, 422, 503))
def export_csv(study: StudyDep, learner: LearnerDep) -> Response:
    """The learner's cards as CSV."""
    questions = [card.question for card in study.cards(learner)]
    return attached(cards_csv(questions).encode(), "text/csv; charset=utf-8", "coalesce-cards.csv")


@router.get("/cards/{card_id}", responses=error_responses(400, 403, 404, 409, 422, 503))
def get_card(card_id: str, services: ServicesDep, study: StudyDep, owner: OwnerDep) -> CardDetailOut:
    """One card: when each rating would make it due, and where its book says so."""
    card = study.card(card_id, owner)
    now = datetime.now(UTC)
    passage = justify(card.question, services.library) if card.question.gold else None
    place = None
    if passage is not None and passage.document_id:
        place = BookPlaceOut(
            document_id=passage.document_id, node_id=passage.node_id, quote=card.question.gold[0].evidence
        )
    return CardDetailOut(
        card=card_out(card),
        title=book_of(card.question),
        next_due={str(rating): review(card.fsrs_json, rating, now).due for rating in RATINGS},
        place=place,
    )
