"""What each line of a PDF is: header, footer, printed contents, heading or text, and in what order the text is read.

Text is read column by column. Headings come from the file's outline, and from the size, weight and numbering of lines.
"""

from __future__ import annotations

import ctypes
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, starmap
from statistics import median
from typing import Any

from indexes.readers.elements import one_line, real_title, title_letters
from indexes.readers.pdf.page import (
    CELL_GAP,
    NARROW_GAP,
    WIDE_GAP,
    Line,
    PageLines,
    count_letters,
    decoded,
    has_gaps,
    make_line,
    same_row,
)

EDGE_SHARE = 0.16
"""Share of the printed height, above and below, that holds headers and footers; the paper may be larger."""
EDGE_LINES = 3
"""Lines per edge that may be headers or footers."""
SHORT_HEADER = 8
"""Most words of a header that may hold a number of its own, as that of a chapter."""
OUTLYING = 0.1
"""Share of pages that may print higher or lower than the others: covers and plates."""
MIN_HEADERS, HEADER_SHARE, MIN_TEXT_LINES = 5, 0.6, 4
"""Least pages, and share of pages, whose first row is set apart at one height; least lines of text below it."""
LARGER = 1.12
"""A line this many times larger than the text is a heading, not a header."""
NEAR_PAGES = 8
"""Pages within which headers must recur and page numbers count on."""
MIN_NUMBERED = 0.25
"""Least share of pages with a printed number for these numbers to replace the file's own page labels."""
MIN_COLUMN_LINES = 2
"""Least lines of a text column; fewer may be a table, a caption or chance."""
MIN_COLUMN_CHARS = 20
"""Least letters of a text column's usual line; cells of tables have fewer."""
MAX_CLIMB = 4.0
"""How far the file's order of a column may go up again, in heights of a line, as from cell to cell of a table."""
MIN_CONTENTS_ENTRIES = 3
"""Least entries on a page of a table of contents; a single line may end in a number by chance."""

_ROMAN = re.compile(r"^(?=[ivxlcdm])m*(cm|cd|d?c{0,3})(xc|xl|l?x{0,3})(ix|iv|v?i{0,3})$", re.IGNORECASE)
_ROMAN_VALUES = {"i": 1, "v": 5, "x": 10, "l": 50, "c": 100, "d": 500, "m": 1000}
_PAGE_NUMBER = re.compile(
    r"^(?:page|p\.|seite|[-–—|\[(~· ])*\s*(\d{1,4}|[ivxlcdm]{1,8})\s*(?:[-–—|\])~· ]|(?:of|/)\s*\d+)*$", re.IGNORECASE
)
_LEADERS = re.compile(r"(?:\.\s?){4,}\s*(?:\d{1,4}|[ivxlc]{1,7})?$|(?:…\s*){2,}\w*$")
_CONTENTS_TITLE = re.compile(r"^(?:table of )?contents$|^list of (?:figures|tables|listings)$|^目\s*录$", re.IGNORECASE)
BULLETS = "[•◦▪‣●○■□–*·∙⁃\ue000-\uf8ff-]"
"""What an item of a list begins with; word processors take bullets of their own from symbol fonts."""
CAPTION = re.compile(
    r"^(?:table|figure|fig\.|listing|algorithm|exhibit|plate|图|表)\s*[A-Z]?\d+(?:[.\-–]\d+)*(\s*[.:|–—]\s)?",
    re.IGNORECASE,
)
_ITEM = re.compile(BULLETS)
_LAST_NUMBER = re.compile(r"^(?:\d{1,4}|[ivxlc]{1,7})$", re.IGNORECASE)

_At = tuple[int, int]
"""A line's file page, from 1, and its index in `PageLines.lines`."""


@dataclass(frozen=True, slots=True)
class TextPage:
    """A page's text lines in reading order; `columns` beside each other, `doubtful` when the order is a guess."""

    page: int
    lines: tuple[Line, ...]
    columns: int
    doubtful: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """The pages' text, the printed number of each page that has one, and the text's type size in points.

    `contents` has the pages whose printed contents were left out, with their letters.
    """

    pages: tuple[TextPage, ...]
    page_numbers: dict[int, str]
    body_size: float
    contents: dict[int, int]


