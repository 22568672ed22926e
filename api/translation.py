"""A report's page and texts in Chinese; `{}` in a text stands for anything, which is put into the same place.

Messages of the program are another matter: they keep their template and arguments (`indexes/messages.py`), and the page
says them with `api/page/messages.zh.json`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files

_UNTOUCHED = re.compile(r"(?s)(<style>.*?</style>|<code>.*?</code>|<[^>]*>)")
_SENTENCE_END = re.compile(r"(?<=[.?!]) (?=[A-Z\d])")
_LISTS = (("; ", "；"), (", ", "，"), (": ", "："))
_Phrases = tuple[tuple[tuple[str, ...], str], ...]
"""English texts as the pieces round their gaps, each with its translation."""


def report_in_chinese(page: str) -> str:
    """A report's page in Chinese; questions, names, numbers and what the table lacks stay as they are."""
    pieces = _UNTOUCHED.split(page.replace('<html lang="en">', '<html lang="zh-CN">', 1))
    return "".join(piece if place % 2 else _piece(piece) for place, piece in enumerate(pieces))


def report_text_in_chinese(text: str) -> str:
    """A text of a report in Chinese, English where the table lacks it."""
    return _of_report(text) or text


def _piece(text: str) -> str:
    plain = " ".join(html.unescape(text).split())
    found = _of_report(plain) if plain else None
    return text if found is None else html.escape(found, quote=False)


def _of_report(text: str) -> str | None:
    """A text in Chinese: as a whole, or sentence by sentence; None where a part of it is not in the table."""
    exact, phrases = _report_table()
    if text in exact:
        return exact[text]
    sentences = _SENTENCE_END.split(text)
    if len(sentences) > 1 and all(found := [_of_report(one) for one in sentences]):
        return "".join(one or "" for one in found)
    for pieces, template in phrases:
        gaps = _gaps(text, pieces)
        if gaps is not None:
            parts = [_inner(text[start:end]) for start, end in gaps]
            return template.format("", *parts) if re.search(r"{\d}", template) else template.format(*parts)
    return None


def _inner(text: str) -> str:
    """A part of a text: as the table has it, as a list of such, or as it is."""
    if found := _of_report(text):
        return found
    for mark, chinese in _LISTS:
        if mark in text:
            parts = [_of_report(part) for part in text.split(mark)]
            if any(parts):
                return chinese.join(one or _inner(part) for one, part in zip(parts, text.split(mark), strict=True))
            if mark == "; ":
                return chinese.join(map(_inner, text.split(mark)))
    return text


def _gaps(text: str, pieces: tuple[str, ...]) -> list[tuple[int, int]] | None:
    """Where the gaps between `pieces` stand in `text`, each at least one character; None if the text is none of these.

    Every piece is taken where it first stands, which leaves most to the pieces after it: no second try, so the time
    is linear in the text.
    """
    first, *rest = pieces
    if not rest:
        return [] if text == first else None
    *inner, last = rest
    start, stop = len(first), len(text) - len(last)
    if not (text.startswith(first) and text.endswith(last)):
        return None
    gaps = []
    for piece in inner:
        found = text.find(piece, start + 1, stop)
        if found < 0:
            return None
        gaps.append((start, found))
        start = found + len(piece)
    return [*gaps, (start, stop)] if start < stop else None


@cache
def _report_table() -> tuple[dict[str, str], _Phrases]:
    """The texts of reports without gaps, and those with."""
    lines = files("evals").joinpath("templates", "report.zh.tsv").read_text(encoding="utf-8").splitlines()
    table = dict(line.split("\t") for line in lines)
    return table, _phrases(row for row in table.items() if "{}" in row[0])


def _phrases(rows: Iterable[tuple[str, str]]) -> _Phrases:
    return tuple((tuple(english.split("{}")), own) for english, own in rows)
