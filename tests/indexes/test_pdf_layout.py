"""Pages as LaTeX, browsers and word processors lay them out, drawn line by line: what is one stays one."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from fpdf import FPDF

from indexes.readers import read_book
from indexes.types import Book, page_at

LEFT, RIGHT, SIZE = 60.0, 340.0, 10.0
CODE = """\
__global__ void first(float *x)
{
    x[threadIdx.x] = 0.0f;
}

__global__ void second(float *x, int n)
{
    if (threadIdx.x < n) {
        x[threadIdx.x] = 1.0f;
    }
}"""


class Drawn:
    """A document whose lines are put where the test says."""

    def __init__(self, size: tuple[float, float] = (400, 600)) -> None:
        self.pdf = FPDF(unit="pt", format=size)
        self.pdf.set_auto_page_break(False)

    def page(self) -> None:
        """A page with a number at its foot."""
        self.pdf.add_page()
        self.text(200, 570, str(self.pdf.page))

    def text(self, x: float, y: float, text: str, font: str = "Times", size: float = SIZE, style: str = "") -> float:
        """Draws `text` from `x` on; returns where it ends."""
        self.pdf.set_font(font, style=style, size=size)
        self.pdf.text(x, y, text)
        return x + float(self.pdf.get_string_width(text))

    def justified(self, y: float, line: str, left: float = LEFT, right: float = RIGHT) -> None:
        """A line from margin to margin, its spaces as wide as needed."""
        self.pdf.set_font("Times", size=SIZE)
        words = line.split(" ")
        space = (right - left - sum(self.pdf.get_string_width(word) for word in words)) / max(len(words) - 1, 1)
        for word in words:
            left = self.text(left, y, word) + space

    def prose(self, y: float, lines: list[str], last: str = "", left: float = LEFT, right: float = RIGHT) -> float:
        """A paragraph; returns where the next line would stand."""
        for line in lines:
            self.justified(y, line, left, right)
            y += 12
        if last:
            self.text(left, y, last)
        return y + 12

    def code(self, y: float, lines: list[str], left: float = LEFT, size: float = 9.0) -> float:
        """Lines of a listing; returns where the next line would stand."""
        for line in lines:
            self.text(left + (len(line) - len(line.lstrip())) * 0.6 * size, y, line.strip(), "Courier", size)
            y += 1.2 * size
        return y

    def read(self, path: Path) -> Book:
        """What the reader makes of it."""
        self.pdf.output(str(path))
        return read_book(path)


def whole(book: Book) -> str:
    """All of a book's text."""
    return "\n\n".join(section.text for section in book.sections)


def pages_of(book: Book, text: str) -> tuple[int | None, int | None]:
    """First and last page of a text that is in one section."""
    section = next(one for one in book.sections if text in one.text)
    at = section.text.index(text)
    return page_at(section.page_marks, at), page_at(section.page_marks, at + len(text) - 1)


FILLER = [
    "The words of this paragraph go from margin to margin, as they do",
    "in a book that a program sets for print.",
]


@pytest.mark.parametrize("footnote", [False, True])
def test_a_listing_goes_on_over_a_pages_end(footnote: bool, tmp_path: Path) -> None:
    drawn = Drawn()
    lines = CODE.split("\n")
    drawn.page()
    drawn.text(150, 40, "A Book of Kernels", size=8)
    drawn.prose(300, FILLER[:1], FILLER[1])
    drawn.code(340, lines[:4])
    if footnote:
        drawn.text(LEFT, 550, "1 A footnote stands below the listing, in small type.", size=7)
    drawn.page()
    drawn.text(150, 40, "A Book of Kernels", size=8)
    y = drawn.code(70, lines[5:])
    drawn.prose(y + 20, FILLER[:1], FILLER[1])
    for _ in range(2):
        drawn.page()
        drawn.text(150, 40, "A Book of Kernels", size=8)
        drawn.prose(70, FILLER[:1], FILLER[1])
    book = drawn.read(tmp_path / "a.pdf")
    assert whole(book).count("```") == 2
    assert pages_of(book, "\n".join([*lines[2:4], *lines[5:7]])) == (1, 2)


