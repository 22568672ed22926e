"""The one splitter: cuts a text into sentences, list items, listings, tables, formulas and headings, with offsets.

Technical prose breaks ordinary splitters: `e.g.`, `Fig. 3`, version numbers, `a.b()` in running text, sentences that
begin with a lower-case identifier, bullets without full stops. The rules are a few regular expressions, no model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

from indexes.words import STOP_WORDS

SpanKind: TypeAlias = Literal["sentence", "item", "code", "table", "formula", "heading"]

_FENCE = re.compile(r"^[ \t]*(`{3,}(?=[^`]*$)|~{3,})")
_FORMULA = re.compile(r"^[ \t]*\$\$")
_HEADING = re.compile(r"^[ \t]{0,3}#{1,6}[ \t]+\S")
_PIPE_ROW = re.compile(r"^[ \t]*\|.*\|[ \t]*$")
_RULE = re.compile(r"^[ \t]*([-=*_~^\"'.+#])\1{2,}[ \t]*$")
_BULLET = re.compile(r"^[ \t]*([-*+•‣–]|\(?\d{1,3}[.)]|\(?[a-z][.)])[ \t]+(?=\S)")
_ABBREVIATION = re.compile(
    r"(?:\b(?:e\.?g|i\.?e|cf|vs|approx|resp|incl|esp|viz|figs?|eqs?|secs?|sect|ch|chap|tab|refs?|nos|vol|pp|"
    r"dr|mrs?|(?-i:Ms)|prof|st|jr|sr|ca|dept|a\.k\.a|w\.r\.t))\.$",
    re.IGNORECASE,
)
"""Those after which a sentence goes on: 113 places in seven texts, nearly all of them *e.g.* and *i.e.*"""
_INITIAL = re.compile(r"(?:(?P<named>^\W*|\b[A-Z][\w’'-]*[.,]?\s+)|[\s(])[A-Z]\.$")
"""A letter and a full stop, as of a name behind a word with a capital, or at a sentence's beginning."""
_NEXT_INITIAL = re.compile(r"[A-Z]\.(?!\S)")
_NEXT_WORD = re.compile(r"[^\W\d_]+")
_END = re.compile(r"""[.!?…]+["'”’)\]*_`]*(?=\s|$)|[。！？；]["'”’）」』]*""")
_CODE_SPAN = re.compile(r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)|\$\$.+?\$\$", re.DOTALL)
_NOT_SPACE = re.compile(r"\S")
_STARTS_LOWER_WORD = re.compile(r"[a-z]+(?![\w(]|\.\w|::)")
_LOOKED_BACK = 40
"""Characters looked at before a mark: reading the whole sentence again at each of its marks takes quadratic time."""


@dataclass(frozen=True, slots=True)
class Span:
    """`text[start:end]` is one unit; offsets count code points; no surrounding white space.

    Attributes:
        kind: `item` is a sentence of a list item; `code` includes its fences, `formula` its dollars.
        paragraph: ordinal of the paragraph, list item, listing, table or formula it belongs to.
        indent: columns before the bullet of a list item; 0 for other units.
    """

    start: int
    end: int
    kind: SpanKind
    paragraph: int
    indent: int = 0


@lru_cache(maxsize=4096)
def split_spans(text: str) -> tuple[Span, ...]:
    """All units of `text` in order; between them is only white space, bullets and rules. Kept for recent texts."""
    return tuple(iter_spans(text))


def iter_spans(text: str) -> Iterator[Span]:
    """As `split_spans`, for texts that are cut once."""
    for ordinal, (start, end, kind) in enumerate(_blocks(text)):
        if kind in ("sentence", "item"):
            indent = _indent(text, start) if kind == "item" else 0
            for first, last in _sentences(text, start, end):
                yield Span(first, last, kind, ordinal, indent)
        else:
            yield Span(start, end, kind, ordinal)


def fence_after(text: str, fence: str = "") -> str:
    """The fence of the listing that is open at the end of `text`, "" for none.

    Args:
        fence: that of a listing open at its start.
    """
    for line in text.splitlines():
        fence = _next_fence(line, fence)
    return fence