@dataclass(frozen=True, slots=True)
class _PageNumber:
    """A page number as printed; `roman` tells `iv` from `4`."""

    text: str
    value: int
    roman: bool


@dataclass(frozen=True, slots=True)
class _Edges:
    """Lines near a page's upper and lower edge with their indexes in `PageLines.lines`, outermost first."""

    upper: tuple[tuple[int, Line], ...]
    lower: tuple[tuple[int, Line], ...]

    @property
    def all(self) -> tuple[tuple[int, Line], ...]:
        """Both edges' lines."""
        return self.upper + self.lower


def find_layout(pages: Sequence[PageLines]) -> Layout:
    """Text lines of all pages in reading order, without headers, footers, page numbers and printed contents."""
    body_size = _body_size(pages)
    dropped, numbers = _headers_and_footers(pages, body_size)
    text = [_in_reading_order(page, dropped) for page in pages]
    printed = Counter(title_letters(line.text) for page in text for line in page.lines)
    kept = [_without_contents(page, printed) for page in text]
    contents = {
        page.page: left_out
        for page, rest in zip(text, kept, strict=True)
        if (left_out := _letters_of(page) - _letters_of(rest))
    }
    return Layout(tuple(kept), {page: number.text for page, number in numbers.items()}, body_size, contents)


def _letters_of(page: TextPage) -> int:
    return sum(count_letters(line.text) for line in page.lines)


def page_labels(printed: dict[int, str], declared: Sequence[str], num_pages: int) -> tuple[str | None, ...]:
    """The label of each page: what the file declares, unless the printed page numbers contradict it.

    Printed numbers on few pages are chance and never win. A declared list that merely counts from 1 is what many
    programs write by default, and one that most printed numbers contradict is wrong: then the printed numbers win,
    and a page without one has no label.
    """
    if declared and len(printed) < MIN_NUMBERED * num_pages:
        printed = {}
    counted = all(label in ("", str(page)) for page, label in enumerate(declared, 1))
    agreeing = sum(declared[page - 1].casefold() == text.casefold() for page, text in printed.items() if declared)
    if printed and (not declared or counted or 2 * agreeing < len(printed)):
        return tuple(printed.get(page) for page in range(1, num_pages + 1))
    return tuple(label or None for label in declared) or (None,) * num_pages


def _body_size(pages: Sequence[PageLines | TextPage]) -> float:
    """The size in which most letters of some pages are set, listings aside."""
    sizes: Counter[float] = Counter()
    for page in pages:
        for line in page.lines:
            if not line.mono:
                sizes[line.size] += sum(len(word.text) for word in line.words)
    return sizes.most_common(1)[0][0] if sizes else 10.0


# --- headers, footers and page numbers


def _headers_and_footers(pages: Sequence[PageLines], body_size: float) -> tuple[set[_At], dict[int, _PageNumber]]:
    """Lines at the pages' edges that recur or count on, and the number printed on each page."""
    low, high = _edge_heights(pages)
    edges = {page.page: _edge_lines(page, body_size, low, high) for page in pages}
    numbers = _agreeing_numbers(edges)
    recurring = _recurring(edges)

    def certain(page: int, index: int, line: Line) -> bool:
        number = _number_of(line.text)
        return (page, index) in recurring or (number is not None and numbers.get(page) == number)

    found = {at for page in pages for at in _from_the_edges(page, edges[page.page], certain, body_size)}
    places = Counter(_place(line) for page, edge in edges.items() for index, line in edge.all if (page, index) in found)
    changing = _changing_headers(pages, body_size, high)

    def likely(page: int, index: int, line: Line) -> bool:
        if certain(page, index, line) or (page, index) in changing:
            return True
        # The header of a short chapter does not recur, but it is where headers are, and not set as the text.
        beside = [other for _, other in edges[page].all if abs(other.bottom - line.bottom) < 3]
        numbered = page in numbers and any(numbers[page].text in re.findall(r"\w+", other.text) for other in beside)
        return places[_place(line)] >= 3 and (numbered or abs(line.size - body_size) > 0.4)

    found |= {at for page in pages for at in _from_the_edges(page, edges[page.page], likely, body_size)}
    return found, numbers


