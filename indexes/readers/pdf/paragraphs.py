"""Turns lines into paragraphs, list items, tables and listings, across page ends, and writes them as text."""

from __future__ import annotations

import cmath
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Literal

from indexes.readers.elements import Block, pipe_table
from indexes.readers.pdf.layout import BULLETS, CAPTION, TextPage
from indexes.readers.pdf.page import (
    CELL_GAP,
    LINE_HYPHEN,
    WIDE_GAP,
    Line,
    Word,
    first_column,
    has_gaps,
    is_cjk,
    make_line,
)

EVEN, NEARLY_EVEN = 1.03, 1.3
"""Greatest ratio of two gaps of a justified line: for any line from margin to margin, and for one next to text."""
SMALL = 0.92
"""Relative type size below which a paragraph is a footnote or caption."""
MIN_COMPOUND_PART = 3
"""Least letters of each half of a compound; shorter halves are words by chance."""
MIN_ROWS, MIN_STRIP = 3, 0.5
"""Least rows of a table whose cells are close together, and least width of the strips between, in type sizes."""
STACKED = 0.1
"""Share of a line's height by which the parts of a formula overlap; lines of text hardly do."""
MAX_BLANK_LINES = 3
SPREAD, MAX_SPREAD, SPREAD_STEP = 1.03, 1.25, 0.0025
"""Least and greatest factor by which LaTeX's `listings` spreads letters, and the step in which it is searched."""
MAX_INDENT = 24
"""Columns by which the rest of a listing on another page may be indented as a whole."""

TERMINAL = re.compile(r"[.!?:;。！？：；…][\"'”’)\]]*$")
"""The end of a line at which a sentence ends."""
_BULLET = re.compile(rf"^(?:{BULLETS}|\(?\d{{1,2}}[.)]|\(?[a-z]\))$")
_HYPHENS = (LINE_HYPHEN, "-", "\u2010", "\xad")
_BROKEN_NAME = re.compile(r"\w(?:[/\\=]|::)$")
_BEFORE, _AFTER = re.compile(r"[\w-]*$"), re.compile(r"\w+")
_TYPED = str.maketrans(
    {"‘": "`", "’": "'", "˜": "~", "ˆ": "^", "−": "-", "“": '"', "”": '"', "´": "'", "∗": "*", "␣": " "}
)
"""Characters that TeX and word processors print in code, and what was typed."""

Kind = Literal["prose", "item", "table", "listing", "heading", "formula"]


@dataclass(slots=True)
class Paragraph:
    """Lines that belong together.

    Attributes:
        margins: the index in `lines` of each run of lines on one page or column, and that column's left margin, None
            where the column has only code.
        full_width: the last line reaches the right margin, as a line does whose sentence goes on.
        filled: one of the lines goes from margin to margin, as text does and captions and rows seldom do.
    """

    kind: Kind
    lines: list[Line]
    margins: list[tuple[int, float | None]]
    full_width: bool = False
    filled: bool = False


@dataclass(frozen=True, slots=True)
class _Margins:
    """Where most text lines of a column begin and end, and the distance of their baselines, in points."""

    left: float
    right: float
    leading: float


# --- lines to paragraphs


def paragraphs_of(page: TextPage, headings: Iterable[Line]) -> list[Paragraph]:
    """One page's paragraphs in reading order; each line of `headings` is one by itself."""
    alone = set(map(id, headings))
    found: list[Paragraph] = []
    for column in _columns(page):
        margins = _margins_of(column)
        rows = _aligned_rows([line for line in column if id(line) not in alone])
        stacked = _stacked(column, margins.left)
        left = None if all(line.mono for line in column) else margins.left
        own: list[Paragraph] = []
        for line, below in zip(column, [*column[1:], None], strict=True):
            last = own[-1] if own else None
            kind = _kind_in_column(line, last, below, margins)
            kind = "heading" if id(line) in alone else "table" if id(line) in rows else kind
            kind = "formula" if id(line) in stacked and kind in ("prose", "table") else kind
            if last is not None and _belongs(last, line, kind, margins):
                last.lines.append(line)
            else:
                own.append(Paragraph(kind, [line], [(0, left)]))
        near_right = margins.right - 0.15 * (margins.right - margins.left)
        near_left = margins.left + 0.15 * (margins.right - margins.left)
        for paragraph in own:
            paragraph.full_width = paragraph.lines[-1].x1 > near_right
            paragraph.filled = any(line.x0 < near_left and line.x1 > near_right for line in paragraph.lines)
        found.extend(own)
    return found


