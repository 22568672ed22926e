"""Names of learners: who exams, cards and progress belong to."""

from __future__ import annotations

from indexes.errors import InvalidInput
from indexes.messages import msg

DEFAULT_LEARNER = "default"
MAX_LEARNER_CHARACTERS = 100
LEARNER_NAME_HINT = f"use 1 to {MAX_LEARNER_CHARACTERS} printable characters"


def is_learner_name(name: str) -> bool:
    """Whether `name`, without white space around it, can be a learner's."""
    return 0 < len(name.strip()) <= MAX_LEARNER_CHARACTERS and name.strip().isprintable()


def checked_learner(name: str) -> str:
    """The name without white space around it.

    Raises:
        InvalidInput: it cannot be a name.
    """
    if not is_learner_name(name):
        raise InvalidInput(msg("learner {} is not a name", f"{name!r:.60}"), hint=LEARNER_NAME_HINT)
    return name.strip()