def _edge_heights(pages: Sequence[PageLines]) -> tuple[float, float]:
    """Where footers end and headers begin, as shares of the page's height."""
    full = [page for page in pages if page.lines and page.height > 0]
    if not full:
        return 0.0, 1.0
    bottoms = sorted(min(line.bottom for line in page.lines) / page.height for page in full)
    tops = sorted(max(line.top for line in page.lines) / page.height for page in full)
    lowest, highest = bottoms[int(OUTLYING * len(full))], tops[-1 - int(OUTLYING * len(full))]
    edge = EDGE_SHARE * (highest - lowest)
    return lowest + edge, highest - edge


def _edge_lines(page: PageLines, body_size: float, low_share: float, high_share: float) -> _Edges:
    low, high = page.height * low_share, page.height * high_share
    small = [(index, line) for index, line in enumerate(page.lines) if line.size <= LARGER * body_size]
    # What stands below a heading is its text, even where it reads the same under the headings of other pages.
    high = max([high, *(line.bottom - 2 for line in page.lines if line.size > LARGER * body_size)])
    upper = sorted((at for at in small if at[1].bottom > high), key=lambda at: -at[1].top)
    lower = sorted((at for at in small if at[1].top < low), key=lambda at: at[1].bottom)
    return _Edges(tuple(upper[:EDGE_LINES]), tuple(lower[:EDGE_LINES]))


def _from_the_edges(
    page: PageLines, edges: _Edges, is_header: Callable[[int, int, Line], bool], body_size: float
) -> set[_At]:
    """Headers and footers of a page: from its edges inwards up to the first line that is neither."""
    taken: list[int] = []
    for edge in (edges.upper, edges.lower):
        for index, line in edge:
            if not is_header(page.page, index, line):
                break
            taken.append(index)
    rest = [line for index, line in enumerate(page.lines) if index not in taken]
    found: set[_At] = set()
    for index in reversed(taken):  # from the text outwards: a line beside text is text, and so is the one beside it
        if _is_apart(page.lines[index], rest, body_size):
            found.add((page.page, index))
        else:
            rest.append(page.lines[index])
    return found


def _is_apart(line: Line, rest: Sequence[Line], body_size: float) -> bool:
    """False for a line that is set as the text and as near to it as the text's own lines."""
    if _number_of(line.text) is not None:
        return True
    if not rest:
        return False  # the page's only text
    gap = min(max(line.bottom - other.top, other.bottom - line.top) for other in rest)
    return gap > 0.5 * line.height or abs(line.size - body_size) > 0.4


def _recurring(edges: dict[int, _Edges]) -> set[_At]:
    """Lines with the same words, numbers aside, at the same height of at least three pages close together."""
    seen: dict[tuple[str, int], list[_At]] = defaultdict(list)
    for page, edge in edges.items():
        for index, line in edge.all:
            for height in {round((line.bottom - 2) / 6), round((line.bottom + 2) / 6)}:
                seen[_without_numbers(line.text), height].append((page, index))
    found: set[_At] = set()
    for (words, _), places in seen.items():
        pages = {page for page, _ in places}
        for page, index in places:
            near = sum(1 for other in pages if other != page and abs(other - page) <= NEAR_PAGES)
            if words and near >= 2:
                found.add((page, index))
    return found


def _without_numbers(text: str) -> str:
    """A line's words; a long one, which may be a sentence, loses only the numbers at its ends."""
    words = text.casefold().split()
    named = [place for place, word in enumerate(words) if not (re.fullmatch(r"[\W\d]+", word) or _ROMAN.match(word))]
    if len(words) > SHORT_HEADER and named:
        return " ".join(words[named[0] : named[-1] + 1])
    return " ".join(words[place] for place in named)


