"""What a page carries besides its text: running heads, feet and page numbers. Finds them, and the printed labels."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from indexes.readers.pdf_page import Line, PageLines

_ROMAN = re.compile(r"^(?=[ivxlcdm])m*(cm|cd|d?c{0,3})(xc|xl|l?x{0,3})(ix|iv|v?i{0,3})$", re.IGNORECASE)
_FOLIO_WRAP = re.compile(
    r"^(?:page|p\.|seite|[-–—|\[(~· ])*\s*(\d{1,4}|[ivxlcdm]{1,8})\s*(?:[-–—|\])~· ]|(?:of|/)\s*\d+)*$", re.IGNORECASE
)
_ROMAN_VALUES = {"i": 1, "v": 5, "x": 10, "l": 50, "c": 100, "d": 500, "m": 1000}
EDGE_SHARE = 0.16
"""Heads and feet stand in the upper and lower 16 % of what a book prints on its pages, however large the paper is."""
OUTLYING = 0.1
"""Share of pages that may reach higher or lower than the others: covers and plates."""
MIN_HEADS, HEAD_SHARE, MIN_TEXT_LINES = 5, 0.6, 4
"""Pages whose first row stands apart at one height, and their share of pages with a row there: heads that change."""
NEAR_PAGES = 8
"""A head or page number is believed when a page at most this far away agrees with it."""


@dataclass(frozen=True, slots=True)
class Folio:
    """A page number as printed; `roman` tells `iv` from `4`."""

    text: str
    value: int
    roman: bool


@dataclass(frozen=True, slots=True)
class Furniture:
    """Which lines are not text (by page and place in `PageLines.lines`), and what number each page bears."""

    lines: frozenset[tuple[int, int]]
    folios: dict[int, str]


@dataclass(frozen=True, slots=True)
class _Edges:
    """Lines near a page's upper and lower edge with their places in `PageLines.lines`, outermost first."""

    upper: tuple[tuple[int, Line], ...]
    lower: tuple[tuple[int, Line], ...]

    @property
    def all(self) -> tuple[tuple[int, Line], ...]:
        """Both edges' lines."""
        return self.upper + self.lower


def find_furniture(pages: Sequence[PageLines]) -> Furniture:
    """Heads, feet and page numbers of a book: what stands at the pages' edges and recurs, or counts on."""
    text_size = body_size(pages)
    low, high = _printed(pages)
    edges = {page.page: _edge_lines(page, text_size, low, high) for page in pages}
    folios = _agreeing_folios(edges)
    recurring = _recurring(edges)

    def certain(page: int, index: int, line: Line) -> bool:
        number = _number_of(line.text)
        return (page, index) in recurring or (number is not None and folios.get(page) == number)

    found = {at for page in pages for at in _taken(page, edges[page.page], certain, text_size)}
    places = Counter(_place(line) for page, edge in edges.items() for index, line in edge.all if (page, index) in found)

    heads = _heads_by_place(pages, text_size, high)

    def likely(page: int, index: int, line: Line) -> bool:
        # The head of a short chapter recurs nowhere, but it stands where heads stand and is not set as text is.
        numbered = page in folios and any(
            abs(other.bottom - line.bottom) < 3 and _bears(other.text, folios[page].text)
            for _, other in edges[page].all
        )
        other_type = abs(line.size - text_size) > 0.4
        if certain(page, index, line) or (page, index) in heads:
            return True
        return places[_place(line)] >= 3 and (numbered or other_type)

    found |= {at for page in pages for at in _taken(page, edges[page.page], likely, text_size)}
    return Furniture(frozenset(found), {page: folio.text for page, folio in folios.items()})


def _printed(pages: Sequence[PageLines]) -> tuple[float, float]:
    """Heights below and above which a book's feet and heads are looked for, as shares of the page's height."""
    full = [page for page in pages if page.lines and page.height > 0]
    if not full:
        return 0.0, 1.0
    bottoms = sorted(min(line.bottom for line in page.lines) / page.height for page in full)
    tops = sorted(max(line.top for line in page.lines) / page.height for page in full)
    lowest, highest = bottoms[int(OUTLYING * len(full))], tops[-1 - int(OUTLYING * len(full))]
    edge = EDGE_SHARE * (highest - lowest)
    return lowest + edge, highest - edge


