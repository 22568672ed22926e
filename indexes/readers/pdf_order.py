"""In what order a page's lines are read: columns are found and put one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from indexes.readers.pdf_page import Line, PageLines, make_line

MIN_COLUMN_LINES = 6
"""A column has at least as many lines; fewer are a table, a caption or chance."""
MIN_COLUMN_CHARS = 14
"""Lines of a text column hold at least as many letters on average; those of a table hold fewer."""


@dataclass(frozen=True, slots=True)
class OrderedPage:
    """A page's text lines in reading order; `columns` is 1 or 2, `doubtful` when the order is a guess."""

    page: int
    width: float
    lines: tuple[Line, ...]
    columns: int
    doubtful: bool


def in_reading_order(page: PageLines, dropped: frozenset[tuple[int, int]]) -> OrderedPage:
    """The page's lines without its furniture, column by column where there are two."""
    lines = [line for index, line in enumerate(page.lines) if (page.page, index) not in dropped]
    gutter = _gutter(lines, page.width)
    if gutter is None:
        return OrderedPage(page.page, page.width, tuple(_joined_rows(lines)), 1, _doubtful(lines))
    ordered: list[Line] = []
    left: list[Line] = []
    right: list[Line] = []
    for line in sorted(lines, key=lambda one: -one.top):
        if line.x0 < gutter < line.x1 and _spans(line, lines, gutter):
            # A line across both columns parts what stands above it from what stands below.
            ordered.extend((*_joined_rows(_in_rows(left)), *_joined_rows(_in_rows(right)), line))
            left, right = [], []
        elif line.x0 + line.x1 < 2 * gutter or line.x0 < gutter - line.size:
            left.append(line)
        else:
            right.append(line)
    ordered.extend((*_joined_rows(_in_rows(left)), *_joined_rows(_in_rows(right))))
    return OrderedPage(page.page, page.width, tuple(ordered), 2, False)


def _in_rows(lines: Sequence[Line]) -> list[Line]:
    """One column's lines from the top down, those of a row from left to right whatever their heights."""
    rows: list[list[Line]] = []
    for line in lines:
        if rows and _same_row(rows[-1][0], line):
            rows[-1].append(line)
        else:
            rows.append([line])
    return [line for row in rows for line in sorted(row, key=lambda one: one.x0)]


def _spans(line: Line, lines: Sequence[Line], gutter: float) -> bool:
    """True for a line that belongs to both columns; a line of code only reaches out of its own, beside other text."""
    if min(gutter - line.x0, line.x1 - gutter) <= line.size:
        return False
    beside = any(other is not line and other.x0 > gutter and _same_row(line, other) for other in lines)
    return not beside and (not line.mono or line.x1 - gutter > 0.5 * (gutter - line.x0))


def _gutter(lines: Sequence[Line], width: float) -> float | None:
    """The middle of the white strip between two columns of text, or None."""
    if len(lines) < 2 * MIN_COLUMN_LINES:
        return None
    left_edge, right_edge = min(line.x0 for line in lines), max(line.x1 for line in lines)
    best: tuple[int, float] | None = None
    step = width / 120
    for number in range(120):
        x = number * step
        if not left_edge + 0.3 * (right_edge - left_edge) < x < right_edge - 0.3 * (right_edge - left_edge):
            continue
        left = [line for line in lines if line.x1 <= x]
        right = [line for line in lines if line.x0 >= x]
        crossing = len(lines) - len(left) - len(right)
        if not _is_column(left) or not _is_column(right) or crossing > 0.4 * len(lines):
            continue
        if not _side_by_side(left, right):
            continue
        if best is None or crossing < best[0]:
            best = (crossing, x)
    if best is None:
        return None
    ends = max(line.x1 for line in lines if line.x1 <= best[1])
    starts = min(line.x0 for line in lines if line.x0 >= best[1])
    return (ends + starts) / 2


def _is_column(lines: Sequence[Line]) -> bool:
    if len(lines) < MIN_COLUMN_LINES:
        return False
    return sum(len(line.text) for line in lines) >= MIN_COLUMN_CHARS * len(lines)


def _side_by_side(left: Sequence[Line], right: Sequence[Line]) -> bool:
    """True when the two stand at the same heights, rather than one below the other."""
    top = min(max(line.top for line in left), max(line.top for line in right))
    bottom = max(min(line.bottom for line in left), min(line.bottom for line in right))
    within = sum(1 for line in (*left, *right) if bottom - 1 <= line.bottom and line.top <= top + 1)
    return within >= 0.5 * (len(left) + len(right))


def _joined_rows(lines: Sequence[Line]) -> list[Line]:
    """Lines that follow each other on one baseline (cells of a table) as one line."""
    joined: list[Line] = []
    for line in lines:
        last = joined[-1] if joined else None
        if last is not None and _same_row(last, line) and line.x0 >= last.x1 - 1:
            joined[-1] = make_line((*last.words, *line.words), line.page)
        else:
            joined.append(line)
    return joined


def _same_row(one: Line, other: Line) -> bool:
    overlap = min(one.top, other.top) - max(one.bottom, other.bottom)
    return overlap > 0.6 * min(one.height, other.height)


def _doubtful(lines: Sequence[Line]) -> bool:
    """True when the content order jumps up the page often, as in columns that were not recognised."""
    jumps = sum(1 for above, below in pairwise(lines) if below.bottom > above.top + 2 * above.height)
    return jumps >= 3
