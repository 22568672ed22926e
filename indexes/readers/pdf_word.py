"""A word of a PDF page: letters, where they stand, and how they are set."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Word:
    """Letters without white space between. Coordinates in points, origin at the page's lower left."""

    text: str
    x0: float
    x1: float
    bottom: float
    top: float
    size: float
    mono: bool
    bold: bool
