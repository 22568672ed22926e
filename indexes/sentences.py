"""Where sentences begin and end. Knows English and Chinese punctuation and fenced listings; nothing of books."""

from __future__ import annotations

import re

Span = tuple[int, int]
"""Start and end offset in code points, end exclusive."""

_FENCE = re.compile(r"^(`{3,})[^\n]*\n.*?^\1`*[ \t]*$", re.MULTILINE | re.DOTALL)
_FORMULA = re.compile(r"\$\$.*?\$\$", re.DOTALL)
# A full stop ends a sentence when a capital, a digit or an identifier follows; a Chinese one always does.
_END = re.compile(
    r"(?:[.!?]+[\"'”’)\]*_`]*(?=\s+[\"'“‘(\[*_`$]*(?:[A-Z0-9\u4e00-\u9fff\u0391-\u03a9`_$]|[a-z]+[A-Z_])))|(?:[。！？；]+[”’）」]*)"
)
_ABBREVIATION = re.compile(
    r"(?:\b(?:e\.g|i\.e|cf|vs|etc|resp|approx|Fig|Figs|Eq|Eqs|Sec|Sect|Ch|Chap|Tab|Ref|Refs|No|Nos|Vol|pp|p|Dr|Mr|Mrs"
    r"|Ms|Prof|St|al|ed|eds|Inc|Ltd|Corp|Jr|Sr|U\.S|w\.r\.t|a\.k\.a|viz)|\b[A-Z]|(?:^|\n)\s*\d{1,3})\.$"
)
_LINE_START = re.compile(r"^[ \t]*(?:[-*•+]|\d{1,3}[.)]|\|)[ \t]?")


def fenced_spans(text: str) -> list[Span]:
    """Listings in ``` fences, fences included; an unclosed fence reaches to the end."""
    spans = [match.span() for match in _FENCE.finditer(text)]
    after = spans[-1][1] if spans else 0
    opened = re.compile(r"^`{3,}[^`\n]*$", re.MULTILINE).search(text, after)
    if opened is not None and not any(start <= opened.start() < end for start, end in spans):
        spans.append((opened.start(), len(text)))
    return spans


def sentence_spans(text: str) -> list[Span]:
    """Sentences in order, without the white space between them.

    A listing or displayed formula is one span; so is a table row; a list item and a line break end a sentence.
    """
    spans: list[Span] = []
    position = 0
    for start, end in _whole_spans(text):
        spans.extend(_prose(text, position, start))
        spans.append((start, end))
        position = end
    spans.extend(_prose(text, position, len(text)))
    return spans


def _whole_spans(text: str) -> list[Span]:
    fences = fenced_spans(text)
    formulas = [match.span() for match in _FORMULA.finditer(text)]
    free = [span for span in formulas if not any(start < span[1] and span[0] < end for start, end in fences)]
    return sorted((*fences, *free))


def _prose(text: str, start: int, end: int) -> list[Span]:
    spans: list[Span] = []
    line_start = start
    for line in text[start:end].split("\n"):
        line_end = line_start + len(line)
        if line.lstrip().startswith("|"):
            _append(spans, text, line_start, line_end)
        else:
            spans.extend(_sentences_of_line(text, line_start, line_end))
        line_start = line_end + 1
    return spans


def _sentences_of_line(text: str, start: int, end: int) -> list[Span]:
    spans: list[Span] = []
    begin = start
    marker = _LINE_START.match(text[start:end])
    for match in _END.finditer(text, start, end):
        cut = match.end()
        if marker is not None and cut <= start + marker.end():
            continue  # the full stop of an item's number
        if match[0].startswith(".") and _ABBREVIATION.search(text, max(begin, match.start() - 12), match.start() + 1):
            continue
        _append(spans, text, begin, cut)
        begin = cut
    _append(spans, text, begin, end)
    return spans


def _append(spans: list[Span], text: str, start: int, end: int) -> None:
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    if start < end:
        spans.append((start, end))
