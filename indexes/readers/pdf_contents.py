"""The printed table of contents: its lines say nothing that the headings do not, and are left out."""

from __future__ import annotations

import re
from dataclasses import replace

from indexes.readers.pdf_order import OrderedPage
from indexes.readers.pdf_page import NARROW_GAP, Line

MIN_ENTRIES = 3
"""Entries that make a page one of a table of contents; one more line that ends in a number may be anything."""
_LEADERS = re.compile(r"(?:\.\s?){4,}\s*(?:\d{1,4}|[ivxlc]{1,7})?$|(?:…\s*){2,}\w*$")
_TITLE = re.compile(r"^(?:table of )?contents$|^list of (?:figures|tables|listings)$|^目\s*录$", re.IGNORECASE)
_PAGE = re.compile(r"^(?:\d{1,4}|[ivxlc]{1,7})$", re.IGNORECASE)


def without_contents(page: OrderedPage) -> OrderedPage:
    """The page without lines that lead to a page number, and, among such, without those that only end in one."""
    leaders = [line for line in page.lines if _LEADERS.search(line.text)]
    ending = [line for line in page.lines if _ends_in_page(line)]
    if not leaders and not ending:
        return page
    titled = any(_TITLE.match(line.text.strip()) for line in page.lines)
    dropped = {id(line) for line in leaders}
    if len(leaders) >= MIN_ENTRIES or (titled and len(leaders) + len(ending) >= MIN_ENTRIES):
        dropped |= {id(line) for line in ending}
    return replace(page, lines=tuple(line for line in page.lines if id(line) not in dropped))


def _ends_in_page(line: Line) -> bool:
    """True when white space as wide as between columns leads to a number at the line's end."""
    if line.mono or len(line.words) < 2 or not _PAGE.match(line.words[-1].text):
        return False
    return line.words[-1].x0 - line.words[-2].x1 > NARROW_GAP * line.size
