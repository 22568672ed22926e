"""Reads one page from PDFium: letters to words, words to lines, each with its place, size and style."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any

from indexes.readers.elements import is_monospace
from indexes.readers.pdf.words import Rule, Word, mended, same_row

LINE_HYPHEN = "\x02"
"""PDFium's character for a hyphen that it takes for a break inside a word."""
CELL_GAP = 0.8
"""Gap, in type sizes, between two cells of a bold table header; words of a heading are closer."""
NARROW_GAP, WIDE_GAP = 1.5, 2.2
"""Gap, in type sizes, between two cells of a row; and gap that makes a line a row of a table."""
LETTER_GAP = 0.28
"""Gap, in type sizes, between two words printed without a space character."""
MAX_RULE_WIDTH, MAX_RULE_HEIGHT = 20.0, 2.0
"""In points; larger rules cannot be underscores."""

_BOLD_NAME = re.compile(r"bold|black|heavy|semibold|demi|cmbx|sfbx|ecbx|\bbd\b|-b$|medi(?:ital|obli)?$", re.IGNORECASE)
_LIGATURES = str.maketrans(
    {"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "st", "ﬆ": "st", "\xa0": " ", "\x88": "•"}
)
_TEX_CODES = {
    0x0B: "ff", 0x0C: "fi", 0x0D: "fl", 0x0E: "ffi", 0x0F: "ffl",  # OT1
    0x10: "“", 0x11: "”", 0x12: "„", 0x13: "«", 0x14: "»", 0x15: "–", 0x16: "—",  # T1
    0x1B: "ff", 0x1C: "fi", 0x1D: "fl", 0x1E: "ffi", 0x1F: "ffl",  # T1
}  # fmt: skip
"""Characters that TeX's font encodings keep at control codes; its bitmap fonts do not map them to Unicode."""
_INVISIBLE = re.compile("[\u200b-\u200f\ufeff]")
_UNREADABLE = re.compile("[\ufffd-\uffff\x00-\x01\x03-\x08\x0b\x0c\x0e-\x1f\x7f]")
_FIXED_PITCH = 1
_FORCE_BOLD = 1 << 18
# Buffers for a font's name and flags; shared, because PDFium is called under one lock.
_font_name = ctypes.create_string_buffer(128)
_font_flags = ctypes.c_int()


@dataclass(frozen=True, slots=True)
class Line:
    """Words on one baseline without a gap wide enough to separate columns; `page` is the file page, from 1."""

    words: tuple[Word, ...]
    page: int
    x0: float
    x1: float
    bottom: float
    top: float
    size: float
    mono: bool
    bold: bool

    @property
    def text(self) -> str:
        """The words with single spaces between."""
        return " ".join(word.text for word in self.words)

    @property
    def height(self) -> float:
        """Height of the line's box, in points."""
        return self.top - self.bottom


@dataclass(frozen=True, slots=True)
class PageLines:
    """A page's lines in content order.

    Attributes:
        page: file page, from 1.
        width, height: of the page, in points.
        has_content: false for a blank page.
        lost_letters: number of letters left out because the file's fonts do not map them to characters.
    """

    page: int
    width: float
    height: float
    lines: tuple[Line, ...]
    has_content: bool
    lost_letters: int = 0


def read_page(document: Any, number: int) -> PageLines:
    """Lines of page `number` (from 1) of an open PDFium document."""
    import pypdfium2.raw as pdfium

    page = document[number - 1]
    try:
        width, height = page.get_size()
        objects = int(pdfium.FPDFPage_CountObjects(page))
        text_page = page.get_textpage()
        try:
            words = mended(list(_words(text_page.raw)), _thin_rules(page, objects))
        finally:
            text_page.close()
    finally:
        page.close()
    lost = sum(len(_UNREADABLE.findall(word.text)) for word in words)
    lines = tuple(_condensed(line) for line in _lines(_readable(words), number))
    return PageLines(number, width, height, lines, objects > 0, lost)


def has_gaps(line: Line, gap: float) -> bool:
    """True when two words of a line are more than `gap` type sizes apart."""
    return any(after.x0 - before.x1 > gap * line.size for before, after in pairwise(line.words))


def make_line(words: Sequence[Word], page: int) -> Line:
    """A line of words; its size and style are those of most of its letters, code names in a sentence aside."""
    letters = sum(len(word.text) for word in words)
    mono = sum(len(word.text) for word in words if word.mono)
    bold = sum(len(word.text) for word in words if word.bold)
    is_code = mono * 10 > letters * 8
    sizes = [word.size for word in words if is_code or not word.mono for _ in word.text]
    size = median(sizes or [word.size for word in words for _ in word.text])
    body = [word for word in words if word.size >= 0.8 * size] or list(words)
    return Line(
        tuple(words),
        page,
        min(word.x0 for word in words),
        max(word.x1 for word in words),
        min(word.bottom for word in body),
        max(word.top for word in body),
        round(size, 1),
        is_code,
        bold * 10 > letters * 8,
    )


def _words(text_page: Any) -> Iterator[Word]:
    """Words in content order; text that does not run from left to right is left out."""
    import pypdfium2.raw as pdfium

    unicode_of, box_of, size_of = (
        pdfium.FPDFText_GetUnicode,
        pdfium.FPDFText_GetLooseCharBox,
        pdfium.FPDFText_GetFontSize,
    )
    rect = pdfium.FS_RECTF()
    letters: list[str] = []
    x0 = x1 = bottom = top = size = 0.0
    style = (False, False)
    upright = True
    fonts: dict[tuple[bytes, int], tuple[bool, bool]] = {}
    for index in range(pdfium.FPDFText_CountChars(text_page)):
        code = unicode_of(text_page, index)
        letter = chr(code) if code <= 0x10FFFF else "\ufffd"
        if code in _TEX_CODES and _is_unmapped(text_page, index):
            letter = _TEX_CODES[code]
        if letter.isspace() or letter == "\x00":
            if letters and upright:
                yield Word("".join(letters), x0, x1, bottom, top, size, *style)
            letters = []
            continue
        box_of(text_page, index, rect)
        # Wide white space without a space character, and letters of another baseline, begin a new word.
        left = rect.left
        if letters and (left > x1 + LETTER_GAP * size or left < x0 - size or rect.bottom > top or rect.top < bottom):
            if upright:
                yield Word("".join(letters), x0, x1, bottom, top, size, *style)
            letters = []
        if not letters:
            x0, bottom, top = left, rect.bottom, rect.top
            size = float(size_of(text_page, index))
            height = top - bottom
            size = height / 1.15 if size <= 1.5 < height else size  # a size hidden in the text matrix
            style = _style(text_page, index, fonts)
            angle = pdfium.FPDFText_GetCharAngle(text_page, index)
            upright = angle < 0 or abs(math.remainder(angle, 2 * math.pi)) < 0.1
            x1 = x0
        right = rect.right
        x1 = right if right > x1 else x1  # `max` would take a tenth of the loop
        letters.append(letter)
    if letters and upright:
        yield Word("".join(letters), x0, x1, bottom, top, size, *style)


def _is_unmapped(text_page: Any, index: int) -> bool:
    """True for a letter of a bitmap font (which has no name) that the file does not map to Unicode."""
    import pypdfium2.raw as pdfium

    pdfium.FPDFText_GetFontInfo(text_page, index, _font_name, 128, _font_flags)
    return not _font_name.value and bool(pdfium.FPDFText_HasUnicodeMapError(text_page, index))


def _style(text_page: Any, index: int, fonts: dict[tuple[bytes, int], tuple[bool, bool]]) -> tuple[bool, bool]:
    """Whether the letter's font is monospaced, and whether it is bold."""
    import pypdfium2.raw as pdfium

    pdfium.FPDFText_GetFontInfo(text_page, index, _font_name, 128, _font_flags)
    key = (_font_name.value, _font_flags.value)
    if key not in fonts:
        name = key[0].decode("utf-8", errors="replace")
        mono = bool(key[1] & _FIXED_PITCH) or is_monospace(name)
        fonts[key] = (mono, bool(key[1] & _FORCE_BOLD) or bool(_BOLD_NAME.search(name)))
    return fonts[key]


def _thin_rules(page: Any, count: int) -> list[Rule]:
    """Short thin rules among the page's `count` objects."""
    import pypdfium2.raw as pdfium

    object_of, type_of, bounds_of = pdfium.FPDFPage_GetObject, pdfium.FPDFPageObj_GetType, pdfium.FPDFPageObj_GetBounds
    left, bottom, right, top = (ctypes.c_float() for _ in range(4))
    found: list[Rule] = []
    for index in range(count):
        drawn = object_of(page, index)
        if type_of(drawn) != pdfium.FPDF_PAGEOBJ_PATH or not bounds_of(drawn, left, bottom, right, top):
            continue
        width, height = right.value - left.value, top.value - bottom.value
        if height < MAX_RULE_HEIGHT and height < width < MAX_RULE_WIDTH:
            found.append(Rule(left.value, right.value, bottom.value, top.value))
    return found


def _readable(words: Sequence[Word]) -> Iterator[Word]:
    """Words with ligatures spelled out, without invisible and unknown letters."""
    for word in words:
        text = _UNREADABLE.sub("", _INVISIBLE.sub("", word.text.translate(_LIGATURES)))
        if text:
            yield word if text == word.text else replace(word, text=text)


def _lines(words: Iterator[Word], page: int) -> Iterator[Line]:
    """Lines of words that follow each other on one baseline; a wide gap begins another line."""
    current: list[Word] = []
    for word in words:
        if current and not _continues(current[-1], word):
            yield make_line(current, page)
            current = []
        current.append(word)
    if current:
        yield make_line(current, page)


def _continues(last: Word, word: Word) -> bool:
    if not same_row(last, word, 0.35):
        return False
    gap = word.x0 - last.x1
    if last.mono and word.mono:
        return gap > -last.size  # a listing may have any number of spaces
    return -last.size < gap < WIDE_GAP * max(last.size, word.size)


def _condensed(line: Line) -> Line:
    """A line of prose with its words merged into one: only listings and tables need the place of each word.

    A book of 5,000 pages has a million words; kept one by one they take half a gigabyte.
    """
    if line.mono or len(line.words) == 1 or has_gaps(line, CELL_GAP if line.bold else NARROW_GAP):
        return line
    mono = line.words[0].mono
    return replace(line, words=(Word(line.text, line.x0, line.x1, line.bottom, line.top, line.size, mono, line.bold),))
