"""Listings whose letters have widths of their own but stand in columns of one width, as LaTeX's package sets them.

Unless told otherwise, `listings` prints code in the font of the text and gives each letter six tenths of an em. Such a
line is known by its grid: each run of letters is centred over as many columns as it has letters, so the places where
runs would begin agree modulo one column. In a sentence they do not.
"""

from __future__ import annotations

import cmath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from indexes.readers.pdf_underscores import ABOVE, BELOW, Rule
from indexes.readers.pdf_word import Word

PITCHES = (0.6, 0.5875, 0.6167, 0.6375)
"""Width of a column in sizes of type: six tenths of an em, which is less than the size in large type, more in small."""
SPACE = 0.42
"""White space, in sizes of type, that is at least a typed space."""
LIKELY_SPACE = 0.2
"""White space, in sizes of type, that is a space in a sentence, and seldom stands between the letters of a listing."""
LEAST_ADVANCE = 0.5
"""Sizes of type that a letter or space takes on average at least; in a sentence they take less."""
MOST_ADVANCE = 0.75
"""Sizes of type that it takes at most; more is a row of a table."""
LEAST_FILL = 0.8
"""Share of its columns that a run of letters fills at least; a single word of a sentence fills less."""
SHORT = 12
"""Letters of a line too short for an average."""
SPREAD = 4.0
"""Letters between two gaps on average at most where narrow letters stand apart; words of a sentence are longer."""
WHOLE_ADVANCE = 0.56
"""Sizes of type that a letter takes on average at least where the gaps between letters are none of them spaces."""
MIN_RUNS = 6
"""Runs of letters that show a grid; in fewer it may be chance."""
AGREEING = 0.88
"""Length of the mean of the runs' phases, which is 1 when all agree."""
NEAR = 0.2
"""How far a run may be off the grid, in columns, and still be on it."""
MIN_WIDE, WIDE_LETTERS, WIDE_ADVANCE = 2, 4, 0.53
"""Words on a page, letters of each, and sizes of type that a letter takes: without so many it has no such listing."""
ONE_SPACE = 1.1
"""White space, in sizes of type, that is one typed space at most; cells of a table are farther apart."""
FARTHEST, FARTHEST_NUMBER = 2.6, 1.5
"""Sizes of type between the lines of a listing at most; a number farther away is the page's."""
WINDOW = 3
"""Lines in which enough runs are looked for."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Letters without a space between, and where they stand."""

    text: str
    x0: float
    x1: float

    def start(self, pitch: float) -> float:
        """Where the first of as many columns as there are letters begins, when the letters are centred over them."""
        return (self.x0 + self.x1 - len(self.text) * pitch) / 2


@dataclass(frozen=True)
class _Row:
    """A line of a page.

    Attributes:
        places: of its words among the page's words.
        rules: those among its letters.
        runs: its letters.
        word: its first word.
        gaps: how many of the white spaces between its words may be spaces.
    """

    places: tuple[int, ...]
    rules: tuple[Rule, ...]
    runs: tuple[_Run, ...]
    word: Word
    gaps: int

    @cached_property
    def is_likely(self) -> bool:
        """True when the line's letters take as much room as in columns."""
        letters = sum(len(run.text) for run in self.runs)
        filled = sum(run.x1 - run.x0 for run in self.runs)
        if letters > 2 and filled < LEAST_FILL * letters * PITCHES[0] * self.word.size:
            return False
        return (
            letters < SHORT or self._sizes > LEAST_ADVANCE * (letters + self.gaps) or (self.is_spread and self.is_whole)
        )

    @property
    def _sizes(self) -> float:
        return (self.runs[-1].x1 - self.runs[0].x0) / self.word.size

    @cached_property
    def is_whole(self) -> bool:
        """True when letters and typed spaces alone fill the columns."""
        return self._sizes > WHOLE_ADVANCE * (sum(len(run.text) for run in self.runs) + len(self.runs) - 1)

    @cached_property
    def is_spread(self) -> bool:
        """True when there are more gaps between letters than a sentence has words."""
        return sum(len(run.text) for run in self.runs) < SPREAD * (self.gaps + 1)

    def phases(self, pitch: float) -> list[complex]:
        """Where in a column each run begins, on the unit circle."""
        return [cmath.rect(1.0, 2 * cmath.pi * run.start(pitch) / pitch) for run in self.runs]

    def stands_on(self, pitch: float, phase: complex) -> bool:
        """True when the line's runs stand on a grid; a line of many may have one that does not."""
        off = [abs(cmath.phase(one / phase)) / (2 * cmath.pi) for one in self.phases(pitch)]
        return sum(one < NEAR for one in off) >= 0.8 * len(off)

    def fits(self, pitch: float, phase: complex) -> bool:
        """True when the line stands on a grid and looks like it."""
        return self.is_likely and self.stands_on(pitch, phase)


