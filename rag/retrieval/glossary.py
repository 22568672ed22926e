"""Chinese terms of GPU programming in English, for embedded models that read English only.

`glossary.tsv` holds one entry a line: Chinese forms separated by `|`, a tab, the English words that an English book
would use. A question is covered with entries so that as few characters as possible stay uncovered, then by the fewest
entries: 共享内存 is `shared memory`, not 共享 and 内存 apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

_PIECE = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]+|[A-Za-z_][\w.:<>+#-]*(?:\(\))?|\d[\d.,]*(?:\s?[A-Za-z%]+)?")
_CJK = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]")


@cache
def load_glossary() -> Mapping[str, str]:
    """Chinese form -> English words.

    Raises:
        ValueError: a line without a tab, or a form that stands twice; named by its number.
    """
    entries: dict[str, str] = {}
    text = files("rag.retrieval").joinpath("glossary.tsv").read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        forms, tab, english = line.partition("\t")
        if not tab or not english.strip():
            raise ValueError(f"glossary.tsv:{number}: no tab between Chinese and English: {line!r}")
        for form in forms.split("|"):
            if form in entries:
                raise ValueError(f"glossary.tsv:{number}: {form!r} stands twice")
            entries[form] = "" if english.strip() == "-" else english.strip()
    return entries


def translate_terms(text: str) -> str:
    """The English words for the Chinese terms of `text`, its own Latin words and numbers kept, in its order."""
    return " ".join(word for word in (_word(piece) for piece in _PIECE.findall(text)) if word)


def _word(piece: str) -> str:
    if not _CJK.match(piece):
        return piece.rstrip(".,:")
    return " ".join(english for english in cover(piece) if english)


def cover(run: str) -> tuple[str, ...]:
    """English for a run of Chinese characters; characters that no entry covers are left out."""
    glossary = load_glossary()
    longest = _longest_form()
    best: list[tuple[int, int, tuple[str, ...]]] = [(0, 0, ())]
    for end in range(1, len(run) + 1):
        missed, parts, words = best[end - 1]
        options = [(missed + 1, parts, words)]
        for start in range(max(0, end - longest), end):
            english = glossary.get(run[start:end])
            if english is not None:
                missed, parts, words = best[start]
                options.append((missed, parts + 1, (*words, english)))
        best.append(min(options, key=lambda option: option[:2]))
    return best[-1][2]


@cache
def _longest_form() -> int:
    return max(map(len, load_glossary()), default=1)
