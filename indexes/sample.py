"""The bundled book, so that a new library can answer at once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from indexes.types import AddResult, ProgressListener

if TYPE_CHECKING:  # importing the path must not import the library
    from indexes.library import Library

SAMPLE_TITLE = "GPU Programming from First Principles"
SAMPLE_PATH = Path(__file__).resolve().parent / "sample_book"
"""The folder whose Markdown files are the book's chapters."""


def add_sample(library: Library, progress: ProgressListener | None = None) -> AddResult:
    """Add the bundled book. Raises as `Library.add`."""
    return library.add(SAMPLE_PATH, progress=progress, title=SAMPLE_TITLE, sample=True)
