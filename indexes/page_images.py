"""Pictures of PDF pages as they are printed, with a quote marked. Drawn in a process of its own: `reading_process`."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from indexes.errors import NotFound
from indexes.messages import msg

if TYPE_CHECKING:
    from PIL.Image import Image as PageImage

SCALE = 1.6
"""Pixels per point: about 115 dots per inch, sharp on a panel of 400 to 700 pixels."""
MAX_PIXELS = 4e6
"""Larger pages are drawn smaller: a page may measure 200 inches a side."""
MARK_COLOUR = (255, 232, 140)


def draw_page(path: Path, page: int, quote: str = "") -> bytes:
    """A page (from 1) as PNG.

    Raises:
        NotFound: the file has no such page, or cannot be read any more.
    """
    import pypdfium2

    try:
        pdf = pypdfium2.PdfDocument(path)
    except pypdfium2.PdfiumError as error:
        raise NotFound(msg("{} cannot be read: {}", path.name, error), hint="add the book again") from error
    try:
        if not 1 <= page <= len(pdf):
            raise NotFound(f"{path.name} has no page {page}", hint=f"its last page is {len(pdf)}")
        sheet = pdf[page - 1]
        width, height = sheet.get_size()
        scale = min(SCALE, math.sqrt(MAX_PIXELS / max(width * height, 1.0)))
        image = sheet.render(scale=scale).to_pil().convert("RGB")
        for box in _quote_boxes(sheet, quote):
            _mark(image, box, height, scale)
    finally:
        pdf.close()
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def _quote_boxes(sheet: Any, quote: str) -> list[tuple[float, float, float, float]]:
    """Boxes (left, bottom, right, top) in points around the quote, compared by letters and digits.

    A reader joins lines, and marks exponents, indexes and cells of tables.
    """
    wanted = _bare(quote)
    if not wanted:
        return []
    text_page = sheet.get_textpage()
    text = text_page.get_text_range()
    places = [index for index, character in enumerate(text) if character.isalnum()]
    start = _bare(text).find(wanted)
    if start < 0:
        return []
    first, last = places[start], places[start + len(wanted) - 1]
    return [text_page.get_rect(i) for i in range(text_page.count_rects(first, last - first + 1))]


def _bare(text: str) -> str:
    return "".join(filter(str.isalnum, text))


def _mark(image: PageImage, box: tuple[float, float, float, float], height: float, scale: float) -> None:
    """Tints a box that is given in points from the bottom left."""
    from PIL import Image, ImageChops

    left, bottom, right, top = box
    area = (
        max(int(left * scale) - 1, 0),
        max(int((height - top) * scale) - 2, 0),
        min(int(right * scale) + 2, image.width),
        min(int((height - bottom) * scale) + 2, image.height),
    )
    if area[0] < area[2] and area[1] < area[3]:
        part = image.crop(area)
        image.paste(ImageChops.multiply(part, Image.new("RGB", part.size, MARK_COLOUR)), area)
