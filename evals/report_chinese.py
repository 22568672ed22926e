"""A report's page in Chinese: its texts by a table; questions, names and numbers stay as they are.

`templates/report.zh.tsv` holds an English text, a tab, and the Chinese one. `{}` stands for anything, which is put into
the same place (into that of `{2}` the second of them), and is itself put into Chinese where the table has it.
"""

from __future__ import annotations

import html
import re
from functools import cache
from importlib.resources import files

_KEPT = re.compile(r"(?s)(<style>.*?</style>|<code>.*?</code>|<[^>]*>)")
_SENTENCE_END = re.compile(r"(?<=[.?!]) (?=[A-Z\d])")
_LISTS = (("; ", "；"), (", ", "，"), (": ", "："))


def in_chinese(page: str) -> str:
    """The page in Chinese; a text that the table lacks stays English."""
    pieces = _KEPT.split(page.replace('<html lang="en">', '<html lang="zh-CN">', 1))
    return "".join(piece if place % 2 else _piece(piece) for place, piece in enumerate(pieces))


def text_in_chinese(text: str) -> str:
    """A text of a report in Chinese, English where the table lacks it."""
    return _translated(text) or text


def _piece(text: str) -> str:
    said = " ".join(html.unescape(text).split())
    found = _translated(said) if said else None
    return text if found is None else html.escape(found, quote=False)


def _translated(text: str) -> str | None:
    """A text in Chinese: as a whole, or sentence by sentence; None where a part of it is not in the table."""
    exact, patterns = _table()
    if text in exact:
        return exact[text]
    sentences = _SENTENCE_END.split(text)
    if len(sentences) > 1 and all(found := [_translated(one) for one in sentences]):
        return "".join(one or "" for one in found)
    for pattern, chinese in patterns:
        if match := pattern.fullmatch(text):
            parts = [_inner(part) for part in match.groups()]
            return chinese.format("", *parts) if re.search(r"{\d}", chinese) else chinese.format(*parts)
    return None


def _inner(text: str) -> str:
    """A part of a text: as the table has it, as a list of such, or as it is."""
    if found := _translated(text):
        return found
    for mark, chinese in _LISTS:
        if mark in text:
            parts = [_translated(part) for part in text.split(mark)]
            if any(parts):
                return chinese.join(one or _inner(part) for one, part in zip(parts, text.split(mark), strict=True))
            if mark == "; ":
                return chinese.join(map(_inner, text.split(mark)))
    return text


@cache
def _table() -> tuple[dict[str, str], tuple[tuple[re.Pattern[str], str], ...]]:
    lines = files("evals").joinpath("templates", "report.zh.tsv").read_text(encoding="utf-8").splitlines()
    pairs = dict(line.split("\t") for line in lines)
    patterns = (
        (re.compile("(.+?)".join(map(re.escape, english.split("{}")))), chinese)
        for english, chinese in pairs.items()
        if "{}" in english
    )
    return {english: chinese for english, chinese in pairs.items() if "{}" not in english}, tuple(patterns)
