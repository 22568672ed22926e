"""Chinese questions in English words, for books and embedding models that read English.

`glossary.tsv` holds one entry per line: Chinese forms separated by `|`, a tab, the English words that an English book
would use: the best rendering first, after ` / ` other words that books use too. Sections begin with `#`; those whose
name begins with `Everyday words` hold no terms of the subject. A question is covered with entries so that as few
characters as possible stay uncovered, then by the fewest entries: 共享内存 is `shared memory`, not 共享 and 内存 apart.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from indexes.words import CJK, is_chinese

_PIECE = re.compile(rf"[{CJK}]+|[A-Za-z_][\w.:<>+#-]*(?:\(\))?|\d[\d.,]*(?:\s?[A-Za-z%]+)?")
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
    """Tells who asks in Chinese that all the texts found are English, with the question's key terms; else None."""
    if not texts or not is_chinese(question) or any(map(is_chinese, texts)):
        return None
    terms = "，".join(f"{chinese} = {english}" for chinese, english in key_terms(question))
    return f"书是英文的；关键词：{terms}。" if terms else "书是英文的。"


def cover(run: str) -> tuple[Rendering, ...]:
    """Renderings for a run of Chinese characters; characters that no entry covers are left out."""
    glossary = load_glossary()
    longest = _longest_form()
    best: list[tuple[int, int, tuple[Rendering, ...]]] = [(0, 0, ())]
    for end in range(1, len(run) + 1):
        missed, parts, found = best[end - 1]
        options = [(missed + 1, parts, found)]
        for start in range(max(0, end - longest), end):
            rendering = glossary.get(run[start:end])
            if rendering is not None:
                missed, parts, found = best[start]
                options.append((missed, parts + 1, (*found, rendering)))
        best.append(min(options, key=lambda option: option[:2]))
    return best[-1][2]


@cache
def _longest_form() -> int:
    return max(map(len, load_glossary()), default=1)
