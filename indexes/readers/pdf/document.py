"""Reads a PDF: opens the file, takes its pages through layout, headings and paragraphs, reports what was lost.

With the extra `ocr` it also recognises the text of pages that are pictures, by RapidOCR (Apache-2.0, its weights too),
which brings its models in its wheel: nothing is downloaded. What it reads has no typeface, so listings come out as
paragraphs, and letters may be wrong: the book's health names the pages.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from indexes.errors import Cancelled, InvalidInput, UnreadableBook
from indexes.messages import msg
from indexes.readers.elements import Block, Element, Heading, Parsed, real_title
from indexes.readers.pdf.layout import (
    FoundHeading,
    Layout,
    OutlineEntry,
    TextPage,
    find_headings,
    find_layout,
    page_labels,
    printed_title,
    read_outline,
)
from indexes.readers.pdf.page import Line, PageLines, Word, count_letters, decoded, make_line, read_page
from indexes.readers.pdf.paragraphs import Paragraph, block_of, joined, paragraphs_of, vocabulary_of
from indexes.readers.source import unforeseen
from indexes.types import BookHealth

# PDFium is not thread-safe: one call at a time in the whole process.
_pdfium_lock = threading.Lock()

MIN_DUPLICATE_CHARS = 200
"""Shorter pages may be alike without being the same page twice."""
MAX_LEVEL = 1_000
"""No heading is deeper."""
MAX_NAMED_PAGES = 10
"""Pages that a note names."""
LOST_SHARE = 0.1
"""Share of a page's letters, headers aside, whose loss its health names: a mark in the margin is less."""


@dataclass(frozen=True, slots=True)
class _Extracted:
    """Everything taken from PDFium: lines, declared labels, outline, title; pages recognised, and notes on losses."""

    pages: list[PageLines]
    declared: list[str]
    outline: list[OutlineEntry]
    title: str | None
    recognised: list[int]
    notes: list[str]


def read_pdf(
    path: Path,
    *,
    cancelled: Callable[[], bool] | None = None,
    progress: Callable[[int, int], None] | None = None,
    ocr: bool = False,
) -> Parsed:
    """Read a PDF that has a text layer; with `ocr` also pages that are pictures of text.

    Args:
        path: the file.
        cancelled: asked before each page.
        progress: called with the pages read and the number of pages.
        ocr: recognise the text of pages that have none.

    Raises:
        UnreadableBook: encrypted, damaged, or without any text (scanned).
        InvalidInput: `ocr` without the extra `ocr`.
        Cancelled: `cancelled` returned true.
    """
    recogniser = Recogniser() if ocr else None
    if recogniser is not None:
        recogniser.load()
    found = _extract(path, cancelled, progress, recogniser)
    if not any(page.lines for page in found.pages):
        raise _without_text(path, found.pages, ocr)
    try:
        return _parsed(found)
    except Exception:
        bad = {page.page: note for page in found.pages if (note := _cannot_be_laid_out(path, found, page))}
        if not bad:
            raise  # no page by itself is at fault
        pages = [replace(page, lines=()) if page.page in bad else page for page in found.pages]
        return _parsed(replace(found, pages=pages, notes=[*found.notes, *bad.values()]))


def _parsed(found: _Extracted) -> Parsed:
    layout = find_layout(found.pages)
    headings = find_headings(found.outline, layout.pages, layout.body_size)
    elements, formulas = _elements(layout, headings)
    labels = page_labels(layout.page_numbers, found.declared, len(found.pages))
    title = found.title or printed_title(layout.pages, layout.body_size)
    return Parsed(elements, title, len(found.pages), labels, _health(found, layout, elements, formulas))


def _cannot_be_laid_out(path: Path, found: _Extracted, page: PageLines) -> str:
    """Why a page by itself cannot be laid out; empty when it can."""
    try:
        _parsed(replace(found, pages=[page], outline=[], declared=[], recognised=[], notes=[]))
    except Exception as error:  # noqa: BLE001  reported as every error that no reader foresaw
        return unforeseen(f"page {page.page} of '{path.name}'", error)
    return ""