def _columns(page: TextPage) -> list[list[Line]]:
    """Runs of lines that go down the page; where reading goes up again, a column begins."""
    runs: list[list[Line]] = []
    for line in page.lines:
        if runs and (page.columns == 1 or line.bottom < runs[-1][-1].top):
            runs[-1].append(line)
        else:
            runs.append([line])
    return runs


def _margins_of(lines: Sequence[Line]) -> _Margins:
    text = [line for line in lines if not line.mono] or lines
    starts = Counter(round(line.x0) for line in text)
    left = min(x for x, count in starts.items() if count >= max(starts.values()) * 0.5)
    steps = [above.bottom - below.bottom for above, below in pairwise(text) if 0 < above.bottom - below.bottom < 40]
    return _Margins(float(left), _right_margin(text), median(steps) if steps else 12.0)


def _right_margin(lines: Sequence[Line]) -> float:
    """Where lines end; a single line that reaches farther than all others was too long for its column."""
    ends = Counter(round(line.x1 / 2) for line in lines)
    shared = max((end for end, count in ends.items() if count > 1), default=None)
    return max(line.x1 for line in lines if shared is None or round(line.x1 / 2) == shared)


def _kind(line: Line) -> Kind:
    if line.mono:
        return "listing"
    words = line.text.split(" ", 1)
    if _BULLET.match(words[0]) and len(words) > 1:
        return "item"
    return "table" if has_gaps(line, WIDE_GAP) else "prose"


def _aligned_rows(lines: Sequence[Line]) -> set[int]:
    """Rows of narrow tables: lines below each other whose gaps make white strips, as those of sentences do not."""
    found: set[int] = set()
    run: list[Line] = []
    strips: list[tuple[float, float]] = []
    for line in lines:
        cells = _cells(line) if len(line.words) > 1 and _kind(line) not in ("listing", "item") else []
        own = [(before.x1, after.x0) for before, after in pairwise(cells)]
        shared = [(max(one[0], two[0]), min(one[1], two[1])) for one, two in zip(strips, own, strict=False)]
        near = bool(run) and 0 < run[-1].bottom - line.bottom < 2.2 * line.height
        if (
            near
            and own
            and len(own) == len(strips)
            and all(end - start > MIN_STRIP * line.size for start, end in shared)
        ):
            run.append(line)
            strips = shared
        else:
            run, strips = [line], own
        if len(run) >= MIN_ROWS:
            found.update(map(id, run))
    return found


def _stacked(lines: Sequence[Line], left: float) -> set[int]:
    """Parts of displayed formulas: lines half above each other, as a fraction's are, away from the margin."""
    found: set[int] = set()
    run: list[Line] = []
    for line, below in zip(lines, [*lines[1:], None], strict=True):
        run.append(line)
        if below is not None and any(_is_beside(part, below) for part in run):
            continue
        signs = any(unicodedata.category(letter) == "Sm" for part in run for letter in part.text)
        if len(run) > 1 and signs and min(part.x0 for part in run) > left + line.size:
            found.update(map(id, run))
        run = []
    return found


def _is_beside(one: Line, other: Line) -> bool:
    """True for lines of which neither is below the other."""
    overlap = min(one.top, other.top) - max(one.bottom, other.bottom)
    return overlap > STACKED * min(one.height, other.height)


