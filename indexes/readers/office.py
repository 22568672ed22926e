"""Word documents and slides: headings by their styles, lists, tables and listings, through python-docx and python-pptx.

A slide is a page: it has a number that people cite. A Word document has no pages: printers make them.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from lxml import etree

from indexes.errors import Cancelled, CoalesceError, UnreadableBook, UnsupportedFormat
from indexes.messages import msg
from indexes.readers.elements import (
    Block,
    Element,
    Heading,
    Parsed,
    fence,
    is_monospace,
    nested_list,
    pipe_table,
    raised,
    real_title,
)
from indexes.readers.formula import formula_text
from indexes.readers.html import make_soup
from indexes.readers.source import MAX_ZIP_BYTES, check_archive, clean_text
from indexes.types import BookHealth

_HEADING = re.compile(r"^heading (\d)$", re.IGNORECASE)
_LISTING = re.compile(r"\b(code|source|listing|preformatted|verbatim|macro text)\b", re.IGNORECASE)
_LIST = re.compile(r"list (?:bullet|number|paragraph)(?: (\d))?$", re.IGNORECASE)
_WRAPPERS = frozenset({"sdt", "sdtContent", "ins", "moveTo", "customXml", "smartTag"})
"""Elements around paragraphs, tables and runs that belong to the text like any others."""
_NO_FALLBACK = "[not(ancestor::*[local-name()='Fallback'])]"  # says the same again for older programs
_TEXT_BOXES = f".//*[local-name()='txbxContent']{_NO_FALLBACK}"
_FOOTNOTES = "//*[local-name()='footnoteReference' or local-name()='endnoteReference']"
_FORMULA = "descendant-or-self::*[local-name()='oMath']"
_SIGNS = {
    "^": "./w:rPr/w:vertAlign[@w:val='superscript']",
    "_": "./w:rPr/w:vertAlign[@w:val='subscript']",
}
_SLIDE_SIGNS = {"^": "./a:rPr[@baseline > 0]", "_": "./a:rPr[@baseline < 0]"}
_FURNITURE = re.compile(r"^(toc|table of figures|header|footer)\b", re.IGNORECASE)
_SECTIONS = "//*[local-name()='sectionLst']/*[local-name()='section']"
_REPEATED = (13, 14, 15, 16)
"""Types of placeholders that are on every slide: number, head, foot and date."""
CHECK_EVERY = 200
"""Paragraphs between two calls of `cancelled`."""
MAX_DEPTH = 20
"""Groups of shapes nested deeper are left out."""


# --- Word


class _Paragraph(NamedTuple):
    """What a paragraph is (`title`, `heading`, `code`, `item`, `text`), its level, and its text."""

    kind: str
    level: int
    text: str


def read_word(
    path: Path,
    *,
    cancelled: Callable[[], bool] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Parsed:
    """Read a .docx file.

    Raises:
        UnsupportedFormat: python-docx is not installed.
        UnreadableBook: damaged, encrypted, or not a document.
        TooLarge: it would unpack to more than a book can hold.
        Cancelled: `cancelled` returned True.
    """
    document = _open(path, "docx", "Document")
    with _unreadable(path):
        blocks = list(_inner(document.element.body, document))
        title = real_title(str(document.core_properties.title or ""))
        word = _Word()
        elements: list[Element] = []
        run: list[_Paragraph] = []
        for number, block in enumerate(blocks, 1):
            if number % CHECK_EVERY == 0:
                if cancelled is not None and cancelled():
                    raise Cancelled(msg("Reading '{}' was cancelled.", path.name))
                if progress is not None:
                    progress(number, len(blocks))
            if hasattr(block, "rows"):
                elements.extend((*_flushed(run), *word.table(block)))
                continue
            paragraph = word.paragraph(block)
            if paragraph.kind == "title":
                title = title or paragraph.text
            elif paragraph.kind == "heading":
                elements.extend((*_flushed(run), Heading(paragraph.level, paragraph.text)))
            else:
                elements.extend(_appended(run, paragraph))
        elements.extend(_flushed(run))
        # Footnotes are in a part of their own.
        lost = len(document.element.xpath(_FOOTNOTES))
    notes = (f"{lost} footnotes were left out",) if lost else ()
    return Parsed(tuple(elements), title, health=BookHealth(notes=notes))


def _name(element: Any) -> str:
    """The name of an XML element without its namespace; '' for a comment."""
    return str(element.tag).rpartition("}")[2] if isinstance(element.tag, str) else ""


def _inner(element: Any, parent: Any) -> Iterator[Any]:
    """Paragraphs and tables below an element, also in content controls, insertions and the text boxes they anchor."""
    for child in element:
        name = _name(child)
        if name == "tbl":
            yield import_module("docx.table").Table(child, parent)
        elif name == "p":
            yield import_module("docx.text.paragraph").Paragraph(child, parent)
            for box in child.xpath(_TEXT_BOXES):
                yield from _inner(box, parent)
        elif name in _WRAPPERS:
            yield from _inner(child, parent)


def _text(element: Any) -> str:
    """Text of a paragraph without what was deleted; python-docx leaves out what was inserted, fields and controls."""
    runs: list[tuple[str, str]] = []
    for child in element:
        name = _name(child)
        if name == "r":
            runs.append((_sign(child, _SIGNS), str(child.text)))
        elif name in ("oMath", "oMathPara"):
            runs.append(("", _formulas(child)))
        elif name in _WRAPPERS or name in ("hyperlink", "fldSimple", "bdo", "dir"):
            runs.append(("", _text(child)))
    return _joined(runs)


class _Word:
    """Classifies paragraphs. Looks each style up once: python-docx searches all of them each time."""

    def __init__(self) -> None:
        self._styles: dict[str | None, tuple[str, int]] = {}

    def paragraph(self, paragraph: Any) -> _Paragraph:
        name, level = self._style(paragraph)
        text = _text(paragraph._p)
        if level and text.strip():
            return _Paragraph("heading", level, _plain(text))
        if name.casefold() == "title" and text.strip():
            return _Paragraph("title", 0, _plain(text))
        if _FURNITURE.match(name):
            return _Paragraph("text", 0, "")
        if _LISTING.search(name) or _is_listing(paragraph):
            return _Paragraph("code", 0, _typed(text))
        depth = _list_level(paragraph, name)
        return _Paragraph("text" if depth is None else "item", depth or 0, _plain(text))

    def table(self, table: Any) -> Iterator[Block]:
        """A table as pipes; a table of one cell is a frame around a listing or a remark."""
        rows = [_row(row) for row in table.rows]
        if len(rows) == 1 and len(rows[0]) == 1:
            run: list[_Paragraph] = []
            for inner in _inner(rows[0][0]._tc, rows[0][0]):
                if hasattr(inner, "rows"):
                    yield from (*_flushed(run), *self.table(inner))
                    continue
                found = self.paragraph(inner)
                yield from _appended(run, found if found.kind == "code" else _Paragraph("text", 0, found.text))
            yield from _flushed(run)
        elif text := pipe_table([_cells(row) for row in rows]):
            yield Block(text)

    def _style(self, paragraph: Any) -> tuple[str, int]:
        """The name of a paragraph's style, and the level of heading that it gives; 0 for none."""
        key = paragraph._p.style
        if key not in self._styles:
            style = paragraph.style
            name = str(style.name or "") if style is not None else ""
            heading = _HEADING.match(name)
            self._styles[key] = (name, int(heading[1]) if heading else _outline_level(style))
        return self._styles[key]