def test_a_heading_between_parts_two_listings(tmp_path: Path) -> None:
    drawn = Drawn()
    drawn.page()
    drawn.prose(300, FILLER[:1], FILLER[1])
    drawn.code(340, CODE.split("\n")[:4])
    drawn.page()
    drawn.text(LEFT, 70, "2 Another Chapter", "Helvetica", 18, "B")
    drawn.code(110, CODE.split("\n")[5:])
    book = drawn.read(tmp_path / "a.pdf")
    assert whole(book).count("```") == 4


@pytest.mark.parametrize("at_top", [True, False])
def test_a_sentence_goes_on_past_a_table_at_a_pages_edge(at_top: bool, tmp_path: Path) -> None:
    drawn = Drawn()

    def table(y: float) -> None:
        drawn.text(130, y, "Table 1: Times of three runs")
        for row in (("Device", "Blocks", "Time"), ("First", "128", "0.5 ms"), ("Second", "256", "0.7 ms")):
            y += 12
            for column, cell in enumerate(row):
                drawn.text(140 + 45 * column, y, cell)

    drawn.page()
    drawn.prose(100, FILLER * 3, "An end.")
    drawn.prose(300, ["A sentence that begins on this page above a table is read as one and"])
    drawn.page()
    if at_top:
        table(60)
    else:
        drawn.pdf.page = 1
        table(340)
        drawn.pdf.page = 2
    drawn.prose(140, ["keeps its words together, whatever the table says between its halves,"], "to its very end.")
    drawn.prose(200, FILLER * 3, "Another end.")
    book = drawn.read(tmp_path / "a.pdf")
    sentence = (
        "A sentence that begins on this page above a table is read as one and keeps its words together, "
        "whatever the table says between its halves, to its very end."
    )
    assert pages_of(book, sentence) == (1, 2)
    assert "Table 1: Times of three runs" in whole(book)


def test_a_line_that_justification_spreads_is_not_a_table(tmp_path: Path) -> None:
    drawn = Drawn()
    drawn.page()
    drawn.prose(100, [*FILLER, "and then a word is too long for it", "synchronization synchronization", "and",
                      "on it goes as it did"], "to its end.")  # fmt: skip
    drawn.prose(200, FILLER, "The paragraph ends here.")
    drawn.prose(260, ["synchronization synchronization", FILLER[0], "and a sentence ends right at the margin of it.",
                      "cudaDeviceSynchronize cudaStreamSynchronize", FILLER[0]], "to its end.")  # fmt: skip
    text = whole(drawn.read(tmp_path / "a.pdf"))
    assert "|" not in text
    assert "too long for it synchronization synchronization" in text
    assert f"\n\nsynchronization synchronization {FILLER[0]}" in text
    assert f"margin of it. cudaDeviceSynchronize cudaStreamSynchronize {FILLER[0]} to its end." in text


def test_the_bold_header_of_a_table_is_not_a_heading(tmp_path: Path) -> None:
    drawn = Drawn()
    drawn.page()
    drawn.text(LEFT, 70, "1 Words of a Language", "Helvetica", 16, "B")
    y = drawn.prose(100, FILLER * 3, "A table comes now.")
    for style, row in (
        ("B", ("Keyword", "Description")),
        ("", ("__global__", "a kernel")),
        ("", ("__device__", "not")),
    ):
        y += 12
        end = drawn.text(LEFT, y, row[0], style=style)
        drawn.text(max(LEFT + 52, end + 10), y, row[1], style=style)
    drawn.prose(y + 30, FILLER * 3, "Its last words.")
    drawn.text(LEFT, y + 130, "1.1 A Bold Heading", style="B")
    drawn.prose(y + 150, FILLER, "An end.")
    book = drawn.read(tmp_path / "a.pdf")
    headings = [section.heading_path[-1] for section in book.sections][-2:]
    assert headings == ["1 Words of a Language", "1.1 A Bold Heading"]
    assert "Keyword" in whole(book)


