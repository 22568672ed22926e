"""A question in the books' words: Chinese terms in English, one maker's names for another's.

**Glossary.** `glossary.tsv` holds one entry per line: Chinese forms separated by `|`, a tab, the English words that an
English book would use: the best rendering first, after ` / ` other words that books use too. Sections begin with `#`;
those whose name begins with `Everyday words` hold no terms of the subject. A question is covered with entries so that
as few characters as possible stay uncovered, then by the fewest entries: 共享内存 is `shared memory`, not 共享 and 内存
apart.

**Other words for the same thing.** Where the books lack LDS, a question about it is asked about shared memory.
`vendor_words.tsv` holds one thing per line: its words separated by `|`, then, after a tab, words that mean it in some
books and something else in others (OpenCL's local memory): they are taken where the books have no other, and a question
that has them is left as it is.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from indexes.types import Filters
from indexes.words import CJK, chinese_words, is_chinese
from rag.types import SearchableLibrary

_PIECE = re.compile(rf"[{CJK}]+|[A-Za-z_][A-Za-z0-9_.:<>+#-]*(?:\(\))?|\d[\d.,]*(?:\s?[A-Za-z%]+)?")
_CJK = re.compile(f"[{CJK}]")

SYNONYMS = " / "
NOTHING = "-"
"""The English of words that say nothing in a search (的, 了, 请问)."""
EVERYDAY = "# Everyday words"
KEY_TERMS = 4


@dataclass(frozen=True, slots=True)
class Rendering:
    """English for a Chinese term.

    Attributes:
        chinese: the form as the question has it.
        best: reads as part of a sentence; empty for words that say nothing.
        others: further words to look for.
        technical: whether it is a term of the subject, not an everyday word.
    """

    chinese: str
    best: str
    others: str
    technical: bool


@cache
def load_glossary() -> Mapping[str, Rendering]:
    """Chinese form -> English.

    Raises:
        ValueError: a line without a tab, or a form given twice; the line is named by its number.
    """
    entries: dict[str, Rendering] = {}
    technical = True
    text = files("rag").joinpath("glossary.tsv").read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            technical = not line.startswith(EVERYDAY)
            continue
        forms, _, english = line.partition("\t")
        if not english.strip():
            raise ValueError(f"glossary.tsv:{number}: no tab between Chinese and English: {line!r}")
        best, _, others = english.strip().partition(SYNONYMS)
        for form in forms.split("|"):
            if form in entries:
                raise ValueError(f"glossary.tsv:{number}: {form!r} is given twice")
            entries[form] = Rendering(form, "" if best == NOTHING else best, others, technical)
    return entries


def translate_terms(text: str, *, synonyms: bool = False) -> str:
    """The English words for the Chinese terms of `text`, its own Latin words and numbers kept, in its order.

    Args:
        synonyms: also the other words that books use, for a lexical search.
    """
    words: list[str] = []
    for piece in _PIECE.findall(text):
        if not _CJK.match(piece):
            words.append(piece.rstrip(".,:"))
            continue
        for rendering in cover(piece):
            words.extend((rendering.best, rendering.others) if synonyms else (rendering.best,))
    return " ".join(word for word in words if word)


def key_terms(text: str) -> list[tuple[str, str]]:
    """Terms of the subject in a Chinese text with their English, at most `KEY_TERMS`, the longest, in its order."""
    found = {
        rendering.chinese: rendering.best
        for piece in _PIECE.findall(text)
        if _CJK.match(piece)
        for rendering in cover(piece)
        # A lone character is often part of a word that the glossary lacks.
        if rendering.technical and rendering.best and len(rendering.chinese) > 1
    }
    longest = sorted(found, key=lambda term: -len(term))[:KEY_TERMS]
    return [(term, english) for term, english in found.items() if term in longest]


def note_on_english(question: str, texts: Collection[str]) -> str | None:
    """A note for a Chinese question whose passages are all English, with the English of its key terms; else None."""
    if not texts or not is_chinese(question) or any(map(is_chinese, texts)):
        return None
    terms = "，".join(f"{chinese} = {english}" for chinese, english in key_terms(question))
    return f"书是英文的；关键词：{terms}。" if terms else "书是英文的。"


def cover(run: str) -> tuple[Rendering, ...]:
    """Renderings for a run of Chinese characters; characters that no entry covers are left out."""
    return tuple(rendering for _, _, rendering in _parts(run) if rendering is not None)


def unknown_nouns(text: str) -> tuple[str, ...]:
    """The Chinese nouns of `text` that the glossary lacks, so that a search leaves them out: 贷款 (loan).

    A lone character does not count, and its entry does not make a longer word known: 天空 (sky) is not 天 (day) and
    空 (empty). What the dictionary joins across an entry's end does not count either.
    """
    glossary = load_glossary()
    found: list[str] = []
    for run in _PIECE.findall(text):
        if not _CJK.match(run):
            continue
        part_at = [part for part in _parts(run) for _ in range(part[0], part[1])]
        end = 0
        for word, noun in chinese_words(run):
            start, end = end, end + len(word)
            within = part_at[start:end]
            crossed = within[0][0] < start or within[-1][1] > end
            missed = any(rendering is None or last - first == 1 for first, last, rendering in within)
            if noun and len(word) > 1 and word not in glossary and missed and not crossed:
                found.append(word)
    return tuple(found)


def _parts(run: str) -> list[tuple[int, int, Rendering | None]]:
    """A run of Chinese characters in entries of the glossary, from where to where; None for a character without one."""
    glossary = load_glossary()
    longest = _longest_form()
    best: list[tuple[int, int, int, Rendering | None]] = [(0, 0, 0, None)]  # missed, parts, where the last one starts
    for end in range(1, len(run) + 1):
        missed, parts, *_ = best[end - 1]
        options: list[tuple[int, int, int, Rendering | None]] = [(missed + 1, parts, end - 1, None)]
        for start in range(max(0, end - longest), end):
            rendering = glossary.get(run[start:end])
            if rendering is not None:
                missed, parts, *_ = best[start]
                options.append((missed, parts + 1, start, rendering))
        best.append(min(options, key=lambda option: option[:2]))
    found: list[tuple[int, int, Rendering | None]] = []
    end = len(run)
    while end:
        *_, start, rendering = best[end]
        found.append((start, end, rendering))
        end = start
    return found[::-1]


@cache
def _longest_form() -> int:
    return max(map(len, load_glossary()), default=1)


# --- other words for the same thing

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
