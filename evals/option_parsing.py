"""Reads the option that a model names in words. Strict: no clear single option is unparsed, never a guess."""

from __future__ import annotations

import re
from collections.abc import Sequence

from evals.metrics.key_facts import normalize

LETTERS = "ABCDEFGH"
_LETTER = re.compile(
    r"(?i:answer|option|choice|答案|选项|选)\s*(?:(?i:is)|:|：|是|为)?\s*\**\(?"
    r"(?:([A-H])(?![A-Za-z])|([a-h])(?=\**\)?\s*(?:[.,;:)]|$)))"  # "the answer is a warp" names no option
    r"|^\s*\**\(?([A-Ha-h])\**(?:[).:]|\b\**\s*$)",
    re.MULTILINE,
)


def parse_option(text: str, choices: Sequence[str]) -> int | None:
    """Index of the option that `text` names by letter or in full, None when none or several are named."""
    letters = {"".join(groups).upper() for groups in _LETTER.findall(text)}
    named = {LETTERS.index(letter) for letter in letters if LETTERS.index(letter) < len(choices)}
    if len(named) == 1:
        return named.pop()
    if named:
        return None
    said = normalize(text)
    quoted = [index for index, choice in enumerate(choices) if normalize(choice) and normalize(choice) in said]
    # An option that is part of a longer named option does not count as named.
    quoted = [i for i in quoted if not any(i != j and normalize(choices[i]) in normalize(choices[j]) for j in quoted)]
    return quoted[0] if len(quoted) == 1 else None


def choice_prompt(question: str, choices: Sequence[str]) -> str:
    """The question with lettered options and the form of the answer."""
    options = "\n".join(f"{LETTERS[index]}. {choice}" for index, choice in enumerate(choices))
    return f"{question}\n\n{options}\n\nAnswer with the letter of the one right option."
