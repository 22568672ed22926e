"""How much of a question's wording stands close together in a text.

The stems of the question are searched for as beginnings of words with one regular expression: no text is cut into
words, so that scoring thirty candidates costs a few milliseconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from rag.wording import wording

WINDOW_CHARACTERS = 160
"""About one sentence; 160, 260 and 400 rank alike."""


def closeness(question: str, texts: Sequence[str]) -> list[float]:
    """For each text the share, 0 to 1, of the question's wording within its best stretch of `WINDOW_CHARACTERS`.

    Pieces weigh by their inverse frequency among `texts`; those that no text holds are left out.
    """
    pieces = sorted(wording(question).pieces, key=len, reverse=True)
    if not pieces:
        return [0.0] * len(texts)
    pattern = re.compile("|".join(_as_beginning(piece) for piece in pieces), re.IGNORECASE)
    found = [[(match.start(), match.group().lower()) for match in pattern.finditer(text)] for text in texts]
    frequency: dict[str, int] = {}
    for matches in found:
        for piece in {piece for _, piece in matches}:
            frequency[piece] = frequency.get(piece, 0) + 1
    weight = {piece: math.log(1 + len(texts) / (0.5 + count)) for piece, count in frequency.items()}
    total = sum(weight.values()) or 1.0
    return [_best(matches, weight) / total for matches in found]


def _as_beginning(piece: str) -> str:
    ascii_start = piece[0].isascii() and (piece[0].isalnum() or piece[0] == "_")
    return ("(?<![A-Za-z0-9])" if ascii_start else "") + re.escape(piece)


def _best(matches: Sequence[tuple[int, str]], weight: dict[str, float]) -> float:
    """Greatest weight of different pieces within one window."""
    best = held = 0.0
    inside: dict[str, int] = {}
    first = 0
    for position, piece in matches:
        inside[piece] = inside.get(piece, 0) + 1
        if inside[piece] == 1:
            held += weight[piece]
        while position - matches[first][0] > WINDOW_CHARACTERS:
            gone = matches[first][1]
            inside[gone] -= 1
            if inside[gone] == 0:
                held -= weight[gone]
            first += 1
        best = max(best, held)
    return best
