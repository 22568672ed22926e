"""Spaced repetition by FSRS-6, as the `fsrs` library computes it, without fuzzing.

A card's state is the library's own `Card`, kept as its JSON, so that schedules equal the library's bit for bit.
Source: https://github.com/open-spaced-repetition/py-fsrs
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from indexes.errors import Conflict, InvalidInput

if TYPE_CHECKING:
    from fsrs import Card

SUSPENDED = "suspended"
"""The state of a card that does not come due."""
RATINGS = {1: "again", 2: "hard", 3: "good", 4: "easy"}


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A card's schedule.

    Attributes:
        fsrs_json: the library's `Card`, as its JSON.
        due: when it is to be reviewed, UTC.
        state: `learning`, `review` or `relearning`.
    """

    fsrs_json: str
    due: datetime
    state: str


def new_card(card_number: int, now: datetime) -> Scheduled:
    """A card that is due at once. `now` carries a time zone."""
    from fsrs import Card

    return _scheduled(Card(card_id=card_number, due=now.astimezone(UTC)))


def stored_schedule(fsrs_json: str) -> Scheduled:
    """The schedule in the library's JSON."""
    from fsrs import Card

    return _scheduled(Card.from_json(fsrs_json))


def make_due(fsrs_json: str, now: datetime) -> Scheduled:
    """The same memory state, due at once: a card whose question was missed again in an exam."""
    from fsrs import Card

    card = Card.from_json(fsrs_json)
    card.due = min(card.due, now.astimezone(UTC))
    return _scheduled(card)


def review(fsrs_json: str, rating: int, now: datetime) -> Scheduled:
    """The card after a review at `now`.

    Raises:
        InvalidInput: a rating that is not 1 (again), 2 (hard), 3 (good) or 4 (easy).
        Conflict: `now` lies before the card's last review, or before the card was made.
    """
    from fsrs import Card, Rating, Scheduler

    if rating not in RATINGS:
        raise InvalidInput(
            f"rating must be 1 to 4, not {rating!r}", hint="give 1 (again), 2 (hard), 3 (good) or 4 (easy)"
        )
    card = Card.from_json(fsrs_json)
    # A card that was never reviewed is due since it was made.
    before = "last review" if card.last_review is not None else "making"
    earliest = card.last_review or card.due
    if now < earliest:
        raise Conflict(
            f"the review is dated {now.isoformat()}, before the card's {before} at {earliest.isoformat()}",
            hint="set the clock right, then review again",
        )
    card, _ = Scheduler(enable_fuzzing=False).review_card(card, Rating(rating), review_datetime=now.astimezone(UTC))
    return _scheduled(card)


def _scheduled(card: Card) -> Scheduled:
    return Scheduled(card.to_json(), card.due, card.state.name.lower())
