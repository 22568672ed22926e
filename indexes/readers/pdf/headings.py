"""Finds a PDF's headings: from its outline, and from the size, weight and numbering of lines."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from indexes.readers.outline import title_letters
from indexes.readers.pdf.layout import TextPage
from indexes.readers.pdf.page import CELL_GAP, Line, has_gaps

MAX_OUTLINE_ENTRIES = 20_000
MAX_OUTLINE_DEPTH = 8
MAX_HEADING_CHARS, MAX_HEADING_LINES = 120, 4
MAX_BOLD_CHARS = 70
"""Maximum letters of a heading that is bold but neither numbered nor larger than the text."""
_NUMBER = re.compile(
    r"^(?:(?:chapter|part|appendix|section|lecture)\s+)?(?:\d{1,3}(?:\.\d{1,3})*|[A-Z](?=\.\d|\s)|[IVXLC]+(?=\s|[.:]))"
    r"[.:]?\s*[-–—:]?\s*",
    re.IGNORECASE,
)
_LABEL_ONLY = re.compile(r"^(?:chapter|part|appendix|lecture)\s+(?:\d{1,3}|[A-Z]|[IVXLC]+)[.:]?$", re.IGNORECASE)
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
    title = " ".join(bookmark.get_title().split())
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
        title = _spaced_as_printed(entry.title, lines)
        found.append(FoundHeading(entry.level, title, number, lines, None if lines else entry.top))
    return found


def _spaced_as_printed(title: str, lines: Sequence[Line]) -> str:
    """The title as printed where the outline only lacks spaces; some programs drop them at line ends."""
    texts = [line.text for line in lines]
    printed = " ".join(" ".join(texts).split())
    words = printed.split(" ")
    if printed.replace(" ", "") != title.replace(" ", "") or len(words) <= len(title.split(" ")):
        return title
    hyphenated = any(text.endswith("-") for text in texts[:-1])
    letter_spaced = 2 * sum(len(word) == 1 for word in words) > len(words)
    return title if hyphenated or letter_spaced else printed


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
    """Headings known by their size, weight and number, all below the lowest level of the outline's headings."""
    taken = {id(line) for heading in outline for line in heading.lines}
    groups = [group for page in pages for group in _heading_lines(page, body_size, taken)]
    levels = _levels_by_size(groups)
    lowest = max({heading.page: heading.level for heading in outline}.values(), default=0)
    found: list[FoundHeading] = []
    for group in groups:
        title = _title_of(group)
        if len(group) > MAX_HEADING_LINES or len(title) > MAX_HEADING_CHARS or not re.search(r"[^\W\d_]", title):
            continue
        found.append(FoundHeading(levels[_size_key(group[0])] + lowest, title, group[0].page, tuple(group)))
    return found


def _heading_lines(page: TextPage, body_size: float, taken: set[int]) -> list[list[Line]]:
    """A page's lines that look like headings, those of one heading together."""
    groups: list[list[Line]] = []
    previous: Line | None = None
    for line in page.lines:
        if id(line) not in taken and _looks_like_heading(line, body_size):
            if previous is not None and groups and groups[-1][-1] is previous and _same_heading(previous, line):
                groups[-1].append(line)
            else:
                groups.append([line])
        previous = line
    return groups


def _same_heading(above: Line, line: Line) -> bool:
    if _LABEL_ONLY.match(above.text):
        return True
    alike = abs(above.size - line.size) < 0.3 and above.bold == line.bold
    return alike and 0 < above.bottom - line.bottom < 1.9 * line.height and not _NUMBER.match(line.text)


def _title_of(group: Sequence[Line]) -> str:
    texts = [" ".join(line.text.split()) for line in group]
    if len(texts) > 1 and _LABEL_ONLY.match(texts[0]):
        return f"{texts[0].rstrip('.:')}: {' '.join(texts[1:])}"
    return " ".join(texts)


def _looks_like_heading(line: Line, body_size: float) -> bool:
    """True for a line larger than the text, or bold and numbered or short."""
    text = line.text.strip()
    if line.mono or len(text) > MAX_HEADING_CHARS or not re.search(r"[^\W\d_]{2}", text):
        return False
    if line.size >= 1.14 * body_size:
        return not text.endswith((",", ";"))
    if not line.bold or line.size < 0.95 * body_size or text[-1] in ".,;:":
        return False
    numbered = _DEPTH.match(text + " ") is not None and text[0].isdigit()
    # Wide gaps show a table's header.
    return numbered or (len(text) <= MAX_BOLD_CHARS and not has_gaps(line, CELL_GAP))


def _size_key(line: Line) -> tuple[float, int]:
    """Size of type to half a point, and depth of the number: 1 for `2.3`."""
    depth = _DEPTH.match(line.text + " ")
    return round(line.size * 2) / 2, depth[1].count(".") if depth is not None else 0


def _levels_by_size(groups: Sequence[Sequence[Line]]) -> dict[tuple[float, int], int]:
    """Heading levels: the rank of the size, but at least the depth of the number."""
    keys = {_size_key(group[0]) for group in groups}
    sizes = sorted({size for size, _ in keys}, reverse=True)
    ranks = {size: rank for rank, size in enumerate(sizes, 1)}
    return {(size, depth): max(ranks[size], 1 + depth if depth else 0) for size, depth in keys}
