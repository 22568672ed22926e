"""TeX draws underscores as rules: they come back into the words, and no other rule does."""

from pathlib import Path

import pytest
from fpdf import FPDF

from indexes.readers import read_book

SIZE = 11.0


class TexPage:
    """Prints words as TeX does: an underscore is a rule three tenths of the size wide, after a little white space."""

    def __init__(self, *, filled: bool, font: str = "Times") -> None:
        self.pdf = FPDF(unit="pt")
        self.pdf.add_page()
        self.pdf.set_font(font, size=SIZE)
        self.filled = filled

    def rule(self, x: float, y: float, width: float) -> None:
        """A rule on the height `y`."""
        if self.filled:
            self.pdf.rect(x, y - 0.4, width, 0.4, style="F")
        else:
            self.pdf.set_line_width(0.4)
            self.pdf.line(x, y - 0.2, x + width, y - 0.2)

    def text(self, x: float, y: float, text: str) -> None:
        """Words with pressed spaces (whole ones in a font of one width), underscores drawn."""
        space = 0.6 if self.pdf.font_family == "courier" else 0.22
        for word in text.split(" "):
            for number, part in enumerate(word.split("_")):
                if number:
                    self.rule(x + 0.06 * SIZE, y, 0.3 * SIZE)
                    x += 0.36 * SIZE
                if part:
                    self.pdf.text(x, y, part)
                    x += self.pdf.get_string_width(part)
            x += space * SIZE

    def read(self, path: Path) -> str:
        """The page's text as the reader sees it."""
        self.pdf.output(str(path))
        return "\n".join(section.text for section in read_book(path).sections)


@pytest.mark.parametrize("filled", [True, False])
@pytest.mark.parametrize("font", ["Times", "Helvetica", "Courier"])
def test_drawn_underscores_come_back(filled: bool, font: str, tmp_path: Path) -> None:
    page = TexPage(filled=filled, font=font)
    lines = [
        "The call cuda_memcpy copies, and",
        "__shared__ memory (see block_dim_x)",
        "is freed by a_b_c, my_v2_ and _x.",
    ]
    for number, line in enumerate(lines):
        page.text(60, 80 + 13 * number, line)
    glue = "\n" if font == "Courier" else " "
    assert glue.join(lines) in page.read(tmp_path / "a.pdf")


def test_other_rules_are_not_underscores(tmp_path: Path) -> None:
    page = TexPage(filled=True)
    page.text(60, 80, "Some words come before a fraction and under")
    pdf = page.pdf
    pdf.text(60, 100, "half is")
    x = 60 + pdf.get_string_width("half is ")
    pdf.text(x, 97, "1")  # a fraction in the line
    page.rule(x - 1, 99, 7)
    pdf.text(x, 106.5, "2")
    pdf.text(x + 9, 100, "of it.")
    pdf.text(60, 130, "an underlined word here")
    page.rule(60 + pdf.get_string_width("an "), 131.5, pdf.get_string_width("u"))
    page.rule(60, 150, 90)  # over a footnote
    page.text(60, 170, "left right")
    page.rule(60 + pdf.get_string_width("left") + 30, 170, 5)
    page.text(60, 190, "150_ 140_")  # an axis and its ticks
    assert "_" not in page.read(tmp_path / "a.pdf")


def test_rules_with_no_letters_near_are_no_underscores(tmp_path: Path) -> None:
    page = TexPage(filled=True)
    page.text(60, 80, "ticks of a plot are below")
    for x in (60, 75, 90):
        page.rule(x, 300, 5)
    assert page.read(tmp_path / "a.pdf") == "ticks of a plot are below"