def test_the_outline_and_the_page_make_one_heading(tmp_path: Path) -> None:
    """The page may number it, break it, or set its letters apart."""
    drawn = Drawn()
    titles = [
        ("A Tiled Kernel", ["1 A Tiled Kernel"], "A Tiled Kernel"),
        ("I See a Warp", ["2 I See a Warp"], "I See a Warp"),
        ("Kernels on the GPU", ["Kernels on the", "GPU"], "Kernels on the GPU"),
        ("Data-parallel Work", ["Data-", "parallel Work"], "Data-parallel Work"),
        ("MEMORY", ["M E M O R Y"], "MEMORY"),
    ]
    for outline, printed, _ in titles:
        drawn.page()
        drawn.pdf.start_section(outline)
        for number, line in enumerate(printed):
            drawn.text(LEFT, 70 + 20 * number, line, "Helvetica", 18, "B")
        drawn.prose(130, FILLER * 3, "Its last words.")
    book = drawn.read(tmp_path / "a.pdf")
    assert [section.heading_path for section in book.sections] == [(heading,) for _, _, heading in titles]


def test_items_without_indentation_keep_their_second_lines(tmp_path: Path) -> None:
    drawn = Drawn()
    drawn.page()
    y = drawn.prose(100, FILLER, "A list comes now.")
    for number in range(3):
        drawn.justified(y, f"- Item {number} is so long that its words do not find room on one line and")
        drawn.text(LEFT, y + 12, "go on at the margin.")
        y += 24
    text = whole(drawn.read(tmp_path / "a.pdf"))
    assert text.count("do not find room on one line and go on at the margin.") == 3


def test_code_that_reaches_into_the_other_column_parts_nothing(tmp_path: Path) -> None:
    drawn = Drawn()
    left, right = (30.0, 190.0), (210.0, 370.0)
    drawn.page()
    y = drawn.prose(60, ["Left words fill this column here, line"] * 8, "and the left text ends.", *left)
    drawn.code(y, ["int far = reaching_out_of_the_column(a);", "int near = 2;"], left[0], 8)
    y = drawn.prose(y + 30, ["Left words fill this column too, line"] * 8, "", *left)
    drawn.justified(y, "the first half of it stands here and", *left)
    drawn.prose(60, ["goes on in the right column at its top"], "to its end.", *right)
    drawn.prose(100, ["Right words fill this column then, so"] * 20, "and the right text ends.", *right)
    text = whole(drawn.read(tmp_path / "a.pdf"))
    assert "the first half of it stands here and goes on in the right column at its top to its end." in text
    assert "```\nint far = reaching_out_of_the_column(a);\nint near = 2;\n```" in text


def in_columns(
    drawn: Drawn, y: float, line: str, font: str, pitch: float, underscore: Callable[[float, float], None]
) -> None:
    """A line as LaTeX's package for listings sets it: each word spread over as many columns as it has letters."""
    column = 0
    drawn.pdf.set_font(font, size=SIZE)
    for word in line.split(" "):
        if not word:
            column += 1
            continue
        widths = [0.36 * SIZE if letter == "_" else float(drawn.pdf.get_string_width(letter)) for letter in word]
        gap = (len(word) * pitch - sum(widths)) / (len(word) + 1)
        x = LEFT + column * pitch + gap
        for letter, width in zip(word, widths, strict=True):
            if letter == "_":
                underscore(x + 0.06 * SIZE, y)
            else:
                drawn.text(x, y, letter, font)
            x += width + gap
        column += len(word) + 1


@pytest.mark.parametrize(
    ("font", "share", "numbered"), [("Times", 0.6, False), ("Times", 0.6, True), ("Courier", 0.7, False)]
)
def test_a_listing_whose_letters_are_apart_is_read_by_its_columns(
    font: str, share: float, numbered: bool, tmp_path: Path
) -> None:
    drawn = Drawn()
    drawn.page()
    y = drawn.prose(100, FILLER * 3, "It ends here.")
    code = (
        "int total(int n, int first_value) {\n    int sum = first_value;\n    for (int i = 0; i < n; ++i) {\n"
        "        sum += my_values[i];\n    }\n    return sum;\n}"
    )

    def underscore(x: float, y: float) -> None:
        drawn.pdf.rect(x, y - 0.4, 0.3 * SIZE, 0.4, style="F")

    for number, line in enumerate(code.split("\n")):
        if numbered:
            drawn.text(LEFT - 10, y + 8 + 12 * number, str(number + 1), size=6)
        in_columns(drawn, y + 8 + 12 * number, line, font, share * SIZE, underscore)
    drawn.prose(y + 110, FILLER * 3, "It ends there.")
    assert f"It ends here.\n\n```\n{code}\n```\n\nThe words" in whole(drawn.read(tmp_path / "a.pdf"))


