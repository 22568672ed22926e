"""Pages that are pictures: recognised when asked, named in the health, and a clear error without the extra."""

from __future__ import annotations

import importlib.util
import io
import sys
from pathlib import Path

import numpy as np
import pypdfium2
import pytest
from fakes import HashEncoder
from fpdf import FPDF

from indexes.errors import InvalidInput
from indexes.library import open_library
from indexes.readers import read_book
from indexes.readers.pdf import document
from indexes.readers.pdf.document import Recogniser
from indexes.settings import IndexSettings

WORDS = [
    "Shared memory is divided into banks of four bytes.",
    "Two threads that read different words of one bank wait for each other.",
    "A padded row moves the columns of a tile to different banks.",
]
PRINTED = "This page has letters of its own, which are read as they are and not looked at as a picture. " * 3


def make_scan(path: Path) -> None:
    """A page of text, then a page that is a picture of text."""
    source = FPDF()
    source.add_page()
    source.set_font("Times", size=12)
    for line in WORDS:
        source.multi_cell(0, 7, line, new_x="LMARGIN", new_y="NEXT")
    document = pypdfium2.PdfDocument(bytes(source.output()))
    picture = io.BytesIO()
    document[0].render(scale=200 / 72).to_pil().save(picture, format="PNG")
    document.close()
    scan = FPDF()
    scan.add_page()
    scan.set_font("Times", size=12)
    scan.multi_cell(0, 7, PRINTED)
    scan.add_page()
    scan.image(picture, x=0, y=0, w=scan.w)
    scan.output(str(path))


class Reading:
    """A recogniser that always reads the same lines."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def __call__(self, picture: np.ndarray) -> object:
        self.shapes.append(picture.shape)
        boxes = [[[100, y], [900, y], [900, y + 30], [100, y + 30]] for y in (100, 140, 180, 220)]

        class Found:
            txts = (*WORDS, "speck")
            scores = (0.99, 0.9, 0.9, 0.2)

        Found.boxes = np.array(boxes, dtype=float)  # type: ignore[attr-defined]
        return Found


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Reading:
    reading = Reading()

    def made() -> Recogniser:
        recogniser = Recogniser()
        recogniser._engine = reading
        return recogniser

    monkeypatch.setattr(document, "Recogniser", made)
    return reading


def test_recognised_pages_are_text_and_named_in_the_health(tmp_path: Path, reading: Reading) -> None:
    make_scan(tmp_path / "a.pdf")
    book = read_book(tmp_path / "a.pdf", ocr=True)
    assert [(section.text, section.page_marks) for section in book.sections] == [
        (PRINTED.strip() + "\n\n" + " ".join(WORDS), ((0, 1), (len(PRINTED.strip()) + 2, 2)))
    ]
    assert (book.health.recognised_pages, book.health.pages_without_text) == ((2,), ())
    assert [shape[2] for shape in reading.shapes] == [3], "only the page without letters was looked at"


def test_a_page_on_which_the_recogniser_fails_is_named_and_the_others_are_read(
    tmp_path: Path, reading: Reading, monkeypatch: pytest.MonkeyPatch, unforeseen_errors: list[Exception]
) -> None:
    monkeypatch.setattr(Reading, "__call__", lambda self, picture: 1 / 0)
    make_scan(tmp_path / "a.pdf")
    book = read_book(tmp_path / "a.pdf", ocr=True)
    assert (book.sections[0].text, book.health.pages_without_text) == (PRINTED.strip(), (2,))
    assert any("page 2" in note for note in book.health.notes)
    assert len(unforeseen_errors) == 1


def test_nothing_is_recognised_unless_asked(tmp_path: Path, reading: Reading) -> None:
    make_scan(tmp_path / "a.pdf")
    assert read_book(tmp_path / "a.pdf").health.pages_without_text == (2,)
    assert reading.shapes == []


def test_a_book_added_before_is_read_again_when_asked(tmp_path: Path, reading: Reading) -> None:
    make_scan(tmp_path / "a.pdf")
    statuses = []
    for ocr in (False, True, True, False):
        library = open_library(IndexSettings(home=tmp_path / "home", ocr=ocr), embedder=HashEncoder())
        statuses.append(library.add(tmp_path / "a.pdf").status)
        library.close()
    assert statuses == ["added", "updated", "unchanged", "unchanged"]


def test_without_the_extra_the_error_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_scan(tmp_path / "a.pdf")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(InvalidInput, match="RapidOCR") as caught:
        read_book(tmp_path / "a.pdf", ocr=True)
    assert "pip install 'coalesce-rag[ocr]'" in caught.value.hint


@pytest.mark.integration
@pytest.mark.skipif(
    not (importlib.util.find_spec("rapidocr") and importlib.util.find_spec("onnxruntime")),
    reason="the extra `ocr` is not installed",
)
@pytest.mark.filterwarnings("ignore")  # of a library that only this test loads
def test_a_picture_of_text_is_read(tmp_path: Path) -> None:
    make_scan(tmp_path / "a.pdf")
    text = read_book(tmp_path / "a.pdf", ocr=True).sections[-1].text
    assert all(line in text for line in WORDS)
