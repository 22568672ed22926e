"""Paragraphs and listings that a page's or column's end tore apart, made whole again."""

from __future__ import annotations

import re
from collections.abc import Sequence

from indexes.readers.pdf_blocks import TERMINAL, Paragraph
from indexes.readers.pdf_page import LINE_HYPHEN, Line

SMALL = 0.92
"""Type this much smaller than the text's is that of footnotes and captions."""
MOST_ASIDE = 24
"""Paragraphs, rows of tables among them, that may stand between two parts of a sentence."""
_CAPTION = re.compile(
    r"^(?:table|figure|fig\.|listing|algorithm|exhibit|plate|图|表)\s*[A-Z]?\d+(?:[.\-–]\d+)*(\s*[.:|–—]\s)?",
    re.IGNORECASE,
)


def joined(paragraphs: list[Paragraph], body_size: float) -> list[Paragraph]:
    """Paragraphs and listings in their order, those in one piece that stand on two pages or columns.

    Args:
        body_size: size of the type in which most of the book is set, in points.
    """
    whole: list[Paragraph] = []
    for paragraph in paragraphs:
        if paragraph.kind == "listing":
            before = _torn_listing(whole, paragraph, body_size)
        elif paragraph.kind == "prose":
            before = _torn_prose(whole, paragraph, body_size)
        else:
            before = None
        if before is None:
            whole.append(paragraph)
            continue
        before.margins.extend((len(before.lines) + start, left) for start, left in paragraph.margins)
        before.lines.extend(paragraph.lines)
        before.full_width = paragraph.full_width
    return whole


def _torn_listing(whole: Sequence[Paragraph], paragraph: Paragraph, body_size: float) -> Paragraph | None:
    """The listing that this one, at the top of its page or column, goes on with past footnotes."""
    first = paragraph.lines[0]
    for before in reversed(whole[-MOST_ASIDE:]):
        last = before.lines[-1]
        if before.kind == "listing":
            alike = abs(last.size - first.size) < 0.3
            return before if alike and _moved(last, first) else None
        if before.kind not in ("prose", "item") or not _is_footnote(before, body_size) or last.page == first.page:
            return None
    return None


def _torn_prose(whole: Sequence[Paragraph], paragraph: Paragraph, body_size: float) -> Paragraph | None:
    """The paragraph that this one goes on with, past footnotes and past tables and figures with their captions."""
    first = paragraph.lines[0]
    if _is_caption(paragraph) or (len(paragraph.lines) > 1 and not paragraph.filled):
        return None
    indent = first.x0 - paragraph.margins[0][1]
    aside: list[Paragraph] = []
    for before in reversed(whole[-MOST_ASIDE:]):
        last = before.lines[-1]
        if before.kind in ("heading", "listing") or last.page < first.page - 2:
            return None
        # What goes on begins at the margin, or below the words of a list's item.
        before_indent = last.x0 - before.margins[-1][1]
        most = max((1.0 if before.kind == "prose" else 4.0) * first.size, before_indent + 2)
        if indent < most and _moved(last, first) and _goes_on(before, paragraph):
            return before if _all_aside(aside, body_size) else None
        aside.append(before)
    return None


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
        and not _CAPTION.match(before.lines[0].text)
        and (before.full_width or (opens_low and before.filled))
    )


def _moved(last: Line, first: Line) -> bool:
    """True when reading goes from one line to the other by going up: to another page or column."""
    return first.page > last.page or first.bottom > last.top


def _all_aside(aside: Sequence[Paragraph], body_size: float) -> bool:
    """True when nothing that was passed is running text."""
    captions = any(_is_caption(one) for one in aside)
    for one in aside:
        if not (
            one.kind == "table" or _is_caption(one) or _is_footnote(one, body_size) or (captions and not one.filled)
        ):
            return False
    return True


def _is_caption(paragraph: Paragraph) -> bool:
    """True for `Table 2: Times`; a sentence may well begin with `Table 2 shows`, but then it fills its line."""
    found = _CAPTION.match(paragraph.lines[0].text)
    return found is not None and (found[1] is not None or not paragraph.filled)


def _is_footnote(paragraph: Paragraph, body_size: float) -> bool:
    return paragraph.lines[-1].size < SMALL * body_size
