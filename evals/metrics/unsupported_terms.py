"""Numbers and code identifiers in an answer that stand in none of its passages: a made-up `cudaXyz` needs no judge.

    rate = terms of the answer in no passage and not in the question / terms of the answer

A term is a number or a code identifier as `rag.wording` reads them. Markers such as `[1]` and list numbering do not
count. Edge cases: an answer without such terms -> None.
"""

from __future__ import annotations

import re

from rag.wording import wording

_MARKER = re.compile(r"(?<![\w)\]])\s?\[\d{1,3}\](?:\[\d{1,3}\])*|(?<=[.!?])\[\d{1,3}\]|^\s*\d+[.)]\s", re.MULTILINE)


def without_markers(answer: str) -> str:
    """The answer without citation markers and list numbers."""
    return _MARKER.sub(" ", answer)


def unsupported_term_rate(answer: str, passages: str, question: str = "") -> float | None:
    """0.0 to 1.0; None when the answer has no such term."""
    said, read, asked = wording(without_markers(answer)), wording(passages), wording(question)
    terms = said.identifiers | said.numbers
    if not terms:
        return None
    known = read.identifiers | read.numbers | read.stems | asked.identifiers | asked.numbers | asked.stems
    return len(terms - known) / len(terms)
