"""The one check on text that belongs to the edge: what a terminal or a form should not have sent at all.

Length and emptiness are checked by the engine, for every door alike. Control characters it would quietly drop; here
they are refused, because a client that sends them has a fault that its user should hear of.
"""

from __future__ import annotations

import re

from indexes.errors import InvalidInput

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")

MAX_DIGITS = 9


def refuse_controls(text: str, name: str) -> str:
    """`text` as it is.

    Raises:
        InvalidInput: it holds control characters other than tab and line ends, or half a surrogate pair.
    """
    found = _CONTROL.search(text)
    if found:
        character = f"U+{ord(found.group()):04X}"
        raise InvalidInput(
            f"the {name} holds the control character {character} at position {found.start()}", hint="remove it"
        )
    return text


def whole_number(text: str) -> int | None:
    """The number that `text` is; None when it is none, or has more digits than any page or chapter.

    `int` takes what people would not call a number, and raises ValueError beyond 4,300 digits.
    """
    digits = text.strip()
    return int(digits) if digits.isdecimal() and len(digits) <= MAX_DIGITS else None
