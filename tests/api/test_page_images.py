"""A page of a PDF as an image, with the quote marked in its place."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from api.page_images import page_source, render_page
from api.uploads import UploadFolder, upload_id
from indexes.errors import NotFound
from indexes.types import BookHealth, Document

fpdf = pytest.importorskip("fpdf", reason="fpdf2 is not installed")
QUOTE = (
    "A warp is a group of 32 threads that run in lockstep on one scheduler of a multiprocessor, so that a branch "
    "taken by some costs all of them."
)


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two pages; the quote runs over two lines of the second."""
    pdf = fpdf.FPDF()
    pdf.set_font("helvetica", size=12)
    for text in ("First page.", QUOTE):
        pdf.add_page()
        pdf.multi_cell(0, 8, text)
    path = tmp_path_factory.mktemp("pdf") / "book.pdf"
    pdf.output(str(path))
    return path


def pixels(png: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The picture, shape (height, width, 3)."""
    image = Image.open(io.BytesIO(png))
    assert image.format == "PNG"
    return np.asarray(image.convert("RGB"))


def yellow_rows(png: bytes) -> int:
    """Rows of pixels that hold the marker's colour."""
    picture = pixels(png).astype(int)
    return int(((picture[:, :, 0] > 200) & (picture[:, :, 2] < 180)).any(axis=1).sum())


def test_the_quote_is_marked_over_its_lines(book: Path) -> None:
    plain, marked = render_page(book, 2), render_page(book, 2, QUOTE)
    assert pixels(plain).shape == pixels(marked).shape
    assert yellow_rows(plain) == 0
    one_line = yellow_rows(render_page(book, 2, "A warp is a group"))
    assert one_line > 5
    assert yellow_rows(marked) > 1.5 * one_line


def test_a_quote_that_is_not_on_the_page_marks_nothing(book: Path) -> None:
    assert yellow_rows(render_page(book, 1, QUOTE)) == 0


def test_a_page_of_any_size_gives_a_picture_of_bounded_size(tmp_path: Path) -> None:
    for side in (14_400, 200_000):
        pdf = fpdf.FPDF(unit="pt", format=(side, side))
        pdf.add_page()
        pdf.output(str(tmp_path / "wide.pdf"))
        height, width, _ = pixels(render_page(tmp_path / "wide.pdf", 1)).shape
        assert 1_000_000 < height * width <= 4_100_000


def test_pages_that_are_not_there_are_not_found(book: Path, tmp_path: Path) -> None:
    for page in (0, 3):
        with pytest.raises(NotFound):
            render_page(book, page)
    broken = tmp_path / "broken.pdf"
    broken.write_bytes(b"%PDF-1.7 nothing")
    with pytest.raises(NotFound):
        render_page(broken, 1)


class Shelf:
    """A library with one book."""

    def __init__(self, document: Document) -> None:
        self._document = document

    def document(self, document_id: str) -> Document:
        if document_id != self._document.document_id:
            raise NotFound(document_id)
        return self._document


def a_document(source: str, sha256: str, form: str = "pdf") -> Document:
    return Document(upload_id(sha256), "Book", source, False, form, 2, 1, 1, sha256, "2026-01-01", BookHealth())


def test_an_uploaded_book_is_found_where_uploads_are_kept(book: Path, tmp_path: Path) -> None:
    folder = UploadFolder(tmp_path)
    with book.open("rb") as file:
        incoming = folder.take_in(file)
    kept = folder.settle(incoming, "book.pdf")
    document = a_document("book.pdf", incoming.sha256)
    shelf: Any = Shelf(document)
    assert page_source(tmp_path, shelf, document.document_id) == kept
    assert page_source(tmp_path, shelf, "another") is None
    folder.forget(document.sha256, [])
    assert page_source(tmp_path, shelf, document.document_id) is None


def test_a_book_added_by_path_is_found_there_and_a_bare_name_is_not_a_path(
    book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(book.parent)
    for source, found in ((str(book), book), (book.name, None)):
        shelf: Any = Shelf(a_document(source, "0"))
        assert page_source(tmp_path, shelf, upload_id("0")) == found
    other: Any = Shelf(a_document(str(book), "0", form="text"))
    assert page_source(tmp_path, other, upload_id("0")) is None
