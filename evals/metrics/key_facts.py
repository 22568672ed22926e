"""Key-fact recall: the share of a question's key facts that an answer states.

    recall = (facts met) / (facts)

A fact is met when one of its alternatives (separated by `|`) stands in the answer as whole words, after case,
white space, typographic dashes and quotes, thousands commas and Markdown emphasis are levelled; `_`, `-`, `()` inside
identifiers are kept. String matching with aliases follows ASQA and ALCE (str-EM); it needs no judge.

Edge cases: no key facts -> None (unscored, not zero); an empty answer -> 0.0.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

_THOUSANDS = re.compile(r"(?<=\d)[,\u202f\u2009](?=\d{3}\b)")
_SPACE = re.compile(r"\s+")
_DASHES = str.maketrans({"‐": "-", "‑": "-", "–": "-", "—": "-", "−": "-", "’": "'", "‘": "'", "“": '"', "”": '"'})


@lru_cache(maxsize=4096)
def normalize(text: str) -> str:
    """Levels what should not decide whether a fact stands in a text."""
    text = unicodedata.normalize("NFKC", text).translate(_DASHES).casefold()
    text = _THOUSANDS.sub("", text)
    text = text.replace("`", "").replace("**", "").replace("$", "").replace("\\times", "x").replace("×", "x")
    return _SPACE.sub(" ", text).strip()


@lru_cache(maxsize=16384)
def _pattern(alternative: str) -> re.Pattern[str]:
    text = re.escape(normalize(alternative))
    return re.compile(rf"(?<![a-z0-9_]){text}(?![a-z0-9_])")


def fact_met(fact: str, text: str) -> bool:
    """Whether one alternative of `fact` stands in `text`."""
    levelled = normalize(text)
    return any(_pattern(alternative).search(levelled) for alternative in fact.split("|") if alternative.strip())


def key_fact_recall(facts: Sequence[str], answer: str) -> float | None:
    """Share of `facts` met by `answer`, 0.0 to 1.0; None without facts."""
    if not facts:
        return None
    return sum(fact_met(fact, answer) for fact in facts) / len(facts)
