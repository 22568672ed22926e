"""Slides (.pptx): each slide is a page, its number the page's label; its title a heading; its notes below its text.

A slide counts as a page because it is one: it has a number that people cite and a place in the file that stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from indexes.errors import Cancelled
from indexes.readers.elements import Block, Element, Heading, Parsed, fence, pipe_table
from indexes.readers.office_file import given_title, is_listing, joined_list, open_office, plain, typed, unreadable
from indexes.types import BookHealth

MAX_DEPTH = 20
"""Groups inside groups deeper than this are left out."""
_SECTIONS = "//*[local-name()='sectionLst']/*[local-name()='section']"


def read_slides(
    path: Path,
    *,
    cancelled: Callable[[], bool] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Parsed:
    """Read a .pptx file in the order of its slides.

    Raises:
        UnsupportedFormat: python-pptx is not installed.
        UnreadableBook: damaged, encrypted, or no slides.
        TooLarge: it would unpack to more than a book can hold.
        Cancelled: `cancelled` said so between two slides.
    """
    deck = open_office(path, "pptx", "Presentation")
    elements: list[Element] = []
    silent: list[int] = []
    with unreadable(path):
        slides = list(deck.slides)
        first = int(deck.part._element.get("firstSlideNum") or 1)
        sections = _sections(deck)
        deck_title = given_title(deck.core_properties) or _title_slide(slides)
        parted = bool(sections) or any(_opens_part(slide) for slide in slides)
        for page, slide in enumerate(slides, 1):
            if cancelled is not None and cancelled():
                raise Cancelled(f"Reading '{path.name}' was cancelled at slide {page} of {len(slides)}.")
            if slide.slide_id in sections:
                elements.append(Heading(1, sections[slide.slide_id], page))
            title_shape = slide.shapes.title
            title = plain(title_shape.text_frame.text) if title_shape is not None else ""
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
    """Titles of the deck's named sections by the id of the slide that opens each."""
    found: dict[int, str] = {}
    for section in deck.part._element.xpath(_SECTIONS):
        ids = section.xpath(".//*[local-name()='sldId']/@id")
        if ids and str(section.get("name", "")).strip():
            found[int(ids[0])] = plain(str(section.get("name")))
    return found


def _opens_part(slide: Any) -> bool:
    """True for a slide of the layout 'section header'."""
    return _layout(slide) == "secHead"


def _title_slide(slides: Sequence[Any]) -> str | None:
    """The title on the first slide, if that is a title slide."""
    if not slides or _layout(slides[0]) not in ("title", "ctrTitle") or slides[0].shapes.title is None:
        return None
    return plain(slides[0].shapes.title.text_frame.text) or None


def _layout(slide: Any) -> str:
    return str(slide.slide_layout._element.get("type", ""))


def _texts(slide: Any, title_shape: Any) -> Iterator[str]:
    """The slide's paragraphs, lists, tables and listings, then its notes."""
    for shape in _in_order(slide.shapes, 0):
        if title_shape is not None and shape.shape_id == title_shape.shape_id:
            continue
        if getattr(shape, "has_table", False):
            table = pipe_table([[cell.text for cell in row.cells] for row in shape.table.rows])
            if table:
                yield table
        elif shape.has_text_frame and not _is_furniture(shape):
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


def _is_furniture(shape: Any) -> bool:
    """True for the placeholders that repeat on every slide: number, head, foot and date."""
    return bool(shape.is_placeholder) and shape.placeholder_format.type in (13, 14, 15, 16)


def _paragraphs(frame: Any) -> Iterator[str]:
    """Runs of listing lines as one listing, several paragraphs as a list by their levels, one as it stands."""
    code: list[str] = []
    items: list[tuple[int, str]] = []

    def flush() -> Iterator[str]:
        if code:
            yield fence("\n".join(code))
        if items:
            yield items[0][1] if len(items) == 1 else joined_list(items)
        code.clear()
        items.clear()

    for paragraph in frame.paragraphs:
        text = str(paragraph.text)
        if is_listing(paragraph):
            if items:
                yield from flush()
            code.append(typed(text))
        elif code and not text.strip():
            code.append("")
        elif text.strip():
            if code:
                yield from flush()
            items.append((int(paragraph.level), plain(text)))
    yield from flush()
