"""Lines of a listing to code as it was typed: columns from places, blank lines from gaps."""

from __future__ import annotations

import cmath
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

from indexes.readers.elements import Block
from indexes.readers.pdf_page import LINE_HYPHEN, Line
from indexes.readers.pdf_word import Word

MAX_BLANK_LINES = 3
SPREAD = 1.03
"""Letters this much farther apart than they are wide are set apart, as LaTeX's package for listings does."""
MOST_SPREAD, STEP = 1.25, 0.0025
"""How much farther at most, and how finely that is looked for."""
DEEPEST = 24
"""Columns by which the rest of a listing on another page may be indented throughout."""
_TYPED = str.maketrans(
    {"‘": "`", "’": "'", "˜": "~", "ˆ": "^", "−": "-", "“": '"', "”": '"', "´": "'", "∗": "*", "␣": " "}
)
"""What TeX and word processors print for characters that are typed in code."""


def listing(lines: Sequence[Line], margins: Sequence[tuple[int, float]]) -> Block:
    """A listing in a fence, its lines in the columns where they were printed.

    Args:
        lines: of the whole listing, on one page or several.
        margins: for each run of lines on a page or column where it begins in `lines`, and the left margin there.
    """
    pitch, spread = _pitch(lines)
    lines = _on_grid(lines, pitch) if spread else lines
    text = "```\n"
    marks: list[tuple[int, int]] = []
    first_margin, first_left = margins[0][1], min(line.x0 for line in lines[: _ends(lines, margins)[0]])
    for (start, margin), end in zip(margins, _ends(lines, margins), strict=True):
        run = lines[start:end]
        left = _left(min(line.x0 for line in run), margin, first_margin, first_left, pitch)
        step = _line_step(run)
        previous: Line | None = None
        for line in run:
            if not marks or marks[-1][1] != line.page:
                marks.append((len(text) if marks else 0, line.page))
            if previous is not None:
                blank = round((previous.bottom - line.bottom) / step) - 1
                text += "\n" * max(0, min(blank, MAX_BLANK_LINES))
            text += _typed(line, left, pitch).rstrip() + "\n"
            previous = line
    return Block(text + "```", tuple(marks))


def _ends(lines: Sequence[Line], margins: Sequence[tuple[int, float]]) -> list[int]:
    return [*(start for start, _ in margins[1:]), len(lines)]


def _left(own: float, margin: float, first_margin: float, first_left: float, pitch: float) -> float:
    """Where the first column of a run of lines is, whose leftmost line begins at `own`.

    The rest of a listing on another page may be indented throughout: its first column is where it was before, unless
    the margin moved. A page full of code tells no margin; there a whole number of columns is an indentation.
    """
    deep = (own - first_left) / pitch
    same = abs(margin - first_margin) < 1 or (deep < DEEPEST and abs(deep - round(deep)) < 0.12)
    return min(own, first_left if same else margin + first_left - first_margin)


def _typed(line: Line, left: float, pitch: float) -> str:
    """A line with each word in the column where it stands, counted from `left`."""
    out = " " * max(round((line.words[0].x0 - left) / pitch), 0)
    end = line.words[0].x0
    for word in line.words:
        # The end of the word before says more than the column: widths are rounded, and the error grows along the line.
        out += " " * max(round((word.x0 - end) / pitch), 0) + word.text.replace(LINE_HYPHEN, "-")
        end = word.x1
    return out.translate(_TYPED)


def _pitch(lines: Sequence[Line]) -> tuple[float, bool]:
    """How far a listing's columns are apart, in points; and whether its letters are set farther apart than wide."""
    words = [word for line in lines for word in line.words]
    single = [word.x1 - word.x0 for word in words if len(word.text) == 1]
    long = sorted((word for word in words if len(word.text) > 1), key=lambda one: -len(one.text))
    long = long[: max(len(words) // 2, 12)]
    if not single or not long:
        widths = single or [(word.x1 - word.x0) / len(word.text) for word in long]
        return max(median(widths), 0.1), False
    letter = max(median(single), 0.1)
    apart = median((word.x1 - word.x0 - letter) / (len(word.text) - 1) for word in long)
    if apart < SPREAD * letter:
        return max(apart, 0.1), False
    factors = [1 + number * STEP for number in range(int((MOST_SPREAD - 1) / STEP) + 1)]
    return max((letter * factor for factor in factors), key=lambda pitch: _agreement(words, pitch)), True


def _agreement(words: Sequence[Word], pitch: float) -> float:
    """How far the words' first columns agree modulo `pitch`, from 0 to 1."""
    return abs(sum(cmath.rect(1.0, 2 * cmath.pi * _start(word, pitch) / pitch) for word in words)) / len(words)


def _start(word: Word, pitch: float) -> float:
    """Where a word's first column begins; its letters are centred over its columns."""
    return (word.x0 + word.x1 - len(word.text) * pitch) / 2


def _on_grid(lines: Sequence[Line], pitch: float) -> list[Line]:
    """Lines whose words fill their columns."""
    moved: list[Line] = []
    for line in lines:
        starts = [_start(word, pitch) for word in line.words]
        words = tuple(
            replace(word, x0=start, x1=start + len(word.text) * pitch)
            for word, start in zip(line.words, starts, strict=True)
        )
        moved.append(replace(line, words=words, x0=min(starts)))
    return moved


def _line_step(lines: Sequence[Line]) -> float:
    steps = [above.bottom - below.bottom for above, below in pairwise(lines) if above.bottom - below.bottom > 1]
    return min(steps) if steps else 12.0
