"""Word documents (.docx): headings by their styles, lists, tables and listings. It has no pages: printers make them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from indexes.errors import Cancelled
from indexes.readers.elements import Block, Element, Heading, Parsed, fence, pipe_table
from indexes.readers.office_file import given_title, is_listing, joined_list, open_office, plain, typed, unreadable
from indexes.types import BookHealth

_HEADING = re.compile(r"^heading (\d)$", re.IGNORECASE)
_LISTING = re.compile(r"\b(code|source|listing|preformatted|verbatim|macro text)\b", re.IGNORECASE)
_FURNITURE = re.compile(r"^(toc|table of figures|header|footer)\b", re.IGNORECASE)
CHECK_EVERY = 200
"""Paragraphs between two questions whether to stop."""


def read_word(
    path: Path,
    *,
    cancelled: Callable[[], bool] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Parsed:
    """Read a .docx file.

    Raises:
        UnsupportedFormat: python-docx is not installed.
        UnreadableBook: damaged, encrypted, or no document.
        TooLarge: it would unpack to more than a book can hold.
        Cancelled: `cancelled` said so.
    """
    document = open_office(path, "docx", "Document")
    with unreadable(path):
        blocks = list(document.iter_inner_content())
        title = given_title(document.core_properties)
        elements: list[Element] = []
        run: list[tuple[str, int, str]] = []
        for number, block in enumerate(blocks, 1):
            if number % CHECK_EVERY == 0:
                if cancelled is not None and cancelled():
                    raise Cancelled(f"Reading '{path.name}' was cancelled.")
                if progress is not None:
                    progress(number, len(blocks))
            if hasattr(block, "rows"):
                elements.extend((*_flushed(run), *_table(block)))
                continue
            kind, level, text = _kind(block)
            if kind == "title":
                title = title or text
            elif kind == "heading":
                elements.extend((*_flushed(run), Heading(level, text)))
            else:
                if run and run[-1][0] != kind and not (run[-1][0] == "code" and not text.strip()):
                    elements.extend(_flushed(run))
                if run and run[-1][0] == "code" and not text.strip():
                    run.append(("code", 0, ""))
                elif text.strip():
                    run.append((kind, level, text))
        elements.extend(_flushed(run))
        formulas = len(document.element.xpath("//*[local-name()='oMath']"))
    # Office's formulas are drawings of symbols, not text: said, not guessed at.
    notes = (f"{formulas} formulas were left out",) if formulas else ()
    return Parsed(tuple(elements), title, health=BookHealth(notes=notes))


def _kind(paragraph: Any) -> tuple[str, int, str]:
    """What a paragraph is (`title`, `heading`, `code`, `item`, `text`), its level, and its text."""
    style = str(paragraph.style.name or "") if paragraph.style is not None else ""
    text = str(paragraph.text)
    heading = _HEADING.match(style)
    level = int(heading[1]) if heading else _outline_level(paragraph)
    if level and text.strip():
        return "heading", level, plain(text)
    if style.casefold() == "title" and text.strip():
        return "title", 0, plain(text)
    if _FURNITURE.match(style):
        return "text", 0, ""
    if _LISTING.search(style) or is_listing(paragraph):
        return "code", 0, typed(text)
    depth = _list_level(paragraph, style)
    return ("item", depth, plain(text)) if depth is not None else ("text", 0, plain(text))


def _outline_level(paragraph: Any) -> int:
    """The outline level that the style gives, from 1, whatever the style is called; 0 for none."""
    style = paragraph.style
    for _ in range(9):
        if style is None:
            return 0
        found = style._element.xpath("./w:pPr/w:outlineLvl/@w:val")
        if found:
            return int(found[0]) + 1 if int(found[0]) < 9 else 0
        style = style.base_style
    return 0


def _list_level(paragraph: Any, style: str) -> int | None:
    """Depth of a list item, from 0; None for a paragraph that is none."""
    found = paragraph._p.xpath("./w:pPr/w:numPr/w:ilvl/@w:val")
    if found:
        return int(found[0])
    named = re.match(r"list (?:bullet|number|paragraph)(?: (\d))?$", style, re.IGNORECASE)
    return int(named[1] or 1) - 1 if named else None


def _table(table: Any) -> Iterator[Block]:
    rows: list[list[str]] = []
    for row in table.rows:
        cells: list[Any] = []
        for cell in row.cells:
            # A cell that spans columns is given once for each of them.
            if not cells or cell._tc is not cells[-1]._tc:
                cells.append(cell)
        rows.append([str(cell.text) for cell in cells])
    if len(rows) == 1 and len(rows[0]) == 1:
        # A frame around a listing or a remark.
        inner = [_kind(paragraph) for paragraph in table.rows[0].cells[0].paragraphs]
        yield from _flushed([("code", 0, text) if kind == "code" else ("text", 0, text) for kind, _, text in inner])
        return
    text = pipe_table(rows)
    if text:
        yield Block(text)


def _flushed(run: list[tuple[str, int, str]]) -> list[Block]:
    """The paragraphs of `run`, which is emptied, as blocks: one listing, one list, or a block each."""
    blocks: list[Block] = []
    kinds = {kind for kind, _, _ in run}
    if kinds == {"code"}:
        blocks = [Block(fence("\n".join(text for _, _, text in run)))]
    elif kinds == {"item"}:
        blocks = [Block(joined_list((level, text) for _, level, text in run))]
    else:
        blocks = [Block(text) for _, _, text in run if text.strip()]
    run.clear()
    return blocks
