"""`/v1/cards` and `/v1/progress`: spaced repetition, progress by chapter, decks for Anki and CSV."""

from __future__ import annotations

from datetime import UTC
from typing import Annotated

from fastapi import APIRouter, Query, Response

from api.deps import CallerDep, LearnerDep, StudyingDep
from api.schemas.base import error_responses, listed
from api.schemas.study import CardOut, CardsOut, ProgressOut, ReviewIn
from evals.anki import anki_deck, cards_csv
from evals.book_sections import chapter_titles
from evals.study import question_of

router = APIRouter(prefix="/v1", tags=["study"])
MAX_LIMIT = 5000


@router.get("/cards/due", response_model=CardsOut, responses=error_responses(400, 403, 422, 503))
def due_cards(
    studying: StudyingDep,
    learner: LearnerDep,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = 100,
) -> Response:
    """Cards that are due, the longest overdue first."""
    cards = CardsOut(cards=[CardOut.of(card) for card in studying.study.due_cards(learner, limit)])
    return listed(cards)


@router.post("/cards/{card_id}/review", responses=error_responses(400, 403, 404, 409, 422, 503))
def review_card(card_id: str, body: ReviewIn, studying: StudyingDep, caller: CallerDep) -> CardOut:
    """Rates a card: 1 again, 2 hard, 3 good, 4 easy; gives it with its next due time."""
    at = body.reviewed_at
    if at is not None and at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return CardOut.of(studying.study.review_card(card_id, body.rating, caller.owner_for(body.learner), at))


@router.get("/progress", responses=error_responses(400, 403, 422, 503))
def progress(studying: StudyingDep, learner: LearnerDep) -> ProgressOut:
    """What was seen, what was right, what is due and what is coming, by chapter."""
    return ProgressOut.of(studying.study.progress(learner), chapter_titles())


@router.get("/cards/export.apkg", response_class=Response, responses=error_responses(400, 403, 422, 503))
def export_anki(studying: StudyingDep, learner: LearnerDep) -> Response:
    """The learner's cards as an Anki deck; importing a newer one keeps Anki's own history."""
    questions = [question_of(card.question) for card in studying.study.cards(learner)]
    return _file(anki_deck(questions), "application/octet-stream", "coalesce.apkg")


@router.get("/cards/export.csv", response_class=Response, responses=error_responses(400, 403, 422, 503))
def export_csv(studying: StudyingDep, learner: LearnerDep) -> Response:
    """The learner's cards as CSV."""
    questions = [question_of(card.question) for card in studying.study.cards(learner)]
    return _file(cards_csv(questions).encode(), "text/csv; charset=utf-8", "coalesce-cards.csv")


def _file(content: bytes, media_type: str, name: str) -> Response:
    return Response(content, media_type=media_type, headers={"Content-Disposition": f'attachment; filename="{name}"'})
