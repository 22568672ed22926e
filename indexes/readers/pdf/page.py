"""Reads one page from PDFium: letters to words, words mended, words to lines, each with its place, size and style.

It mends underscores drawn as rules, listings set in columns, and line numbers; each has a section below.
"""

from __future__ import annotations

import cmath
import ctypes
import math
import re
import struct
import unicodedata
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import Any, Protocol

from indexes.readers.elements import is_monospace

LINE_HYPHEN = "\x02"
"""PDFium's character for a hyphen that it takes for a break inside a word."""
CELL_GAP = 0.8
"""Gap, in type sizes, between two cells of a table; words of a heading are closer, those of a justified line seldom."""
NARROW_GAP, WIDE_GAP = 1.5, 2.2
"""Gap, in type sizes, between two cells of a row; and gap that makes a line a row of a table."""
LETTER_GAP = 0.28
"""Gap, in type sizes, between two words printed without a space character."""
SMALLEST, SMALL = 0.4, 0.82
"""Size of an exponent or index, as a share of what it stands at; a drop capital is larger than two lines."""
LOWEST, LOWERED, RAISED, HIGHEST = -0.5, -0.08, 0.2, 0.75
"""How far the baseline of an index is below, and that of an exponent above what it stands at, in sizes of that."""
LEAST_SHIFT = 0.1
"""In points; smaller differences between baselines are none."""
AT_SCRIPT = 0.13
"""Greatest gap, in heights of its box, between an exponent or index and the letter before it."""
MAX_RULE_WIDTH, MAX_RULE_HEIGHT = 20.0, 2.0
"""In points; larger rules cannot be underscores."""
LARGEST = 32_767.0
"""Largest coordinate of a page in points: the largest whole number that PDF allowed at first; a sheet is smaller."""

ASLANT = 0.06
"""Words that run so many quarter turns away from every edge of the sheet are watermarks and drawings."""
SMALL_PRINT = 0.8
"""Size of what runs in another direction than its page, as a share of the page's usual size: never a heading."""
MEASURED, LEAST_STEPS = 200, 4
"""Letters by which a font is measured on a page, and how few steps from one to the next decide."""
ONE_STEP, EVEN_SHARE = 0.15, 0.8
"""How far steps of a fixed-pitch font differ from the usual once rounded, and least share of those that do not."""

_BOLD_NAME = re.compile(r"bold|black|heavy|semibold|demi|cmbx|sfbx|ecbx|\bbd\b|-b$|medi(?:ital|obli)?$", re.IGNORECASE)
_PLAIN = str.maketrans(
    {"\xa0": " ", "\x88": "•"}
    | {chr(0xF730 + digit): str(digit) for digit in range(10)}  # Adobe's codes for old-style figures
    | {chr(0xF761 + letter): chr(ord("A") + letter) for letter in range(26)}  # and for small capitals
)
"""PDFium itself spells out the ligatures of Unicode."""
_TEX_CODES = {
    0x0B: "ff", 0x0C: "fi", 0x0D: "fl", 0x0E: "ffi", 0x0F: "ffl",  # OT1
    0x10: "“", 0x11: "”", 0x12: "„", 0x13: "«", 0x14: "»", 0x15: "–", 0x16: "—",  # T1
    0x1B: "ff", 0x1C: "fi", 0x1D: "fl", 0x1E: "ffi", 0x1F: "ffl",  # T1
}  # fmt: skip
"""Characters that TeX's font encodings keep at control codes; its bitmap fonts do not map them to Unicode."""
_CJK = (
    "[\u2e80-\u312f\u3190-\u9fff\uf900-\ufaff\uff00-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff9f\U00020000-\U0003ffff]"
)
"""Letters and punctuation of Chinese and Japanese; full-width Latin letters have spaces between their words."""
_FOUR = struct.Struct("4f")
"""A box of PDFium: left, upper, right and lower edge; read at once, since a letter costs a microsecond."""
_CJK_GAP = re.compile(f"(?<={_CJK}) (?={_CJK})")
_NUMBER = re.compile(r"[+−–-]?\d")
_SUM = re.compile(r".[^\w.,()\[\]{}]+.")
"""In an exponent or index that needs brackets around it, or its end could not be told."""
_IN_BRACKETS = re.compile(r"\([^()]*\)$")
_ENDS_SENTENCE = frozenset(".,;:!?”’\"'")
"""What the number of a note may stand at, beside letters and brackets."""
_INVISIBLE = re.compile("[\u200b-\u200f\ufeff]")
_ACCENTS = {
    ord("¨"): "\u0308", ord("´"): "\u0301", ord("`"): "\u0300", ord("ˆ"): "\u0302", ord("˜"): "\u0303",
    ord("ˇ"): "\u030c", ord("˚"): "\u030a",
}  # fmt: skip
"""Accents that stand by themselves, and what joins them to a letter: TeX prints them before the letter below them."""
_UNREADABLE = re.compile("[\ufffd-\uffff\x00-\x01\x03-\x08\x0b\x0c\x0e-\x1f\x7f]")
_OF_LETTERS = re.compile(r"[^\w\x00-\x1f]*_*[^\W\d_]+(?:['’_-]+[^\W\d_]+)*_*[^\w\x00-\x1f]*$")
_FIXED_PITCH = 1
_FORCE_BOLD = 1 << 18
# Buffers for a font's name and flags, and for places; shared, because PDFium is called under one lock.
_font_name = ctypes.create_string_buffer(128)
_font_flags = ctypes.c_int()
_base_x, _base_y, _own_x, _own_y = (ctypes.c_double() for _ in range(4))


_Sheet = tuple[float, float, float, float]
"""A page's left, lower, right and upper edge in points, before it is turned for showing."""