def _changing_headers(pages: Sequence[PageLines], body_size: float, high: float) -> set[_At]:
    """First rows of pages, where most pages with a row at that height have it set apart from the text.

    Headers with section titles change too often to recur, and many are set as the text is.
    """
    apart: dict[int, list[_At]] = defaultdict(list)
    apart_pages: Counter[int] = Counter()
    all_pages: Counter[int] = Counter()
    for page in pages:
        order = sorted(range(len(page.lines)), key=lambda index: -page.lines[index].top)
        if not order or page.lines[order[0]].bottom < page.height * high:
            continue
        first = page.lines[order[0]]
        row = [index for index in order if abs(page.lines[index].bottom - first.bottom) < 2]
        below = [page.lines[index] for index in order if index not in row]
        if len(below) < MIN_TEXT_LINES or first.size > LARGER * body_size or first.mono:
            continue
        height = round(first.bottom / 3)
        all_pages[height] += 1
        usual_gap = max(median(above.bottom - line.top for above, line in pairwise(below)), 0.0)
        if first.bottom - max(line.top for line in below) > 2 * usual_gap + 0.8 * first.height:
            apart[height].extend((page.page, index) for index in row)
            apart_pages[height] += 1
    return {
        at
        for height, found in apart.items()
        if apart_pages[height] >= max(MIN_HEADERS, HEADER_SHARE * all_pages[height])
        for at in found
    }


def _agreeing_numbers(edges: dict[int, _Edges]) -> dict[int, _PageNumber]:
    """The numbers at the pages' edges that count on from page to page; else numbers alone at the same place."""
    candidates = {page: _number_candidates(edge.all) for page, edge in edges.items()}
    by_offset: dict[tuple[bool, int], list[int]] = defaultdict(list)
    for page, numbers in candidates.items():
        for number in numbers:
            by_offset[number.roman, page - number.value].append(page)
    found = _numbers_by_place(edges)
    for page, numbers in candidates.items():
        most = 0
        for number in numbers:
            others = by_offset[number.roman, page - number.value]
            votes = len({other for other in others if 0 < abs(other - page) <= NEAR_PAGES})
            if votes > most:
                found[page], most = number, votes
    return found


def _numbers_by_place(edges: dict[int, _Edges]) -> dict[int, _PageNumber]:
    """Numbers alone on their lines at a place where other pages have one: a lone page between two unnumbered ones."""
    alone: dict[tuple[int, int], dict[int, _PageNumber]] = defaultdict(dict)
    for page, edge in edges.items():
        for _, line in edge.all:
            number = _number_of(line.text)
            if number is not None:
                alone[_place(line)].setdefault(page, number)
    return {page: number for pages in alone.values() if len(pages) > 1 for page, number in pages.items()}


def _number_candidates(lines: Sequence[tuple[int, Line]]) -> list[_PageNumber]:
    found: list[_PageNumber] = []
    for _, line in lines:
        words = line.text.split()
        for text in (line.text,) if _PAGE_NUMBER.match(line.text.strip()) else (words[0], words[-1]):
            number = _number_of(text)
            if number is not None and number not in found:
                found.append(number)
    return found


def _number_of(text: str) -> _PageNumber | None:
    """The page number that a text consists of, if it is one."""
    whole = _PAGE_NUMBER.match(text.strip())
    if whole is None:
        return None
    word = whole[1]
    if word.isdigit():
        return _PageNumber(word, int(word), False)
    if not _ROMAN.match(word):
        return None
    values = [_ROMAN_VALUES[letter] for letter in word.lower()]
    value = sum(-this if this < following else this for this, following in pairwise([*values, 0]))
    return _PageNumber(word, value, True)


def _place(line: Line) -> tuple[int, int]:
    return round(line.bottom / 4), round(line.size * 2)


# --- reading order


def _in_reading_order(page: PageLines, dropped: set[_At]) -> TextPage:
    """The page's lines without the dropped ones, column by column where there are several."""
    lines = [line for index, line in enumerate(page.lines) if (page.page, index) not in dropped]
    ordered, columns = _by_columns(lines)
    return TextPage(page.page, tuple(ordered), columns, columns == 1 and _jumps(lines) > 2)


