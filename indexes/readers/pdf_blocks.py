"""Lines in reading order to paragraphs, lists, tables and listings, each with the pages it stands on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Literal

from indexes.readers.elements import Block
from indexes.readers.pdf_hyphens import Vocabulary, joined_lines
from indexes.readers.pdf_listing import listing
from indexes.readers.pdf_order import OrderedPage
from indexes.readers.pdf_page import LINE_HYPHEN, NARROW_GAP, WIDE_GAP, Line, has_gaps

Kind = Literal["prose", "item", "table", "listing", "heading"]
_BULLET = re.compile(r"^(?:[•◦▪‣●○■□–*·∙⁃-]|\(?\d{1,2}[.)]|\(?[a-z]\))$")
TERMINAL = re.compile(r"[.!?:;。！？：；…][\"'”’)\]]*$")
"""How a line ends with which a sentence ends."""

EVEN = 1.03
"""How much one gap of a line from margin to margin may be wider than another; cells of a table differ by more."""


@dataclass(slots=True)
class Paragraph:
    """Lines that belong together; a working value of this file and of `pdf`.

    Attributes:
        margins: where each of its runs of lines begins in `lines` (a new one after a page's or column's end), with the
            left margin of the column that it stands in.
        full_width: its last line reaches the right margin, as a line does whose sentence goes on.
        filled: one of its lines goes from margin to margin, as text does and captions and rows seldom do.
    """

    kind: Kind
    lines: list[Line]
    margins: list[tuple[int, float]]
    full_width: bool = False
    filled: bool = False


@dataclass(frozen=True, slots=True)
class Margins:
    """Where most of a page's text lines begin and end, and how far one is below the other, in points."""

    left: float
    right: float
    leading: float


def margins_of(lines: Sequence[Line]) -> Margins:
    """Margins and leading of one column of lines."""
    text = [line for line in lines if not line.mono] or lines
    starts = Counter(round(line.x0) for line in text)
    left = min((x for x, count in starts.items() if count >= max(starts.values()) * 0.5), default=0)
    right = _right_margin(text)
    steps = [above.bottom - below.bottom for above, below in pairwise(text) if 0 < above.bottom - below.bottom < 40]
    return Margins(float(left), right, median(steps) if steps else 12.0)


def _right_margin(lines: Sequence[Line]) -> float:
    """Where lines end: one that reaches farther than all others was too long for its column."""
    ends = Counter(round(line.x1 / 2) for line in lines)
    shared = max((end for end, count in ends.items() if count > 1), default=None)
    if shared is None:
        return max((line.x1 for line in lines), default=0.0)
    return max(line.x1 for line in lines if round(line.x1 / 2) == shared)


def paragraphs_of(page: OrderedPage, headings: Iterable[Line]) -> list[Paragraph]:
    """One page's paragraphs in reading order; lines of `headings` stand alone."""
    alone = set(map(id, headings))
    found: list[Paragraph] = []
    for column in _columns(page):
        margins = margins_of(column)
        own: list[Paragraph] = []
        for line in column:
            kind = "heading" if id(line) in alone else _kind(line)
            if kind == "listing" and own and _is_code_in_prose(own[-1], line, margins):
                kind = "prose"
            if kind == "table" and _is_spread(own[-1] if own else None, line, margins):
                kind = "prose"
            if own and _belongs(own[-1], line, kind, margins):
                own[-1].lines.append(line)
            else:
                own.append(Paragraph(kind, [line], [(0, margins.left)]))
        near_right = margins.right - 0.15 * (margins.right - margins.left)
        near_left = margins.left + 0.15 * (margins.right - margins.left)
        for paragraph in own:
            paragraph.full_width = paragraph.lines[-1].x1 > near_right
            paragraph.filled = any(line.x0 < near_left and line.x1 > near_right for line in paragraph.lines)
        found.extend(own)
    return found


def _is_code_in_prose(last: Paragraph, line: Line, margins: Margins) -> bool:
    """True for a line of code letters that a sentence happens to fill from margin to margin."""
    above = last.lines[-1]
    step = above.bottom - line.bottom
    goes_on = last.kind in ("prose", "item") and not TERMINAL.search(above.text)
    return goes_on and 0 < step < 1.25 * margins.leading and abs(line.x0 - above.x0) < 2


