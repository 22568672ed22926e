"""Text PDFs through PDFium: pages with their printed labels, chapters, paragraphs, listings, and what was lost."""

from __future__ import annotations

import hashlib
import re
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indexes.errors import Cancelled, UnreadableBook
from indexes.readers.elements import Block, Element, Heading, Parsed
from indexes.readers.pdf_blocks import Paragraph, block_of, paragraphs_of
from indexes.readers.pdf_contents import without_contents
from indexes.readers.pdf_furniture import body_size, find_furniture, printed_labels
from indexes.readers.pdf_headings import (
    FoundHeading,
    OutlineEntry,
    headings_by_type,
    match_outline,
    read_outline,
    without_parts,
)
from indexes.readers.pdf_hyphens import vocabulary_of
from indexes.readers.pdf_ocr import Recogniser, render
from indexes.readers.pdf_order import OrderedPage, in_reading_order
from indexes.readers.pdf_page import PageLines, read_page
from indexes.readers.pdf_torn import joined
from indexes.types import BookHealth

# PDFium is not made for threads: one call at a time in the whole process.
_pdfium_lock = threading.Lock()

_NO_TITLE = re.compile(
    r"^\s*$|^untitled|\.(?:docx?|tex|dvi|indd|pdf|ps|qxd|pptx?)$|^microsoft word|^slide \d", re.IGNORECASE
)
MIN_DUPLICATE_CHARS = 200
"""Shorter pages may well be alike without being the same page twice."""


def read_pdf(
    path: Path,
    *,
    cancelled: Callable[[], bool] | None = None,
    progress: Callable[[int, int], None] | None = None,
    ocr: bool = False,
) -> Parsed:
    """Read a PDF that has a text layer; with `ocr` also pages that are pictures of text.

    Raises:
        UnreadableBook: encrypted, damaged, or without any text (scanned).
        InvalidInput: `ocr` without the extra `ocr`.
        Cancelled: `cancelled` said so between two pages.
    """
    recogniser = Recogniser() if ocr else None
    if recogniser is not None:
        recogniser.load()
    found = _extract(path, cancelled, progress, recogniser)
    pages = found.pages
    if not any(page.lines for page in pages):
        raise UnreadableBook(
            f"'{path.name}' has {len(pages)} pages but no text: it is scanned.",
            hint="coalesce add --ocr PATH, or run OCR over it first (ocrmypdf)"
            if not ocr
            else "scan it in a finer resolution",
        )
    furniture = find_furniture(pages)
    ordered = [without_contents(in_reading_order(page, furniture.lines)) for page in pages]
    size = body_size(pages)
    headings = match_outline(without_parts(found.outline), ordered)
    headings += headings_by_type(ordered, size, headings)
    elements = _elements(ordered, headings, size)
    health = _health(found, ordered, elements)
    labels = printed_labels(furniture.folios, found.declared, len(pages))
    return Parsed(elements, found.title, len(pages), labels, health)


@dataclass(frozen=True, slots=True)
class _Extracted:
    """Everything that PDFium gives: lines, declared labels, outline, title; pages recognised, and what was lost."""

    pages: list[PageLines]
    declared: list[str]
    outline: list[OutlineEntry]
    title: str | None
    recognised: list[int]
    lost: list[str]


def _extract(
    path: Path,
    cancelled: Callable[[], bool] | None,
    progress: Callable[[int, int], None] | None,
    recogniser: Recogniser | None,
) -> _Extracted:
    import pypdfium2

    with _pdfium_lock:
        try:
            document = pypdfium2.PdfDocument(path)
            count = len(document)
        except pypdfium2.PdfiumError as error:
            raise _cannot_open(path, error) from error
    try:
        pages: list[PageLines] = []
        lost: list[str] = []
        recognised: list[int] = []
        for number in range(1, count + 1):
            if cancelled is not None and cancelled():
                raise Cancelled(f"Reading '{path.name}' was cancelled at page {number} of {count}.")
            with _pdfium_lock:
                try:
                    pages.append(read_page(document, number))
                except pypdfium2.PdfiumError as error:
                    pages.append(PageLines(number, 0.0, 0.0, (), True))
                    lost.append(f"page {number} is damaged: {error}")
            if recogniser is not None and pages[-1].has_content and pages[-1].width and not pages[-1].lines:
                pages[-1] = _recognised(document, pages[-1], recogniser)
                recognised.extend([number] if pages[-1].lines else [])
            if progress is not None:
                progress(number, count)
        if count == 0 or len(lost) == count:
            raise UnreadableBook(f"'{path.name}' is damaged: none of its pages can be read.", hint="get another copy")
        with _pdfium_lock:
            declared = [document.get_page_label(index) for index in range(count)]
            outline = read_outline(document, count)
            title = " ".join(document.get_metadata_value("Title").split())
    finally:
        with _pdfium_lock:
            document.close()
    root = [entry.title for entry in outline if entry.level == 1]
    if _NO_TITLE.search(title):
        title = root[0] if len(root) == 1 and len(outline) > 1 else ""
    return _Extracted(pages, declared if any(declared) else [], outline, title or None, recognised, lost)