class _Box(Protocol):
    @property
    def bottom(self) -> float: ...
    @property
    def top(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Word:
    """Letters without white space between. Coordinates in points, origin at the page's lower left.

    `turn` is the direction that it runs in: quarter turns clockwise, None for those aslant. Coordinates are those of
    the page held so that the word is upright. `unmapped`: of a bitmap font that the file does not map to characters.
    """

    text: str
    x0: float
    x1: float
    bottom: float
    top: float
    size: float
    mono: bool
    bold: bool
    unmapped: bool = False
    turn: int | None = 0


@dataclass(frozen=True, slots=True)
class Rule:
    """A thin horizontal rule, in points, origin at the page's lower left."""

    x0: float
    x1: float
    bottom: float
    top: float


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
        """The words with single spaces between, none between two CJK letters."""
        text = " ".join(word.text for word in self.words)
        return text if text.isascii() else _CJK_GAP.sub("", text)

    @property
    def height(self) -> float:
        """Height of the line's box, in points."""
        return self.top - self.bottom


@dataclass(frozen=True, slots=True)
class PageLines:
    """A page's lines in content order.

    Attributes:
        page: file page, from 1.
        width, height: of the page, in points, held so that most of its words are upright.
        has_content: false for a blank page.
        lost_letters: number of letters left out because the file's fonts do not map them to characters.
        turned: true where most words are not upright on the sheet, or not as viewers show it.
        letters: number of letters and digits printed, those that no line has among them, line numbers of listings not.
    """

    page: int
    width: float
    height: float
    lines: tuple[Line, ...]
    has_content: bool
    lost_letters: int = 0
    turned: bool = False
    letters: int = 0


def read_page(document: Any, number: int) -> PageLines:
    """Lines of page `number` (from 1) of an open PDFium document."""
    import pypdfium2.raw as pdfium

    page = document[number - 1]
    try:
        width, height = page.get_size()
        objects = int(pdfium.FPDFPage_CountObjects(page))
        sheet = page.get_bbox()
        printed = _printed(page, sheet)
        turn = _direction(printed)
        sideways = bool((turn + page.get_rotation() // 90) % 4)
        if sideways:  # PDFium puts lines in the order in which they are shown
            page.set_rotation(-90 * turn % 360)
            printed = _printed(page, sheet)
        if printed:
            width, height = _turned_size(sheet, turn)
        typed = _mended([word for word in printed if word.turn == turn], _thin_rules(page, objects, sheet, turn))
    finally:
        page.close()
    words = _without_line_numbers(typed)
    others = [word for word in printed if word.turn not in (turn, None)]
    lost = sum(len(_UNREADABLE.findall(word.text)) for word in (*words, *others) if not _is_plain(word.text))
    lines = [_condensed(line) for line in _lines(_readable(words), number)]
    if others:
        middle = (sheet[3] - sheet[1]) / 2
        lines = list(_with_small_print(lines, list(_lines(_readable(others), number)), middle))
    letters = _letters(printed) - (_letters(typed) - _letters(words) if len(words) < len(typed) else 0)
    return PageLines(number, width, height, tuple(lines), objects > 0, lost, bool(turn) or sideways, letters)


def decoded(get: Callable[[], str]) -> str:
    """What a call to pypdfium2 gives as text; bytes of it that are no UTF-16 become U+FFFD."""
    try:
        return get()
    except UnicodeDecodeError as error:
        return error.object.decode(error.encoding, errors="replace")


def is_cjk(letter: str) -> bool:
    """True for a letter or mark of Chinese or Japanese, which sets no spaces between words."""
    return re.match(_CJK, letter) is not None


def has_gaps(line: Line, gap: float, after: int = 0) -> bool:
    """True when two words of a line, the first `after` aside, are more than `gap` type sizes apart."""
    return any(right.x0 - left.x1 > gap * line.size for left, right in pairwise(line.words[after:]))


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


def same_row(one: _Box, other: _Box, share: float = 0.6) -> bool:
    """True when two boxes overlap in height by `share` of the lower one."""
    overlap = min(one.top, other.top) - max(one.bottom, other.bottom)
    return overlap >= share * min(one.top - one.bottom, other.top - other.bottom)


def first_column(run: Word | _Run, pitch: float) -> float:
    """Where the first column of a run of letters begins, when they are centred over columns `pitch` points wide."""
    return (run.x0 + run.x1 - len(run.text) * pitch) / 2


def _letters(words: Sequence[Word]) -> int:
    return sum(count_letters(word.text) for word in words)


def count_letters(text: str) -> int:
    """Count letters and digits."""
    return sum(map(str.isalnum, text))


# --- from PDFium


def _printed(page: Any, sheet: _Sheet) -> list[Word]:
    text_page = page.get_textpage()
    try:
        return _without_ciphers([word for word in _words(text_page.raw, sheet) if _is_on_paper(word)])
    finally:
        text_page.close()


def _without_ciphers(words: list[Word]) -> list[Word]:
    """Unknown letters for those of bitmap fonts, where they are most of the page and most words with them are none.

    TeX's bitmap fonts are not mapped to characters either, but their codes mostly are those of the characters; other
    programs number letters as they first occur.
    """
    unmapped = [word for word in words if word.unmapped]
    told = [word.text for word in unmapped if len(word.text) > 2 and any(map(str.isalpha, word.text))]
    most = 2 * sum(len(word.text) for word in unmapped) > sum(len(word.text) for word in words)
    if not most or 2 * sum(_OF_LETTERS.match(text) is not None for text in told) >= len(told):
        return words
    return [replace(word, text="\ufffd" * len(word.text)) if word.unmapped else word for word in words]


def _words(text_page: Any, sheet: _Sheet) -> Iterator[Word]:
    """Words in content order, each upright in coordinates of its own direction."""
    import pypdfium2.raw as pdfium

    unicode_of, box_of, size_of = (
        pdfium.FPDFText_GetUnicode,
        pdfium.FPDFText_GetLooseCharBox,
        pdfium.FPDFText_GetFontSize,
    )
    memory = bytearray(_FOUR.size)
    rect = pdfium.FS_RECTF.from_buffer(memory)
    letters: list[str] = []
    script: list[str] = []
    x0 = x1 = bottom = top = size = lean = high = foot = base_end = 0.0
    style = (False, False, False)
    turn: int | None = 0
    base = level = 0
    spaced = False
    accent = ""
    fonts: dict[tuple[bytes, int], tuple[bool, bool]] = {}

    for index in range(pdfium.FPDFText_CountChars(text_page)):
        code = unicode_of(text_page, index)
        letter = chr(code) if code < 0xD800 else _beyond(text_page, index, code)
        if not letter:
            continue
        if code in _TEX_CODES and _is_unmapped(text_page, index):
            letter = _TEX_CODES[code]
        if code in _ACCENTS and _stands_over_next(text_page, index):
            accent = _ACCENTS[code]
            continue
        if accent:
            letter, accent = unicodedata.normalize("NFC", letter.replace("ı", "i") + accent), ""
        if letter.isspace() or letter == "\x00":
            spaced = True
            continue
        box_of(text_page, index, rect)
        if turn:
            _turn(rect, turn, sheet)
        left, upper, right, lower = _FOUR.unpack_from(memory)
        height = upper - lower
        if letters:
            shift, broken = 0, False
            if (level or (height != high and lower != foot)) and turn is not None:
                shift = _shift(text_page, base, index, turn)
                near = base_end - size < left < x1 + AT_SCRIPT * height
                # PDFium may put a space before and behind what is raised.
                broken = spaced and near and (level != 0 or (shift != 0 and _is_base(letters[-1])))
                spaced = spaced and not broken
            # Wide white space without a space character, and letters of another baseline, begin a new word.
            apart = left > x1 + LETTER_GAP * size or left < x0 - size or lower > top or upper < bottom
            if spaced or apart:
                yield Word(_spelled(letters, script, level), x0, x1, bottom, top, size, *style, turn)
                letters, script, level = [], [], 0
            elif shift != level:
                found = _script(letters, script, level, "" if shift or broken else letter)
                letters.append(found)
                script, level = [], shift
                if not shift and letter.isalnum() and (broken or found[:1] in ("^", "_")):  # back on the line
                    yield Word(_spelled(letters, script, level), x0, x1, bottom, top, size, *style, turn)
                    letters = []
        spaced = False
        if not letters:
            size = size_of(text_page, index)
            runs, lean = _direction_of(text_page, index, size)
            if runs != turn:
                box_of(text_page, index, rect)
                turn = runs
                if turn:
                    _turn(rect, turn, sheet)
                left, upper, right, lower = _FOUR.unpack_from(memory)
                height = upper - lower
            x0, bottom, top = left, lower, upper
            size = height / 1.15 if size <= 1.5 < height else size  # a size hidden in the text matrix
            style = (*_style(text_page, index, fonts), _is_unmapped(text_page, index))
            x1 = x0
        right = right - lean * height if lean > 0 else right
        x1 = right if right > x1 else x1  # `max` would take a tenth of the loop
        x0 = left if left < x0 else x0  # where words run leftwards
        if level:
            script.append(letter)
        else:
            letters.append(letter)
            base, high, foot, base_end = index, height, lower, right
    if letters:
        yield Word(_spelled(letters, script, level), x0, x1, bottom, top, size, *style, turn)


def _stands_over_next(text_page: Any, index: int) -> bool:
    """Whether most of an accent stands over the next letter, and there is such a letter with an accent."""
    import pypdfium2.raw as pdfium

    letter = chr(pdfium.FPDFText_GetUnicode(text_page, index + 1)).replace("ı", "i")
    accent = _ACCENTS[pdfium.FPDFText_GetUnicode(text_page, index)]
    if not letter.isalpha() or len(unicodedata.normalize("NFC", letter + accent)) > 1:
        return False
    own, below = pdfium.FS_RECTF(), pdfium.FS_RECTF()
    pdfium.FPDFText_GetLooseCharBox(text_page, index, own)
    pdfium.FPDFText_GetLooseCharBox(text_page, index + 1, below)
    turn, _ = _direction_of(text_page, index, pdfium.FPDFText_GetFontSize(text_page, index))
    boxes = ((box.bottom, box.top) if turn in (1, 3) else (box.left, box.right) for box in (own, below))
    (begin, end), (first, last) = boxes
    return bool(2 * (min(end, last) - max(begin, first)) > end - begin)


def _shift(text_page: Any, base: int, index: int, turn: int) -> int:
    """1 where a small letter's baseline is raised against that of another, -1 where lowered, else 0."""
    import pypdfium2.raw as pdfium

    pdfium.FPDFText_GetCharOrigin(text_page, base, _base_x, _base_y)
    pdfium.FPDFText_GetCharOrigin(text_page, index, _own_x, _own_y)
    by = (_own_x.value - _base_x.value) if turn % 2 else (_own_y.value - _base_y.value)
    if abs(by) < LEAST_SHIFT:
        return 0
    size = _size(text_page, base)
    by = -by if turn in (2, 3) else by
    if not SMALLEST * size < _size(text_page, index) < SMALL * size:
        return 0
    return 1 if RAISED * size < by < HIGHEST * size else -1 if LOWEST * size < by < LOWERED * size else 0


def _size(text_page: Any, index: int) -> float:
    """A letter's type size in points, as printed."""
    import pypdfium2.raw as pdfium

    matrix = pdfium.FS_MATRIX()
    pdfium.FPDFText_GetMatrix(text_page, index, matrix)
    return float(abs(pdfium.FPDFText_GetFontSize(text_page, index)) * math.hypot(matrix.c, matrix.d))


def _spelled(letters: Sequence[str], script: Sequence[str], level: int) -> str:
    return "".join(letters) + (_script(letters, script, level, "") if script else "")


def _is_base(letter: str) -> bool:
    return letter[-1:].isalnum() or letter[-1:] in (")", "]")


def _script(before: Sequence[str], script: Sequence[str], level: int, after: str) -> str:
    """What is printed raised or lowered, with `^` or `_` before it, as in HTML's `sup` and `sub`.

    Ordinals (1st) and letters that a raised one stands between (the LaTeX logo) are words.
    """
    text = "".join(script)
    if not any(map(str.isalnum, text)):
        return text
    base = "".join(before)[-1:]
    if not (_is_base(base) or (level > 0 and base in _ENDS_SENTENCE)):
        return text
    if level > 0 and not _NUMBER.match(text) and (after.isalpha() or (base.isdigit() and text.isalpha() and text[1:])):
        return text
    return ("^" if level > 0 else "_") + (f"({text})" if _SUM.search(text) and not _IN_BRACKETS.match(text) else text)


def _direction_of(text_page: Any, index: int, size: float) -> tuple[int | None, float]:
    """The direction that a letter's line runs in, in clockwise quarter turns, None where it is aslant; and its lean.

    A program in want of italics shears upright letters: they lean by so much of their height.
    """
    import pypdfium2.raw as pdfium

    angle = pdfium.FPDFText_GetCharAngle(text_page, index)
    if angle < 0 or (angle == 0 and size > 0):  # unknown, or upright
        return 0, 0.0
    half = 2 if size < 0 else 0  # a negative size turns its matrix round
    quarters, lean = half + angle * 2 / math.pi, 0.0
    if abs(quarters - round(quarters)) > ASLANT:
        matrix = pdfium.FS_MATRIX()
        pdfium.FPDFText_GetMatrix(text_page, index, matrix)
        quarters = half - math.atan2(matrix.b, matrix.a) * 2 / math.pi
        lean = matrix.c / matrix.d if matrix.d and abs(quarters) < ASLANT else 0.0
    return (round(quarters) % 4 if abs(quarters - round(quarters)) < ASLANT else None), lean


def _turn(box: Any, turn: int, sheet: _Sheet) -> None:
    """Give a box on a sheet the coordinates that it has once the sheet is turned so that its letters are upright."""
    left, bottom, right, top = sheet
    x0, x1, y0, y1 = box.left, box.right, box.bottom, box.top
    if turn == 1:  # they run down the sheet
        box.left, box.right, box.bottom, box.top = top - y1, top - y0, x0 - left, x1 - left
    elif turn == 2:
        box.left, box.right, box.bottom, box.top = right - x1, right - x0, top - y1, top - y0
    else:
        box.left, box.right, box.bottom, box.top = y0 - bottom, y1 - bottom, right - x1, right - x0


def _turned_size(sheet: _Sheet, turn: int) -> tuple[float, float]:
    """Width and height of a sheet once it is turned."""
    left, bottom, right, top = sheet
    return (top - bottom, right - left) if turn % 2 else (right - left, top - bottom)


def _direction(words: Sequence[Word]) -> int:
    """The direction that most letters of a page run in; slanted ones do not count."""
    letters: Counter[int] = Counter()
    for word in words:
        if word.turn is not None:
            letters[word.turn] += count_letters(word.text)  # a border may be drawn with signs
    return max(letters, key=lambda turn: letters[turn], default=0)


def _with_small_print(lines: Sequence[Line], others: Sequence[Line], middle: float) -> Iterator[Line]:
    """A page's lines, and those that run in other directions as small print around it: sentences go on past them.

    A header of an upright sheet, above its `middle`, stays above the table that is printed across the sheet.
    """
    usual = median([line.size for line in lines] or [0.0])
    above = max((line.top for line in lines), default=0.0)
    below = min((line.bottom for line in lines), default=0.0)
    headers = [line for line in others if line.words[0].turn == 0 and line.bottom > middle]
    for line in reversed(headers):
        yield _small_print(line, above + line.size, usual)
        above += line.height + line.size
    yield from lines
    for line in others:
        if line not in headers:
            below -= line.height + line.size
            yield _small_print(line, below, usual)


def _small_print(line: Line, bottom: float, usual: float) -> Line:
    up = bottom - line.bottom
    words = tuple(replace(word, bottom=word.bottom + up, top=word.top + up) for word in line.words)
    size = round(min(line.size, SMALL_PRINT * usual), 1)
    return replace(line, words=words, bottom=bottom, top=line.top + up, size=size)


def _is_on_paper(word: Word) -> bool:
    """False for letters that no sheet is large enough for, and for numbers that are none: no reader sees them."""
    return -LARGEST < word.x0 <= word.x1 < LARGEST and -LARGEST < word.bottom <= word.top < LARGEST


def _beyond(text_page: Any, index: int, code: int) -> str:
    """The letter at a place whose code may be half of a surrogate pair: PDFium counts the halves as two letters.

    The first half gives the letter, the second nothing; a half alone is U+FFFD.
    """
    import pypdfium2.raw as pdfium

    if not 0xD800 <= code < 0xE000:
        return chr(code) if code <= 0x10FFFF else "\ufffd"
    neighbour = index + 1 if code < 0xDC00 else index - 1
    other = pdfium.FPDFText_GetUnicode(text_page, neighbour) if neighbour >= 0 else 0
    if not 0xD800 <= other < 0xE000 or (other < 0xDC00) == (code < 0xDC00):
        return "\ufffd"
    return chr(0x10000 + ((code - 0xD800) << 10) + other - 0xDC00) if code < 0xDC00 else ""


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
        mono = (bool(key[1] & _FIXED_PITCH) or is_monospace(name)) and not _is_uneven(text_page, index, key[0])
        fonts[key] = (mono, bool(key[1] & _FORCE_BOLD) or bool(_BOLD_NAME.search(name)))
    return fonts[key]


def _is_uneven(text_page: Any, index: int, font: bytes) -> bool:
    """True where the next letters of a font are unevenly far apart, whatever the font says of itself."""
    import pypdfium2.raw as pdfium

    box = pdfium.FS_RECTF()
    steps: list[float] = []
    last: tuple[float, float] | None = None
    for place in range(index, min(index + MEASURED, pdfium.FPDFText_CountChars(text_page))):
        code = pdfium.FPDFText_GetUnicode(text_page, place)
        pdfium.FPDFText_GetFontInfo(text_page, place, _font_name, 128, _font_flags)
        if code > 127 or not chr(code).isalpha() or _font_name.value != font:
            last = None
            continue
        pdfium.FPDFText_GetLooseCharBox(text_page, place, box)
        if last is not None:
            height = max(box.right - box.left, box.top - box.bottom, 0.1)  # of a turned letter too
            steps.append(math.dist(last, (box.left, box.bottom)) / height)
        last = (box.left, box.bottom)
    usual = median(steps or [0.0])
    even = sum(abs(step - usual) <= ONE_STEP * usual for step in steps)
    return len(steps) >= LEAST_STEPS and even < EVEN_SHARE * len(steps)


def _thin_rules(page: Any, count: int, sheet: _Sheet, turn: int) -> list[Rule]:
    """Short thin rules among the page's `count` objects, in the coordinates of the turned sheet."""
    import pypdfium2.raw as pdfium

    object_of, type_of, bounds_of = pdfium.FPDFPage_GetObject, pdfium.FPDFPageObj_GetType, pdfium.FPDFPageObj_GetBounds
    left, bottom, right, top = (ctypes.c_float() for _ in range(4))
    found: list[Rule] = []
    for index in range(count):
        drawn = object_of(page, index)
        if type_of(drawn) != pdfium.FPDF_PAGEOBJ_PATH or not bounds_of(drawn, left, bottom, right, top):
            continue
        box = pdfium.FS_RECTF(left.value, top.value, right.value, bottom.value)
        if turn:
            _turn(box, turn, sheet)
        width, height = box.right - box.left, box.top - box.bottom
        if height < MAX_RULE_HEIGHT and height < width < MAX_RULE_WIDTH:
            found.append(Rule(box.left, box.right, box.bottom, box.top))
    return found


# --- words to lines


def _readable(words: Sequence[Word]) -> Iterator[Word]:
    """Words without invisible and unknown letters."""
    for word in words:
        if _is_plain(word.text):
            yield word
            continue
        text = _UNREADABLE.sub("", _INVISIBLE.sub("", word.text.translate(_PLAIN)))
        if text:
            yield word if text == word.text else replace(word, text=text)


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()


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
    if word.x1 < last.x0 + last.size and _runs_left(last, word):
        gap = last.x0 - word.x1
    if last.mono and word.mono:
        return gap > -last.size  # a listing may have any number of spaces
    return -last.size < gap < WIDE_GAP * max(last.size, word.size)


def _runs_left(*words: Word) -> bool:
    """True for words of which one is Arabic or Hebrew."""
    return any(unicodedata.bidirectional(letter) in ("R", "AL") for word in words for letter in word.text)


def _condensed(line: Line) -> Line:
    """A line of prose with its words merged into one: only listings and tables need the place of each word.

    A book of 5,000 pages has a million words; kept one by one they take half a gigabyte.
    """
    if line.mono or len(line.words) == 1 or has_gaps(line, CELL_GAP):
        return line
    mono = line.words[0].mono
    return replace(line, words=(Word(line.text, line.x0, line.x1, line.bottom, line.top, line.size, mono, line.bold),))


# --- what is mended


def _mended(words: Sequence[Word], rules: Sequence[Rule]) -> Sequence[Word]:
    """A page's words in content order, as typed: listings in columns, underscores in place."""
    words, rules = _in_columns(words, rules)
    return _with_underscores(words, rules)


# --- listings whose letters have widths of their own but are set in columns
#
# By default LaTeX's `listings` prints code in the font of the text and gives each letter 0.6 em. Such a line is known
# by its grid: each run of letters is centred over its columns, so the places where runs begin agree modulo one column.

PITCH = 0.6
"""Width of a column, in em; in most fonts an em is the type size."""
TEX_PITCHES = {7: 0.6833, 8: 0.6375, 9: 0.6167, 12: 0.5875}
"""Width of a column in type sizes, by size in points, in TeX's own fonts, whose em differs from the size."""
SPACE = 0.42
"""Least gap, in type sizes, that is a typed space for certain."""
LIKELY_SPACE = 0.2
"""Gap, in type sizes, that is a space in a sentence and rare within a word of a listing."""
LEAST_ADVANCE = 0.5
"""Least average width of a letter or space set in columns, in type sizes; in a sentence they are narrower."""
WHOLE_ADVANCE = 0.56
"""The same where gaps between letters do not count as spaces."""
LEAST_FILL = 0.8
"""Least share of its columns that a run of letters fills; a single word of a sentence fills less."""
SHORT = 12
"""Letters of a line too short for an average."""
MAX_WORD = 4.0
"""Greatest average of letters between two gaps of a line in columns; words of a sentence are longer."""
MIN_RUNS = 6
"""Least runs of letters that prove a grid; fewer may agree by chance."""
AGREEING = 0.88
"""Least length of the mean of the runs' phases; it is 1 when all agree."""
NEAR = 0.2
"""Greatest distance of a run from its grid, in columns."""
MIN_WIDE_WORDS, WIDE_LETTERS, WIDE_ADVANCE = 2, 4, 0.53
"""Words that a page with such a listing has: how many, of how many letters, how wide per letter in type sizes."""
ONE_SPACE = 1.1
"""Greatest width of one typed space, in type sizes; cells of a table are farther apart."""
FARTHEST = 2.6
"""Greatest distance between two lines of a listing, in type sizes."""
WINDOW = 3
"""Lines within which a grid must be found."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Letters and drawn underscores without a typed space between, in points."""

    text: str
    x0: float
    x1: float


@dataclass(frozen=True)
class _Row:
    """A line of a page.

    Attributes:
        places: indexes of its words among the page's words.
        rules: the rules among its letters.
        runs: its letters.
        first: its first word.
        gaps: number of gaps between its letters that may be spaces.
    """

    places: tuple[int, ...]
    rules: tuple[Rule, ...]
    runs: tuple[_Run, ...]
    first: Word
    gaps: int

    @cached_property
    def letters(self) -> int:
        """Number of letters."""
        return sum(len(run.text) for run in self.runs)

    @property
    def width(self) -> float:
        """Width in type sizes."""
        return (self.runs[-1].x1 - self.runs[0].x0) / self.first.size

    @cached_property
    def is_whole(self) -> bool:
        """True when letters and typed spaces alone fill the columns."""
        return self.width > WHOLE_ADVANCE * (self.letters + len(self.runs) - 1)

    @cached_property
    def is_spread(self) -> bool:
        """True when there are more gaps between letters than a sentence has words."""
        return self.letters < MAX_WORD * (self.gaps + 1)

    @cached_property
    def is_likely(self) -> bool:
        """True when the letters take as much room as in columns."""
        filled = sum(run.x1 - run.x0 for run in self.runs)
        if self.letters > 2 and filled < LEAST_FILL * self.letters * PITCH * self.first.size:
            return False
        wide = self.width > LEAST_ADVANCE * (self.letters + self.gaps)
        return self.letters < SHORT or wide or (self.is_spread and self.is_whole)

    def phases(self, pitch: float) -> list[complex]:
        """Where in a column each run begins, on the unit circle."""
        return [cmath.rect(1.0, 2 * cmath.pi * first_column(run, pitch) / pitch) for run in self.runs]

    def fits(self, pitch: float, phase: complex) -> bool:
        """True for a likely line whose runs are on a grid; in a line of many one may be off."""
        off = [abs(cmath.phase(one / phase)) / (2 * cmath.pi) for one in self.phases(pitch)]
        return self.is_likely and sum(one < NEAR for one in off) >= 0.8 * len(off)


def _in_columns(words: Sequence[Word], rules: Sequence[Rule]) -> tuple[Sequence[Word], Sequence[Rule]]:
    """The words with those of such listings moved to their columns; and the rules that are not their underscores."""
    wide = [word for word in words if word.x1 - word.x0 > WIDE_ADVANCE * len(word.text) * word.size and not word.mono]
    if sum(len(word.text) >= WIDE_LETTERS and not word.text.isupper() for word in wide) < MIN_WIDE_WORDS:
        return words, rules  # most pages of most books
    rows = _without_numbered([_row(words, places, rules) for places in _rows(words)])
    grids: dict[int, tuple[float, complex]] = {}
    for number, row in enumerate(rows):
        grid = _grid(rows[number : number + WINDOW]) if number not in grids and row.is_likely else None
        if grid is not None:
            grids.update(dict.fromkeys(_rows_on_grid(rows, number, grid, grids), grid))
    at_place: dict[int, list[Word]] = {}
    used: set[Rule] = set()
    for number, (pitch, phase) in grids.items():
        row = rows[number]
        at_place.update({place: [] for place in row.places})
        at_place[row.places[0]] = [_typed(run, row.first, pitch, phase) for run in row.runs]
        used.update(row.rules)
    kept = [one for place, word in enumerate(words) for one in at_place.get(place, [word])]
    return kept, [rule for rule in rules if rule not in used]


def _rows(words: Sequence[Word]) -> Iterator[list[int]]:
    """Indexes of words that follow each other on one line, in proportional type of about one size."""
    row: list[int] = []
    for place, word in enumerate(words):
        if row:
            last = words[row[-1]]
            alike = same_row(last, word) and abs(word.size - last.size) <= 0.2 * last.size
            if word.mono or not alike or word.x0 < last.x1 - 1:
                yield row
                row = []
        if not word.mono and word.size > 0:
            row.append(place)
    if row:
        yield row


def _row(words: Sequence[Word], places: Sequence[int], rules: Sequence[Rule]) -> _Row:
    first, last = words[places[0]], words[places[-1]]
    low, high = first.bottom - BELOW * first.size, first.bottom + ABOVE * first.size
    own = [
        rule
        for rule in rules
        if low < rule.bottom < high and first.x0 - 2 * first.size < rule.x0 and rule.x1 < last.x1 + 2 * first.size
    ]
    letters = [(words[place].x0, words[place].x1, words[place].text) for place in places]
    letters += [(rule.x0, rule.x1, "_") for rule in own]
    runs: list[_Run] = []
    gaps = 0
    for x0, x1, text in sorted(letters):
        gaps += bool(runs) and x0 - runs[-1].x1 > LIKELY_SPACE * first.size
        if runs and x0 - runs[-1].x1 < SPACE * first.size:
            runs[-1] = _Run(runs[-1].text + text, runs[-1].x0, x1)
        else:
            runs.append(_Run(text, x0, x1))
    return _Row(tuple(places), tuple(own), tuple(runs), first, gaps)


def _without_numbered(rows: Sequence[_Row]) -> list[_Row]:
    """The rows without line numbers, which are small and come before their code."""
    numbers = {
        index
        for index, (row, after) in enumerate(pairwise(rows))
        if len(row.places) == 1 and _is_number(row.first) and row.first.size < SMALLER * after.first.size
    }
    return [row for index, row in enumerate(rows) if index not in numbers]


def _grid(rows: Sequence[_Row]) -> tuple[float, complex] | None:
    """Width of a column and phase of the grid that the first rows are on, if they are."""
    for count in range(1, len(rows) + 1):
        window = rows[:count]
        if count > 1 and not (_is_near(window[-2], window[-1]) and window[-1].is_likely):
            return None
        total = sum(len(row.runs) for row in window)
        size = window[0].first.size
        spaces = [after.x0 - before.x1 for row in window for before, after in pairwise(row.runs)]
        narrow = sum(space < ONE_SPACE * size for space in spaces)
        if total < MIN_RUNS or narrow < 0.6 * max(len(spaces), MIN_RUNS - 2):
            continue
        for pitch in (PITCH * size, TEX_PITCHES.get(round(size), PITCH) * size):
            mean = sum(one for row in window for one in row.phases(pitch)) / total
            if abs(mean) > AGREEING:
                return pitch, mean / abs(mean)
    return None


def _rows_on_grid(
    rows: Sequence[_Row], number: int, grid: tuple[float, complex], taken: dict[int, tuple[float, complex]]
) -> Iterator[int]:
    """Rows around `number` that are on its grid; one off it is too, between two that are on it."""
    for step in (1, -1):
        at = number if step == 1 else number - 1
        while 0 <= at < len(rows) and at not in taken and (at == number or _is_near(rows[at - step], rows[at])):
            beyond = at + step
            between = 0 <= beyond < len(rows) and rows[beyond].fits(*grid) and _is_near(rows[at], rows[beyond])
            if not (rows[at].fits(*grid) or (between and (rows[at].is_spread or rows[at].is_whole))):
                break
            yield at
            at += step


def _is_near(one: _Row, other: _Row) -> bool:
    """True when two rows are in type of one size, with at most a blank line between."""
    distance = abs(one.first.bottom - other.first.bottom)
    return distance < FARTHEST * other.first.size and abs(one.first.size - other.first.size) < 1


def _typed(run: _Run, like: Word, pitch: float, phase: complex) -> Word:
    """A run of letters as a word in columns."""
    offset = pitch * cmath.phase(phase) / (2 * cmath.pi)
    start = offset + pitch * round((first_column(run, pitch) - offset) / pitch)
    return Word(run.text, start, start + pitch * len(run.text), like.bottom, like.top, like.size, True, like.bold)


# --- underscores that are drawn as thin rules
#
# TeX's default font encoding has no underscore: `cuda_memcpy` is printed as letters, a rule 0.3 em wide, and letters.
# Unlike rules of tables, fractions and underlines it is on the baseline, touches letters sideways, and has none above.

NARROWEST, WIDEST, THICKEST = 0.2, 0.7, 0.12
"""Width and height of an underscore, in type sizes; TeX's is 0.3 wide."""
BELOW, ABOVE = 0.12, 0.42
"""How far below and above the lower edge of the letters' boxes, in type sizes, their baseline may be."""
TOUCHING = 0.13
"""Greatest gap, in type sizes, between an underscore and its neighbour; narrow spaces are wider."""
STEP = 4
"""Height, in points, of the strips in which letters beside a rule are looked up."""
OVERLAP = 0.15
"""How far an underscore may reach into the box of its neighbour, in type sizes."""


_Token = Word | Rule


def _with_underscores(words: Sequence[Word], rules: Sequence[Rule]) -> Sequence[Word]:
    """The words in their order; those that underscores join are one word, in the place of its first part."""
    if not rules:
        return words
    lines = list(_by_height(rules))
    steps = sorted({_middle(line[0]) // STEP for line in lines})
    at_height: dict[float, list[int]] = defaultdict(list)
    for index, word in enumerate(words):
        low, high = ((word.bottom + share * word.size) // STEP for share in (-BELOW, ABOVE))
        for step in steps[bisect_left(steps, low) : bisect_right(steps, high)]:
            at_height[step].append(index)
    order = {id(word): index for index, word in enumerate(words)}
    replaced: dict[int, Word | None] = {}
    for line in lines:
        near = [words[index] for index in at_height[_middle(line[0]) // STEP]]
        if not near:
            continue
        for chain in _chains([rule for rule in line if _is_free(rule, near)], near):
            parts = sorted(order[id(part)] for part in chain if isinstance(part, Word))
            if any(part in replaced for part in parts):
                continue
            replaced.update(dict.fromkeys(parts))
            replaced[parts[0]] = _joined(chain)
    kept = (replaced.get(index, word) for index, word in enumerate(words))
    return [word for word in kept if word is not None]


def _middle(box: _Box) -> float:
    return (box.bottom + box.top) / 2


def _by_height(rules: Sequence[Rule]) -> Iterator[list[Rule]]:
    """Rules of one height."""
    line: list[Rule] = []
    for rule in sorted(rules, key=_middle):
        if line and _middle(rule) - _middle(line[0]) > 0.3:
            yield line
            line = []
        line.append(rule)
    if line:
        yield line


def _is_free(rule: Rule, near: Sequence[Word]) -> bool:
    """True when no letter is over the rule, as over an underline or a fraction's bar."""
    return not any(min(rule.x1, word.x1) - max(rule.x0, word.x0) > OVERLAP * word.size for word in near)


def _chains(rules: Sequence[Rule], near: Sequence[Word]) -> Iterator[list[_Token]]:
    """Words and underscores that touch each other, from left to right; with a letter, as every name has."""
    tokens: list[_Token] = sorted((*rules, *near), key=lambda one: one.x0)
    chains: list[list[_Token]] = []
    for token in tokens:
        if chains and _touch(chains[-1][-1], token, near):
            chains[-1].append(token)
        else:
            chains.append([token])
    for chain in chains:
        words = [part for part in chain if isinstance(part, Word)]
        if len(words) < len(chain) and any(letter.isalpha() for word in words for letter in word.text):
            yield chain


def _touch(last: _Token, token: _Token, near: Sequence[Word]) -> bool:
    """True when an underscore and what is beside it make one word; two words never do."""
    beside = [part for part in (last, token) if isinstance(part, Word)]
    if len(beside) == 2:
        return False
    size = beside[0].size if beside else max(word.size for word in near)
    for rule in (last, token):
        if isinstance(rule, Rule):
            fits = NARROWEST * size < rule.x1 - rule.x0 < WIDEST * size and rule.top - rule.bottom < THICKEST * size
            baseline = beside[0].bottom if beside else rule.bottom
            if not fits or not -BELOW * size < _middle(rule) - baseline < ABOVE * size:
                return False
    return -OVERLAP * size < token.x0 - last.x1 < TOUCHING * size


def _joined(chain: Sequence[_Token]) -> Word:
    words = [part for part in chain if isinstance(part, Word)]
    main = max(words, key=lambda word: len(word.text))
    text = "".join(part.text if isinstance(part, Word) else "_" for part in chain)
    bottom, top = min(word.bottom for word in words), max(word.top for word in words)
    return replace(main, text=text, x0=chain[0].x0, x1=chain[-1].x1, bottom=bottom, top=top)


# --- numbers printed beside the lines of a listing
#
# LaTeX's packages set them small and in the font of the text, to the left of monospaced code. A column of numbers in
# the listing's own font and size is kept: it may be a program's output.

MIN_NUMBERS = 3
"""Least line numbers below each other; fewer count only where each is small and has code beside it."""
ALIGNED = 1.5
"""Points by which the edges of line numbers may differ."""
SMALLER = 0.9
"""Relative type size below which numbers are line numbers."""
FARTHEST_CODE = 25.0
"""Greatest distance between a line number and its code, in type sizes; the code may be indented."""
MIN_SHARE = 0.5
"""Least share of line numbers with code beside them; the others number blank lines."""
MAX_DIGITS = 4


def _without_line_numbers(words: Sequence[Word]) -> Sequence[Word]:
    """The words in their order without line numbers of listings; what a small one counts is code in any font.

    LaTeX's packages set comments, directives and keywords of a listing in the font that they are told to.
    """
    code = sorted((word for word in words if word.mono and not _is_number(word)), key=_middle)
    numbers = [word for word in words if _is_number(word)]
    if not numbers or not code:
        return words
    heights = [_middle(word) for word in code]
    beside = {id(number): _code_beside(number, code, heights) for number in numbers}
    largest = max(word.size for word in code)
    able = [number for number in numbers if not number.mono or number.size < SMALLER * largest]
    dropped: set[int] = set()
    counted: list[Word] = []
    code_of: dict[int, Word] = {}
    # Line numbers are flush right, sometimes flush left.
    for edge in (lambda word: word.x1, lambda word: word.x0):
        for run in _counting_runs(able, edge):
            with_code = sum(beside[id(number)] for number in run)
            small = max(number.size for number in run) < SMALLER * largest
            if with_code >= MIN_SHARE * len(run) if len(run) >= MIN_NUMBERS else small and with_code == len(run):
                dropped.update(map(id, run))
                counted.extend(run if small and len(run) >= MIN_NUMBERS else ())
    for phrase in [phrase for number in counted for phrase in _phrases(number, words)]:
        dropped.update(map(id, phrase))
        code_of[id(phrase[0])] = _as_code(phrase)
    lines = [code_of.get(id(word), word) for word in words]
    return [line for word, line in zip(words, lines, strict=True) if id(word) not in dropped or line is not word]


def _phrases(number: Word, words: Sequence[Word]) -> Iterator[list[Word]]:
    """The words to the right of a line number that are not monospaced, a space apart, up to the gap of a column."""
    row = [word for word in words if word.x0 > number.x1 - 0.5 and word.bottom < _middle(number) < word.top]
    last, widest = number, FARTHEST_CODE
    phrase: list[Word] = []
    for word in sorted(row, key=lambda word: word.x0):
        gap = (word.x0 - last.x1) / word.size
        if gap > widest:
            break
        if phrase and (word.mono or gap > CELL_GAP or gap < LETTER_GAP / 2):
            yield phrase
            phrase = []
        if not word.mono:
            phrase.append(word)
        last, widest = word, WIDE_GAP
    if phrase:
        yield phrase


def _as_code(phrase: Sequence[Word]) -> Word:
    first, last = phrase[0], phrase[-1]
    bottom, top = min(word.bottom for word in phrase), max(word.top for word in phrase)
    text = " ".join(word.text for word in phrase)
    return replace(first, text=text, x1=last.x1, bottom=bottom, top=top, mono=True)


def _is_number(word: Word) -> bool:
    return len(word.text) <= MAX_DIGITS and word.text.isdecimal()


def _code_beside(number: Word, code: Sequence[Word], heights: Sequence[float]) -> bool:
    """True when monospaced letters are close to the right of a number, on its line."""
    for word in code[bisect_left(heights, number.bottom - number.size) :]:
        if _middle(word) > number.top + number.size:
            return False
        overlap = min(number.top, word.top) - max(number.bottom, word.bottom)
        near = -0.5 < word.x0 - number.x1 < FARTHEST_CODE * word.size
        if near and overlap > 0.5 * (number.top - number.bottom):
            return not number.mono or number.size < SMALLER * word.size
    return False


def _counting_runs(numbers: Sequence[Word], edge: Callable[[Word], float]) -> Iterator[list[Word]]:
    """Numbers whose edges are below each other and that count up by one, from top to bottom."""
    columns: list[list[Word]] = []
    for number in sorted(numbers, key=edge):
        if columns and edge(number) - edge(columns[-1][0]) <= ALIGNED:
            columns[-1].append(number)
        else:
            columns.append([number])
    for column in columns:
        run: list[Word] = []
        for number in sorted(column, key=lambda word: -word.top):
            if run and int(number.text) != int(run[-1].text) + 1:
                yield run
                run = []
            run.append(number)
        yield run
