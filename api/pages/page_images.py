"""`/page-image/{document_id}/{page}.png`: a page of a PDF as it is printed, the quote marked on it.

The source file must still be there: an upload in the home, or the path that the book was added from.
"""

from __future__ import annotations

import struct
import threading
import zlib
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import Query, Response
from nicegui import app
from numpy.typing import NDArray

from api.errors import describe
from api.services import Services
from indexes.errors import CoalesceError, NotFound
from indexes.types import Document

SCALE = 1.6
"""Pixels a point: about 115 dots an inch, sharp on a panel of 400 to 700 pixels."""
MARK_COLOUR = np.array([255, 232, 140], np.float32) / 255
MAX_QUOTE_CHARS = 1000
# PDFium is not safe to use from two threads at once.
_LOCK = threading.Lock()


def register(services: Services) -> None:
    """Adds the route to the page's application."""

    @app.get("/page-image/{document_id}/{page}.png")
    def page_image(
        document_id: str, page: int, quote: Annotated[str, Query(max_length=MAX_QUOTE_CHARS)] = ""
    ) -> Response:
        try:
            path = page_source(services, document_id)
            if path is None:
                raise NotFound(f"the file of book {document_id!r} is not there", hint="add the book again")
            return Response(
                render_page(path, page, quote),
                media_type="image/png",
                headers={"Cache-Control": "private, max-age=3600"},
            )
        except CoalesceError as error:
            reply = describe(error)
            return Response(reply.message, reply.status, media_type="text/plain")


def page_source(services: Services, document_id: str) -> Path | None:
    """The PDF of a book, where it still lies; None for other formats and for files that are gone."""
    try:
        document = services.library.document(document_id)
    except CoalesceError:
        return None
    return next((path for path in _candidates(services.settings.home, document) if path.is_file()), None)


def _candidates(home: Path, document: Document) -> tuple[Path, ...]:
    if document.format != "pdf":
        return ()
    uploaded = sorted((home / "uploads" / document.sha256).glob("*"))
    source = Path(document.source)  # an upload's is its bare name
    return (*uploaded, source) if source.is_absolute() else tuple(uploaded)


def render_page(path: Path, page: int, quote: str = "") -> bytes:
    """A page (from 1) as PNG.

    Raises:
        NotFound: the file has no such page, or cannot be read any more.
    """
    import pypdfium2

    with _LOCK:
        try:
            pdf = pypdfium2.PdfDocument(path)
        except pypdfium2.PdfiumError as error:
            raise NotFound(f"{path.name} cannot be read: {error}", hint="add the book again") from error
        try:
            if not 1 <= page <= len(pdf):
                raise NotFound(f"{path.name} has no page {page}", hint=f"it has {len(pdf)} pages")
            sheet = pdf[page - 1]
            pixels = np.array(sheet.render(scale=SCALE, rev_byteorder=True).to_numpy()[:, :, :3])
            for box in _quote_boxes(sheet, quote):
                _mark(pixels, box, sheet.get_height())
        finally:
            pdf.close()
    return _png(pixels)


def _quote_boxes(sheet: Any, quote: str) -> list[tuple[float, float, float, float]]:
    """Boxes (left, bottom, right, top) in points around the quote, compared without spaces and hyphens."""
    wanted = _bare(quote)
    if not wanted:
        return []
    text_page = sheet.get_textpage()
    text = text_page.get_text_range()
    places = [index for index, character in enumerate(text) if not _skipped(character)]
    start = _bare(text).find(wanted)
    if start < 0:
        return []
    first, last = places[start], places[start + len(wanted) - 1]
    return [text_page.get_rect(i) for i in range(text_page.count_rects(first, last - first + 1))]


def _bare(text: str) -> str:
    return "".join(character for character in text if not _skipped(character))


def _skipped(character: str) -> bool:
    return character.isspace() or character in "-\u00ad\u2010\x02\ufffe"


def _mark(pixels: NDArray[np.uint8], box: tuple[float, float, float, float], height: float) -> None:
    left, bottom, right, top = box
    rows = slice(max(int((height - top) * SCALE) - 2, 0), int((height - bottom) * SCALE) + 2)
    columns = slice(max(int(left * SCALE) - 1, 0), int(right * SCALE) + 2)
    pixels[rows, columns] = (pixels[rows, columns] * MARK_COLOUR).astype(np.uint8)


def _png(pixels: NDArray[np.uint8]) -> bytes:
    """RGB pixels, shape (height, width, 3), as a PNG file."""
    height, width, _ = pixels.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, width * 3)], axis=1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows.tobytes(), 6)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body
