"""Born-digital PDFs laid out word by word, so that the page of every sentence is known."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fpdf import FPDF

WIDTH, HEIGHT = 430.0, 620.0
TOP, BOTTOM = 70.0, 60.0
_WORDS = (
    "warp thread block grid kernel memory cache register occupancy latency bandwidth transaction scheduler pipeline "
    "instruction divergence synchronization reduction convolution multiplication coalescing alignment throughput "
    "the a of and to in is that each every when because while its before after between one two many most"
).split()
_SYLLABLES = "ba ce di fo gu ha ki lo mu ne pa qua ri so tu va xe yo zi tra ple stro".split()


@dataclass(frozen=True)
class Placed:
    """A sentence or listing line as printed: file pages from 1, and the label printed on its first page."""

    text: str
    page_start: int
    page_end: int
    label: str | None


@dataclass
class PdfMaker:
    """Lays a book out. Coordinates in points from the page's upper left."""

    seed: int = 1
    heads: bool = True
    printed_numbers: bool = True
    columns: int = 1
    mirrored: bool = True
    head_title: str = "A Book of Kernels"
    placed: list[Placed] = field(default_factory=list)
    listings: list[str] = field(default_factory=list)
    labels: list[str | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pdf = FPDF(unit="pt", format=(WIDTH, HEIGHT))
        self.pdf.set_auto_page_break(False)
        self.rng = random.Random(self.seed)
        self.numbering = "arabic"
        self.number = 0
        self.chapter_title = ""
        self.column = 0
        self.y = self.column_top = 0.0
        self.used: set[str] = set()

    # --- pages

    @property
    def left(self) -> float:
        margin = 60.0 if not self.mirrored or self.pdf.page % 2 else 44.0
        return margin + self.column * (self.column_width + 22)

    @property
    def column_width(self) -> float:
        full = WIDTH - 104.0
        return full if self.columns == 1 else (full - 22) / 2

    def new_page(self, *, opener: bool = False) -> None:
        """A numbered page; the first of a chapter has no header."""
        self.pdf.add_page()
        self.number += 1
        label = self._label()
        self.labels.append(label if self.printed_numbers else None)
        self.pdf.set_font("Helvetica", size=8)
        if self.heads and not opener:
            head = self.head_title if self.pdf.page % 2 == 0 else self.chapter_title
            self.pdf.text(WIDTH / 2 - self.pdf.get_string_width(head) / 2, 40, head)
        if self.printed_numbers:
            self.pdf.text(WIDTH / 2 - 5, HEIGHT - 30, label)
        self.y = self.column_top = TOP
        self.column = 0

    def leaf(self) -> None:
        """A plate: a page without a number, left out of the numbering, with a caption."""
        self.pdf.add_page()
        self.labels.append(None)
        self.pdf.set_font("Times", size=11)
        caption = self.sentence()
        self.pdf.text(60, 300, caption)
        self.placed.append(Placed(caption, self.pdf.page, self.pdf.page, None))
        self.y = HEIGHT

    def start(self, numbering: str) -> None:
        """Number the following pages from 1 in `roman` or `arabic`."""
        self.numbering, self.number = numbering, 0

    def _label(self) -> str:
        if self.numbering == "arabic":
            return str(self.number)
        numerals = [(10, "x"), (9, "ix"), (5, "v"), (4, "iv"), (1, "i")]
        out, rest = "", self.number
        for value, numeral in numerals:
            while rest >= value:
                out, rest = out + numeral, rest - value
        return out

    # --- text

    def sentence(self, words: int | None = None) -> str:
        """A sentence that occurs nowhere else."""
        name = "".join(self.rng.choice(_SYLLABLES) for _ in range(4)).capitalize()
        while name in self.used:
            name += self.rng.choice(_SYLLABLES)
        self.used.add(name)
        rest = " ".join(self.rng.choice(_WORDS) for _ in range(words or self.rng.randint(8, 22)))
        return f"{name} {rest}."

    def chapter(self, title: str) -> None:
        """A chapter on a new page, in the outline."""
        self.chapter_title = title
        self.new_page(opener=True)
        self.pdf.start_section(title, level=0)
        self.pdf.set_font("Helvetica", style="B", size=20)
        self.y += 20
        self.pdf.text(self.left, self.y, title)
        self.y += 30
        self.column_top = self.y

    def section(self, title: str) -> None:
        """A section heading, in the outline."""
        if self.y > HEIGHT - BOTTOM - 60:
            self._advance_column()
        self.y += 12
        self.pdf.set_font("Helvetica", style="B", size=13)
        self.pdf.start_section(title, level=1)
        self.pdf.text(self.left, self.y, title)
        self.y += 18

    def paragraph(self, sentences: int = 5) -> None:
        """A paragraph of unique sentences, wrapped and hyphenated by hand."""
        self.pdf.set_font("Times", size=11)
        texts = [self.sentence() for _ in range(sentences)]
        line: list[str] = []
        pending: list[tuple[int, str]] = []  # sentence number and kind, of words on the current line
        pages: dict[int, list[int]] = {}
        for number, text in enumerate(texts):
            for word in text.split():
                rest = word
                while rest:
                    room = self.column_width - self.pdf.get_string_width(" ".join([*line, ""])) - 2
                    if self.pdf.get_string_width(rest) <= room:
                        line.append(rest)
                        pending.append((number, rest))
                        break
                    cut = len(rest) // 2
                    if len(rest) > 8 and rest.isalpha() and self.pdf.get_string_width(rest[:cut] + "-") <= room:
                        line.append(rest[:cut] + "-")
                        pending.append((number, rest))
                        rest = rest[cut:]
                    page = self._print(" ".join(line))
                    for owner, _ in pending:
                        pages.setdefault(owner, []).append(page)
                    line, pending = [], []
        page = self._print(" ".join(line)) if line else self.pdf.page
        for owner, _ in pending:
            pages.setdefault(owner, []).append(page)
        for number, text in enumerate(texts):
            first, last = min(pages[number]), max(pages[number])
            self.placed.append(Placed(text, first, last, self.labels[first - 1]))
        self.y += 7

    def listing(self, code: str, *, numbered: bool = False) -> None:
        """A monospaced listing; may run over a page's end. Line numbers are small, to its left."""
        self.listings.append(code)
        self.y += 4
        for number, line in enumerate(code.split("\n"), 1):
            if self.y > HEIGHT - BOTTOM:
                self._advance_column()
            if numbered:
                self.pdf.set_font("Times", size=6)
                self.pdf.text(self.left - 6 - self.pdf.get_string_width(str(number)), self.y, str(number))
            self.pdf.set_font("Courier", size=8)
            indent = len(line) - len(line.lstrip(" "))
            # Many programs print indentation as a move, not as spaces.
            self.pdf.text(self.left + indent * self.pdf.get_string_width(" "), self.y, line.strip())
            self.y += 10
        self.y += 8

    def _print(self, line: str) -> int:
        if self.y > HEIGHT - BOTTOM:
            self._advance_column()
            self.pdf.set_font("Times", size=11)
        self.pdf.text(self.left, self.y, line)
        self.y += 13
        return self.pdf.page

    def _advance_column(self) -> None:
        if self.column + 1 < self.columns:
            self.column += 1
            self.y = self.column_top
        else:
            self.new_page()

    def save(self, path: Path) -> Path:
        """Write the file."""
        self.pdf.output(str(path))
        return path


def write_bitmap_font_pdf(path: Path, lines: Sequence[bytes], unicode: Mapping[int, str] | None = None) -> None:
    """A page in a Type 3 font without a name, as TeX's bitmap fonts are: codes only, of which `unicode` maps some."""
    from pypdf import PdfWriter
    from pypdf.generic import (
        ArrayObject,
        DecodedStreamObject,
        DictionaryObject,
        FloatObject,
        NameObject,
        NumberObject,
    )

    def dictionary(**entries: object) -> DictionaryObject:
        return DictionaryObject({NameObject(f"/{key}"): value for key, value in entries.items()})

    def stream(content: bytes) -> DecodedStreamObject:
        made = DecodedStreamObject()
        made.set_data(content)
        return made

    def numbers(*values: float) -> ArrayObject:
        return ArrayObject([FloatObject(value) for value in values])

    writer = PdfWriter()
    page = writer.add_blank_page(WIDTH, HEIGHT)
    glyph = writer._add_object(stream(b"500 0 0 0 450 700 d1 0 0 450 700 re f"))
    names = [NameObject(f"/a{code}") for code in range(256)]
    font = dictionary(
        Type=NameObject("/Font"),
        Subtype=NameObject("/Type3"),
        FontBBox=numbers(0, -200, 500, 800),
        FontMatrix=numbers(0.001, 0, 0, 0.001, 0, 0),
        FirstChar=NumberObject(0),
        LastChar=NumberObject(255),
        Widths=numbers(*[500] * 256),
        CharProcs=DictionaryObject(dict.fromkeys(names, glyph)),
        Encoding=dictionary(Type=NameObject("/Encoding"), Differences=ArrayObject([NumberObject(0), *names])),
        Resources=dictionary(),
    )
    if unicode:
        pairs = "".join(
            f"<{code:02x}> <{letter.encode('utf-16-be', 'surrogatepass').hex()}>\n" for code, letter in unicode.items()
        )
        font[NameObject("/ToUnicode")] = writer._add_object(
            stream(f"begincmap\n{len(unicode)} beginbfchar\n{pairs}endbfchar\nendcmap".encode())
        )
    page[NameObject("/Resources")] = dictionary(Font=dictionary(F1=writer._add_object(font)))
    content = b"BT /F1 10 Tf 14 TL 40 560 Td"
    for line in lines:
        content += b" <" + line.hex().encode() + b"> Tj T*"
    page[NameObject("/Contents")] = writer._add_object(stream(content + b" ET"))
    writer.write(str(path))


def write_raw_pdf(path: Path, content: bytes, base_font: str = "Times-Roman") -> None:
    """A page in one font with this content stream, for what no program that lays out text would print."""
    from pypdf import PdfWriter
    from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

    writer = PdfWriter()
    page = writer.add_blank_page(WIDTH, HEIGHT)
    font = {"Type": "/Font", "Subtype": "/Type1", "BaseFont": f"/{base_font}"}
    named = DictionaryObject({NameObject(f"/{key}"): NameObject(value) for key, value in font.items()})
    fonts = DictionaryObject({NameObject("/F1"): named})
    page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
    stream = DecodedStreamObject()
    stream.set_data(content)
    page[NameObject("/Contents")] = writer._add_object(stream)
    writer.write(str(path))


NARROW_KERNEL = """\
__global__ void scale(float *x)
{
    int i = threadIdx.x;
    if (i < 32) {
        x[i] *= 2;
    }
}"""
KERNEL = """\
__global__ void scale(float *data, float factor, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        for (int k = 0; k < 4; ++k) {
            data[i] *= factor;
        }
    }
}"""


def make_book(path: Path, *, seed: int = 1, columns: int = 1, chapters: int = 4, **options: bool) -> PdfMaker:
    """A book with roman front matter, an unnumbered leaf, chapters, sections, listings and sentences across pages."""
    maker = PdfMaker(seed=seed, columns=columns, **options)
    maker.pdf.set_title("A Book of Kernels")
    maker.start("roman")
    maker.chapter("Preface")
    for _ in range(9):
        maker.paragraph()
    maker.start("arabic")
    for chapter in range(1, chapters + 1):
        maker.chapter(f"{chapter} Chapter of {maker.sentence(1).split()[0]}")
        for section in range(1, 4):
            maker.section(f"{chapter}.{section} On {maker.sentence(1).split()[0]}")
            for _ in range(6):
                maker.paragraph(maker.rng.randint(3, 8))
            kernel = KERNEL if columns == 1 else NARROW_KERNEL
            maker.listing(kernel.replace("scale", f"scale_{chapter}_{section}"))
            maker.paragraph(3)
        if chapter == 2:
            maker.leaf()
    maker.save(path)
    return maker