@pytest.mark.parametrize("cover", [False, True])
def test_a_headers_place_follows_from_the_text_and_not_from_the_paper(cover: bool, tmp_path: Path) -> None:
    drawn = Drawn()
    if cover:
        drawn.pdf.add_page()
        drawn.text(LEFT, 20, "Printed at the edge of the cover", size=9)
    for _ in range(12):
        drawn.page()
        drawn.text(150, 130, "A Book of Kernels", size=9)
        drawn.prose(160, FILLER * 6, "Its last words.")
    assert "A Book of Kernels" not in whole(drawn.read(tmp_path / "a.pdf"))


@pytest.mark.parametrize("heading", [18.0, 0.0])
def test_paragraphs_that_begin_several_pages_alike_are_kept(heading: float, tmp_path: Path) -> None:
    drawn = Drawn()
    for number in range(1, 4):
        drawn.page()
        drawn.text(LEFT, 40, "A Book of Kernels", size=9)
        if heading:
            drawn.text(LEFT, 60, f"{number} Tiles of side {number}", "Helvetica", heading, "B")
        for y in (80, 500):
            drawn.prose(y, [], f"A tile of side {number} is staged before the block uses it, and threads")
            drawn.prose(y + 12, [], f"of warp {number} read neighbouring words of line {number} of the page.")
        drawn.prose(112, FILLER * 9, "The text ends here.")
    text = whole(drawn.read(tmp_path / "a.pdf"))
    assert text.count("is staged before the block uses it") == text.count("read neighbouring words") == 6
    assert "A Book of Kernels" not in text


def test_headers_that_change_with_every_section_are_not_text(tmp_path: Path) -> None:
    drawn = Drawn()
    for number in range(12):
        drawn.page()
        drawn.text(LEFT, 60, f"1.{number}. On {'abcdefghijkl'[number] * 4}", size=SIZE)
        drawn.text(250, 60, "Kernels" if number % 2 else "Memory", size=SIZE)
        y = drawn.prose(90, FILLER * 4, "Its last words.")
        drawn.prose(y, [f"Page {number} has a paragraph of its own, with words to fill the line"], "and an end.")
    text = whole(drawn.read(tmp_path / "a.pdf"))
    assert "On aaaa" not in text and "On llll" not in text
    assert text.count("has a paragraph of its own") == 12


def test_a_first_line_with_a_gap_below_is_text_where_pages_have_no_headers(tmp_path: Path) -> None:
    drawn = Drawn()
    for number in range(12):
        name = "abcdefghijkl"[number] * 5
        own = [f"{name.capitalize()} begins the words of this page, which stand on no other,", *FILLER * 3]
        drawn.page()
        if number % 3 == 0:
            drawn.text(LEFT, 90, f"The words of {name} end.")
            drawn.prose(125, own, "Its last words.")
        else:
            drawn.prose(90, own, "Its last words.")
    text = whole(drawn.read(tmp_path / "a.pdf"))
    assert [name for name in ("aaaaa", "ddddd", "ggggg", "jjjjj") if f"The words of {name} end." not in text] == []


