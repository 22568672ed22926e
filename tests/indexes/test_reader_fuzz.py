"""Whatever the bytes, a reader gives a consistent book or one of our errors."""

from __future__ import annotations

import io
import itertools
import tempfile
import zipfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from fakes import HashEncoder
from fpdf import FPDF
from hypothesis import given
from hypothesis import strategies as st

from indexes.chunking import chunk_book
from indexes.errors import CoalesceError
from indexes.readers import read_book
from indexes.types import Book

MARKDOWN = """---
title: T
---
# One {.x}

Text with `code`, *emphasis*, [a link](u), $a\\_b$ and {ref}`x <y>`.

```{note} Title
:class: tip
Body
```

:::{admonition} A
- item
  1. inner

     ```cuda
     int a;
     ```
:::

| a | b |
|---|---|
| 1 | 2 |

<div align="center"><p>html <b>bold</b></p></div>
"""
RST = """Title
=====

.. note:: Text with ``code``, :math:`a^2`, :func:`f`, |sub| and `a link <u>`_.

.. code-block:: cuda
   :linenos:

   int a;

.. list-table:: T
   :header-rows: 1

   * - a
     - b

Term
  Definition.

1. one

   - two

.. function:: f(x)

   Does.

.. figure:: x.png
   :alt: y

   Caption.
"""
HTML = (
    "<html><head><title>T</title></head><body><h1>A</h1><p>b<br>c</p><pre><code class='language-c'>int a;</code></pre>"
    "<ul><li>x<ul><li>y</li></ul></li></ul><table><tr><td>1</td><td>2</td></tr></table><dl><dt>a<dd>b</dl>"
    "<math><mi>x</mi></math></body></html>"
)
NOTEBOOK = (
    '{"cells": [{"cell_type": "markdown", "source": ["# A\\n", "b"]}, {"cell_type": "code", "source": "x = 1", '
    '"outputs": [{"text": ["1"]}]}], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'
)
CODE = "/* c */\n#include <a>\n\n__global__ void f(int *a)\n{\n    a[0] = '{';\n}\n\nstruct S {\n    int x;\n};\n"
SEEDS = {".md": MARKDOWN, ".rst": RST, ".html": HTML, ".ipynb": NOTEBOOK, ".cu": CODE, ".py": CODE, ".txt": MARKDOWN}


@lru_cache
def pdf_bytes() -> bytes:
    pdf = FPDF()
    pdf.set_compression(False)
    for page in range(3):
        pdf.add_page()
        pdf.start_section(f"Chapter {page}")
        pdf.set_font("Times", size=11)
        pdf.multi_cell(0, 5, "Words of a paragraph that goes on. " * 9, new_x="LMARGIN", new_y="NEXT")
        pdf.set_font("Courier", size=9)
        pdf.multi_cell(0, 5, "int a;\n    int b;", new_x="LMARGIN", new_y="NEXT")
    return bytes(pdf.output())


@lru_cache
def epub_bytes() -> bytes:
    with tempfile.TemporaryFile() as stream:
        with zipfile.ZipFile(stream, "w") as file:
            file.writestr("mimetype", "application/epub+zip")
            file.writestr("META-INF/container.xml", '<container><rootfile full-path="p.opf"/></container>')
            file.writestr(
                "p.opf",
                '<package><metadata><dc:title xmlns:dc="x">T</dc:title></metadata><manifest>'
                '<item id="a" href="a.xhtml" media-type="application/xhtml+xml"/></manifest>'
                '<spine><itemref idref="a"/></spine></package>',
            )
            file.writestr("a.xhtml", HTML)
        stream.seek(0)
        return stream.read()


OFFICE = {".docx": "word/document.xml", ".pptx": "ppt/slides/slide1.xml"}
"""The part that is mutated: of a mutated archive little more than its checksums would be tried."""


@lru_cache
def office_bytes(suffix: str) -> bytes:
    """A document or a slide with a heading, a list and a table."""
    import docx
    import pptx

    file: Any
    if suffix == ".docx":
        file = docx.Document()
        file.add_heading("One", level=1)
        file.add_paragraph("item", style="List Bullet")
        file.add_table(2, 2).cell(0, 1).text = "cell"
        file.add_paragraph("Text.")
    else:
        file = pptx.Presentation()
        slide = file.slides.add_slide(file.slide_layouts[1])
        slide.shapes.title.text, slide.placeholders[1].text_frame.text = "One", "Text."
        slide.shapes.add_table(2, 2, 0, 0, 99, 99).table.cell(0, 1).text = "cell"
    stream = io.BytesIO()
    file.save(stream)
    return stream.getvalue()