def _is_spread(last: Paragraph | None, line: Line, margins: Margins) -> bool:
    """True for a line of a sentence that justification spread far, because a long word would not fit any more."""
    gaps = [after.x0 - before.x1 for before, after in pairwise(line.words)]
    evenness = max(gaps) / max(min(gaps), 0.1)
    at_margins = abs(line.x1 - margins.right) < line.size and line.x0 < margins.left + 4 * line.size
    if len(gaps) > 1 and evenness < EVEN and at_margins:
        return True
    if last is None or last.kind not in ("prose", "item") or evenness > 1.3:
        return False
    above = last.lines[-1]
    close = 0 < above.bottom - line.bottom < 1.25 * max(margins.leading, line.height)
    return close and not TERMINAL.search(above.text) and abs(line.x0 - above.x0) < 2 and abs(line.x1 - above.x1) < 2


def _columns(page: OrderedPage) -> list[list[Line]]:
    """Runs of lines that go down the page; where reading goes up again, a column begins."""
    runs: list[list[Line]] = []
    for line in page.lines:
        if runs and (page.columns == 1 or line.top <= runs[-1][-1].top + 1):
            runs[-1].append(line)
        else:
            runs.append([line])
    return runs


def _kind(line: Line) -> Kind:
    if line.mono:
        return "listing"
    words = line.text.split(" ", 1)
    if _BULLET.match(words[0]) and len(words) > 1:
        return "item"
    return "table" if has_gaps(line, WIDE_GAP) else "prose"


def _belongs(last: Paragraph, line: Line, kind: Kind, margins: Margins) -> bool:
    """True when a line goes on with the paragraph before it."""
    above = last.lines[-1]
    step = above.bottom - line.bottom
    if "heading" in (kind, last.kind):
        return False
    if kind == "listing" or last.kind == "listing":
        # Blank lines of a listing leave a gap of whole lines.
        return kind == last.kind and -1 < step < 3.2 * max(above.height, line.height, line.size)
    if kind == "table" or last.kind == "table":
        return kind == last.kind and 0 < step < 2.2 * max(above.height, line.height)
    if kind == "item" or not -0.6 * line.height < step < 1.42 * max(margins.leading, 0.9 * line.height):
        return False
    if abs(line.size - last.lines[0].size) > 0.12 * line.size:
        return False
    if last.kind == "item":
        if line.x0 > last.lines[0].x0 + 2:
            return True
        # Items whose lines are not indented: only what would not fit on the line above goes on with it.
        first_word = line.text.split(" ", 1)[0]
        full = above.x1 + 0.4 * line.size * len(first_word) > margins.right
        return full and not TERMINAL.search(above.text) and line.x0 > last.lines[0].x0 - 2
    indented = line.x0 > margins.left + 0.7 * line.size and line.x0 > above.x0 + 0.7 * line.size
    if TERMINAL.search(above.text) is None:
        return True
    # After a sentence's end a line begins a paragraph when it is indented, or would have found room above.
    room = margins.right - above.x1 - 0.6 * line.size * (len(line.text.split(" ", 1)[0]) + 1)
    return not indented and room < 0


def block_of(paragraph: Paragraph, vocabulary: Vocabulary) -> Block:
    """A paragraph as text with page marks; words that a line's end cut in two are mended."""
    if paragraph.kind == "listing":
        return listing(paragraph.lines, paragraph.margins)
    if paragraph.kind == "table":
        return _rows(paragraph)
    text = ""
    marks: list[tuple[int, int]] = []
    for line in paragraph.lines:
        addition = _row(line) if paragraph.kind == "heading" else line.text
        text, start = joined_lines(text, addition, vocabulary) if text else (addition, 0)
        if not marks or marks[-1][1] != line.page:
            marks.append((start, line.page))
    text = text.replace(LINE_HYPHEN, "-").replace("\xad", "")
    if paragraph.kind == "item":
        text = re.sub(r"^[•◦▪‣●○■□–*·∙⁃-]\s*", "- ", text)
        marks = [(min(offset, len(text)), page) for offset, page in marks]
    return Block(text, tuple(marks))


def _rows(paragraph: Paragraph) -> Block:
    """A table's rows, one a line, cells parted by bars."""
    marks: list[tuple[int, int]] = []
    text = ""
    for line in paragraph.lines:
        text += "\n" if text else ""
        if not marks or marks[-1][1] != line.page:
            marks.append((len(text), line.page))
        text += "| " + _row(line, " | ") + " |"
    return Block(text.replace(LINE_HYPHEN, "-"), tuple(marks))


def _row(line: Line, glue: str = " ") -> str:
    out = line.words[0].text
    for before, after in pairwise(line.words):
        out += (glue if after.x0 - before.x1 > NARROW_GAP * line.size else " ") + after.text
    return out
