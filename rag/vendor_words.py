"""Other words for the same thing: where the books lack LDS, a question about it is asked about shared memory.

`vendor_words.tsv` holds one thing per line: its words separated by `|`, then, after a tab, words that mean it in some
books and something else in others (OpenCL's local memory): they are taken where the books have no other, and a question
that has them is left as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from indexes.types import Filters
from rag.types import SearchableLibrary

_READ = 10
"""Nodes that are looked at for a word of several parts, such as `thread block`."""


@dataclass(frozen=True, slots=True)
class OtherWords:
    """A word of a question that the books lack, and the words that they have for it, at least one."""

    asked: str
    found: tuple[str, ...]


def find_other_words(question: str, library: SearchableLibrary, filters: Filters) -> tuple[OtherWords, ...]:
    """For each word of the table in `question` that no book has: the words for the same thing that the books do have.

    Args:
        question: in English words.
        filters: books that are searched.
    """
    found = []
    for asked, also in _load_table():
        for word in asked:
            if _pattern(word).search(question) and not _occurs(word, library, filters):
                held = _held(asked, library, filters) or _held(also, library, filters)
                if held:
                    found.append(OtherWords(word, held))
    return tuple(found)


def put_into_books_words(text: str, others: Iterable[OtherWords]) -> str:
    """`text` with the books' word in place of each one that they lack."""
    for other in others:
        text = _pattern(other.asked).sub(other.found[0], text)
    return text


@cache
def _load_table() -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
    """For each line the words before the tab, and those after it."""
    text = files("rag").joinpath("vendor_words.tsv").read_text(encoding="utf-8")
    lines = (line.partition("\t") for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return tuple((tuple(asked.split("|")), tuple(filter(None, also.split("|")))) for asked, _, also in lines)


def _held(words: Iterable[str], library: SearchableLibrary, filters: Filters) -> tuple[str, ...]:
    return tuple(word for word in words if _occurs(word, library, filters))


def _occurs(word: str, library: SearchableLibrary, filters: Filters) -> bool:
    return any(
        _pattern(word).search(" ".join((*hit.node.heading_path, hit.node.text)))
        for hit in library.lexical(word, _READ, filters)
    )


@cache
def _pattern(word: str) -> re.Pattern[str]:
    """Finds a word with hyphens or without, in the plural too; `LDS` only in capitals."""
    parts = r"[\s-]?".join(map(re.escape, re.split(r"[\s-]", word)))
    return re.compile(rf"(?<!\w){parts}(?:e?s)?(?!\w)", 0 if word.isupper() else re.IGNORECASE)
