"""Which language a question is in: Chinese or anything else, told by its script alone."""

from __future__ import annotations

import re

_CJK = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]")
_LATIN_WORD = re.compile(r"[A-Za-z]{2,}")


def is_chinese(text: str) -> bool:
    """Whether `text` reads as Chinese; English terms inside a Chinese question do not make it English.

    A Chinese word has about two characters, so pairs of characters are weighed against Latin words.
    """
    characters = len(_CJK.findall(text))
    return characters >= 2 and characters / 2 >= 0.25 * len(_LATIN_WORD.findall(text))
