"""Born-digital PDFs: every sentence on its page, every listing as typed, no headers or footers in the text."""

from pathlib import Path
from typing import Any

import pytest
from fpdf import FPDF
from pdf_maker import PdfMaker, make_book, write_bitmap_font_pdf, write_raw_pdf

from indexes.errors import Cancelled, UnreadableBook
from indexes.readers import read_book
from indexes.readers.pdf import document
from indexes.readers.pdf.layout import TextPage
from indexes.types import Book, page_at


def exact_share(maker: PdfMaker, book: Book) -> float:
    """Share of the sentences that the book has whole, with the pages and the label that they were printed on."""
    exact = 0
    for placed in maker.placed:
        for section in book.sections:
            at = section.text.find(placed.text)
            if at >= 0:
                start = page_at(section.page_marks, at)
                end = page_at(section.page_marks, at + len(placed.text) - 1)
                label = book.page_labels[start - 1] if start else None
                exact += (start, end, label) == (placed.page_start, placed.page_end, placed.label)
                break
    return exact / len(maker.placed)


@pytest.mark.parametrize(
    "options",
    [{}, {"columns": 2}, {"heads": False}, {"mirrored": False, "seed": 5}, {"seed": 7, "columns": 2, "chapters": 8}],
    ids=str,
)
def test_a_book_is_read_as_it_is_printed(options: dict[str, int], tmp_path: Path) -> None:
    """Its sentences are on their pages, its listings as typed, its headers and page numbers not in the text."""
    maker = make_book(tmp_path / "a.pdf", **options)
    book = read_book(tmp_path / "a.pdf")
    assert any(placed.page_start != placed.page_end for placed in maker.placed)
    assert exact_share(maker, book) >= 0.98
    assert book.page_labels == tuple(maker.labels)
    text = "\n".join(section.text for section in book.sections)
    assert [code for code in maker.listings if f"```\n{code}\n```" not in text] == []
    assert maker.head_title not in text and maker.chapter_title not in text
    assert not any(line.strip().isdigit() for line in text.split("\n"))


@pytest.mark.parametrize("columns", [1, 2])
def test_line_numbers_are_not_part_of_a_listing(columns: int, tmp_path: Path) -> None:
    code = "int total(int n) {\n    int sum = 0;\n\n    for (;;) {\n        sum += n;\n    }\n    return sum;\n}"
    texts: list[list[str]] = []
    for numbered in (False, True):
        maker = PdfMaker(columns=columns)
        maker.start("arabic")
        maker.chapter("Sums of Numbers")
        for number in range(12):
            maker.paragraph()
            maker.listing(code.replace("total", f"total{number}"), numbered=numbered)
        maker.save(tmp_path / "a.pdf")
        texts.append([section.text for section in read_book(tmp_path / "a.pdf").sections])
    assert texts[1] == texts[0]
    assert sum(f"```\n{listing}\n```" in "\n".join(texts[1]) for listing in maker.listings) >= 10


def test_a_column_of_numbers_in_a_programs_output_is_kept(tmp_path: Path) -> None:
    pdf = FPDF(unit="pt")
    pdf.add_page()
    pdf.set_font("Times", size=11)
    for row in range(6):
        pdf.text(60, 60 + 13 * row, "The program prints its lines as they come, number before value, see below.")
    pdf.set_font("Courier", size=9)
    for row in range(1, 6):
        pdf.text(60, 160 + 11 * row, f"{row} value {row * 7}")
    pdf.output(str(tmp_path / "a.pdf"))
    assert "1 value 7\n2 value 14\n" in read_book(tmp_path / "a.pdf").sections[0].text


def test_outline_becomes_chapters_and_sections(tmp_path: Path) -> None:
    make_book(tmp_path / "a.pdf", chapters=2)
    book = read_book(tmp_path / "a.pdf")
    assert book.title == "A Book of Kernels"
    assert [section.heading_path[0][:9] for section in book.sections] == ["Preface"] + ["1 Chapter"] * 3 + [
        "2 Chapter"
    ] * 3
    assert [section.chapter for section in book.sections] == [1, 2, 2, 2, 3, 3, 3]


