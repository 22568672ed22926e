"""Pages that are pictures, made into lines by recognising their letters; only with the extra `ocr`, only when asked.

RapidOCR (Apache-2.0, its weights too) brings its models in its wheel: nothing is downloaded. What it reads has no
typeface, so listings come out as paragraphs, and a letter may be wrong: the pages are named in the book's health.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from indexes.errors import InvalidInput
from indexes.readers.pdf_page import Line, PageLines, make_line
from indexes.readers.pdf_word import Word

POINTS_AN_INCH = 72
DOTS_AN_INCH = 200
MAX_PIXELS = 20_000_000
"""A larger page is rendered more coarsely: 200 dots an inch of A4 are four million."""
LETTER_SHARE = 0.75
"""Of the height of a recognised line's box, the size of its type."""
ALIKE = 0.25
"""Boxes whose heights differ by less are lines of one size: a line without tall letters has a lower box."""
LEAST_SCORE = 0.5
"""Lines of which the recogniser is less sure are specks and drawings."""


class Recogniser:
    """Reads pictures of text. Light to make; the models load at the first page (seconds)."""

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
        """The page with the lines that stand in its picture, shape (height, width, 3), blue first, 8 bits each."""
        self.load()
        found = self._engine(picture)
        if found.boxes is None:
            return page
        scale = page.width / picture.shape[1]
        words = [
            _word(box, text, scale, page.height)
            for box, text, score in zip(found.boxes, found.txts, found.scores, strict=True)
            if score >= LEAST_SCORE and text.strip()
        ]
        if not words:
            return page
        return replace(page, lines=_of_one_size([make_line([word], page.page) for word in words]))


def render(page: Any) -> np.ndarray:
    """A PDFium page as a picture, shape (height, width, 3), blue first, 8 bits each."""
    width, height = page.get_size()
    scale = min(DOTS_AN_INCH / POINTS_AN_INCH, (MAX_PIXELS / max(width * height, 1.0)) ** 0.5)
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
    size = LETTER_SHARE * (top - bottom)
    left, right = float(corners[:, 0].min()), float(corners[:, 0].max())
    return Word(" ".join(text.split()), left, right, bottom, top, size, False, False)


def _of_one_size(lines: list[Line]) -> tuple[Line, ...]:
    usual = round(median(line.size for line in lines), 1)
    return tuple(replace(line, size=usual) if abs(line.size - usual) < ALIKE * usual else line for line in lines)