@pytest.mark.parametrize("leaders", [True, False])
def test_a_printed_table_of_contents_gives_neither_text_nor_headings(leaders: bool, tmp_path: Path) -> None:
    drawn = Drawn()
    drawn.page()
    drawn.text(LEFT, 70, "Contents", "Helvetica", 16, "B")
    y = 100.0
    for chapter in (1, 2, 3):
        drawn.text(LEFT, y, f"{chapter} Chapter {'ABC'[chapter - 1]} of Kernels", style="B")
        drawn.text(330, y, str(chapter + 1), style="B")
        for section in (1, 2):
            y += 14
            end = drawn.text(LEFT + 12, y, f"{chapter}.{section} Section {'XYZ'[section]}")
            drawn.text(end + 8, y, " . " * 20 if leaders else "")
            drawn.text(330, y, str(chapter + 1))
        y += 20
    for chapter in (1, 2, 3):
        drawn.page()
        drawn.text(LEFT, 70, f"{chapter} Chapter {'ABC'[chapter - 1]} of Kernels", "Helvetica", 18, "B")
        drawn.prose(110, FILLER * 3, f"Its last words are {'ABC'[chapter - 1]}.")
    book = drawn.read(tmp_path / "a.pdf")
    headings = [heading for section in book.sections for heading in section.heading_path]
    assert [heading for heading in headings if heading[-1].isdigit() or "Section" in heading] == []
    assert "Section" not in whole(book)
    assert not leaders or [note for note in book.health.notes if "contents" in note and note.endswith("pages 1")]
    assert [section.chapter for section in book.sections][-3:] in ([1, 2, 3], [2, 3, 4])


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (
            "It has a 24-|fold gain, and is in data/|file.",
            "a 24-fold gain, and is in data/file.",
        ),
        (  # a printer hyphenates
            "A kernel and a ker-|nel, a memory and a mem-|ory, and then a cuda-|MemcpyAsync and a cu-|daMemcpyAsync "
            "like cudaMemcpyAsync here, with un-|known words in a data-|parallel way; data and parallel go.",
            "a kernel, a memory and a memory, and|a cudaMemcpyAsync like cudaMemcpyAsync here, with unknown words "
            "in a data-parallel way",
        ),
        (  # and keeps those that the book writes elsewhere
            "A data-parallel program is written once, and a data-parallel one runs|well. So is this data-|parallel "
            "text, which has a syn-|chronization in it, as synchronization has.",
            "this data-parallel text|a synchronization in it",
        ),
    ],
)
def test_hyphens_at_line_ends_stay_where_the_author_wrote_them(lines: str, found: str, tmp_path: Path) -> None:
    drawn = Drawn()
    drawn.page()
    for number, line in enumerate(lines.split("|")):
        drawn.text(LEFT, 80 + 13 * number, line)
    text = whole(drawn.read(tmp_path / "a.pdf"))
    assert [words for words in found.split("|") if words not in text] == []


def test_a_small_book_on_large_paper_has_labels(tmp_path: Path) -> None:
    drawn = Drawn((600, 840))
    labels = ("i", "ii", "iii", "1", "2", "3", "4", "5")
    for label, letter in zip(labels, "abcdefgh", strict=True):
        drawn.pdf.add_page()
        for line in range(20):
            drawn.text(90, 130 + 12 * line, f"Line {'abcdefghijklmnopqrst'[line] * 3} of {letter * 3} is text")
        drawn.text(200, 410, label)
    book = drawn.read(tmp_path / "a.pdf")
    assert book.page_labels == labels
    assert "text iii" not in whole(book) and "text 3" not in whole(book)


def test_large_type_is_text_unless_something_follows_below_it(tmp_path: Path) -> None:
    """On slides and posters the text is larger than the small print around it, and than most of the book."""
    drawn = Drawn((960, 540))
    slides = [("Two kinds of memory", 32), ("What hides a stall", 28), ("Remember", 30)]
    for title, size in slides:
        drawn.page()
        drawn.text(60, 80, title, size=40, style="B")
        drawn.text(80, 160, f"Of {title} one thing is large", size=size)
        drawn.text(80, 300, f"and another of {title} is small", size=size)
        drawn.text(60, 500, "Course 101, licensed to all, slides for the lecture on throughput machines", size=9)
    drawn.page()
    for row, words in enumerate(("Measure", "Change one thing", "Measure again")):
        drawn.text(200, 120 + 130 * row, words, size=48)
    book = drawn.read(tmp_path / "a.pdf")
    text = whole(book)
    assert [section.heading_path for section in book.sections] == [(title,) for title, _ in slides]
    assert [
        title for title, _ in slides if f"Of {title} one thing" not in text or f"another of {title}" not in text
    ] == []
    assert [words for words in ("Measure", "Change one thing", "Measure again") if words not in text] == []


