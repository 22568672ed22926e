"""Which lines of a PDF are headings, and of what level: by its outline, and by how they are set."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from indexes.readers.pdf_order import OrderedPage
from indexes.readers.pdf_page import Line

MAX_OUTLINE_ENTRIES = 20_000
MAX_OUTLINE_DEPTH = 8
_NUMBER = re.compile(
    r"^(?:(?:chapter|part|appendix|section|lecture)\s+)?(?:\d{1,3}(?:\.\d{1,3})*|[A-Z](?=\.\d|\s)|[IVXLC]+(?=\s|[.:]))[.:]?\s*[-–—:]?\s*",
    re.IGNORECASE,
)
_LABEL_ONLY = re.compile(r"^(?:chapter|part|appendix|lecture)\s+(?:\d{1,3}|[A-Z]|[IVXLC]+)[.:]?$", re.IGNORECASE)
_DEPTH = re.compile(r"^(?:chapter\s+)?(\d{1,3}(?:\.\d{1,3})*)[.:]?\s", re.IGNORECASE)
MAX_HEADING_CHARS, MAX_HEADING_LINES = 120, 4


@dataclass(frozen=True, slots=True)
class OutlineEntry:
    """An entry of the file's outline: `level` from 1, `page` from 1, `top` the height on the page if it says so."""

    level: int
    title: str
    page: int
    top: float | None


@dataclass(frozen=True, slots=True)
class FoundHeading:
    """A heading with the lines that print it; without lines it stands before everything below `top` on its page."""

    level: int
    title: str
    page: int
    lines: tuple[Line, ...]
    top: float | None = None


def read_outline(document: Any, num_pages: int) -> list[OutlineEntry]:
    """The outline of an open PDFium document; cycles, entries without a page and endless trees are cut off."""
    import pypdfium2.raw as pdfium

    entries: list[OutlineEntry] = []
    seen: set[int] = set()

    def visit(parent: Any, level: int) -> Iterator[OutlineEntry]:
        import ctypes

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

    entries.extend(visit(None, 1))
    return entries


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


def without_parts(entries: Sequence[OutlineEntry]) -> list[OutlineEntry]:
    """The outline with chapters on its first level: a lone root (the book) and a level of parts are taken off."""
    result = list(entries)
    for _ in range(2):
        tops = [entry for entry in result if entry.level == 1]
        deeper = any(entry.level > 1 for entry in result)
        parts = [entry for entry in tops if re.match(r"part\b|第.{1,3}部", entry.title, re.IGNORECASE)]
        if not deeper or not (len(tops) == 1 or (len(parts) >= 2 and len(parts) * 2 >= len(tops))):
            break
        dropped = tops if len(tops) == 1 else parts
        lowered: list[OutlineEntry] = []
        below = False
        for entry in result:
            if entry.level == 1:
                below = entry in dropped
            if entry not in dropped:
                level = entry.level - 1 if below else entry.level
                lowered.append(OutlineEntry(level, entry.title, entry.page, entry.top))
        result = lowered
    return result


def match_outline(entries: Sequence[OutlineEntry], pages: Sequence[OrderedPage]) -> list[FoundHeading]:
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


def _lines_of_title(entry: OutlineEntry, page: OrderedPage, used: set[int]) -> tuple[Line, ...]:
    wanted = _letters(entry.title)
    bare = _letters(_NUMBER.sub("", entry.title, count=1))
    best: tuple[float, tuple[Line, ...]] | None = None
    for start, line in enumerate(page.lines):
        if id(line) in used or line.mono:
            continue
        words = ""
        for end in range(start, min(start + 4, len(page.lines))):
            words = f"{words} {page.lines[end].text}".strip()
            text = _letters(words)
            # The number before the title, or "Chapter 3" on a line of its own, may stand on one side only.
            if text in (wanted, bare) or (bare and _letters(_NUMBER.sub("", words, count=1)) == bare):
                lines = tuple(page.lines[start : end + 1])
                distance = abs(entry.top - line.top) if entry.top is not None else 0.0
                worth = distance - 3 * line.size
                if best is None or worth < best[0]:
                    best = (worth, lines)
                break
            if len(text) > len(wanted) + 12:
                break
    return best[1] if best is not None else ()


def headings_by_type(
    pages: Sequence[OrderedPage], body_size: float, below: Sequence[FoundHeading]
) -> list[FoundHeading]:
    """Headings recognised by their size, weight and number.

    Args:
        below: headings of the outline; what is found here then stands one level below the lowest of them that the
            line comes after, and only lines set larger or bold and numbered count.
    """
    taken = {id(line) for heading in below for line in heading.lines}
    groups: list[list[Line]] = []
    for page in pages:
        previous: Line | None = None
        for line in page.lines:
            if id(line) not in taken and _looks_like_heading(line, body_size):
                goes_on = (
                    previous is not None
                    and groups
                    and groups[-1][-1] is previous
                    and abs(previous.size - line.size) < 0.3
                    and 0 < previous.bottom - line.bottom < 1.9 * line.height
                    and not _NUMBER.match(line.text)
                    and previous.bold == line.bold
                ) or (
                    previous is not None and groups and groups[-1][-1] is previous and _LABEL_ONLY.match(previous.text)
                )
                if goes_on:
                    groups[-1].append(line)
                else:
                    groups.append([line])
            previous = line
    sizes = _levels_by_size(groups)
    lowest = {heading.page: heading.level for heading in below}
    found: list[FoundHeading] = []
    for group in groups:
        title = _title_of(group)
        if len(group) > MAX_HEADING_LINES or len(title) > MAX_HEADING_CHARS or not re.search(r"[^\W\d_]", title):
            continue
        level = sizes[_size_key(group[0])]
        if below:
            level += max(lowest.values(), default=0)
        found.append(FoundHeading(level, title, group[0].page, tuple(group)))
    return found


def _title_of(group: Sequence[Line]) -> str:
    texts = [" ".join(line.text.split()) for line in group]
    if len(texts) > 1 and _LABEL_ONLY.match(texts[0]):
        return f"{texts[0].rstrip('.:')}: {' '.join(texts[1:])}"
    return " ".join(texts)


def _looks_like_heading(line: Line, body_size: float) -> bool:
    text = line.text.strip()
    if line.mono or len(text) > MAX_HEADING_CHARS or not re.search(r"[^\W\d_]{2}", text):
        return False
    if line.size >= 1.14 * body_size:
        return not text.endswith((",", ";"))
    numbered = _DEPTH.match(text + " ") is not None and text[0].isdigit()
    return line.bold and line.size >= 0.95 * body_size and text[-1] not in ".,;:" and (numbered or len(text) <= 70)


def _size_key(line: Line) -> tuple[float, int]:
    depth = _DEPTH.match(line.text + " ")
    dots = depth[1].count(".") if depth is not None else 0
    return round(line.size * 2) / 2, -dots


def _levels_by_size(groups: Sequence[Sequence[Line]]) -> dict[tuple[float, int], int]:
    keys = Counter(_size_key(group[0]) for group in groups)
    levels: dict[tuple[float, int], int] = {}
    sizes = sorted({size for size, _ in keys}, reverse=True)
    for key in keys:
        rank = sizes.index(key[0]) + 1
        levels[key] = max(rank, 1 - key[1]) if key[1] else rank
    return levels


def _letters(text: str) -> str:
    return re.sub(r"[\W_]+", "", text).casefold()
