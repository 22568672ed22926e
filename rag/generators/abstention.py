"""Recognises an answer that says it has no answer, as the system text asks for: one sentence, nothing cited."""

from __future__ import annotations

import re

_MOST_CHARACTERS = 400
_CITED = re.compile(r"\[\d+\]")
_DENIES = re.compile(
    r"\b(?:do(?:es)?|did|is|are|was|were|can|could)(?: not|n['’]t)\b[^.]{0,60}"
    r"\b(?:answer|contain|mention|say|state|provide|specify|cover|discuss|describe|address|include|give|find|know)"
    r"|\bcannot\b[^.]{0,40}\b(?:answer|be (?:answered|found|determined)|find|determine)"
    r"|\bno (?:information|mention|answer|passage)\b|\bnot (?:answered|mentioned|covered|stated|found|specified)\b"
    r"|没有(?:提到|提及|说明|回答|包含|给出|涉及|相关)|未(?:提到|提及|说明|涉及|给出)|无法(?:回答|确定|从)|不知道",
    re.IGNORECASE,
)


def says_unknown(answer: str) -> bool:
    """True when a short answer without citations says that the passages (or the model) do not know."""
    text = answer.strip()
    return 0 < len(text) <= _MOST_CHARACTERS and not _CITED.search(text) and bool(_DENIES.search(text))