def _extract(
    path: Path,
    cancelled: Callable[[], bool] | None,
    progress: Callable[[int, int], None] | None,
    recogniser: Recogniser | None,
) -> _Extracted:
    with _opened(path) as (document, count):
        pages: list[PageLines] = []
        damaged: list[str] = []
        recognised: list[int] = []
        notes: list[str] = []
        for number in range(1, count + 1):
            if cancelled is not None and cancelled():
                raise Cancelled(f"Reading '{path.name}' was cancelled at page {number} of {count}.")
            page, note = _tried(partial(_read, document, number), PageLines(number, 0.0, 0.0, (), True), path)
            damaged.extend([note] if note else [])
            if recogniser is not None and page.has_content and page.width and not page.lines:
                page, note = _tried(partial(_recognised, document, page, recogniser), page, path)
                recognised.extend([number] if page.lines else [])
                notes.extend([note] if note else [])
            pages.append(page)
            if progress is not None:
                progress(number, count)
        if len(damaged) == count:
            raise UnreadableBook(
                msg("'{}' is damaged: none of its pages can be read.", path.name),
                hint="copy or download the file again",
            )
        turned = {page.page for page in pages if page.turned}
        with _pdfium_lock:
            declared = [decoded(partial(document.get_page_label, index)) for index in range(count)]
            outline = [
                replace(entry, top=None) if entry.page in turned else entry for entry in read_outline(document, count)
            ]
            title = real_title(decoded(partial(document.get_metadata_value, "Title")))
    roots = [entry.title for entry in outline if entry.level == 1]
    if title is None and len(roots) == 1 and len(outline) > 1:
        title = roots[0]
    notes = [*damaged, *notes, *_lost_letters(pages)]
    return _Extracted(pages, declared if any(declared) else [], outline, title, recognised, notes)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, int]]:
    """An open PDFium document and its number of pages."""
    import pypdfium2

    with _pdfium_lock:
        try:
            document = pypdfium2.PdfDocument(path)
            count = len(document)
        except pypdfium2.PdfiumError as error:
            raise _cannot_open(path, error) from error
    try:
        yield document, count
    finally:
        with _pdfium_lock:
            document.close()


def _tried(read: Callable[[], PageLines], otherwise: PageLines, path: Path) -> tuple[PageLines, str]:
    """A page, and why it cannot be read, if it cannot: one page never costs the whole book."""
    import pypdfium2

    try:
        return read(), ""
    except pypdfium2.PdfiumError as error:
        return otherwise, f"page {otherwise.page} is damaged: {error}"
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001  reported as every error that no reader foresaw
        return otherwise, unforeseen(f"page {otherwise.page} of '{path.name}'", error)


def _read(document: Any, number: int) -> PageLines:
    with _pdfium_lock:
        return read_page(document, number)


def _recognised(document: Any, page: PageLines, recogniser: Recogniser) -> PageLines:
    with _pdfium_lock:
        opened = document[page.page - 1]
        try:
            picture = render(opened)
        finally:
            opened.close()
    return recogniser.lines(picture, page)


def _cannot_open(path: Path, error: Exception) -> UnreadableBook:
    why = str(error).removesuffix(".").removesuffix(" (PDFium: Success)")
    if "password" in why.lower() or "security" in why.lower():
        return UnreadableBook(
            msg("'{}' is encrypted.", path.name), hint="remove its password (qpdf --decrypt) and add it again"
        )
    return UnreadableBook(msg("'{}' is damaged or cut short: {}.", path.name, why), hint="get another copy of the file")


def _without_text(path: Path, pages: Sequence[PageLines], ocr: bool) -> UnreadableBook:
    name, count = path.name, len(pages)
    if any(page.lost_letters for page in pages):
        return UnreadableBook(
            msg("'{}' has {} pages but no text: its fonts do not say which characters they draw.", name, count),
            hint="Run `coalesce add --ocr PATH`, or OCR over it first (ocrmypdf --force-ocr).",
        )
    if any(page.letters for page in pages):
        return UnreadableBook(
            msg("'{}' has {} pages but no text: its lines run aslant.", name, count),
            hint="OCR over it first (ocrmypdf --force-ocr).",
        )
    if not any(page.has_content for page in pages):
        return UnreadableBook(
            msg("'{}' has {} pages but no text: they are blank; form fields and notes are not read.", name, count),
            hint="print it to a new PDF if a viewer shows text",
        )
    return UnreadableBook(
        msg("'{}' has {} pages but no text: it is scanned.", name, count),
        hint="scan it at a higher resolution"
        if ocr
        else "Run `coalesce add --ocr PATH`, or OCR over it first (ocrmypdf).",
    )


def _elements(layout: Layout, headings: Sequence[FoundHeading]) -> tuple[tuple[Element, ...], list[int]]:
    """Headings and blocks of the whole book in reading order, and the page of each displayed formula."""
    headings = _with_text(layout.pages, headings)
    heading_of = {id(line): heading for heading in headings for line in heading.lines}
    vocabulary = vocabulary_of(layout.pages)
    elements: list[Element] = []
    formulas: list[int] = []
    done: set[int] = set()
    flow = _flow(
        layout.pages,
        headings,
        lambda page: paragraphs_of(page, [line for line in page.lines if id(line) in heading_of]),
    )
    for item in _joined_between_headings(flow, layout.body_size):
        heading = item if isinstance(item, FoundHeading) else heading_of.get(id(item.lines[0]))
        if isinstance(item, Paragraph) and heading is None:
            elements.append(block_of(item, vocabulary))
            formulas.extend([item.lines[0].page] if item.kind == "formula" else [])
        elif heading is not None and id(heading) not in done:
            done.add(id(heading))
            elements.append(Heading(heading.level, heading.title, heading.page))
    return tuple(elements), formulas