def test_without_an_outline_headings_are_known_by_their_type(tmp_path: Path) -> None:
    pdf = FPDF()
    for chapter in ("1 Warps", "2 Memory"):
        pdf.add_page()
        pdf.set_font("Helvetica", style="B", size=20)
        pdf.cell(0, 12, chapter, new_x="LMARGIN", new_y="NEXT")
        for section in ("Size", "Use"):
            pdf.set_font("Helvetica", style="B", size=14)
            pdf.cell(0, 10, section, new_x="LMARGIN", new_y="NEXT")
            pdf.set_font("Times", size=11)
            pdf.multi_cell(0, 5, f"The {section} of {chapter} is told here in some words. " * 6)
    pdf.output(str(tmp_path / "a.pdf"))
    book = read_book(tmp_path / "a.pdf")
    assert [(section.chapter, section.heading_path) for section in book.sections] == [
        (1, ("1 Warps", "Size")), (1, ("1 Warps", "Use")), (2, ("2 Memory", "Size")), (2, ("2 Memory", "Use")),
    ]  # fmt: skip


def test_declared_labels_are_used_when_nothing_is_printed(tmp_path: Path) -> None:
    pdf = FPDF()
    for number in range(4):
        if number in (0, 2):
            pdf.add_page(label_style="r" if number == 0 else "D", label_start=1)
        else:
            pdf.add_page()
        pdf.set_font("Times", size=11)
        pdf.multi_cell(0, 5, f"Page number {number} has words of its own.")
    pdf.output(str(tmp_path / "a.pdf"))
    assert read_book(tmp_path / "a.pdf").page_labels == ("i", "ii", "1", "2")


@pytest.mark.parametrize("style", ["D", "r"])
def test_stray_numbers_do_not_replace_the_files_own_labels(style: str, tmp_path: Path) -> None:
    pdf = FPDF(unit="pt", format=(400, 600))
    pdf.set_auto_page_break(False)
    for number in range(1, 41):
        pdf.add_page(**({"label_style": style, "label_start": 1} if number == 1 else {}))
        pdf.set_font("Times", size=11)
        for line in range(20):
            pdf.text(60, 80 + 13 * line, f"Line {'abcdefghijklmnopqrst'[line] * 3} of this page has words of its own.")
        if number in (10, 11):
            pdf.text(200, 570, str(number + 90))
    pdf.output(str(tmp_path / "a.pdf"))
    labels = read_book(tmp_path / "a.pdf").page_labels
    assert (labels[0], labels[9], labels[39]) == (("1", "10", "40") if style == "D" else ("i", "x", "xl"))


@pytest.mark.parametrize(
    ("given", "title"),
    [
        *(
            (given, "GPU kernels")
            for given in ("(anonymous)", "(unspecified)", "untitled", "my thesis.dvi", "page.html")
        ),
        *((given, "GPU kernels") for given in ("Microsoft Word - draft.doc", "PowerPoint Presentation", "Document1")),
        *((given, given) for given in ("(Almost) All Kernels (and More)", "Document Object Models", "Slides")),
    ],
)
def test_a_title_that_only_a_program_wrote_is_not_used(given: str, title: str, tmp_path: Path) -> None:
    pdf = FPDF()
    pdf.set_title(given)
    pdf.add_page()
    pdf.set_font("Times", size=11)
    pdf.multi_cell(0, 5, "The words of a page. " * 9)
    pdf.output(str(tmp_path / "gpu-kernels.pdf"))
    assert read_book(tmp_path / "gpu-kernels.pdf").title == title


LIGATURES = b"It is a\x80ected, \x81rst, \x82at, o\x83cial and ba\x84ing."


@pytest.mark.parametrize(
    ("line", "unicode", "read"),
    [
        (b"A roo\x1dine, e\x1ecient wa\x1fe, \x1crst, o\x1bset", {}, "A roofline, efficient waffle, first, offset"),
        (b"\x10OT1\x11: a\x0bected, \x0crst, \x0dat, o\x0ecial, ba\x0fing", {},
         "“OT1”: affected, first, flat, official, baffling"),
        (b"arpa in 192", {code: chr(0xF700 + code) for code in b"arp129"} | {ord(x): x for x in "in "}, "ARPA in 192"),
        (LIGATURES, {code: chr(code) for code in LIGATURES} | dict(enumerate("ﬀﬁﬂﬃﬄ", 0x80)),
         "It is affected, first, flat, official and baffling."),
    ],
    ids=["T1", "OT1", "Adobe", "Unicode"],
)  # fmt: skip
def test_ligatures_small_capitals_and_old_figures_are_letters(
    line: bytes, unicode: dict[int, str], read: str, tmp_path: Path
) -> None:
    write_bitmap_font_pdf(tmp_path / "a.pdf", [line], unicode)
    book = read_book(tmp_path / "a.pdf")
    assert (book.sections[0].text, book.health.notes) == (read, ())


