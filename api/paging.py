"""Lists in pages: `limit` items and the `next_cursor` that goes on behind them, null at the end."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

from fastapi import Query

from indexes.errors import InvalidInput

Item = TypeVar("Item")
USUAL_LIMIT = 1000
MOST_LISTED = 5000
Limit = Annotated[int, Query(ge=1, le=MOST_LISTED, description="most items of one page")]
Cursor = Annotated[str | None, Query(max_length=500, description="`next_cursor` of the page before")]


def page_of(
    items: Sequence[Item], key: Callable[[Item], str], limit: int, cursor: str | None
) -> tuple[Sequence[Item], str | None]:
    """A page of a list that is held whole, and the cursor of the next; one that goes on where an item was removed.

    Args:
        key: tells the items apart.

    Raises:
        InvalidInput: no list gave this cursor.
    """
    start = 0
    if cursor is not None:
        place, _, last = decoded(cursor).partition(" ")
        if not (place.isascii() and place.isdigit() and len(place) < 10):
            raise _unknown(cursor)
        found = next((at for at, item in enumerate(items) if key(item) == last), None)
        start = int(place) if found is None else found + 1
    shown = items[start : start + limit]
    more = start + limit < len(items)
    return shown, encoded(f"{start + limit - 1} {key(shown[-1])}") if more else None


def encoded(text: str) -> str:
    """A cursor that no client takes for anything else."""
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decoded(cursor: str) -> str:
    """The text that `encoded` made a cursor of. Raises InvalidInput."""
    try:
        return base64.urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4)).decode()
    except (binascii.Error, UnicodeError, ValueError):
        raise _unknown(cursor) from None


def _unknown(cursor: str) -> InvalidInput:
    return InvalidInput(f"no list gave the cursor {cursor!r:.60}", hint="Begin again without one.")