def _with_text(pages: Sequence[TextPage], headings: Sequence[FoundHeading]) -> list[FoundHeading]:
    """The headings that text or a heading below them follows; the others are text in large type, as on slides."""
    heading_of = {id(line): heading for heading in headings for line in heading.lines}
    kept: dict[int, FoundHeading] = {}
    below = 0
    flow = _flow(pages, headings, lambda page: [Paragraph("prose", [line], []) for line in page.lines])
    for item in reversed(list(flow)):
        heading = item if isinstance(item, FoundHeading) else heading_of.get(id(item.lines[0]))
        if heading is not None and below > heading.level:
            kept[id(heading)] = heading
        below = heading.level if heading is not None else MAX_LEVEL
    return [heading for heading in headings if id(heading) in kept]


def _flow(
    pages: Sequence[TextPage],
    headings: Sequence[FoundHeading],
    paragraphs_on: Callable[[TextPage], Sequence[Paragraph]],
) -> Iterator[Paragraph | FoundHeading]:
    """The paragraphs of all pages, with the headings that are not printed in their places between."""
    unprinted: dict[int, list[FoundHeading]] = {}
    for heading in headings:
        if not heading.lines:
            unprinted.setdefault(heading.page, []).append(heading)
    for page in pages:
        page_top = max((line.top for line in page.lines), default=0.0)
        waiting = sorted(unprinted.get(page.page, []), key=lambda heading: -(heading.top or page_top))
        for paragraph in paragraphs_on(page):
            while waiting and (waiting[0].top is None or paragraph.lines[0].bottom <= waiting[0].top):
                yield waiting.pop(0)
            yield paragraph
        yield from waiting


def _joined_between_headings(
    flow: Iterator[Paragraph | FoundHeading], body_size: float
) -> Iterator[Paragraph | FoundHeading]:
    """The flow with paragraphs that pages or columns split made whole, but never across an unprinted heading."""
    run: list[Paragraph] = []
    for item in flow:
        if isinstance(item, FoundHeading):
            yield from joined(run, body_size)
            yield item
            run = []
        else:
            run.append(item)
    yield from joined(run, body_size)


def _health(found: _Extracted, layout: Layout, elements: Sequence[Element], formulas: Sequence[int]) -> BookHealth:
    pages = layout.pages
    seen: Counter[str] = Counter()
    duplicates: list[int] = []
    for page in pages:
        text = " ".join(line.text for line in page.lines)
        digest = hashlib.sha256(text.encode("utf-8", errors="replace")).hexdigest()
        seen[digest] += 1
        if len(text) >= MIN_DUPLICATE_CHARS and seen[digest] > 1:
            duplicates.append(page.page)
    return BookHealth(
        pages_without_text=tuple(page.page for page in found.pages if page.has_content and not page.lines),
        pages_with_lost_text=tuple(_pages_with_lost_text(found.pages, pages, elements)),
        turned_pages=tuple(page.page for page in found.pages if page.turned and page.lines),
        recognised_pages=tuple(found.recognised),
        duplicate_pages=tuple(duplicates),
        suspected_columns=tuple(page.page for page in pages if page.doubtful),
        broken_listings=tuple(note for block in elements if isinstance(block, Block) and (note := _broken(block))),
        notes=(*found.notes, *_flattened(formulas), *_left_out(found.pages, layout.contents)),
    )


def _pages_with_lost_text(
    printed: Sequence[PageLines], pages: Sequence[TextPage], elements: Sequence[Element]
) -> Iterator[int]:
    """Pages of which a part of the printed letters, headers and printed contents aside, is nowhere in the book."""
    kept: Counter[int] = Counter()
    for element in elements:
        if isinstance(element, Heading):
            kept[element.page or 0] += count_letters(element.title)
            continue
        ends = [*(offset for offset, _ in element.page_marks[1:]), len(element.text)]
        start = 0
        for (_, number), end in zip(element.page_marks, ends, strict=True):
            kept[number] += count_letters(element.text[start:end])
            start = end
    for sheet, page in zip(printed, pages, strict=True):
        headers = sum(count_letters(line.text) for line in sheet.lines)
        headers -= sum(count_letters(line.text) for line in page.lines)
        if sheet.lines and kept[page.page] < (1 - LOST_SHARE) * (sheet.letters - headers):
            yield page.page