def test_no_spaces_stand_between_letters_of_chinese_but_between_words_of_korean(tmp_path: Path) -> None:
    letters = dict(zip(b"abcdefghi", "共享内存，它快ｏㄱ", strict=True)) | {code: chr(code) for code in b"CUDA"}
    write_bitmap_font_pdf(tmp_path / "a.pdf", [b"a b c d e f g", b"f g CUDA a b", b"h h h h", b"i i"], letters)
    assert read_book(tmp_path / "a.pdf").sections[0].text == "共享内存，它快它快 CUDA 共享 ｏ ｏ ｏ ｏ ㄱ ㄱ"


def test_words_that_run_leftwards_are_whole_and_in_order(tmp_path: Path) -> None:
    letters = dict(zip(b"abcdefghi", "שלוםעימכ.", strict=True))
    write_bitmap_font_pdf(tmp_path / "a.pdf", [b"icbag dbce dcba"], letters)  # as printed, from left to right
    assert read_book(tmp_path / "a.pdf").sections[0].text == "שלום עולם משלו."


def test_a_font_is_fixed_pitch_by_its_letters_not_by_its_name(tmp_path: Path) -> None:
    widths = {"i": 222, "l": 222, " ": 278, "t": 278, "r": 333}
    kerned = "".join(f"({one}) {600 - widths.get(one, 556)} " for one in "in the little halls for all his tiles")
    even = "".join(f"({one}) 0 " for one in "x = little + tall")
    for name, line in (("a", kerned), ("b", even)):
        write_raw_pdf(tmp_path / f"{name}.pdf", f"BT /F1 10 Tf 40 560 Td [{line}] TJ ET".encode(), "Courier")
    assert read_book(tmp_path / "a.pdf").sections[0].text == "in the little halls for all his tiles"
    assert read_book(tmp_path / "b.pdf").sections[0].text == "```\nx = little + tall\n```"


@pytest.mark.parametrize("held", [b"1 0 0 1 40 560", b"0 1 -1 0 300 60", b"-1 0 0 -1 400 500", b"0 -1 1 0 300 500"])
def test_an_accent_joins_the_letter_that_it_stands_over(held: bytes, tmp_path: Path) -> None:
    line = rb"[(Gr\310) 445 (obner and L\302) 445 (eo: Freud\302s x\310 z)] TJ"
    write_raw_pdf(tmp_path / "a.pdf", b"BT /F1 10 Tf " + held + b" Tm " + line + b" ET", "Helvetica")
    assert read_book(tmp_path / "a.pdf").sections[0].text == "Gröbner and Léo: Freud´s x¨ z"


def test_letters_that_no_font_explains_are_counted_in_the_report(tmp_path: Path) -> None:
    write_bitmap_font_pdf(tmp_path / "a.pdf", [b"The \x07na\x04me of a \x05thing stands here."])
    book = read_book(tmp_path / "a.pdf")
    assert book.sections[0].text == "The name of a thing stands here."
    assert [note for note in book.health.notes if "3 letters left out" in note and note.endswith("pages 1")] != []


