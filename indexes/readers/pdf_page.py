"""One PDF page to lines of words with their places. Talks to PDFium; knows nothing of paragraphs or chapters."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any

from indexes.readers.pdf_fixed_columns import in_columns
from indexes.readers.pdf_line_numbers import without_line_numbers
from indexes.readers.pdf_underscores import thin_rules, with_underscores
from indexes.readers.pdf_word import Word

_MONO_NAME = re.compile(
    r"mono|courier|consol|typewriter|menlo|inconsolata|fira ?code|source ?code|hack|cmtt|cmsltt|lettergothic|txtt|pcr"
    r"|monaco|andale|ocr-?[ab]|fixed|zi4|nimbusmon|pcrr|sftt|sfit?tt|ectt|lmtt|cursor|iosevka|cascadia|anonymous ?pro"
    r"|pragmata|letter ?gothic|qcr",
    re.IGNORECASE,
)
_BOLD_NAME = re.compile(r"bold|black|heavy|semibold|demi|cmbx|sfbx|ecbx|\bbd\b|-b$|medi(?:ital|obli)?$", re.IGNORECASE)
_LIGATURES = str.maketrans(
    {"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "st", "ﬆ": "st", "\xa0": " ", "\x88": "•"}
)
_DROPPED = re.compile("[\u200b-\u200f\ufeff\ufffe\uffff\x00-\x01\x03-\x08\x0b\x0c\x0e-\x1f\x7f]")
LINE_HYPHEN = "\x02"
"""What stands in a line's text for a hyphen that PDFium takes for a break inside a word."""
NARROW_GAP, WIDE_GAP = 1.5, 2.2
"""White space, in letter heights, that parts two cells of a row; and that makes a line a row of a table."""
_FIXED_PITCH = 1
_FORCE_BOLD = 1 << 18
# Where PDFium writes a font's name and flags; one for all, because PDFium is called under one lock.
_font_name = ctypes.create_string_buffer(128)
_font_flags = ctypes.c_int()


@dataclass(frozen=True, slots=True)
class Line:
    """Words on one baseline without a gap wide enough to part columns; `page` is the file page, from 1."""

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
    """

    page: int
    width: float
    height: float
    lines: tuple[Line, ...]
    has_content: bool


def read_page(document: Any, number: int) -> PageLines:
    """Lines of page `number` (from 1) of an open PDFium document."""
    page = document[number - 1]
    try:
        width, height = page.get_size()
        import pypdfium2.raw as pdfium

        objects = int(pdfium.FPDFPage_CountObjects(page))
        text_page = page.get_textpage()
        try:
            words, rules = in_columns(list(_words(text_page.raw)), thin_rules(page, objects))
            words = without_line_numbers(with_underscores(words, rules))
        finally:
            text_page.close()
    finally:
        page.close()
    lines = tuple(_condensed(line) for line in _lines(words, number))
    return PageLines(number, width, height, lines, objects > 0)


def _condensed(line: Line) -> Line:
    """A line of prose with all of its words as one: the places of words matter in listings and tables only.

    A book of 5,000 pages has a million words; kept one by one they take half a gigabyte.
    """
    if line.mono or len(line.words) == 1 or has_gaps(line, NARROW_GAP):
        return line
    first = line.words[0]
    whole = Word(line.text, line.x0, line.x1, line.bottom, line.top, line.size, first.mono, line.bold)
    return replace(line, words=(whole,))


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
        if letter.isspace() or letter == "\x00":
            if letters and upright:
                yield Word("".join(letters), x0, x1, bottom, top, size, *style)
            letters = []
            continue
        box_of(text_page, index, rect)
        # Text set with wide spacing instead of spaces, and letters of another baseline, begin a new word.
        left = rect.left
        if letters and (left > x1 + 0.28 * size or left < x0 - size or rect.bottom > top or rect.top < bottom):
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


def _style(text_page: Any, index: int, fonts: dict[tuple[bytes, int], tuple[bool, bool]]) -> tuple[bool, bool]:
    """Whether the letter's font has letters of one width, and whether it is bold."""
    import pypdfium2.raw as pdfium

    pdfium.FPDFText_GetFontInfo(text_page, index, _font_name, 128, _font_flags)
    key = (_font_name.value, _font_flags.value)
    if key not in fonts:
        name = key[0].decode("utf-8", errors="replace")
        mono = bool(key[1] & _FIXED_PITCH) or bool(_MONO_NAME.search(name))
        fonts[key] = (mono, bool(key[1] & _FORCE_BOLD) or bool(_BOLD_NAME.search(name)))
    return fonts[key]


def _lines(words: Sequence[Word], page: int) -> Iterator[Line]:
    """Words that follow each other on one baseline, as lines; a wide gap begins another line."""
    current: list[Word] = []
    for raw in words:
        text = _DROPPED.sub("", raw.text.translate(_LIGATURES))
        if not text:
            continue
        word = raw if text == raw.text else replace(raw, text=text)
        if current and not _continues(current, word):
            yield make_line(current, page)
            current = []
        current.append(word)
    if current:
        yield make_line(current, page)


def _continues(current: Sequence[Word], word: Word) -> bool:
    last = current[-1]
    overlap = min(last.top, word.top) - max(last.bottom, word.bottom)
    if overlap < 0.35 * min(last.top - last.bottom, word.top - word.bottom):
        return False
    gap = word.x0 - last.x1
    if last.mono and word.mono:
        return gap > -last.size  # spaces in a listing are as wide as its author liked
    return -last.size < gap < WIDE_GAP * max(last.size, word.size)


def has_gaps(line: Line, gap: float) -> bool:
    """True when white space of more than `gap` letter heights stands between two words of a line."""
    return any(after.x0 - before.x1 > gap * line.size for before, after in pairwise(line.words))


def make_line(words: Sequence[Word], page: int) -> Line:
    """A line of words; its size and style are those of most of its letters, names of code in a sentence aside."""
    letters = sum(len(word.text) for word in words)
    mono = sum(len(word.text) for word in words if word.mono)
    bold = sum(len(word.text) for word in words if word.bold)
    is_code = mono * 10 > letters * 8
    sizes = [word.size for word in words if is_code or not word.mono for _ in word.text]
    sizes = sizes or [word.size for word in words for _ in word.text]
    body = [word for word in words if word.size >= 0.8 * median(sizes)] or list(words)
    return Line(
        tuple(words),
        page,
        min(word.x0 for word in words),
        max(word.x1 for word in words),
        min(word.bottom for word in body),
        max(word.top for word in body),
        round(median(sizes), 1),
        is_code,
        bold * 10 > letters * 8,
    )
