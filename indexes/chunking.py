"""Cuts sections into chunks, which become nodes: structure first, sizes in the embedder's own tokens.

A node is a verbatim stretch of one section. What is embedded is its heading path and its text; both together never
exceed what the embedder reads. Within a section the cuts are chosen by dynamic programming: as few nodes as fit, of
like size, cut between paragraphs rather than inside them, and inside a listing only when it is longer than a node.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from indexes.sentences import iter_spans
from indexes.types import Book, PageMarks, Section, page_at, slice_page_marks

TokenStarts = Callable[[Sequence[str]], list[list[int]]]
"""For each text, the character offsets at which its tokens begin (special tokens left out)."""

Cut = tuple[int, int]
"""Start and end offset in code points, end exclusive."""

HEADING_SHARE = 0.3
"""Largest part of a node's tokens that its heading path may take."""
_BREAK_COST = {"block": 0.0, "line": 0.25, "code": 0.2, "sentence": 0.45, "lead": 0.5, "inside": 2.0}
"""What a cut before a unit costs, in units of one whole node's size: between blocks nothing, between a sentence and
the listing it leads up to half a node, inside a listing or a word only when there is no other way. A greedy cut by the
order of these kinds makes 2 % more nodes and serves newcomers' questions a little worse (`docs/decisions.md`)."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a section before it is stored as a node.

    Attributes:
        section: index of its section in the book.
        start, end: offsets of `text` in the section's text.
        heading: the heading context that is embedded before the text.
        num_tokens: tokens of `embedded_text` without special tokens.
    """

    section: int
    start: int
    end: int
    chapter: int
    heading_path: tuple[str, ...]
    heading: str
    text: str
    page_marks: PageMarks
    page_labels: tuple[str | None, ...]
    num_tokens: int

    @property
    def embedded_text(self) -> str:
        """What the embedder reads."""
        return f"{self.heading}\n{self.text}" if self.heading else self.text

    @property
    def text_sha(self) -> bytes:
        """Digest of `embedded_text`: the key under which its vector is kept."""
        return hashlib.sha256(self.embedded_text.encode("utf-8", errors="replace")).digest()


@dataclass(frozen=True, slots=True)
class _Unit:
    """A stretch that is not cut further; `kind` names the boundary before it (a key of `_BREAK_COST`)."""

    start: int
    end: int
    tokens: int
    kind: str


