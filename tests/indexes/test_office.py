"""Slides and Word documents: headings, numbers, lists, tables and listings as their authors set them."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest
from lxml import etree

docx = pytest.importorskip("docx", reason="the extra `office` is not installed")
pptx = pytest.importorskip("pptx", reason="the extra `office` is not installed")

from pptx.util import Inches  # noqa: E402

from indexes.errors import Cancelled, TooLarge, UnreadableBook, UnsupportedFormat  # noqa: E402
from indexes.readers import read_book  # noqa: E402

KERNEL = ["__global__ void add(float *a, int n) {", "    int i = threadIdx.x;", "", "    if (i < n) a[i] += 1;", "}"]
TITLE, BULLETS, SECTION, ONLY_TITLE = 0, 1, 2, 5


def make_deck(path: Path, *, parts: bool = False) -> None:
    deck = pptx.Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[TITLE])
    slide.shapes.title.text = "Kernels by Example"
    slide.placeholders[1].text = "A lecture"
    if parts:
        deck.slides.add_slide(deck.slide_layouts[SECTION]).shapes.title.text = "Threads"
    slide = deck.slides.add_slide(deck.slide_layouts[BULLETS])
    slide.shapes.title.text = "Warps"
    frame = slide.placeholders[1].text_frame
    frame.text = "A warp has 32 threads"
    for level, text in ((1, "they run in step"), (0, "Divergence costs time")):
        paragraph = frame.add_paragraph()
        paragraph.text, paragraph.level = text, level
    slide.notes_slide.notes_text_frame.text = "Say that AMD has 64."
    if parts:
        deck.slides.add_slide(deck.slide_layouts[SECTION]).shapes.title.text = "Code"
    slide = deck.slides.add_slide(deck.slide_layouts[ONLY_TITLE])
    slide.shapes.title.text = "A kernel"
    table = slide.shapes.add_table(2, 2, Inches(1), Inches(5), Inches(4), Inches(1)).table
    for place, text in enumerate(("Memory", "Cycles", "shared|fast", "30")):
        table.cell(place // 2, place % 2).text = text
    frame = slide.shapes.add_textbox(Inches(1), Inches(2), Inches(6), Inches(2)).text_frame
    for number, line in enumerate(KERNEL):
        paragraph = frame.paragraphs[0] if number == 0 else frame.add_paragraph()
        run = paragraph.add_run()
        run.text, run.font.name = line, "Consolas"
    deck.slides.add_slide(deck.slide_layouts[6])
    deck.save(str(path))


def make_document(path: Path) -> None:
    document = docx.Document()
    document.add_heading("Notes on Memory", level=0)
    document.add_paragraph("What this is about.")
    document.add_heading("Coalescing", level=1)
    document.add_paragraph("Threads of a warp should read neighbours.")
    document.add_paragraph("one transaction", style="List Bullet")
    document.add_paragraph("of 128 bytes", style="List Bullet 2")
    document.add_heading("A kernel", level=2)
    for line in KERNEL:
        document.add_paragraph().add_run(line).font.name = "Courier New"
    document.add_heading("Numbers", level=1)
    table = document.add_table(2, 2)
    for place, text in enumerate(("Memory", "Cycles", "global", "400")):
        table.cell(place // 2, place % 2).text = text
    document.add_paragraph("That is all.")
    document.save(str(path))


def test_slides_are_pages_with_their_numbers(tmp_path: Path) -> None:
    make_deck(tmp_path / "a.pptx")
    book = read_book(tmp_path / "a.pptx")
    assert (book.title, book.format, book.pages) == ("Kernels by Example", "pptx", 4)
    assert book.page_labels == ("1", "2", "3", "4")
    assert [(section.heading_path, section.page_marks) for section in book.sections] == [
        (("Kernels by Example",), ((0, 1),)), (("Warps",), ((0, 2),)), (("A kernel",), ((0, 3),)),
    ]  # fmt: skip
    assert book.health.pages_without_text == (4,)


def test_lists_notes_tables_and_listings_of_slides_are_kept(tmp_path: Path) -> None:
    make_deck(tmp_path / "a.pptx")
    _, warps, kernel = (section.text for section in read_book(tmp_path / "a.pptx").sections)
    assert warps == (
        "- A warp has 32 threads\n  - they run in step\n- Divergence costs time\n\nNotes: Say that AMD has 64."
    )
    code = "\n".join(KERNEL)
    assert kernel == f"```\n{code}\n```\n\n| Memory | Cycles |\n| --- | --- |\n| shared\\|fast | 30 |"


def test_section_slides_open_chapters(tmp_path: Path) -> None:
    make_deck(tmp_path / "a.pptx", parts=True)
    sections = read_book(tmp_path / "a.pptx").sections
    assert [(section.chapter, section.heading_path) for section in sections] == [
        (0, ("Kernels by Example",)), (1, ("Threads",)), (1, ("Threads", "Warps")), (2, ("Code",)),
        (2, ("Code", "A kernel")),
    ]  # fmt: skip


FORMULA = (
    '<m:oMath xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"><m:sSup><m:e><m:r><m:t>2</m:t></m:r>'
    "</m:e><m:sup><m:r><m:t>n+1</m:t></m:r></m:sup></m:sSup><m:r><m:t>=</m:t></m:r><m:f><m:num><m:r><m:t>a</m:t></m:r>"
    '</m:num><m:den><m:d><m:dPr><m:begChr m:val="["/><m:endChr m:val="]"/></m:dPr><m:e><m:r><m:t>b</m:t></m:r></m:e>'
    "</m:d></m:den></m:f></m:oMath>"
)


def test_raised_numbers_are_exponents_and_formulas_are_kept(tmp_path: Path) -> None:
    document, deck = docx.Document(), pptx.Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[ONLY_TITLE])
    box = slide.shapes.add_textbox(Inches(1), Inches(2), Inches(6), Inches(2)).text_frame
    title = slide.shapes.title.text_frame.paragraphs[0]
    for paragraph in (document.add_paragraph(), box.paragraphs[0], title):
        for text in ("A page has 2", "1", "6", " bytes, log", "2", "8 "):
            run = paragraph.add_run()
            run.text = text
            level = {"1": 30, "6": 30, "2": -25}.get(text, 0)
            if level and hasattr(run.font, "superscript"):
                setattr(run.font, "superscript" if level > 0 else "subscript", True)
            elif level:
                run.font._element.set("baseline", f"{level}000")
        paragraph._p.append(etree.fromstring(FORMULA))
    document.save(str(tmp_path / "a.docx"))
    deck.save(str(tmp_path / "a.pptx"))
    said = "A page has 2^16 bytes, log_2 8 2^(n+1)=a/[b]"
    assert read_book(tmp_path / "a.docx").sections[0].text == said
    slides = read_book(tmp_path / "a.pptx").sections
    assert (slides[0].heading_path[-1], slides[0].text) == (said, said)


def test_word_headings_become_chapters_and_pages_are_not_made_up(tmp_path: Path) -> None:
    make_document(tmp_path / "a.docx")
    book = read_book(tmp_path / "a.docx")
    assert (book.title, book.format, book.pages, book.page_labels) == ("Notes on Memory", "docx", None, ())
    assert [(section.chapter, section.heading_path) for section in book.sections] == [
        (0, ("Notes on Memory",)), (1, ("Coalescing",)), (1, ("Coalescing", "A kernel")), (2, ("Numbers",)),
    ]  # fmt: skip
    assert all(section.page_marks == () for section in book.sections)


def test_lists_tables_and_listings_of_word_are_kept(tmp_path: Path) -> None:
    make_document(tmp_path / "a.docx")
    _, prose, kernel, numbers = (section.text for section in read_book(tmp_path / "a.docx").sections)
    assert prose == "Threads of a warp should read neighbours.\n\n- one transaction\n  - of 128 bytes"
    code = "\n".join(KERNEL)
    assert kernel == f"```\n{code}\n```"
    assert numbers == "| Memory | Cycles |\n| --- | --- |\n| global | 400 |\n\nThat is all."


def test_words_in_insertions_controls_fields_and_text_boxes_are_kept(tmp_path: Path) -> None:
    run = '<w:r><w:t xml:space="preserve">{}</w:t></w:r>'
    box = f"<w:txbxContent><w:p>{run.format('in the box')}</w:p></w:txbxContent>"
    pieces = (
        f"<w:ins>{run.format('inserted, ')}</w:ins><w:del><w:r><w:delText>deleted</w:delText></w:r></w:del>"
        f"<w:moveFrom>{run.format('moved')}</w:moveFrom><w:sdt><w:sdtContent>{run.format('chosen, ')}</w:sdtContent>"
        f"</w:sdt><w:fldSimple>{run.format('counted')}</w:fldSimple><w:r><w:footnoteReference/></w:r>"
        f"<w:r><mc:AlternateContent><mc:Choice>{box}</mc:Choice><mc:Fallback>{box}</mc:Fallback></mc:AlternateContent>"
        "</w:r>"
    )
    spaces = (
        'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main" '
        'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'
    )
    document = docx.Document()
    document.element.body.insert(0, docx.oxml.parse_xml(
        f"<w:sdt {spaces}><w:sdtContent><w:p>{pieces}</w:p></w:sdtContent></w:sdt>"
    ))  # fmt: skip
    table = document.add_table(1, 2)
    table.cell(0, 0).text = "outer"
    table.cell(0, 1).add_table(1, 1).cell(0, 0).text = "inner"
    document.save(str(tmp_path / "a.docx"))
    book = read_book(tmp_path / "a.docx")
    assert book.sections[0].text == "inserted, chosen, counted\n\nin the box\n\n| outer | inner |\n| --- | --- |"
    assert book.health.notes == ("1 footnotes were left out",)


def test_columns_stay_below_each_other_where_cells_are_merged(tmp_path: Path) -> None:
    document = docx.Document()
    table = document.add_table(2, 3)
    for place, text in enumerate(("size", "", "time", "1", "2", "3")):
        table.cell(place // 3, place % 3).text = text
    table.cell(0, 0).merge(table.cell(0, 1))
    document.save(str(tmp_path / "a.docx"))
    text = read_book(tmp_path / "a.docx").sections[0].text
    assert text == "| size |  | time |\n| --- | --- | --- |\n| 1 | 2 | 3 |"


def test_a_cell_that_goes_on_from_a_row_without_it_costs_no_more_than_itself(tmp_path: Path) -> None:
    document = docx.Document()
    table = document.add_table(2, 2)
    for place, text in enumerate(("size", "time", "1", "2")):
        table.cell(place // 2, place % 2).text = text
    table.cell(0, 1).merge(table.cell(1, 1))
    table.rows[0]._tr.remove(table.rows[0]._tr.tc_lst[1])
    document.save(str(tmp_path / "a.docx"))
    assert "| size |" in read_book(tmp_path / "a.docx").sections[0].text


@pytest.mark.parametrize(("name", "package"), [("a.pptx", "pptx"), ("a.docx", "docx")])
def test_without_the_extra_the_error_says_how_to_install_it(
    name: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (make_deck if package == "pptx" else make_document)(tmp_path / name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UnsupportedFormat, match=f"python-{package}") as caught:
        read_book(tmp_path / name)
    assert "pip install 'coalesce-rag[office]'" in caught.value.hint


@pytest.mark.parametrize("name", ["a.pptx", "a.docx"])
@pytest.mark.parametrize("keep", [0.05, 0.5, 0.95])
def test_truncated_files_are_refused(name: str, keep: float, tmp_path: Path) -> None:
    (make_deck if name == "a.pptx" else make_document)(tmp_path / "whole")
    data = (tmp_path / "whole").read_bytes()
    (tmp_path / name).write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(UnreadableBook):
        read_book(tmp_path / name)


@pytest.mark.parametrize(("name", "member"), [("a.pptx", "ppt/presentation.xml"), ("a.docx", "word/document.xml")])
def test_damaged_parts_are_refused(name: str, member: str, tmp_path: Path) -> None:
    (make_deck if name == "a.pptx" else make_document)(tmp_path / "whole")
    for content in (b"<broken", b"<a/>", None):
        with zipfile.ZipFile(tmp_path / "whole") as old, zipfile.ZipFile(tmp_path / name, "w") as new:
            for info in old.infolist():
                if info.filename != member:
                    new.writestr(info, old.read(info))
                elif content is not None:
                    new.writestr(info, content)
        with pytest.raises(UnreadableBook):
            read_book(tmp_path / name)


def test_a_zip_bomb_is_refused(tmp_path: Path) -> None:
    make_document(tmp_path / "a.docx")
    with zipfile.ZipFile(tmp_path / "a.docx", "a", zipfile.ZIP_DEFLATED) as file:
        file.writestr("word/comments.xml", b"<a>" + b" " * 30_000_000 + b"</a>")
    with pytest.raises(TooLarge):
        read_book(tmp_path / "a.docx")


def test_reading_slides_can_be_cancelled(tmp_path: Path) -> None:
    make_deck(tmp_path / "a.pptx")
    seen: list[int] = []
    with pytest.raises(Cancelled):
        read_book(tmp_path / "a.pptx", progress=lambda done, _: seen.append(done), cancelled=lambda: len(seen) >= 2)
    assert seen == [1, 2]