def _by_columns(lines: Sequence[Line]) -> tuple[list[Line], int]:
    """Lines column by column, each of which may be columns again; and how many there are beside each other."""
    gutter = _gutter(lines)
    if gutter is None:
        return _joined_rows(lines), 1
    place = {id(line): index for index, line in enumerate(lines)}
    ordered: list[Line] = []
    columns = 2
    left: list[Line] = []
    right: list[Line] = []

    def close() -> None:
        nonlocal columns
        parts = [_by_columns(_down(part, place)) for part in (left, right)]
        ordered.extend(line for part, _ in parts for line in part)
        columns = max(columns, sum(count for _, count in parts))
        left.clear()
        right.clear()

    for line in sorted(lines, key=lambda one: -one.top):
        if line.x0 < gutter < line.x1 and _spans(line, lines, gutter):
            # A line across both columns separates what is above it from what is below.
            close()
            ordered.append(line)
        elif line.x0 + line.x1 < 2 * gutter or line.x0 < gutter - line.size:
            left.append(line)
        else:
            right.append(line)
    close()
    return ordered, columns


def _down(lines: Sequence[Line], place: dict[int, int]) -> list[Line]:
    """One column's lines in the file's order if that goes down the page; else by rows."""
    ordered = sorted(lines, key=lambda line: place[id(line)])
    lowest = accumulate((line.bottom for line in ordered), min)
    if all(line.bottom - low < MAX_CLIMB * line.height for line, low in zip(ordered, lowest, strict=True)):
        return ordered
    rows: list[list[Line]] = []
    for line in lines:
        if rows and same_row(rows[-1][0], line):
            rows[-1].append(line)
        else:
            rows.append([line])
    return [line for row in rows for line in sorted(row, key=lambda one: one.x0)]


def _spans(line: Line, lines: Sequence[Line], gutter: float) -> bool:
    """True for a line that belongs to both columns, and not to the left one with code that reaches out of it."""
    if min(gutter - line.x0, line.x1 - gutter) <= line.size:
        return False
    beside = any(other is not line and other.x0 > gutter and same_row(line, other) for other in lines)
    return not beside and (not line.mono or line.x1 - gutter > 0.5 * (gutter - line.x0))


def _gutter(lines: Sequence[Line]) -> float | None:
    """The middle of the white strip between two columns of text, if there are two."""
    if len(lines) < 2 * MIN_COLUMN_LINES:
        return None
    left_edge, right_edge = min(line.x0 for line in lines), max(line.x1 for line in lines)
    best: tuple[int, float] | None = None
    for number in range(30, 71):
        x = left_edge + number * (right_edge - left_edge) / 100
        left = [line for line in lines if line.x1 <= x]
        right = [line for line in lines if line.x0 >= x]
        crossing = len(lines) - len(left) - len(right)
        if crossing > 0.4 * len(lines) or not _is_column(left) or not _is_column(right):
            continue
        if _side_by_side(left, right) and (best is None or crossing < best[0]):
            best = (crossing, x)
    if best is None:
        return None
    ends = max(line.x1 for line in lines if line.x1 <= best[1])
    starts = min(line.x0 for line in lines if line.x0 >= best[1])
    return (ends + starts) / 2


def _is_column(lines: Sequence[Line]) -> bool:
    if len(lines) < MIN_COLUMN_LINES:
        return False
    return median(len(line.text) for line in lines) >= MIN_COLUMN_CHARS


def _side_by_side(left: Sequence[Line], right: Sequence[Line]) -> bool:
    """True when two columns are at the same heights, rather than one below the other."""
    top = min(max(line.top for line in left), max(line.top for line in right))
    bottom = max(min(line.bottom for line in left), min(line.bottom for line in right))
    within = sum(1 for line in (*left, *right) if bottom - 1 <= line.bottom and line.top <= top + 1)
    return within >= 0.5 * (len(left) + len(right))