def chunk_book(
    book: Book,
    token_starts: TokenStarts,
    limit_tokens: int,
    overlap_tokens: int = 0,
) -> Iterator[Chunk]:
    """Nodes of a book in reading order.

    Args:
        book: what a reader read.
        token_starts: the embedder's tokenizer.
        limit_tokens: most tokens of one node, heading path included, special tokens not.
        overlap_tokens: about how many tokens a node repeats of the one before it in its section.
    """
    batch = 64
    for first in range(0, len(book.sections), batch):
        sections = book.sections[first : first + batch]
        headings = [_heading_context(section.heading_path) for section in sections]
        starts = token_starts([*headings, *(section.text for section in sections)])
        for number, section in enumerate(sections):
            heading, heading_tokens = _fit_heading(
                section.heading_path, len(starts[number]), token_starts, int(limit_tokens * HEADING_SHARE)
            )
            room = max(8, limit_tokens - heading_tokens)
            tokens = starts[len(sections) + number]
            for start, end in chunk_text(section.text, tokens, room, min(overlap_tokens, room // 2)):
                yield _draft(
                    book, section, first + number, start, end, heading, heading_tokens + _count(tokens, start, end)
                )


def chunk_text(text: str, token_starts: Sequence[int], limit_tokens: int, overlap_tokens: int = 0) -> list[Cut]:
    """Stretches of `text` of at most `limit_tokens` tokens each; together they hold all of its words."""
    units = _units(text, token_starts, limit_tokens)
    if not units:
        return []
    spans: list[Cut] = []
    for first, last in _cut(units, limit_tokens):
        repeated = first
        while repeated > 0 and overlap_tokens and units[first].kind != "inside":
            if _count(token_starts, units[repeated - 1].start, units[first].start) > overlap_tokens:
                break
            if _count(token_starts, units[repeated - 1].start, units[last].end) > limit_tokens:
                break
            repeated -= 1
        spans.append((units[repeated].start, units[last].end))
    return spans


def _cut(units: Sequence[_Unit], limit: int) -> list[tuple[int, int]]:
    """First and last unit of each node, by least cost."""
    # At least one: a tokenizer makes nothing of a font's own signs, which may be all of a section.
    total = max(1, sum(unit.tokens for unit in units))
    nodes = -(-total // limit)
    target = total / nodes
    best: list[float] = [0.0] + [float("inf")] * len(units)
    came_from = [0] * (len(units) + 1)
    for end in range(1, len(units) + 1):
        size = 0
        for start in range(end - 1, -1, -1):
            size += units[start].tokens
            if size > limit and start < end - 1:
                break
            short = max(0.0, (target - size) / target)
            # A whole node costs 1, so fewer nodes win; falling short of the even size costs more the shorter it is.
            cost = best[start] + 1.0 + short * short + (_BREAK_COST[units[start].kind] if start else 0.0)
            if cost < best[end]:
                best[end], came_from[end] = cost, start
    cuts: list[tuple[int, int]] = []
    end = len(units)
    while end > 0:
        cuts.append((came_from[end], end - 1))
        end = came_from[end]
    return cuts[::-1]


def _units(text: str, starts: Sequence[int], limit: int) -> list[_Unit]:
    units: list[_Unit] = []
    previous_end = 0
    for start, end, kind in _stretches(text):
        boundary = _boundary(text, previous_end, start, kind == "code", bool(units))
        tokens = _count(starts, start, end)
        if tokens <= limit:
            units.append(_Unit(start, end, tokens, boundary))
        elif kind in ("code", "table"):
            units.extend(_pieces_of_listing(text, start, end, starts, limit, boundary))
        else:
            units.extend(_pieces_of_words(text, start, end, starts, limit, boundary))
        previous_end = end
    return units


def _stretches(text: str) -> Iterator[tuple[int, int, str]]:
    """The units of `text` as start, end and kind, each with the bullet or rule before it: together all of the words."""
    position = 0
    for span in iter_spans(text):
        yield _first_letter(text, position, span.start), span.end, span.kind
        position = span.end
    if rest := text[position:].strip():
        start = _first_letter(text, position, len(text))
        yield start, start + len(rest), "sentence"


def _first_letter(text: str, start: int, end: int) -> int:
    return start + len(text[start:end]) - len(text[start:end].lstrip())


def _boundary(text: str, previous_end: int, start: int, is_listing: bool, any_before: bool) -> str:
    between = text[previous_end:start]
    if is_listing and any_before and text[max(0, previous_end - 1) : previous_end] == ":":
        return "inside"  # "as follows:" belongs to its listing
    if is_listing:
        return "lead"
    if "\n\n" in between:
        before = text[max(0, previous_end - 1) : previous_end]
        return "lead" if before == ":" else "block"
    return "line" if "\n" in between else "sentence"


def _pieces_of_listing(text: str, start: int, end: int, starts: Sequence[int], limit: int, kind: str) -> list[_Unit]:
    """A listing or table longer than a node: cut at blank lines, then lines at the margin, then any line."""
    units: list[_Unit] = []
    offset = start
    blank_before = False
    for line in text[start:end].split("\n"):
        line_end = offset + len(line)
        if line.strip():
            boundary = (
                "code" if blank_before or (units and not line[:1].isspace() and line[:1] not in "})") else "inside"
            )
            tokens = _count(starts, offset, line_end)
            if tokens > limit:
                units.extend(_pieces_of_words(text, offset, line_end, starts, limit, boundary))
            else:
                units.append(_Unit(offset, line_end, tokens, boundary if units else kind))
        blank_before = not line.strip()
        offset = line_end + 1
    return units


def _pieces_of_words(text: str, start: int, end: int, starts: Sequence[int], limit: int, kind: str) -> list[_Unit]:
    """A stretch without a sentence end: cut at white space, or between tokens where there is none."""
    units: list[_Unit] = []
    while start < end:
        first = bisect_left(starts, start)
        last = first + limit
        cut = starts[last] if last < len(starts) and starts[last] < end else end
        if cut < end:
            space = max(text.rfind(" ", start, cut), text.rfind("\n", start, cut))
            cut = space if space > start + (cut - start) // 2 else cut
        units.append(_Unit(start, cut, _count(starts, start, cut), kind if not units else "inside"))
        start = cut
        while start < end and text[start].isspace():
            start += 1
    return units


def _count(starts: Sequence[int], start: int, end: int) -> int:
    return bisect_left(starts, end) - bisect_left(starts, start)


def _draft(book: Book, section: Section, index: int, start: int, end: int, heading: str, num_tokens: int) -> Chunk:
    text = section.text[start:end]
    marks = slice_page_marks(section.page_marks, start, end)
    labels: tuple[str | None, ...] = ()
    if marks and book.page_labels:
        last = page_at(marks, len(text)) or marks[0][1]
        labels = book.page_labels[marks[0][1] - 1 : last]
    return Chunk(index, start, end, section.chapter, section.heading_path, heading, text, marks, labels, num_tokens)


def _heading_context(path: tuple[str, ...]) -> str:
    return " > ".join(re.sub(r"\s+", " ", heading) for heading in path)


def _fit_heading(path: tuple[str, ...], tokens: int, token_starts: TokenStarts, room: int) -> tuple[str, int]:
    """The heading context within `room` tokens: headings in the middle go first, the last one is cut at the end."""
    while tokens > room and len(path) > 1:
        path = (path[0], *path[2:]) if len(path) > 2 else path[1:]
        tokens = len(token_starts([_heading_context(path)])[0])
    heading = _heading_context(path)
    if tokens > room:
        starts = token_starts([heading])[0]
        heading = heading[: starts[room]].rstrip()
        tokens = room
    return heading, tokens