def _kind_in_column(line: Line, last: Paragraph | None, below: Line | None, margins: _Margins) -> Kind:
    """The kind of a line between the paragraph before it and the line below it."""
    kind = _kind(line)
    if kind == "listing" and last is not None and _is_code_in_prose(last, line, margins):
        return "prose"
    if kind == "table" and _is_justified(line, last, below, margins):
        return "prose"
    if kind == "prose" and last is not None and last.kind == "table" and _goes_on_in_cell(last, line):
        return "table"
    return kind


def _goes_on_in_cell(table: Paragraph, line: Line) -> bool:
    """True for words right below a table, at the left edge of a cell but the first, where two of its rows have one."""
    starts = [cell.x0 for row in table.lines for cell in _cells(row)[1:]]
    near = sum(abs(line.x0 - start) < 1 for start in starts)
    return near > 1 and _is_right_below(table.lines[-1], line, line.height)


def _is_code_in_prose(last: Paragraph, line: Line, margins: _Margins) -> bool:
    """True for a monospaced line that continues a sentence."""
    above = last.lines[-1]
    goes_on = last.kind in ("prose", "item") and not TERMINAL.search(above.text)
    return goes_on and _is_right_below(above, line, margins.leading) and abs(line.x0 - above.x0) < 2


def _is_justified(line: Line, last: Paragraph | None, below: Line | None, margins: _Margins) -> bool:
    """True for a line of a sentence that justification spread wide, because a long word would not fit any more."""
    gaps = [after.x0 - before.x1 for before, after in pairwise(line.words)]
    evenness = max(gaps) / max(min(gaps), 0.1)
    at_margins = abs(line.x1 - margins.right) < line.size and line.x0 < margins.left + 4 * line.size
    leading = max(margins.leading, line.height)
    if len(gaps) > 1 and evenness < EVEN and at_margins:
        return True
    if evenness > NEARLY_EVEN:
        return False
    if last is not None and last.kind in ("prose", "item"):
        above = last.lines[-1]
        if _is_right_below(above, line, leading) and abs(line.x0 - above.x0) < 2 and abs(line.x1 - above.x1) < 2:
            return True
    # The first line of a paragraph: text goes on right below it.
    goes_on = below is not None and _kind(below) == "prose" and _is_right_below(line, below, leading)
    return at_margins and goes_on and not TERMINAL.search(line.text)


def _is_right_below(above: Line, line: Line, leading: float) -> bool:
    return 0 < above.bottom - line.bottom < 1.25 * leading


def _belongs(last: Paragraph, line: Line, kind: Kind, margins: _Margins) -> bool:
    """True when a line continues the paragraph before it."""
    above = last.lines[-1]
    step = above.bottom - line.bottom
    if "heading" in (kind, last.kind):
        return False
    if "formula" in (kind, last.kind):
        return kind == last.kind and any(_is_beside(part, line) for part in last.lines)
    if "listing" in (kind, last.kind):
        # Blank lines of a listing leave a gap of whole lines.
        return kind == last.kind and -1 < step < 3.2 * max(above.height, line.height, line.size)
    if "table" in (kind, last.kind):
        return kind == last.kind and 0 < step < 2.2 * max(above.height, line.height)
    if kind == "item" or not -0.6 * line.height < step < 1.42 * max(margins.leading, 0.9 * line.height):
        return False
    if abs(line.size - last.lines[0].size) > 0.12 * line.size:
        return False
    sentence_ends = TERMINAL.search(above.text) is not None
    first_word = line.text.split(" ", 1)[0]
    if last.kind == "item":
        if line.x0 > last.lines[0].x0 + 2:
            return True
        # In items without indentation only what did not fit on the line above continues it.
        full = above.x1 + 0.4 * line.size * len(first_word) > margins.right
        return full and not sentence_ends and line.x0 > last.lines[0].x0 - 2
    if not sentence_ends:
        return True
    # After a sentence's end a line begins a paragraph when it is indented, or would have fit on the line above.
    indented = line.x0 > margins.left + 0.7 * line.size and line.x0 > above.x0 + 0.7 * line.size
    room = margins.right - above.x1 - 0.6 * line.size * (len(first_word) + 1)
    return not indented and room < 0


# --- paragraphs split across pages or columns


