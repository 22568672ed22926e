"""A page of a PDF as an image, with the quote marked in its place."""

from __future__ import annotations

import io
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import strangers
from api_fakes import SAMPLE_ID, wait_until
from PIL import Image

from indexes.errors import NotFound, TooLarge
from indexes.page_images import draw_page
from indexes.reading_process import ReadingProcesses
from indexes.settings import IndexSettings

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


def test_the_quote_is_marked_over_its_lines_and_nothing_where_it_is_not(book: Path) -> None:
    plain, marked = draw_page(book, 2), draw_page(book, 2, QUOTE)
    assert pixels(plain).shape == pixels(marked).shape
    assert yellow_rows(plain) == yellow_rows(draw_page(book, 1, QUOTE)) == 0
    one_line = yellow_rows(draw_page(book, 2, "A warp is a group"))
    assert one_line == yellow_rows(draw_page(book, 2, "| A_warp | is^(a) group |")) > 5  # as a reader marks it
    assert yellow_rows(marked) > 1.5 * one_line


def test_a_page_of_any_size_gives_a_picture_of_bounded_size(tmp_path: Path) -> None:
    for side in (14_400, 200_000):
        pdf = fpdf.FPDF(unit="pt", format=(side, side))
        pdf.add_page()
        pdf.output(str(tmp_path / "wide.pdf"))
        height, width, _ = pixels(draw_page(tmp_path / "wide.pdf", 1)).shape
        assert 1_000_000 < height * width <= 4_100_000


def test_pages_that_are_not_there_are_not_found(book: Path, tmp_path: Path) -> None:
    for page in (0, 3):
        with pytest.raises(NotFound):
            draw_page(book, page)
    broken = tmp_path / "broken.pdf"
    broken.write_bytes(b"%PDF-1.7 nothing")
    with pytest.raises(NotFound):
        draw_page(broken, 1)


@pytest.mark.integration
def test_a_page_that_takes_too_much_ends_its_process_and_the_next_one_is_drawn(book: Path, tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(strangers.pdf_of(b"q ", 10))
    with closing(ReadingProcesses(IndexSettings(tmp_path, reading_memory_bytes=256 * 2**20))) as reading:
        with pytest.raises(TooLarge, match="268,435,456 bytes"):
            reading.draw(tmp_path / "a.pdf", 1)
        assert yellow_rows(reading.draw(book, 2, QUOTE)) > 5
        with pytest.raises(NotFound):
            reading.draw(book, 3)


def test_pictures_are_of_an_upload_and_of_a_book_added_by_path_while_their_files_are_there(live, book, tmp_path):
    def status(document_id: str) -> int:
        return live.client.get(f"/page-image/{document_id}/2.png", params={"quote": QUOTE}).status_code

    taken = live.client.post("/v1/documents", files={"file": ("book.pdf", book.read_bytes())}).json()
    wait_until(lambda: live.client.get(f"/v1/documents/{taken['document_id']}").status_code == 200, "it is added")
    kept = Path(shutil.copy(book, tmp_path / "kept.pdf"))
    by_path = live.shelf.add(kept).document.document_id
    assert [status(one) for one in (taken["document_id"], by_path)] == [200, 200]
    assert [status(one) for one in (SAMPLE_ID, "another")] == [404, 404], "no PDF, no book"
    kept.unlink()
    shutil.rmtree(live.services.settings.home / "uploads")
    assert [status(one) for one in (taken["document_id"], by_path)] == [404, 404]
