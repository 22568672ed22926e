"""What the program says, put into another language: messages of its errors and jobs, and the page of a report.

A message is looked up by its template, and its arguments take the places of `{0}`, `{1}` there, themselves translated.
A report is text already: there `{}` stands for anything, which is put into the same place. The page has its own texts.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from pathlib import Path

from indexes.messages import Message

TRANSLATED = ("zh",)
_UNTOUCHED = re.compile(r"(?s)(<style>.*?</style>|<code>.*?</code>|<[^>]*>)")
_SENTENCE_END = re.compile(r"(?<=[.?!]) (?=[A-Z\d])")
_LISTS = (("; ", "；"), (", ", "，"), (": ", "："))
_Phrases = tuple[tuple[tuple[str, ...], str], ...]
"""English texts as the pieces round their gaps, each with its translation."""


def translate(text: str, language: str) -> str:
    """A message of the program in another language; as it is where the table of that language does not have it."""
    template, arguments = (text.template, text.arguments) if isinstance(text, Message) else (text, ())
    own = _messages(language).get(_key(template))
    if own is None or (not arguments and "{" in own):
        return text
    return own.format(*(translate(each, language) for each in arguments))


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


def _key(template: str) -> str:
    """A template as the table is asked: its first letter and its full stop depend on where it stands."""
    return template.strip().removesuffix(".").lower()


@cache
def _messages(language: str) -> dict[str, str]:
    """The messages by their English templates; none for English."""
    path = Path(__file__).with_name(f"messages.{language}.json")
    table: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {_key(english): own for english, own in table.items()}


@cache
def _report_table() -> tuple[dict[str, str], _Phrases]:
    """The texts of reports without gaps, and those with."""
    lines = files("evals").joinpath("templates", "report.zh.tsv").read_text(encoding="utf-8").splitlines()
    table = dict(line.split("\t") for line in lines)
    return table, _phrases(row for row in table.items() if "{}" in row[0])


def _phrases(rows: Iterable[tuple[str, str]]) -> _Phrases:
    return tuple((tuple(english.split("{}")), own) for english, own in rows)