def joined(paragraphs: Sequence[Paragraph], body_size: float) -> list[Paragraph]:
    """The paragraphs in order, those that a page's or column's end split made whole.

    Args:
        body_size: type size of most of the book, in points.
    """
    whole: list[Paragraph] = []
    for paragraph in paragraphs:
        before: Paragraph | None = None
        if paragraph.kind == "listing":
            before = _first_part_of_listing(whole, paragraph, body_size)
        elif paragraph.kind == "prose":
            before = _first_part_of_prose(whole, paragraph, body_size)
        if before is None:
            whole.append(paragraph)
            continue
        before.margins.extend((len(before.lines) + start, left) for start, left in paragraph.margins)
        before.lines.extend(paragraph.lines)
        before.full_width = paragraph.full_width
    return whole


def _first_part_of_listing(whole: Sequence[Paragraph], paragraph: Paragraph, body_size: float) -> Paragraph | None:
    """The listing that this one, at the top of its page or column, continues past footnotes."""
    first = paragraph.lines[0]
    for before in reversed(whole):
        last = before.lines[-1]
        if before.kind == "listing":
            goes_on = _moved(last, first) and _moved(before.lines[0], first)  # and is not beside it
            return before if abs(last.size - first.size) < 0.3 and goes_on else None
        if before.kind not in ("prose", "item") or not _is_footnote(before, body_size) or last.page == first.page:
            return None
    return None


def _first_part_of_prose(whole: Sequence[Paragraph], paragraph: Paragraph, body_size: float) -> Paragraph | None:
    """The paragraph that this one continues, past footnotes and past tables and figures with their captions."""
    first = paragraph.lines[0]
    if _is_caption(paragraph) or (len(paragraph.lines) > 1 and not paragraph.filled):
        return None
    indent = _indent(first, paragraph)
    between: list[Paragraph] = []
    for before in reversed(whole):
        last = before.lines[-1]
        if before.kind in ("heading", "listing") or last.page < first.page - 2:
            return None
        # The rest begins at the margin, or below the words of a list item.
        most = max((1.0 if before.kind == "prose" else 4.0) * first.size, _indent(last, before) + 2)
        if indent < most and _moved(last, first) and _goes_on(before, paragraph):
            return before if _all_skippable(between, body_size) else None
        between.append(before)
    return None


def _indent(line: Line, paragraph: Paragraph) -> float:
    left = paragraph.margins[-1][1]
    return line.x0 - (line.x0 if left is None else left)


def _goes_on(before: Paragraph, paragraph: Paragraph) -> bool:
    """True when a sentence may begin in one and end in the other."""
    last, first = before.lines[-1], paragraph.lines[0]
    if before.kind not in ("prose", "item") or abs(first.size - last.size) > 0.12 * first.size:
        return False
    if last.text.endswith((LINE_HYPHEN, "-")):
        return True
    opens_low = first.text[:1].islower() or first.text[:1] in "(`_"
    return (
        not TERMINAL.search(last.text)
        and not CAPTION.match(before.lines[0].text)
        and (before.full_width or (opens_low and before.filled))
    )


def _moved(last: Line, first: Line) -> bool:
    """True when reading goes from one line to the other by going up: to another page or column."""
    return first.page > last.page or first.bottom > last.top


def _all_skippable(between: Sequence[Paragraph], body_size: float) -> bool:
    """True when none of the paragraphs is running text."""
    captions = any(map(_is_caption, between))
    return all(
        one.kind == "table" or _is_caption(one) or _is_footnote(one, body_size) or (captions and not one.filled)
        for one in between
    )


def _is_caption(paragraph: Paragraph) -> bool:
    """True for `Table 2: Times`; a sentence may begin with `Table 2 shows`, but then it fills its line."""
    found = CAPTION.match(paragraph.lines[0].text)
    return found is not None and (found[1] is not None or not paragraph.filled)


def _is_footnote(paragraph: Paragraph, body_size: float) -> bool:
    return paragraph.lines[-1].size < SMALL * body_size


# --- the text of a paragraph