def test_letters_that_were_numbered_as_they_first_occurred_are_no_text(tmp_path: Path) -> None:
    write_bitmap_font_pdf(
        tmp_path / "a.pdf", [b"KIL M)NPORQTS%UVMPWXO L YPZ@[", b"k4tgoZ@k}vZXtvb| Z2c4=<9 8b:9;02.4 fine"]
    )
    with pytest.raises(UnreadableBook, match="fonts do not say which characters"):
        read_book(tmp_path / "a.pdf")
    write_bitmap_font_pdf(
        tmp_path / "b.pdf", [b"12.5 13.75 98/330 2.5e-3", b"So (a) f(x) is true, b2 and", b"self-made."]
    )
    text = "12.5 13.75 98/330 2.5e-3 So (a) f(x) is true, b2 and self-made."
    assert " ".join(read_book(tmp_path / "b.pdf").sections[0].text.split()) == text
    write_bitmap_font_pdf(
        tmp_path / "c.pdf", [b"num_rows = get_size(first_row);", b"__syncthreads();", b"last_row = num_rows;"]
    )
    assert "get_size(first_row);" in read_book(tmp_path / "c.pdf").sections[0].text


def test_a_numbered_page_between_two_leaves_keeps_its_number(tmp_path: Path) -> None:
    maker = PdfMaker()
    maker.start("roman")
    maker.chapter("Preface")
    maker.paragraph()
    maker.start("arabic")
    for chapter in range(3):
        maker.chapter(f"Chapter of {chapter}")
        maker.paragraph()
        maker.leaf()
    maker.save(tmp_path / "a.pdf")
    assert read_book(tmp_path / "a.pdf").page_labels == ("i", "1", None, "2", None, "3", None)


def test_pages_without_text_and_doubled_pages_are_reported(tmp_path: Path) -> None:
    pdf = FPDF()
    for number in range(4):
        pdf.add_page()
        pdf.set_font("Times", size=11)
        if number == 1:
            pdf.rect(20, 20, 60, 60)
        else:
            pdf.multi_cell(0, 5, "The same words on two pages. " * 20 if number > 1 else "Other words. " * 20)
    pdf.output(str(tmp_path / "a.pdf"))
    health = read_book(tmp_path / "a.pdf").health
    assert health.pages_without_text == (2,)
    assert health.duplicate_pages == (4,)


@pytest.mark.parametrize("turn", [1, 2, 3])
def test_a_page_is_read_by_the_direction_of_its_letters(turn: int, tmp_path: Path) -> None:
    from pypdf import PdfWriter

    maker = make_book(tmp_path / "a.pdf", chapters=3)
    writer = PdfWriter(clone_from=str(tmp_path / "a.pdf"))
    upright, sideways = writer.pages[2], writer.pages[4]
    for page in (upright, sideways):
        page.rotate(90 * turn)
        page.transfer_rotation_to_content()
    upright.rotate(-90 * turn)
    writer.write(str(tmp_path / "b.pdf"))
    book = read_book(tmp_path / "b.pdf")
    assert exact_share(maker, book) == exact_share(maker, read_book(tmp_path / "a.pdf"))
    assert book.health.turned_pages == (3, 5)


def test_a_table_across_the_sheet_keeps_the_number_of_its_page_and_parts_no_sentence(tmp_path: Path) -> None:
    pdf = FPDF(unit="pt")
    pdf.set_font("Times", size=10)
    for number in range(1, 7):
        pdf.add_page()
        pdf.text(500, 40, str(number))
        for line in range(30):
            start = f"Line {line} of page {number} goes"
            if number == 3:
                with pdf.rotation(90, 300, 400):
                    pdf.text(100, 300 + 14 * line, f"{start} along the sheet.")
            else:
                pdf.text(
                    60, 80 + 14 * line, f"{start} {'on ' * (30 if line == 29 else 12)}{'' if line == 29 else 'well.'}"
                )
        with pdf.rotation(90, 30, 400):
            pdf.set_font("Times", size=20)
            pdf.text(30, 400, "A mark in the margin")
            pdf.set_font("Times", size=10)
    pdf.output(str(tmp_path / "a.pdf"))
    book = read_book(tmp_path / "a.pdf")
    assert book.page_labels == tuple("123456")
    text = " ".join(section.text for section in book.sections)
    assert "Line 4 of page 3 goes along the sheet. Line 5 of page 3" in text
    assert "on on Line 0 of page 5" in text
    assert text.count("A mark in the margin") >= 5