def _next_fence(line: str, fence: str) -> str:
    """The rule for code fences: a fence is closed by a line of at least as many of its characters and no others."""
    bare = line.strip()
    if fence:
        return "" if bare.startswith(fence) and not bare.strip(fence[0]) else fence
    opened = _FENCE.match(line)
    return opened[1] if opened else ""


def _blocks(text: str) -> Iterator[tuple[int, int, SpanKind]]:
    """Paragraphs, list items, listings, tables, formulas and headings as `(start, end, kind)`, trimmed."""
    open_kind: SpanKind | None = None
    open_start = open_end = 0
    fence = ""

    def close() -> Iterator[tuple[int, int, SpanKind]]:
        nonlocal open_kind
        if open_kind is not None:
            start, end = _trim(text, open_start, open_end)
            if start < end:
                yield start, end, open_kind
        open_kind = None

    for start, end, line in _lines(text):
        if fence:
            open_end = end
            fence = _next_fence(line, fence)
            if not fence:
                yield from close()
        elif fence := _next_fence(line, ""):
            yield from close()
            open_kind, open_start, open_end = "code", start, end
        elif open_kind == "formula":
            open_end = end
            if "$$" in line:
                yield from close()
        elif _FORMULA.match(line) and open_kind != "table":
            yield from close()
            open_kind, open_start, open_end = "formula", start, end
            if line.count("$$") > 1:
                yield from close()
        elif not line.strip():
            yield from close()
        elif _HEADING.match(line):
            yield from close()
            yield (*_trim(text, start, end), "heading")
        elif _PIPE_ROW.match(line) or (open_kind == "table" and "  " in line.strip()):
            if open_kind != "table":
                yield from close()
                open_kind, open_start = "table", start
            open_end = end
        elif _RULE.match(line):
            yield from close()
        elif bullet := _BULLET.match(line):
            yield from close()
            open_kind, open_start, open_end = "item", start + bullet.end(), end
        elif open_kind in ("sentence", "item"):
            open_end = end
        else:
            yield from close()
            open_kind, open_start, open_end = "sentence", start, end
    yield from close()


def _indent(text: str, start: int) -> int:
    """Columns before the bullet of the list item whose words begin at `start`."""
    line = text[text.rfind("\n", 0, start) + 1 : start].expandtabs(4)
    return len(line) - len(line.lstrip())


def _lines(text: str) -> Iterator[tuple[int, int, str]]:
    start = 0
    for line in text.splitlines(keepends=True):
        yield start, start + len(line), line.rstrip("\r\n")
        start += len(line)


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end


def _sentences(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    spans = (match.span() for match in _CODE_SPAN.finditer(text, start, end))
    span_start, span_end = next(spans, (end, end))
    begin = start
    for match in _END.finditer(text, start, end):
        stop = match.end()
        while span_end - 1 <= match.start() and span_start < end:
            span_start, span_end = next(spans, (end, end))
        if span_start < match.start():
            continue
        if stop < end and not _ends_sentence(text, begin, match.start(), stop, end):
            continue
        first, last = _trim(text, begin, stop)
        if first < last:
            yield first, last
        begin = stop
    first, last = _trim(text, begin, end)
    if first < last:
        yield first, last


def _ends_sentence(text: str, begin: int, mark: int, stop: int, end: int) -> bool:
    """Whether the mark at `mark` (its closing quotes end at `stop`) ends the sentence begun at `begin`."""
    if text[mark] in "。！？；":
        return True
    following = _NOT_SPACE.search(text, stop, end)
    if following is None:
        return True
    first = following[0]
    if first in "})]":  # `{ ... }` in running text
        return False
    before = text[max(begin, mark - _LOOKED_BACK) : mark + 1]
    if text[mark] == "." and (_ABBREVIATION.search(before) or _is_initial(before, text, following.start(), end)):
        return False
    return not (first.islower() and _STARTS_LOWER_WORD.match(text, following.start(), end))


def _is_initial(before: str, text: str, start: int, end: int) -> bool:
    """Whether what is before, up to a full stop, ends in an initial of the name that goes on at `start`."""
    initial = _INITIAL.search(before)
    if initial is None:
        return False
    if _NEXT_INITIAL.match(text, start, end):
        return True
    word = _NEXT_WORD.match(text, start, end)
    return bool(initial["named"] is not None and word and word[0][0].isupper() and word[0].lower() not in STOP_WORDS)