def block_of(paragraph: Paragraph, vocabulary: Counter[str]) -> Block:
    """A paragraph as text with page marks; words that a line's end cut in two are whole again."""
    if paragraph.kind == "listing":
        return _listing(paragraph)
    if paragraph.kind == "table":
        return _table(paragraph)
    text = ""
    marks: list[tuple[int, int]] = []
    for line in paragraph.lines:
        text, start = _joined_lines(text, line.text, vocabulary) if text else (line.text, 0)
        if not marks or marks[-1][1] != line.page:
            marks.append((start, line.page))
    text = text.replace(LINE_HYPHEN, "-").replace("\xad", "")
    if paragraph.kind == "item":
        text = re.sub(rf"^{BULLETS}\s*", "- ", text)
        marks = [(min(offset, len(text)), page) for offset, page in marks]
    return Block(text, tuple(marks))


def _table(paragraph: Paragraph) -> Block:
    """A table as Markdown; a single row, which may be a form's line or a formula with its number, as plain text."""
    rows = [_cells(line) for line in paragraph.lines]
    if len(rows) == 1:
        return Block(" ".join(cell.text for cell in rows[0]).replace(LINE_HYPHEN, "-"), ((0, paragraph.lines[0].page),))
    columns = max(rows, key=len)
    placed = [[""] * len(columns) for _ in rows]
    for cells, row in zip(placed, rows, strict=True):
        for cell in row:
            place = max(range(len(columns)), key=lambda index: _overlap(cell, columns[index]))
            cells[place] = f"{cells[place]} {cell.text}".strip()
    text = ""
    marks: list[tuple[int, int]] = []
    written = pipe_table(placed).replace(LINE_HYPHEN, "-").split("\n")
    for line, row_text in zip([paragraph.lines[0], *paragraph.lines], written, strict=True):
        if not marks or marks[-1][1] != line.page:
            marks.append((len(text), line.page))
        text += row_text + "\n"
    return Block(text.rstrip("\n"), tuple(marks))


def _cells(line: Line) -> list[Line]:
    """The cells of a row: words that no wide gap parts."""
    cells: list[list[Word]] = []
    for word in line.words:
        if cells and word.x0 - cells[-1][-1].x1 <= CELL_GAP * line.size:
            cells[-1].append(word)
        else:
            cells.append([word])
    return [make_line(words, line.page) for words in cells]


def _overlap(cell: Line, column: Line) -> float:
    """How far two cells overlap sideways, in points; less than 0 is their distance."""
    return min(cell.x1, column.x1) - max(cell.x0, column.x0)


def vocabulary_of(pages: Iterable[TextPage]) -> Counter[str]:
    """Word counts, ignoring words at line ends and after hyphens, which may be half words."""
    words: Counter[str] = Counter()
    is_cut = False
    for page in pages:
        for line in page.lines:
            whole = line.text.split(" ")[is_cut:-1]
            is_cut = line.text.endswith(_HYPHENS)
            for word in whole:
                words[re.sub(r"^\W+|\W+$", "", word).casefold()] += 1
    return words


def _joined_lines(text: str, addition: str, vocabulary: Counter[str]) -> tuple[str, int]:
    """Two lines as one text, and where `addition` begins in it."""
    if text.endswith(_HYPHENS) and len(text) > 1 and text[-2].isalnum():
        text = _without_line_hyphen(text, addition, vocabulary)
    elif not (_BROKEN_NAME.search(text) or (is_cjk(text[-1]) and is_cjk(addition[:1]))):
        text += " "
    return text + addition, len(text)


def _without_line_hyphen(text: str, addition: str, vocabulary: Counter[str]) -> str:
    """`text` without its final hyphen, unless the author wrote the word with it."""
    found_before, found_after = _BEFORE.search(text[:-1]), _AFTER.match(addition)
    if found_before is None or found_after is None or text[-2].isdigit():
        return text[:-1] + "-"
    before, after = found_before[0].casefold(), found_after[0].casefold()
    plain, hyphened = vocabulary[before + after], vocabulary[f"{before}-{after}"]
    if not found_after[0][0].islower() and not plain:
        return text[:-1] + "-"
    keep = hyphened > plain or (not plain and _is_compound(before, after, vocabulary))
    return text[:-1] + "-" if keep else text[:-1]