def test_letters_sheared_for_want_of_italics_are_upright(tmp_path: Path) -> None:
    code = b"BT /F1 10 Tf 12 TL 40 500 Td (float sum = 0.0f;) Tj T* T* (for (int i = 0; i < n; i++) {) Tj ET "
    sheared = b"BT /F1 10 Tf 1 0 0.3 1 40 488 Tm (// Sum up what the block has.) Tj ET"
    write_raw_pdf(tmp_path / "a.pdf", code + sheared, "Courier")
    assert "// Sum up what the block has." in read_book(tmp_path / "a.pdf").sections[0].text


def test_a_negative_type_size_turns_its_matrix_round(tmp_path: Path) -> None:
    write_raw_pdf(tmp_path / "a.pdf", b"BT /F1 -10 Tf -1 0 0 -1 40 500 Tm (Words of a page.) Tj ET")
    book = read_book(tmp_path / "a.pdf")
    assert (book.sections[0].text, book.health.turned_pages) == ("Words of a page.", ())


def test_a_page_that_lost_a_part_of_its_letters_is_named(tmp_path: Path) -> None:
    pdf = FPDF()
    pdf.set_font("Times", size=11)
    for slanted in ("", "These words run up the page at a slant and are in no line."):
        pdf.add_page()
        pdf.text(20, 30, "Words on the page that most of its letters are in, one beside the other.")
        with pdf.rotation(30, 40, 150):
            pdf.text(40, 150, slanted)
    pdf.output(str(tmp_path / "a.pdf"))
    assert read_book(tmp_path / "a.pdf").health.pages_with_lost_text == (2,)


@pytest.mark.parametrize(("drawn", "why", "advice"), [(True, "scanned", "OCR"), (False, "blank", "print it")])
def test_a_book_without_text_is_refused_with_advice(drawn: bool, why: str, advice: str, tmp_path: Path) -> None:
    pdf = FPDF()
    pdf.add_page()
    if drawn:
        pdf.rect(20, 20, 60, 60)
    pdf.output(str(tmp_path / "a.pdf"))
    with pytest.raises(UnreadableBook, match=why) as caught:
        read_book(tmp_path / "a.pdf")
    assert advice in caught.value.hint


def test_an_encrypted_book_is_refused_with_advice(tmp_path: Path) -> None:
    pdf = FPDF()
    pdf.set_encryption(owner_password="owner", user_password="user")
    pdf.add_page()
    pdf.set_font("Times", size=11)
    pdf.cell(0, 10, "Secret.")
    pdf.output(str(tmp_path / "a.pdf"))
    with pytest.raises(UnreadableBook, match="encrypted"):
        read_book(tmp_path / "a.pdf")


def test_letters_beyond_the_first_plane_come_out_whole_and_half_of_one_is_a_lost_letter(tmp_path: Path) -> None:
    letters = {ord("p"): "𝑝", ord("h"): "\ud835", ord("l"): "\udc5d"}
    write_bitmap_font_pdf(tmp_path / "a.pdf", [b"p", b"Aphp", b"Alp"], {ord("A"): "A", **letters})
    book = read_book(tmp_path / "a.pdf")
    assert "".join(book.sections[0].text.split()) == "𝑝A𝑝𝑝A𝑝"
    assert book.health.notes[0].startswith("2 letters")


def test_what_a_file_calls_itself_may_end_in_half_a_letter(tmp_path: Path) -> None:
    from pypdf import PdfWriter
    from pypdf.generic import ByteStringObject, NameObject

    make_book(tmp_path / "a.pdf", chapters=2)
    writer = PdfWriter(clone_from=str(tmp_path / "a.pdf"))
    half = ByteStringObject("\ufeffGPUs \ud835".encode("utf-16-be", "surrogatepass"))
    writer._info[NameObject("/Title")] = half
    writer._root_object["/Outlines"]["/First"].get_object()[NameObject("/Title")] = half
    writer.write(str(tmp_path / "b.pdf"))
    book = read_book(tmp_path / "b.pdf")
    assert book.title == "GPUs \ufffd"
    assert ("GPUs \ufffd",) in [section.heading_path[:1] for section in book.sections]


def test_letters_larger_than_any_sheet_are_left_out(tmp_path: Path) -> None:
    huge = b"BT /F1 30 Tf 900000000 0 0 900000000 40 300 Tm (Huge) Tj ET 60 200 5 0.4 re f 72 200 5 0.4 re f"
    write_raw_pdf(tmp_path / "a.pdf", b"BT /F1 10 Tf 40 560 Td (Words of a page.) Tj ET " + huge)
    assert read_book(tmp_path / "a.pdf").sections[0].text == "Words of a page."