def _recognised(document: Any, page: PageLines, recogniser: Recogniser) -> PageLines:
    with _pdfium_lock:
        opened = document[page.page - 1]
        try:
            picture = render(opened)
        finally:
            opened.close()
    return recogniser.lines(picture, page)


def _cannot_open(path: Path, error: Exception) -> UnreadableBook:
    if "password" in str(error).lower():
        return UnreadableBook(
            f"'{path.name}' is encrypted.", hint="remove its password (qpdf --decrypt) and add it again"
        )
    return UnreadableBook(
        f"'{path.name}' is damaged or cut short: {str(error).rstrip('.')}.", hint="get another copy of the file"
    )


def _elements(pages: Sequence[OrderedPage], headings: Sequence[FoundHeading], size: float) -> tuple[Element, ...]:
    """Headings and blocks of the whole book in reading order."""
    heading_of = {id(line): heading for heading in headings for line in heading.lines}
    unprinted: dict[int, list[FoundHeading]] = {}
    for heading in headings:
        if not heading.lines:
            unprinted.setdefault(heading.page, []).append(heading)
    flow: list[Paragraph | FoundHeading] = []
    for page in pages:
        waiting = sorted(unprinted.get(page.page, []), key=lambda heading: -(heading.top or page_top(page)))
        for paragraph in paragraphs_of(page, [line for line in page.lines if id(line) in heading_of]):
            while waiting and (waiting[0].top is None or paragraph.lines[0].bottom <= waiting[0].top):
                flow.append(waiting.pop(0))
            flow.append(paragraph)
        flow.extend(waiting)
    vocabulary = vocabulary_of(pages)
    elements: list[Element] = []
    told: set[int] = set()
    for item in _with_torn_parts_joined(flow, size):
        if isinstance(item, FoundHeading):
            elements.append(Heading(item.level, item.title, item.page))
            continue
        heading_here = heading_of.get(id(item.lines[0]))
        if heading_here is None:
            elements.append(block_of(item, vocabulary))
        elif id(heading_here) not in told:
            told.add(id(heading_here))
            elements.append(Heading(heading_here.level, heading_here.title, heading_here.page))
    return tuple(elements)


def page_top(page: OrderedPage) -> float:
    """Height of the highest line of a page, in points."""
    return max((line.top for line in page.lines), default=0.0)


def _with_torn_parts_joined(flow: Sequence[Paragraph | FoundHeading], size: float) -> list[Paragraph | FoundHeading]:
    result: list[Paragraph | FoundHeading] = []
    run: list[Paragraph] = []
    for item in flow:
        if isinstance(item, FoundHeading):
            result.extend((*joined(run, size), item))
            run = []
        else:
            run.append(item)
    result.extend(joined(run, size))
    return result


def _health(found: _Extracted, ordered: Sequence[OrderedPage], elements: Sequence[Element]) -> BookHealth:
    seen: Counter[str] = Counter()
    duplicates: list[int] = []
    for page in ordered:
        text = " ".join(line.text for line in page.lines)
        digest = hashlib.sha256(text.encode("utf-8", errors="replace")).hexdigest()
        seen[digest] += 1
        if len(text) >= MIN_DUPLICATE_CHARS and seen[digest] > 1:
            duplicates.append(page.page)
    return BookHealth(
        pages_without_text=tuple(page.page for page in found.pages if page.has_content and not page.lines),
        recognised_pages=tuple(found.recognised),
        duplicate_pages=tuple(duplicates),
        suspected_columns=tuple(page.page for page in ordered if page.doubtful),
        broken_listings=tuple(_broken(block) for block in elements if isinstance(block, Block) and _broken(block)),
        notes=tuple(found.lost),
    )


def _broken(block: Block) -> str:
    """Why a listing looks broken; empty when it does not, or is no listing."""
    if not block.text.startswith("```"):
        return ""
    opened, closed = block.text.count("{"), block.text.count("}")
    page = block.page_marks[0][1] if block.page_marks else 0
    return f"page {page}: {opened} opening and {closed} closing braces" if opened != closed else ""