def _is_compound(before: str, after: str, words: Counter[str]) -> bool:
    """True when the book has both halves as words, or the whole with its hyphen."""
    last = before.rpartition("-")[2]
    if words[f"{before}-{after}"]:
        return True
    halves = min(len(last), len(after)) >= MIN_COMPOUND_PART and words[last] > 0 and words[after] > 0
    return not words[last + after] and (halves or (last != before and words[after] > 0))


# --- the text of a listing


def _listing(paragraph: Paragraph) -> Block:
    """A listing in a fence: columns from the places of words, blank lines from gaps."""
    pitch, spread = _pitch(paragraph.lines)
    lines = _on_grid(paragraph.lines, pitch) if spread else paragraph.lines
    starts = [start for start, _ in paragraph.margins]
    runs = [lines[start:end] for start, end in pairwise([*starts, len(lines)])]
    lefts = [min(line.x0 for line in run) for run in runs]
    text = "```\n"
    marks: list[tuple[int, int]] = []
    for run, own_left, (_, margin) in zip(runs, lefts, paragraph.margins, strict=True):
        left = _first_left(own_left, lefts[0], paragraph.margins[0][1], margin, pitch)
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


def _first_left(own: float, first: float, first_margin: float | None, margin: float | None, pitch: float) -> float:
    """Where column 0 of a run of lines is.

    The rest of a listing on another page may be indented throughout: its column 0 is as far from the margin as it was.
    A page full of code has no margin of its own; there a whole number of columns is an indentation.

    Args:
        own, first: left edge of this run, and of the listing's first run.
        first_margin, margin: of the first run's column, and of this one's.
    """
    if margin is not None and first_margin is not None:
        return min(own, first + margin - first_margin)
    deep = (own - first) / pitch
    return first if 0 < deep < MAX_INDENT and abs(deep - round(deep)) < 0.12 else own


def _typed(line: Line, left: float, pitch: float) -> str:
    """A line with each word in the column where it is printed, counted from `left`."""
    out = " " * max(round((line.words[0].x0 - left) / pitch), 0)
    end = line.words[0].x0
    for word in line.words:
        # Count from the end of the word before: widths are rounded, and from `left` the error grows along the line.
        out += " " * max(round((word.x0 - end) / pitch), 0) + word.text.replace(LINE_HYPHEN, "-")
        end = word.x1
    return out.translate(_TYPED)


def _pitch(lines: Sequence[Line]) -> tuple[float, bool]:
    """Width of a listing's columns in points, and whether its letters are set farther apart than they are wide."""
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
    factors = [1 + number * SPREAD_STEP for number in range(int((MAX_SPREAD - 1) / SPREAD_STEP) + 1)]
    return max((letter * factor for factor in factors), key=lambda pitch: _agreement(words, pitch)), True


def _agreement(words: Sequence[Word], pitch: float) -> float:
    """How far the words' first columns agree modulo `pitch`, from 0 to 1."""
    return abs(sum(cmath.rect(1.0, 2 * cmath.pi * first_column(word, pitch) / pitch) for word in words)) / len(words)


def _on_grid(lines: Sequence[Line], pitch: float) -> list[Line]:
    """Lines whose words fill their columns."""
    moved: list[Line] = []
    for line in lines:
        starts = [first_column(word, pitch) for word in line.words]
        words = tuple(
            replace(word, x0=start, x1=start + len(word.text) * pitch)
            for word, start in zip(line.words, starts, strict=True)
        )
        moved.append(replace(line, words=words, x0=min(starts)))
    return moved


def _line_step(lines: Sequence[Line]) -> float:
    steps = [above.bottom - below.bottom for above, below in pairwise(lines) if above.bottom - below.bottom > 1]
    return min(steps) if steps else 12.0
