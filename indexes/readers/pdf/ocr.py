"""Recognises the text of pages that are pictures; needs the extra `ocr`.

RapidOCR (Apache-2.0, its weights too) brings its models in its wheel: nothing is downloaded. What it reads has no
typeface, so listings come out as paragraphs, and letters may be wrong: the book's health names the pages.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from indexes.errors import InvalidInput
from indexes.readers.pdf.page import Line, PageLines, make_line
from indexes.readers.pdf.words import Word

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
                hint="python -m pip install 'coalesce-rag[ocr]'",
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