def _joined_rows(lines: Sequence[Line]) -> list[Line]:
    """Lines that follow each other on one baseline (cells of a table) as one line."""
    joined: list[Line] = []
    for line in lines:
        last = joined[-1] if joined else None
        if last is not None and same_row(last, line) and line.x0 >= last.x1 - 1:
            joined[-1] = make_line((*last.words, *line.words), line.page)
        else:
            joined.append(line)
    return joined


def _jumps(lines: Sequence[Line]) -> int:
    """How often the order goes up the page, as in columns that were not recognised."""
    return sum(below.bottom > above.top + 2 * above.height for above, below in pairwise(lines))


# --- the printed table of contents


def _without_contents(page: TextPage, printed: Counter[str]) -> TextPage:
    """The page without its table of contents, which only repeats the headings.

    Lines with leaders to a page number are one; lines that merely end in one where there are several. Where no
    line of the book repeats two thirds of them, they are a form or a price list, and stay.
    """
    leaders = [line for line in page.lines if _LEADERS.search(line.text)]
    ending = [line for line in page.lines if _ends_in_page_number(line)]
    titled = any(_CONTENTS_TITLE.match(line.text.strip()) for line in page.lines)
    dropped = {id(line): line for line in leaders}
    if len(leaders) + (len(ending) if titled else 0) >= MIN_CONTENTS_ENTRIES:
        dropped |= {id(line): line for line in ending}
    repeated = sum(_is_repeated(line, printed) for line in dropped.values())
    if 3 * repeated < len(dropped):
        return page
    return replace(page, lines=tuple(line for line in page.lines if id(line) not in dropped))


def _is_repeated(line: Line, printed: Counter[str]) -> bool:
    """True for an entry whose title, with its number or without, is a line of the book."""
    title = _LEADERS.sub("", line.text)
    title = title if title != line.text else " ".join(word.text for word in line.words[:-1])
    letters = (title_letters(title), title_letters(_NUMBER.sub("", title, count=1)))
    return any(one and printed[one] for one in letters)


def _ends_in_page_number(line: Line) -> bool:
    """True when a number at the line's end is set off by a gap as wide as between columns."""
    if line.mono or len(line.words) < 2 or not _LAST_NUMBER.match(line.words[-1].text):
        return False
    return line.words[-1].x0 - line.words[-2].x1 > NARROW_GAP * line.size


# --- headings