def _outline_level(style: Any) -> int:
    """The outline level of a style, from 1, whatever the style is called; 0 for none."""
    for _ in range(9):
        if style is None:
            return 0
        found = style._element.xpath("./w:pPr/w:outlineLvl/@w:val")
        if found:
            return int(found[0]) + 1 if int(found[0]) < 9 else 0
        style = style.base_style
    return 0


def _list_level(paragraph: Any, style: str) -> int | None:
    """Depth of a list item, from 0; None for other paragraphs."""
    found = paragraph._p.xpath("./w:pPr/w:numPr/w:ilvl/@w:val")
    if found:
        return int(found[0])
    named = _LIST.match(style)
    return int(named[1] or 1) - 1 if named else None


def _row(row: Any) -> list[Any]:
    """A row's cells; where one goes on from a row that has no such cell, those that the row itself holds."""
    try:
        return list(row.cells)
    except ValueError:
        from docx.table import _Cell

        return [_Cell(cell, row.table) for cell in row._tr.tc_lst]


def _cells(row: Sequence[Any]) -> list[str]:
    """Texts of a row. python-docx repeats a cell that spans columns; its text stays in the first of them."""
    return ["" if number and cell._tc is row[number - 1]._tc else _cell(cell) for number, cell in enumerate(row)]


def _cell(cell: Any) -> str:
    """Text of a cell, that of tables inside it too."""
    return clean_text("\n".join(map(_text, cell._tc.xpath(f".//w:p{_NO_FALLBACK}"))))