@pytest.mark.parametrize(
    ("printed", "read"),
    [
        ("of 2^16_ bytes", "of 2^16 bytes"),
        ("of 10^-3_s each", "of 10^-3 s each"),
        ("twice.^1_ Then", "twice.^1 Then"),
        ("the L^A_TEX logo", "the LATEX logo"),
        ("the 2^nd_ warp", "the 2nd warp"),
        ("in O(n^k_) steps", "in O(n^k) steps"),
        ("see Smith^a,b_ there", "see Smith^a,b there"),
        ("of CO~2_ and a~i+1_, too", "of CO_2 and a_(i+1), too"),
        ("a~i_b then", "a_i b then"),
        ("x~i^2_ then", "x_i^2 then"),
        ("the |NICE_ words", "the NICE words"),
    ],
)
def test_what_is_printed_raised_or_lowered_is_marked_and_parts_of_words_are_not(
    printed: str, read: str, tmp_path: Path
) -> None:
    raised, lowered, back, small = (f") Tj /F1 {move} Ts (" for move in ("7 Tf 4", "7 Tf -2", "10 Tf 0", "7 Tf 0"))
    moves = {"^": raised, "~": lowered, "_": back, "|": small, "(": r"\(", ")": r"\)"}
    shown = "".join(moves.get(letter, letter) for letter in printed)
    write_raw_pdf(tmp_path / "a.pdf", f"BT /F1 10 Tf 40 560 Td ({shown}) Tj ET".encode())
    assert read_book(tmp_path / "a.pdf").sections[0].text == read


def test_text_beside_a_drop_capital_is_no_exponent(tmp_path: Path) -> None:
    write_raw_pdf(tmp_path / "a.pdf", b"BT /F1 30 Tf 40 560 Td (G) Tj /F1 10 Tf 9 Ts (PU threads run) Tj ET")
    assert "^" not in read_book(tmp_path / "a.pdf").sections[0].text


@pytest.mark.parametrize("step", ["read_page", "paragraphs_of"])
def test_a_page_on_which_the_reader_fails_is_named_and_the_others_are_read(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unforeseen_errors: list[Exception]
) -> None:
    make_book(tmp_path / "a.pdf", chapters=1)
    right = getattr(document, step)

    def wrong(*arguments: Any) -> Any:
        page = arguments[0]
        if arguments[-1] == 4 or (isinstance(page, TextPage) and page.page == 4 and page.lines):
            raise KeyError("a fault of the program")
        return right(*arguments)

    whole = read_book(tmp_path / "a.pdf")
    monkeypatch.setattr(document, step, wrong)
    book = read_book(tmp_path / "a.pdf")
    assert book.health.pages_without_text == (4,)
    assert any("page 4" in note and "KeyError" in note for note in book.health.notes)
    pages = {page for section in book.sections for _, page in section.page_marks}
    assert pages == {page for section in whole.sections for _, page in section.page_marks} - {4}
    assert [type(error) for error in unforeseen_errors] == [KeyError]


def test_reading_can_be_cancelled(tmp_path: Path) -> None:
    make_book(tmp_path / "a.pdf", chapters=1)
    seen: list[int] = []
    with pytest.raises(Cancelled):
        read_book(tmp_path / "a.pdf", progress=lambda done, _: seen.append(done), cancelled=lambda: len(seen) >= 2)
    assert seen == [1, 2]


def test_an_outline_that_goes_round_in_circles_ends(tmp_path: Path) -> None:
    from pypdf import PdfWriter
    from pypdf.generic import NameObject

    make_book(tmp_path / "a.pdf", chapters=2)
    writer = PdfWriter(clone_from=str(tmp_path / "a.pdf"))
    first = writer._root_object["/Outlines"]["/First"]
    last = first.get_object()["/Next"]
    last.get_object()[NameObject("/Next")] = first.indirect_reference or first
    last.get_object()[NameObject("/First")] = first.indirect_reference or first
    writer.write(str(tmp_path / "b.pdf"))
    assert read_book(tmp_path / "b.pdf").sections
