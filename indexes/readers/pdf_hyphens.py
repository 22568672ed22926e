"""Words that a line's end cut in two: which hyphens were put there by the printer, and which the author wrote."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from indexes.readers.pdf_order import OrderedPage
from indexes.readers.pdf_page import LINE_HYPHEN

_HYPHENS = (LINE_HYPHEN, "-", "\u2010", "\xad")
_OPTION = re.compile(rf"(?:^|\s)-[-{LINE_HYPHEN}]$")
_BROKEN_NAME = re.compile(r"\w(?:[/\\=]|::)$")
_BEFORE, _AFTER = re.compile(r"[\w-]*$"), re.compile(r"\w+")
LEAST_PART = 3
"""Letters of each half of a compound at least; shorter halves are words by chance."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """How often each word stands whole in a book, and whether its printer cuts words; browsers do not, unasked."""

    words: Counter[str]
    hyphenates: bool


def vocabulary_of(pages: Iterable[OrderedPage]) -> Vocabulary:
    """The words of a book, last words of lines aside and what follows a hyphen: they may be halves."""
    words: Counter[str] = Counter()
    cuts: list[tuple[str, str]] = []
    is_cut = False
    for page in pages:
        for line in page.lines:
            whole = line.text.split(" ")[is_cut:-1]
            is_cut = line.text.endswith(_HYPHENS)
            for word in whole:
                words[re.sub(r"^\W+|\W+$", "", word).casefold()] += 1
        for line, following in pairwise(page.lines):
            if not line.mono and line.text.endswith(_HYPHENS):
                before, after = _BEFORE.search(line.text[:-1]), _AFTER.match(following.text)
                if before and after and after[0][0].islower():
                    cuts.append((before[0].casefold(), after[0].casefold()))
    cut = sum(words[before + after] > words[f"{before}-{after}"] for before, after in cuts)
    kept = sum(_is_compound(before, after, words) for before, after in cuts if not words[before + after])
    return Vocabulary(words, cut >= kept)


def joined_lines(text: str, addition: str, vocabulary: Vocabulary) -> tuple[str, int]:
    """The two with what belongs between them, and where `addition` begins."""
    if text.endswith(_HYPHENS) and len(text) > 1 and text[-2].isalnum():
        text = _mended(text, addition, vocabulary)
    elif _OPTION.search(text):
        text = text[:-2] + "--"
    elif not (_BROKEN_NAME.search(text) or (_is_cjk(text[-1]) and _is_cjk(addition[:1]))):
        text += " "
    return text + addition, len(text)


def _mended(text: str, addition: str, vocabulary: Vocabulary) -> str:
    """`text` up to its final hyphen, which goes unless the author wrote the word with it."""
    found_before, found_after = _BEFORE.search(text[:-1]), _AFTER.match(addition)
    if found_before is None or found_after is None or text[-2].isdigit():
        return text[:-1] + "-"
    before, after, words = found_before[0].casefold(), found_after[0].casefold(), vocabulary.words
    plain, hyphened = words[before + after], words[f"{before}-{after}"]
    if not vocabulary.hyphenates or (not found_after[0][0].islower() and not plain):
        return text[:-1] + "-"
    keep = hyphened > plain or (not plain and _is_compound(before, after, words))
    return text[:-1] + "-" if keep else text[:-1]


def _is_compound(before: str, after: str, words: Counter[str]) -> bool:
    """True when the book has both halves as words, or the whole with its hyphen."""
    last = before.rpartition("-")[2]
    if words[f"{before}-{after}"]:
        return True
    halves = min(len(last), len(after)) >= LEAST_PART and words[last] > 0 and words[after] > 0
    return not words[last + after] and (halves or (last != before and words[after] > 0))


def _is_cjk(letter: str) -> bool:
    return (bool(letter) and "\u3000" <= letter <= "\u9fff") or "\uff00" <= letter <= "\uffef"
