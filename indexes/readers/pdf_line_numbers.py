"""Numbers printed beside the lines of a listing, which belong to the page and not to the code.

LaTeX's packages set them small and in the font of the text, to the left of letters of one width. A column of numbers in
the listing's own font and size is left alone: it may be the program's output.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

from indexes.readers.pdf_word import Word

MIN_RUN = 3
"""Fewer numbers in a column are chance, unless each is small and has code beside it: the rest of a listing that ran
over a page's end."""
ALIGNED = 1.5
"""Points by which the edges of numbers in one column differ at most."""
SMALLER = 0.9
"""Letters this much smaller than the code are small."""
FARTHEST = 25.0
"""Letter heights between a number and its line, which may be indented."""
MIN_SHARE = 0.5
"""Share of a column's numbers that have code beside them; the others number blank lines."""
MAX_DIGITS = 4


def without_line_numbers(words: Sequence[Word]) -> Sequence[Word]:
    """A page's words in their order without the numbers of listings' lines."""
    code = sorted((word for word in words if word.mono and not _is_number(word)), key=_middle)
    numbers = [word for word in words if _is_number(word)]
    if not numbers or not code:
        return words
    heights = [_middle(word) for word in code]
    numbers = [number for number in numbers if not _ends_code(number, code, heights)]
    beside = {id(number): _code_beside(number, code, heights) for number in numbers}
    largest = max(word.size for word in code)
    able = [number for number in numbers if not number.mono or number.size < SMALLER * largest]
    dropped: set[int] = set()
    # Numbers of a column stand flush right, sometimes flush left.
    for edge in (lambda word: word.x1, lambda word: word.x0):
        for column in _columns(able, edge):
            for run in _runs(column):
                own = sum(beside[id(number)] for number in run)
                small = max(number.size for number in run) < SMALLER * largest
                if own >= MIN_SHARE * len(run) if len(run) >= MIN_RUN else small and own == len(run):
                    dropped.update(id(number) for number in run)
    return [word for word in words if id(word) not in dropped] if dropped else words


def _is_number(word: Word) -> bool:
    return len(word.text) <= MAX_DIGITS and word.text.isdecimal()


def _middle(word: Word) -> float:
    return (word.bottom + word.top) / 2


def _code_beside(number: Word, code: Sequence[Word], heights: Sequence[float]) -> bool:
    """Whether letters of one width stand close to the right of a number, on its line."""
    first = bisect_left(heights, number.bottom - number.size)
    for word in code[first:]:
        if _middle(word) > number.top + number.size:
            return False
        overlap = min(number.top, word.top) - max(number.bottom, word.bottom)
        near = -0.5 < word.x0 - number.x1 < FARTHEST * word.size
        if near and overlap > 0.5 * (number.top - number.bottom):
            return not number.mono or number.size < SMALLER * word.size
    return False


def _ends_code(number: Word, code: Sequence[Word], heights: Sequence[float]) -> bool:
    """Whether a number is part of a line of code: letters of its own type stand right before it."""
    if not number.mono:
        return False
    for word in code[bisect_left(heights, number.bottom) :]:
        if _middle(word) > number.top:
            return False
        if abs(word.size - number.size) < 0.1 and -0.5 < number.x0 - word.x1 < 2 * number.size:
            return True
    return False


def _columns(numbers: Sequence[Word], edge: Callable[[Word], float]) -> Iterator[list[Word]]:
    """Numbers whose edges stand below each other, from the top down."""
    column: list[Word] = []
    for number in sorted(numbers, key=edge):
        if column and edge(number) - edge(column[0]) > ALIGNED:
            yield sorted(column, key=lambda word: -word.top)
            column = []
        column.append(number)
    if column:
        yield sorted(column, key=lambda word: -word.top)


def _runs(column: Sequence[Word]) -> Iterator[list[Word]]:
    """Stretches of a column that count up by one."""
    run: list[Word] = []
    for number in column:
        if run and int(number.text) != int(run[-1].text) + 1:
            yield run
            run = []
        run.append(number)
    if run:
        yield run