MAX_OUTLINE_ENTRIES = 20_000
MAX_OUTLINE_DEPTH = 8
MAX_HEADING_CHARS, MAX_HEADING_LINES = 120, 4
EQUALLY_LARGE = 0.95
"""Relative type size from which a line of the first page is as large as its title."""
MAX_BOLD_CHARS = 70
"""Maximum letters of a heading that is bold but neither numbered nor larger than the text."""
_NUMBER = re.compile(
    r"^(?:(?:chapter|part|appendix|section|lecture)\s+)?(?:\d{1,3}(?:\.\d{1,3})*|[A-Z](?=\.\d|\s)|[IVXLC]+(?=\s|[.:]))"
    r"[.:]?\s*[-–—:]?\s*",
    re.IGNORECASE,
)
_DEPTH = re.compile(r"^(?:chapter\s+)?(\d{1,3}(?:\.\d{1,3})*)[.:]?\s", re.IGNORECASE)
_PART = re.compile(r"part\b|第.{1,3}部", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class OutlineEntry:
    """An entry of the file's outline: `level` and `page` from 1, `top` its height on the page if the file gives it."""

    level: int
    title: str
    page: int
    top: float | None


@dataclass(frozen=True, slots=True)
class FoundHeading:
    """A heading and the lines that print it; without lines, it precedes everything below `top` on its page."""

    level: int
    title: str
    page: int
    lines: tuple[Line, ...]
    top: float | None = None


def read_outline(document: Any, num_pages: int) -> list[OutlineEntry]:
    """The outline of an open PDFium document, without entries that lead nowhere; cycles and endless trees are cut."""
    import pypdfium2.raw as pdfium

    seen: set[int] = set()

    def visit(parent: Any, level: int) -> Iterator[OutlineEntry]:
        mark = pdfium.FPDFBookmark_GetFirstChild(document, parent)
        while mark and len(seen) < MAX_OUTLINE_ENTRIES:
            address = ctypes.addressof(mark.contents)
            if address in seen:
                return
            seen.add(address)
            entry = _entry(document, mark, level, num_pages)
            if entry is not None:
                yield entry
            if level < MAX_OUTLINE_DEPTH:
                yield from visit(mark, level + 1 if entry is not None else level)
            mark = pdfium.FPDFBookmark_GetNextSibling(document, mark)

    return list(visit(None, 1))


def find_headings(outline: Sequence[OutlineEntry], pages: Sequence[TextPage], body_size: float) -> list[FoundHeading]:
    """The outline's headings, then those that only size, weight and number show, one level below.

    Args:
        body_size: type size of most of the book, in points.
    """
    headings = _match_outline(_without_parts(outline), pages)
    return headings + _headings_by_type(pages, body_size, headings)


def _entry(document: Any, mark: Any, level: int, num_pages: int) -> OutlineEntry | None:
    from pypdfium2 import PdfBookmark

    bookmark = PdfBookmark(mark, document, level)
    title = " ".join(decoded(bookmark.get_title).split())
    destination = bookmark.get_dest()
    index = destination.get_index() if destination is not None else None
    if not title or index is None or not 0 <= index < num_pages:
        return None
    mode, values = destination.get_view()
    top = values[1] if mode == 1 and len(values) > 1 else values[0] if mode == 3 and values else None  # XYZ, FitH
    return OutlineEntry(level, title, index + 1, float(top) if top else None)


def _without_parts(entries: Sequence[OutlineEntry]) -> list[OutlineEntry]:
    """The outline with chapters on its first level: without a lone root (the book's title) and a level of parts."""
    result = list(entries)
    for _ in range(2):
        tops = [entry for entry in result if entry.level == 1]
        deeper = any(entry.level > 1 for entry in result)
        parts = [entry for entry in tops if _PART.match(entry.title)]
        if not deeper or not (len(tops) == 1 or (len(parts) >= 2 and len(parts) * 2 >= len(tops))):
            break
        dropped = tops if len(tops) == 1 else parts
        raised: list[OutlineEntry] = []
        below = False
        for entry in result:
            if entry.level == 1:
                below = entry in dropped
            if entry not in dropped:
                raised.append(replace(entry, level=entry.level - 1) if below else entry)
        result = raised
    return result


def _match_outline(entries: Sequence[OutlineEntry], pages: Sequence[TextPage]) -> list[FoundHeading]:
    """The outline's entries with the lines that print them, in reading order."""
    by_number = {page.page: page for page in pages}
    used: set[int] = set()
    found: list[FoundHeading] = []
    for entry in entries:
        lines: tuple[Line, ...] = ()
        number = entry.page
        for candidate in (entry.page, entry.page + 1):
            page = by_number.get(candidate)
            lines = _lines_of_title(entry, page, used) if page is not None else ()
            if lines:
                number = candidate
                break
        used.update(map(id, lines))
        found.append(FoundHeading(entry.level, entry.title, number, lines, None if lines else entry.top))
    return found


def _lines_of_title(entry: OutlineEntry, page: TextPage, used: set[int]) -> tuple[Line, ...]:
    """The lines of a page that print an entry's title; of several the largest and nearest to its place."""
    wanted = title_letters(entry.title)
    titles = {wanted, title_letters(_NUMBER.sub("", entry.title, count=1))} - {""}
    best: tuple[float, tuple[Line, ...]] | None = None
    for start, line in enumerate(page.lines):
        if id(line) in used or line.mono:
            continue
        words = ""
        for end in range(start, min(start + MAX_HEADING_LINES, len(page.lines))):
            words = f"{words} {page.lines[end].text}".strip()
            text, bare_text = title_letters(words), title_letters(_NUMBER.sub("", words, count=1))
            # Outline and page may differ in the number before the title, or in "Chapter 3" on a line of its own.
            if text in titles or bare_text in titles:
                distance = abs(entry.top - line.top) if entry.top is not None else 0.0
                cost = distance - 3 * line.size
                if best is None or cost < best[0]:
                    best = (cost, tuple(page.lines[start : end + 1]))
                break
            if len(text) > len(wanted) + 12:
                break
    return best[1] if best is not None else ()


def _headings_by_type(
    pages: Sequence[TextPage], body_size: float, outline: Sequence[FoundHeading]
) -> list[FoundHeading]:
    """Headings known by size, weight and number, ranked by size, below the lowest level of the outline's headings."""
    taken = {id(line) for heading in outline for line in heading.lines}
    groups = [group for page in pages for group in _heading_lines(page, body_size, taken)]
    sizes = sorted({_half_points(group[0]) for group in groups}, reverse=True)
    lowest = max({heading.page: heading.level for heading in outline}.values(), default=0)
    found: list[FoundHeading] = []
    for group in groups:
        level = 1 + sizes.index(_half_points(group[0]))
        title = " ".join(" ".join(line.text for line in group).split())
        if len(group) > MAX_HEADING_LINES or len(title) > MAX_HEADING_CHARS or not re.search(r"[^\W\d_]", title):
            continue
        found.append(FoundHeading(level + lowest, title, group[0].page, tuple(group)))
    return found


def printed_title(pages: Sequence[TextPage], body_size: float) -> str | None:
    """The one heading of the first page that is larger than all else there, unless it is a chapter's or 'Contents'."""
    page = next((page for page in pages if page.lines), None)
    if page is None:
        return None
    largest = max(line.size for line in page.lines)
    lines = [line for line in page.lines if line.size >= EQUALLY_LARGE * largest]
    start = page.lines.index(lines[0])
    together = lines == list(page.lines[start : start + len(lines)]) and all(starmap(_same_heading, pairwise(lines)))
    if (
        len(lines) > MAX_HEADING_LINES
        or not together
        or not all(_looks_like_heading(line, body_size) for line in lines)
    ):
        return None
    title = one_line(" ".join(line.text for line in lines))
    numbered = (title[0].isdigit() and _DEPTH.match(title + " ")) or not title_letters(_NUMBER.sub("", title, count=1))
    return None if numbered or len(title) > MAX_HEADING_CHARS or _CONTENTS_TITLE.match(title) else real_title(title)


def _heading_lines(page: TextPage, body_size: float, taken: set[int]) -> list[list[Line]]:
    """A page's lines that look like headings, those of one heading together."""
    groups: list[list[Line]] = []
    previous: Line | None = None
    own_size = max(body_size, _body_size([page]))
    for line in page.lines:
        if id(line) not in taken and _looks_like_heading(line, own_size):
            if previous is not None and groups and groups[-1][-1] is previous and _same_heading(previous, line):
                groups[-1].append(line)
            else:
                groups.append([line])
        previous = line
    return groups


def _same_heading(above: Line, line: Line) -> bool:
    alike = abs(above.size - line.size) < 0.3 and above.bold == line.bold
    return alike and 0 < above.bottom - line.bottom < 1.9 * line.height and not _NUMBER.match(line.text)


def _looks_like_heading(line: Line, body_size: float) -> bool:
    """True for a line larger than the text, or bold and numbered or short."""
    text = line.text.strip()
    if line.mono or len(text) > MAX_HEADING_CHARS or _ITEM.match(text) or not re.search(r"[^\W\d_]{2}", text):
        return False
    numbered = _DEPTH.match(text + " ") is not None and text[0].isdigit()
    # Wide gaps show the header of a table, or captions beside each other.
    if text[-1] in ",;:" or has_gaps(line, WIDE_GAP, after=int(numbered)) or CAPTION.match(text):
        return False
    if line.size >= 1.14 * body_size:
        return True
    if not line.bold or line.size < 0.95 * body_size or text[-1] == ".":
        return False
    return numbered or (len(text) <= MAX_BOLD_CHARS and not has_gaps(line, CELL_GAP))


def _half_points(line: Line) -> int:
    return round(line.size * 2)