def _lost_letters(pages: Sequence[PageLines]) -> list[str]:
    """A note about letters that could not be read, if there are any."""
    lost = [page for page in pages if page.lost_letters]
    if not lost:
        return []
    count = sum(page.lost_letters for page in lost)
    named = _named([page.page for page in lost])
    return [f"{count} letters left out, their fonts do not say which characters they are: pages {named}"]


def _flattened(formulas: Sequence[int]) -> list[str]:
    """A note about displayed formulas, of which only the characters are read, if there are any on some pages."""
    if not formulas:
        return []
    pages = _named(sorted(set(formulas)))
    return [f"{len(formulas)} displayed formulas came out as their characters only: pages {pages}"]


def _left_out(pages: Sequence[PageLines], contents: dict[int, int]) -> list[str]:
    """A note about printed contents where they are more than a small part of the file."""
    if sum(contents.values()) <= LOST_SHARE * sum(page.letters for page in pages):
        return []
    return [f"printed contents left out, since the headings repeat them: pages {_named(list(contents))}"]


def _named(pages: Sequence[int]) -> str:
    return ", ".join(map(str, pages[:MAX_NAMED_PAGES])) + (", …" if len(pages) > MAX_NAMED_PAGES else "")


def _broken(block: Block) -> str:
    """Why a listing looks broken; empty for whole listings and other blocks."""
    if not block.text.startswith("```"):
        return ""
    opened, closed = block.text.count("{"), block.text.count("}")
    page = block.page_marks[0][1] if block.page_marks else 0
    return f"page {page}: {opened} opening and {closed} closing braces" if opened != closed else ""


# --- pages that are pictures

POINTS_PER_INCH = 72
DOTS_PER_INCH = 200
MAX_PIXELS = 20_000_000
"""A larger page is rendered more coarsely: A4 at 200 dots per inch has four million pixels."""
LETTER_SHARE = 0.75
"""Type size as a share of the height of a recognised line's box."""
ALIKE = 0.25
"""Boxes whose heights differ by less are lines of one size: a line without tall letters has a lower box."""
MIN_SCORE = 0.5
"""Recognised lines with a lower score are specks and drawings."""


class Recogniser:
    """Reads pictures of text. Light to make; `load` takes seconds."""

    def __init__(self) -> None:
        self._engine: Any = None

    def load(self) -> None:
        """Load the models. Raises InvalidInput when the extra is not installed."""
        if self._engine is not None:
            return
        try:
            import onnxruntime  # noqa: F401  RapidOCR's engine; without it the error would come at the first page
            from rapidocr import RapidOCR
        except ImportError as error:
            raise InvalidInput(
                "Recognising the text of scanned pages was asked for, but RapidOCR is not installed.",
                hint=msg("Run `{}`.", "pip install 'coalesce-rag[ocr]'"),
            ) from error
        self._engine = RapidOCR(params={"Global.log_level": "error"})

    def lines(self, picture: np.ndarray, page: PageLines) -> PageLines:
        """The page with the lines recognised in its picture: shape (height, width, 3), BGR, 8 bits per channel."""
        self.load()
        found = self._engine(picture)
        if found.boxes is None:
            return page
        scale = page.width / picture.shape[1]
        words = [
            _word(box, text, scale, page.height)
            for box, text, score in zip(found.boxes, found.txts, found.scores, strict=True)
            if score >= MIN_SCORE and text.strip()
        ]
        return replace(page, lines=_of_one_size([make_line([word], page.page) for word in words])) if words else page


def render(page: Any) -> np.ndarray:
    """A PDFium page as a picture: shape (height, width, 3), BGR, 8 bits per channel."""
    width, height = page.get_size()
    scale = min(DOTS_PER_INCH / POINTS_PER_INCH, (MAX_PIXELS / max(width * height, 1.0)) ** 0.5)
    bitmap = page.render(scale=scale, rev_byteorder=False, prefer_bgrx=False)
    try:
        picture: np.ndarray = np.array(bitmap.to_numpy())
    finally:
        bitmap.close()
    return np.ascontiguousarray(picture[:, :, :3] if picture.ndim == 3 else np.stack([picture] * 3, axis=-1))


def _word(box: Any, text: str, scale: float, height: float) -> Word:
    """One recognised line as one word in points, origin at the page's lower left."""
    corners = np.asarray(box, dtype=float) * scale
    top, bottom = height - float(corners[:, 1].min()), height - float(corners[:, 1].max())
    left, right = float(corners[:, 0].min()), float(corners[:, 0].max())
    return Word(" ".join(text.split()), left, right, bottom, top, LETTER_SHARE * (top - bottom), False, False)


def _of_one_size(lines: list[Line]) -> tuple[Line, ...]:
    usual = round(median(line.size for line in lines), 1)
    return tuple(replace(line, size=usual) if abs(line.size - usual) < ALIKE * usual else line for line in lines)