def with_part(suffix: str, part: bytes) -> bytes:
    """The office file with another part."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(office_bytes(suffix))) as old, zipfile.ZipFile(out, "w") as new:
        for info in old.infolist():
            new.writestr(info, part if info.filename == OFFICE[suffix] else old.read(info))
    return out.getvalue()


def check(book: Book) -> None:
    """What every book promises."""
    assert book.title.strip()
    assert book.sections
    assert any(character.isalnum() for section in book.sections for character in section.text)
    assert len(book.page_labels) == (book.pages or 0)
    for section in book.sections:
        assert section.heading_path
        assert section.text.strip()
        offsets = [offset for offset, _ in section.page_marks]
        pages = [page for _, page in section.page_marks]
        assert (not offsets) == (book.pages is None)
        assert not offsets or offsets[0] == 0
        assert all(one < two for one, two in itertools.pairwise(offsets))
        assert all(1 <= page <= (book.pages or 0) for page in pages)
    encoder = HashEncoder()
    for node in chunk_book(book, encoder.token_starts, 60):
        assert node.text.strip()
        assert node.num_tokens <= 60


def read(name: str, data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        try:
            book = read_book(path)
        except CoalesceError as error:
            assert error.message
            return
        check(book)


@st.composite
def mutated(draw: st.DrawFn, data: bytes) -> bytes:
    """The bytes with some stretches dropped, cut off, doubled, moved or overwritten."""
    out = data
    for _ in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, max(len(out) - 1, 0)))
        end = draw(st.integers(start, min(len(out), start + draw(st.sampled_from([1, 8, 200])))))
        kind = draw(st.sampled_from(["drop", "cut", "double", "text", "bytes", "move"]))
        if kind == "drop":
            out = out[:start] + out[end:]
        elif kind == "cut":
            out = out[:start]
        elif kind == "double":
            out = out[:end] + out[start:end] * draw(st.integers(1, 30)) + out[end:]
        elif kind == "text":
            piece = draw(
                st.sampled_from(["```", ":::", "{", "<div>", "`", "|", "$$", "\n\n", "..", "::", "[", "\t", "é"])
            )
            out = out[:start] + piece.encode() + out[end:]
        elif kind == "bytes":
            out = out[:start] + draw(st.binary(max_size=8)) + out[end:]
        else:
            out = out[:start] + out[end:] + out[start:end]
    return out


ALL = [*SEEDS, ".pdf", ".epub"]


def seed_bytes(suffix: str) -> bytes:
    if suffix == ".pdf":
        return pdf_bytes()
    return epub_bytes() if suffix == ".epub" else SEEDS[suffix].encode()


def test_the_seeds_themselves_are_read() -> None:
    for suffix in ALL:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"a{suffix}"
            path.write_bytes(seed_bytes(suffix))
            check(read_book(path))


@pytest.mark.parametrize("suffix", ALL)
def test_mutated_files_are_read_or_refused(suffix: str) -> None:
    @given(mutated(seed_bytes(suffix)))
    def run(data: bytes) -> None:
        read(f"a{suffix}", data)

    run()


@pytest.mark.parametrize("suffix", ALL)
def test_any_bytes_are_read_or_refused(suffix: str) -> None:
    @given(st.binary(max_size=400) | st.text(max_size=400).map(lambda text: text.encode("utf-8", "surrogatepass")))
    def run(data: bytes) -> None:
        read(f"a{suffix}", data)

    run()


@pytest.mark.parametrize("suffix", OFFICE)
def test_mutated_parts_of_office_files_are_read_or_refused(suffix: str) -> None:
    pytest.importorskip("docx", reason="the extra `office` is not installed")
    pytest.importorskip("pptx", reason="the extra `office` is not installed")
    with zipfile.ZipFile(io.BytesIO(office_bytes(suffix))) as file:
        seed = file.read(OFFICE[suffix])

    @given(mutated(seed))
    def run(part: bytes) -> None:
        read(f"a{suffix}", with_part(suffix, part))

    run()