def _edge_lines(page: PageLines, text_size: float, low_share: float, high_share: float) -> _Edges:
    """Lines near the upper and lower edge, at most three at each; a line set larger than text is a heading."""
    low, high = page.height * low_share, page.height * high_share
    small = [(index, line) for index, line in enumerate(page.lines) if line.size <= 1.12 * text_size]
    upper = sorted((at for at in small if at[1].bottom > high), key=lambda at: -at[1].top)
    lower = sorted((at for at in small if at[1].top < low), key=lambda at: at[1].bottom)
    return _Edges(tuple(upper[:3]), tuple(lower[:3]))


def _taken(
    page: PageLines, edges: _Edges, is_furniture: Callable[[int, int, Line], bool], text_size: float
) -> set[tuple[int, int]]:
    """From the page's edges inwards the lines that are furniture, up to the first that is not."""
    taken: set[int] = set()
    for edge in (edges.upper, edges.lower):
        for index, line in edge:
            if not is_furniture(page.page, index, line):
                break
            taken.add(index)
    rest = [line for index, line in enumerate(page.lines) if index not in taken]
    kept = {index for index in taken if not _stands_apart(page.lines[index], rest, text_size)}
    return {(page.page, index) for index in taken - kept}


def _stands_apart(line: Line, rest: Sequence[Line], text_size: float) -> bool:
    """False for a line that is set as text and as near to the text as its own lines are."""
    if _number_of(line.text) is not None:
        return True
    if not rest:
        return False  # all that its page says
    gap = min(max(line.bottom - other.top, other.bottom - line.top) for other in rest)
    return gap > 0.5 * line.height or abs(line.size - text_size) > 0.4


def _recurring(edges: dict[int, _Edges]) -> set[tuple[int, int]]:
    """Lines whose words, numbers aside, stand at the same height of at least three pages not far apart."""
    seen: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for page, edge in edges.items():
        for index, line in edge.all:
            for height in {round((line.bottom - 2) / 6), round((line.bottom + 2) / 6)}:
                seen[_without_numbers(line.text), height].append((page, index))
    found: set[tuple[int, int]] = set()
    for (words, _), places in seen.items():
        pages = {page for page, _ in places}
        for page, index in places:
            near = sum(1 for other in pages if other != page and abs(other - page) <= NEAR_PAGES)
            if words and near >= 2:
                found.add((page, index))
    return found


def _heads_by_place(pages: Sequence[PageLines], text_size: float, high: float) -> set[tuple[int, int]]:
    """First rows of pages that stand at one height and apart from the text on most pages that have a row there.

    The heads of sections change too often to recur, and many are set as the text is.
    """
    apart: dict[int, list[tuple[int, list[int]]]] = defaultdict(list)
    at_height: Counter[int] = Counter()
    for page in pages:
        order = sorted(range(len(page.lines)), key=lambda index: -page.lines[index].top)
        if not order or page.lines[order[0]].bottom < page.height * high:
            continue
        first = page.lines[order[0]]
        row = [index for index in order if abs(page.lines[index].bottom - first.bottom) < 2]
        below = [page.lines[index] for index in order if index not in row]
        if len(below) < MIN_TEXT_LINES or first.size > 1.12 * text_size or first.mono:
            continue
        height = round(first.bottom / 3)
        at_height[height] += 1
        gaps = [above.bottom - line.top for above, line in pairwise(below)]
        usual = max(median(gaps), 0.0)
        if first.bottom - max(line.top for line in below) > 2 * usual + 0.8 * first.height:
            apart[height].append((page.page, row))
    return {
        (page, index)
        for height, found in apart.items()
        if len(found) >= MIN_HEADS and len(found) >= HEAD_SHARE * at_height[height]
        for page, row in found
        for index in row
    }


