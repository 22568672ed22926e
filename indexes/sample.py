"""The bundled book, so that a fresh library has something true to answer from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from indexes.text_encoder import CancelCheck
from indexes.types import AddResult, ProgressListener

if TYPE_CHECKING:  # the path alone must not cost the library's imports
    from indexes.library import Library

SAMPLE_TITLE = "GPU Programming from First Principles"
SAMPLE_PATH = Path(__file__).resolve().parent / "sample_book"
"""The folder whose Markdown files are the book's chapters."""


def add_sample(
    library: Library, *, progress: ProgressListener | None = None, cancelled: CancelCheck | None = None
) -> AddResult:
    """Add the bundled book. Raises as `Library.add`."""
    return library.add(SAMPLE_PATH, progress=progress, cancelled=cancelled, title=SAMPLE_TITLE, sample=True)