def test_a_form_whose_lines_lead_to_numbers_is_no_table_of_contents(tmp_path: Path) -> None:
    drawn = Drawn()
    drawn.page()
    for row, line in enumerate(("Wages and tips", "Taxable interest", "Dividends", "Alimony received")):
        end = drawn.text(LEFT, 100 + 16 * row, line)
        drawn.text(end + 6, 100 + 16 * row, ". " * 20 + str(row + 7))
    text = whole(drawn.read(tmp_path / "a.pdf"))
    assert "Wages and tips" in text and "Alimony received" in text


@pytest.mark.parametrize(("columns", "rows"), [(2, 2), (2, 9), (3, 9), (4, 9)])
def test_columns_are_read_one_after_the_other(columns: int, rows: int, tmp_path: Path) -> None:
    """However the file orders them: here row by row."""
    drawn = Drawn((200 * columns + 60, 400))
    drawn.pdf.add_page()
    for row in range(rows):
        for column in range(columns):
            words = f"{'abcdefghi'[row] * 3} of column {'wxyz'[column]} is a line of text and"
            drawn.text(30 + 200 * column, 60 + 13 * row, words)
    text = whole(drawn.read(tmp_path / "a.pdf"))
    read = re.findall(r"(\w)\1\1 of column (\w)", text)
    assert read == [(row, column) for column in "wxyz"[:columns] for row in "abcdefghi"[:rows]]
    assert "|" not in text


@pytest.mark.parametrize("moved", [0, 36, 54])
def test_a_listing_keeps_its_indentation_under_another_margin(moved: int, tmp_path: Path) -> None:
    code = "def total(rows):\n    s = 0\n    for row in rows:\n        for x in row:\n            s += x\n    return s"
    lines = code.split("\n")
    drawn = Drawn()
    drawn.page()
    drawn.prose(300, FILLER[:1], FILLER[1])
    drawn.code(340, lines[:3], size=10)
    drawn.page()
    y = drawn.code(70, lines[3:], LEFT + moved, size=10)
    drawn.prose(y + 20, FILLER * 3, FILLER[1], LEFT + moved, RIGHT + moved)
    assert f"```\n{code}\n```" in whole(drawn.read(tmp_path / "a.pdf"))


def test_a_table_is_rows_however_narrow_its_gaps(tmp_path: Path) -> None:
    drawn = Drawn()
    drawn.page()
    drawn.prose(100, FILLER * 2, "A table comes now.")
    rows = [("kernel", "A100", "H100"), ("gather", "1.92", "1.05"), ("scatter", "4.80", "3.31")]
    for row, cells in enumerate(rows):
        for x, cell in zip((150, 192, 226), cells, strict=True):
            drawn.text(x, 190 + 12 * row, cell)
    drawn.prose(250, FILLER * 2, "The table ended.")
    table = "| kernel | A100 | H100 |\n| --- | --- | --- |\n| gather | 1.92 | 1.05 |\n| scatter | 4.80 | 3.31 |"
    assert f"A table comes now.\n\n{table}\n\n" in whole(drawn.read(tmp_path / "a.pdf"))