def _without_numbers(text: str) -> str:
    words = [word for word in text.casefold().split() if not re.fullmatch(r"[\W\d]+", word) and not _ROMAN.match(word)]
    return " ".join(words)


def _agreeing_folios(edges: dict[int, _Edges]) -> dict[int, Folio]:
    """Of all numbers at the pages' edges those that count on from page to page."""
    candidates = {page: _folio_candidates(edge.all) for page, edge in edges.items()}
    by_offset: dict[tuple[bool, int], list[int]] = defaultdict(list)
    for page, folios in candidates.items():
        for folio in folios:
            by_offset[folio.roman, page - folio.value].append(page)
    chosen: dict[int, Folio] = {}
    for page, folios in candidates.items():
        best, votes = None, 0
        for folio in folios:
            near = [
                other for other in by_offset[folio.roman, page - folio.value] if 0 < abs(other - page) <= NEAR_PAGES
            ]
            if len(set(near)) > votes:
                best, votes = folio, len(set(near))
        if best is not None:
            chosen[page] = best
    return {**_folios_by_place(edges), **chosen}


def _folios_by_place(edges: dict[int, _Edges]) -> dict[int, Folio]:
    """Numbers alone on their lines that stand where other pages bear theirs: the only page between two leaves."""
    alone: dict[tuple[int, int], dict[int, Folio]] = defaultdict(dict)
    for page, edge in edges.items():
        for _, line in edge.all:
            number = _number_of(line.text)
            if number is not None:
                alone[_place(line)].setdefault(page, number)
    found: dict[int, Folio] = {}
    for pages in alone.values():
        if len(pages) > 1:
            found.update(pages)
    return found


def _folio_candidates(lines: Sequence[tuple[int, Line]]) -> list[Folio]:
    found: list[Folio] = []
    for _, line in lines:
        whole = _FOLIO_WRAP.match(line.text.strip())
        words = [whole[1]] if whole is not None else [line.text.split()[0], line.text.split()[-1]]
        for word in words:
            folio = _number_of(word)
            if folio is not None and folio not in found:
                found.append(folio)
    return found


def _number_of(text: str) -> Folio | None:
    whole = _FOLIO_WRAP.match(text.strip())
    if whole is None:
        return None
    word = whole[1]
    if word.isdigit():
        return Folio(word, int(word), False)
    if not _ROMAN.match(word):
        return None
    value = 0
    values = [_ROMAN_VALUES[letter] for letter in word.lower()]
    for this, following in zip(values, [*values[1:], 0], strict=True):
        value += -this if this < following else this
    return Folio(word, value, True)


def _bears(text: str, number: str) -> bool:
    return number in re.findall(r"\w+", text)


def _place(line: Line) -> tuple[int, int]:
    return round(line.bottom / 4), round(line.size * 2)


def body_size(pages: Sequence[PageLines]) -> float:
    """The size in which most of the book's letters are set, listings aside."""
    sizes: Counter[float] = Counter()
    for page in pages:
        for line in page.lines:
            if not line.mono:
                sizes[line.size] += sum(len(word.text) for word in line.words)
    return sizes.most_common(1)[0][0] if sizes else 10.0


def printed_labels(folios: dict[int, str], declared: Sequence[str], num_pages: int) -> tuple[str | None, ...]:
    """The label of each page: what the file declares, unless the pages themselves say otherwise.

    A declared list that merely counts from 1 is what many programs write unasked; and a list that most printed
    numbers contradict is wrong. In both cases the printed numbers win, and a page that bears none has no label.
    """
    counted = all(label in ("", str(page)) for page, label in enumerate(declared, 1))
    agreeing = sum(declared[page - 1].casefold() == text.casefold() for page, text in folios.items()) if declared else 0
    if folios and (not declared or counted or 2 * agreeing < len(folios)):
        return tuple(folios.get(page) for page in range(1, num_pages + 1))
    return tuple(label or None for label in declared) or (None,) * num_pages
