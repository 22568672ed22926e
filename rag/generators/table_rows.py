"""A long table cut down to the rows that a question asks for, under its own header."""

from __future__ import annotations

import math
import re
from collections import Counter

from rag.wording import count_words, wording

SHORT_TABLE_WORDS = 60
"""A table of at most so many words is kept whole."""
ROWS_WORDS = 45
"""Most words of the rows that are kept of a longer one; the best row is kept however long it is."""
_RULE = re.compile(r"^[ \t]*\|?[ \t]*:?-{3,}.*$")


def answering_rows(question: str, table: str) -> str:
    """A Markdown table with its header and the rows that hold most of the question's wording, in their order.

    Short tables, tables without a header and tables of which no row holds any of it come back as they are.
    """
    lines = table.split("\n")
    if len(lines) < 4 or not _RULE.match(lines[1]) or count_words(table) <= SHORT_TABLE_WORDS:
        return table
    rows = lines[2:]
    asked = wording(question).pieces
    held = [asked & wording(row).pieces for row in rows]
    frequency = Counter(piece for pieces in held for piece in pieces)
    shares = [sum(math.log(1 + len(rows) / (0.5 + frequency[piece])) for piece in pieces) for pieces in held]
    best_first = sorted((row for row in range(len(rows)) if shares[row] > 0), key=lambda row: -shares[row])
    left = ROWS_WORDS
    kept: list[int] = []
    for row in best_first:
        left -= count_words(rows[row])
        if kept and (left < 0 or shares[row] < shares[best_first[0]] / 2):
            break
        kept.append(row)
    return "\n".join([*lines[:2], *(rows[row] for row in sorted(kept))]) if kept else table