def test_captions_stay_with_their_listings(tmp_path: Path) -> None:
    drawn = Drawn()
    for number in (1, 2):
        drawn.page()
        drawn.text(LEFT, 70, f"Two ways to sum {'ab'[number - 1]}", "Helvetica", 20, "B")
        drawn.text(LEFT, 110, "Both forms give one value for each index:", size=13)
        drawn.code(150, ["for (i = 1; i < n; ++i)", f"  y[i] = x[{number}];"], LEFT, 7)
        drawn.code(150, ["for (i = 1; i < n; ++i)", f"  y[i] = z[{number}];"], 220, 7)
        drawn.text(LEFT, 185, "Inclusive form", size=13)
        drawn.text(220, 185, "Exclusive form", size=13)
        drawn.text(LEFT, 215, f"Listing {number}: Both forms", style="B")
        drawn.prose(260, FILLER * 9, "The text ends here.")
    book = drawn.read(tmp_path / "a.pdf")
    assert [section.heading_path[-1] for section in book.sections] == ["Two ways to sum a", "Two ways to sum b"]
    text = book.sections[1].text
    assert "  y[i] = x[2];\n```" in text and "```\nfor (i = 1; i < n; ++i)\n  y[i] = z[2];\n```" in text
    assert "Inclusive form Exclusive form" in text and "Listing 2: Both forms" in text


def test_the_parts_of_a_displayed_formula_stay_in_their_order_and_are_noted(tmp_path: Path) -> None:
    drawn = Drawn()
    drawn.page()
    drawn.prose(100, FILLER * 2, "The bandwidth follows.")
    for x, y, part in ((150, 190, "B ="), (175, 183, "N + M"), (185, 197, "t"), (320, 190, "(1)")):
        drawn.text(x, y, part)
    drawn.prose(220, FILLER * 2, "The text ends here.")
    book = drawn.read(tmp_path / "a.pdf")
    assert "follows.\n\nB = N + M t (1)\n\nThe words" in whole(book)
    assert [note for note in book.health.notes if note.startswith("1 displayed formulas") and note.endswith(" 1")] != []


@pytest.mark.parametrize(
    ("printed", "title"),
    [
        (["A Primer of", "Kernels"], "A Primer of Kernels"),
        (["3D Meshes"], "3D Meshes"),
        (["2.1 Kernels"], "A"),
        (["Contents"], "A"),
        ([], "A"),
    ],
)
def test_a_book_without_a_title_of_its_own_has_the_one_printed_largest(
    printed: list[str], title: str, tmp_path: Path
) -> None:
    drawn = Drawn()
    drawn.page()
    for row, words in enumerate(printed):
        drawn.text(90, 100 + 26 * row, words, size=22, style="B")
    for row in range(4):
        drawn.text(90, 200 + 14 * row, "A kernel is a function that many threads run at once on a device.")
    drawn.page()
    drawn.text(90, 100, "Memory", size=22, style="B")
    drawn.text(90, 130, "Shared memory is fast.")
    assert drawn.read(tmp_path / "a.pdf").title == title


def test_numbered_lines_of_a_listing_are_code_in_any_font(tmp_path: Path) -> None:
    drawn = Drawn()
    drawn.page()
    lines = [
        ("// sum.c", "Times"),
        ("float sum = 0;", "Courier"),
        ("#pragma omp parallel for", "Times"),
        ("for (int i = 0; i < n; ++i)", "Courier"),
        ("    sum += x[i];", "Courier"),
    ]
    drawn.text(LEFT, 100, "The loop adds up the values:")
    for number, (line, font) in enumerate(lines, 1):
        y = 110 + 12 * number
        drawn.text(LEFT - 12, y, str(number), size=5)
        drawn.text(LEFT, y, line, font, 9)
    drawn.text(LEFT, 190, "It is run by all threads.")
    listing = "\n".join(line for line, _ in lines)
    text = drawn.read(tmp_path / "a.pdf").sections[0].text
    assert f"The loop adds up the values:\n\n```\n{listing}\n```\n\nIt is run by all threads." in text


def test_a_cell_of_several_lines_does_not_end_its_table(tmp_path: Path) -> None:
    drawn = Drawn()
    drawn.page()
    rows = [("Member", "in the object", "in the type"), ("Method", "in the object", "interface in the type,")]
    rows += [("", "", "implementation in the module"), ("Self", "this", "first argument")]
    for number, row in enumerate(rows):
        for x, cell in zip((60, 140, 240), row, strict=True):
            drawn.text(x, 90 + 12 * number, cell)
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows).split("\n")
    assert whole(drawn.read(tmp_path / "a.pdf")).endswith("\n".join([table[0], "| --- | --- | --- |", *table[1:]]))
