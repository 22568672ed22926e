"""Compares texts without a model: normalized text, key facts, tokens and n-grams."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from indexes.words import CJK

Embed = Callable[[Sequence[str]], NDArray[np.float32]]
"""Texts to unit vectors, float32 `(num_texts, dim)`."""

NEAR_DUPLICATE_COSINE = 0.95
"""Least cosine at which two questions count as the same question in other words."""

_THOUSANDS = re.compile(r"(?<=\d)[,\u202f\u2009](?=\d{3}\b)")
_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")
_SPACE = re.compile(r"\s+")
_DASHES = str.maketrans({"‐": "-", "‑": "-", "–": "-", "—": "-", "−": "-", "’": "'", "‘": "'", "“": '"', "”": '"'})
_TOKEN = re.compile(f"[a-z0-9_]+|[{CJK}]")


@lru_cache(maxsize=4096)
def normalize(text: str) -> str:
    """Evens out case, white space, dashes, quotes, thousands commas, Markdown's emphasis, escapes; names stay whole."""
    text = unicodedata.normalize("NFKC", text).translate(_DASHES).casefold()
    text = _THOUSANDS.sub("", text)
    text = _ESCAPED.sub(r"\1", text)
    text = text.replace("`", "").replace("**", "").replace("$", "").replace("\\times", "x").replace("×", "x")
    return _SPACE.sub(" ", text).strip()


def fact_met(fact: str, text: str) -> bool:
    """Whether `text` states one of the fact's alternatives (separated by `|`), as whole words after `normalize`."""
    normalized = normalize(text)
    return any(_whole_words(alternative).search(normalized) for alternative in fact.split("|") if alternative.strip())


@lru_cache(maxsize=16384)
def _whole_words(alternative: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![a-z0-9_]){re.escape(normalize(alternative))}(?![a-z0-9_])")


def tokens(text: str) -> list[str]:
    """Tokens of the normalized text: words of letters, digits and `_`, and single Chinese characters."""
    return _TOKEN.findall(normalize(text))


def ngrams(text: str, size: int) -> list[tuple[str, ...]]:
    """Every run of `size` tokens, in order."""
    words = tokens(text)
    return [tuple(words[start : start + size]) for start in range(len(words) - size + 1)]