def _appended(run: list[_Paragraph], paragraph: _Paragraph) -> list[Block]:
    """Append a paragraph to those of its kind. Returns the blocks that it ends; a blank line ends no listing."""
    in_code = bool(run) and run[-1].kind == "code"
    if in_code and not paragraph.text.strip():
        run.append(_Paragraph("code", 0, ""))
        return []
    ended = _flushed(run) if run and run[-1].kind != paragraph.kind else []
    if paragraph.text.strip():
        run.append(paragraph)
    return ended


def _flushed(run: list[_Paragraph]) -> list[Block]:
    """Empty `run` into blocks: one listing, one list, or one block per paragraph."""
    kinds = {paragraph.kind for paragraph in run}
    if kinds == {"code"}:
        texts = [fence("\n".join(paragraph.text for paragraph in run))]
    elif kinds == {"item"}:
        texts = [nested_list((paragraph.level, paragraph.text) for paragraph in run)]
    else:
        texts = [paragraph.text for paragraph in run if paragraph.text.strip()]
    run.clear()
    return [Block(text) for text in texts]


# --- Slides


def read_slides(
    path: Path,
    *,
    cancelled: Callable[[], bool] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Parsed:
    """Read a .pptx file in the order of its slides.

    Raises:
        UnsupportedFormat: python-pptx is not installed.
        UnreadableBook: damaged, encrypted, or without slides.
        TooLarge: it would unpack to more than a book can hold.
        Cancelled: `cancelled` returned True between two slides.
    """
    deck = _open(path, "pptx", "Presentation")
    elements: list[Element] = []
    silent: list[int] = []
    with _unreadable(path):
        slides = list(deck.slides)
        first = int(deck.part._element.get("firstSlideNum") or 1)
        sections = _sections(deck)
        deck_title = real_title(str(deck.core_properties.title or "")) or _title_slide(slides)
        parted = bool(sections) or any(_opens_part(slide) for slide in slides)
        for page, slide in enumerate(slides, 1):
            if cancelled is not None and cancelled():
                raise Cancelled(f"Reading '{path.name}' was cancelled at slide {page} of {len(slides)}.")
            if slide.slide_id in sections:
                elements.append(Heading(1, sections[slide.slide_id], page))
            title_shape = slide.shapes.title
            title = _title(title_shape)
            level = 1 if not parted or (not sections and _opens_part(slide)) else 2
            if not (page == 1 and parted and title == deck_title):  # the book's title says it
                elements.append(Heading(level, title or f"Slide {first + page - 1}", page))
            texts = list(_texts(slide, title_shape))
            elements.extend(Block(text, ((0, page),)) for text in texts)
            if not texts and not title:
                silent.append(page)
            elif not texts:
                # Its title is all it says: as a heading alone it would be no node.
                elements.append(Block(title, ((0, page),)))
            if progress is not None:
                progress(page, len(slides))
        labels = tuple(str(first + place) for place in range(len(slides)))
    health = BookHealth(pages_without_text=tuple(silent))
    return Parsed(tuple(elements), deck_title, len(slides), labels, health)


def _sections(deck: Any) -> dict[int, str]:
    """Titles of the deck's named sections, by the id of the slide that opens each."""
    found: dict[int, str] = {}
    for section in deck.part._element.xpath(_SECTIONS):
        ids = section.xpath(".//*[local-name()='sldId']/@id")
        if ids and str(section.get("name", "")).strip():
            found[int(ids[0])] = _plain(str(section.get("name")))
    return found


def _opens_part(slide: Any) -> bool:
    """True for a slide of the layout 'section header'."""
    return _layout(slide) == "secHead"


def _title_slide(slides: Sequence[Any]) -> str | None:
    """The title on the first slide, if that is a title slide."""
    return _title(slides[0].shapes.title) or None if slides and _layout(slides[0]) in ("title", "ctrTitle") else None


def _title(shape: Any) -> str:
    return _plain("\n".join(map(_line, shape.text_frame.paragraphs))) if shape is not None else ""


def _layout(slide: Any) -> str:
    return str(slide.slide_layout._element.get("type", ""))


def _texts(slide: Any, title_shape: Any) -> Iterator[str]:
    """The slide's paragraphs, lists, tables and listings, then its notes."""
    for shape in _in_order(slide.shapes, 0):
        if title_shape is not None and shape.shape_id == title_shape.shape_id:
            continue
        if getattr(shape, "has_table", False):
            table = pipe_table(
                [["\n".join(map(_line, cell.text_frame.paragraphs)) for cell in row.cells] for row in shape.table.rows]
            )
            if table:
                yield table
        elif shape.has_text_frame and not _is_repeated(shape):
            yield from _paragraphs(shape.text_frame)
    if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
        notes = "\n".join(_paragraphs(slide.notes_slide.notes_text_frame))
        if notes:
            yield f"Notes: {notes}"


def _in_order(shapes: Any, depth: int) -> Iterator[Any]:
    """Shapes from top to bottom and left to right, groups opened."""
    for shape in sorted(shapes, key=lambda one: (int(one.top or 0), int(one.left or 0))):
        if hasattr(shape, "shapes"):
            if depth < MAX_DEPTH:
                yield from _in_order(shape.shapes, depth + 1)
        else:
            yield shape


def _is_repeated(shape: Any) -> bool:
    """True for what is on every slide: number, head, foot and date."""
    return bool(shape.is_placeholder) and shape.placeholder_format.type in _REPEATED


def _paragraphs(frame: Any) -> Iterator[str]:
    """Lines of code as one listing, several paragraphs as a list by their levels, a single one as it is."""
    code: list[str] = []
    items: list[tuple[int, str]] = []

    def flush() -> Iterator[str]:
        if code:
            yield fence("\n".join(code))
        if items:
            yield items[0][1] if len(items) == 1 else nested_list(items)
        code.clear()
        items.clear()

    for paragraph in frame.paragraphs:
        text = _line(paragraph)
        if _is_listing(paragraph):
            if items:
                yield from flush()
            code.append(_typed(text))
        elif code and not text.strip():
            code.append("")
        elif text.strip():
            if code:
                yield from flush()
            items.append((int(paragraph.level), _plain(text)))
    yield from flush()


def _line(paragraph: Any) -> str:
    """Text of a slide's paragraph; newer programs keep formulas beside a picture for older ones."""
    return _joined(
        (_sign(child, _SLIDE_SIGNS), str(child.text)) if _name(child) in ("r", "br", "fld") else ("", _formulas(child))
        for child in paragraph._p
    )


# --- Both


def _open(path: Path, package: str, function: str) -> Any:
    """Open a file with `package.function`, unless it is a zip bomb."""
    try:
        opener = getattr(import_module(package), function)
    except ImportError as error:
        raise UnsupportedFormat(
            msg("'{}' needs the package {}, which is not installed.", path.name, f"python-{package}"),
            hint=msg("Run `{}`.", "pip install 'coalesce-rag[office]'"),
        ) from error
    with _unreadable(path):
        with zipfile.ZipFile(path) as file:
            check_archive(file, path.name, max_bytes=MAX_ZIP_BYTES)
        return opener(str(path))


@contextmanager
def _unreadable(path: Path) -> Iterator[None]:
    """Turn whatever is raised over a damaged part into UnreadableBook."""
    try:
        yield
    except (CoalesceError, MemoryError, RecursionError):
        raise
    except Exception as error:  # neither package documents what it raises on odd XML
        raise UnreadableBook(
            msg("'{}' is damaged, encrypted or not a {} file: {}.", path.name, path.suffix, str(error)[:100]),
            hint="open it in an office program and save it again",
        ) from error


def _is_listing(paragraph: Any) -> bool:
    """True for a line of code: every run with words is set in a fixed-width font."""
    names = [str(run.font.name or "") for run in paragraph.runs if run.text.strip()]
    return bool(names) and all(map(is_monospace, names))


def _sign(run: Any, signs: dict[str, str]) -> str:
    """How what is raised or set low is marked; '' for other runs."""
    return next((sign for sign, path in signs.items() if run.xpath(path)), "")


def _formulas(element: Any) -> str:
    """Formulas of an element, symbol by symbol."""
    found = element.xpath(_FORMULA + _NO_FALLBACK)
    return " ".join(formula_text(make_soup(etree.tostring(one, with_tail=False), "xml")) for one in found)


def _joined(runs: Iterable[tuple[str, str]]) -> str:
    """Runs as text; those with one sign, the first value, are one exponent or index where they follow each other."""
    text, low = "", False
    for sign, group in groupby(runs, key=itemgetter(0)):
        piece = "".join(words for _, words in group)
        text += f" {piece}" if low and piece[:1].isdigit() else raised(piece, sign) if sign else piece
        low = bool(sign)
    return text


def _plain(text: str) -> str:
    """A paragraph on one line."""
    return " ".join(clean_text(text.replace("\v", "\n")).split())


def _typed(text: str) -> str:
    """A line of code with its indentation."""
    return clean_text(text.replace("\v", "\n")).replace("\xa0", " ").rstrip()