def in_columns(words: Sequence[Word], rules: Sequence[Rule]) -> tuple[Sequence[Word], Sequence[Rule]]:
    """A page's words, those of such listings set in columns; and the rules that are no underscores among them."""
    wide = [word for word in words if word.x1 - word.x0 > WIDE_ADVANCE * len(word.text) * word.size and not word.mono]
    if sum(len(word.text) >= WIDE_LETTERS and not word.text.isupper() for word in wide) < MIN_WIDE:
        return words, rules  # most pages of most books
    lines = list(_lines(words))
    if not any(_is_wide_line(words, line) for line in lines):
        return words, rules
    rows = [_row(words, places, rules) for places in lines]
    grids: dict[int, tuple[float, complex]] = {}
    for number, row in enumerate(rows):
        if number in grids or not row.is_likely:
            continue
        grid = _grid(rows[number : number + WINDOW])
        if grid is not None:
            for step in (-1, 1):
                at = number if step == 1 else number - 1
                while 0 <= at < len(rows) and at not in grids and _near(rows, at, step):
                    beyond = at + step
                    between = 0 <= beyond < len(rows) and rows[beyond].fits(*grid) and _near(rows, beyond, step)
                    if not (rows[at].fits(*grid) or (between and (rows[at].is_spread or rows[at].is_whole))):
                        break
                    grids[at] = grid
                    at += step
    if not grids:
        return words, rules
    at_place: dict[int, list[Word]] = {}
    used: set[Rule] = set()
    for number, (pitch, phase) in grids.items():
        row = rows[number]
        at_place.update({place: [] for place in row.places})
        at_place[row.places[0]] = [_typed(run, row.word, pitch, phase) for run in row.runs]
        used.update(row.rules)
    kept = [one for place, word in enumerate(words) for one in at_place.get(place, [word])]
    return kept, [rule for rule in rules if rule not in used]


def _is_wide_line(words: Sequence[Word], places: Sequence[int]) -> bool:
    """True for a line whose letters and spaces take as much room as in columns on average."""
    first, last = words[places[0]], words[places[-1]]
    letters = sum(len(words[place].text) for place in places)
    advance = (last.x1 - first.x0) / (first.size * (letters + len(places) - 1))
    if letters < SHORT or not LEAST_ADVANCE - 0.04 < advance < MOST_ADVANCE:
        return False
    return advance > WIDE_ADVANCE or letters < SPREAD * len(places)


def _lines(words: Sequence[Word]) -> Iterator[list[int]]:
    """Places of words that follow each other on one line, in type of about one size, none of it of one width."""
    line: list[int] = []
    for place, word in enumerate(words):
        if line:
            last = words[line[-1]]
            overlap = min(last.top, word.top) - max(last.bottom, word.bottom)
            level = overlap > 0.6 * min(last.top - last.bottom, word.top - word.bottom)
            if word.mono or not level or word.x0 < last.x1 - 1 or abs(word.size - last.size) > 0.2 * last.size:
                yield line
                line = []
        if not word.mono and word.size > 0:
            line.append(place)
    if line:
        yield line


def _row(words: Sequence[Word], places: Sequence[int], rules: Sequence[Rule]) -> _Row:
    first, last = words[places[0]], words[places[-1]]
    low, high = first.bottom - BELOW * first.size, first.bottom + ABOVE * first.size
    own = [
        rule
        for rule in rules
        if low < rule.bottom < high and first.x0 - 2 * first.size < rule.x0 and rule.x1 < last.x1 + 2 * first.size
    ]
    letters = [(words[place].x0, words[place].x1, words[place].text) for place in places]
    letters += [(rule.x0, rule.x1, "_") for rule in own]
    runs: list[_Run] = []
    gaps = 0
    for x0, x1, text in sorted(letters):
        gaps += bool(runs) and x0 - runs[-1].x1 > LIKELY_SPACE * first.size
        if runs and x0 - runs[-1].x1 < SPACE * first.size:
            runs[-1] = _Run(runs[-1].text + text, runs[-1].x0, x1)
        else:
            runs.append(_Run(text, x0, x1))
    return _Row(tuple(places), tuple(own), tuple(runs), first, gaps)


def _grid(rows: Sequence[_Row]) -> tuple[float, complex] | None:
    """Width of a column and phase of the grid on which the first rows stand, if they do."""
    for count in range(1, len(rows) + 1):
        window = rows[:count]
        total = sum(len(row.runs) for row in window)
        spaces = [after.x0 - before.x1 for row in window for before, after in pairwise(row.runs)]
        if sum(space < ONE_SPACE * window[0].word.size for space in spaces) < 0.6 * max(len(spaces), MIN_RUNS - 2):
            continue
        if total < MIN_RUNS or not all(_near(rows, at, 1) and rows[at].is_likely for at in range(1, count)):
            continue
        for pitch in (share * window[0].word.size for share in PITCHES):
            mean = sum(one for row in window for one in row.phases(pitch)) / total
            if abs(mean) > AGREEING:
                return pitch, mean / abs(mean)
    return None


def _near(rows: Sequence[_Row], number: int, step: int) -> bool:
    """True when a row is at most a blank line from the row before it in the direction `step`; heads are farther."""
    before = number - step
    if not 0 <= before < len(rows):
        return True
    distance = abs(rows[before].word.bottom - rows[number].word.bottom)
    is_number = rows[number].runs[0].text.isdecimal() and len(rows[number].runs) == 1
    farthest = (FARTHEST_NUMBER if is_number else FARTHEST) * rows[number].word.size
    return distance < farthest and abs(rows[before].word.size - rows[number].word.size) < 1


def _typed(run: _Run, like: Word, pitch: float, phase: complex) -> Word:
    """A run of letters as a word in columns."""
    offset = pitch * cmath.phase(phase) / (2 * cmath.pi)
    start = offset + pitch * round((run.start(pitch) - offset) / pitch)
    end = start + pitch * len(run.text)
    return Word(run.text, start, end, like.bottom, like.top, like.size, True, like.bold)
