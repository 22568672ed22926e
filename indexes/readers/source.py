"""Files as they come: bytes to clean text, lines that one file includes from another, and limits for archives."""

from __future__ import annotations

import logging
import os
import re
import unicodedata
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from indexes.errors import TooLarge, UnreadableBook
from indexes.messages import msg
from indexes.readers.elements import whole_letters

logger = logging.getLogger("coalesce.readers")

MAX_TEXT_BYTES = 256 * 1024 * 1024
"""Largest text file that is read, and most text of an archive; books are a thousand times smaller."""
MAX_INCLUDED_BYTES = 1_000_000

MAX_ZIP_MEMBERS = 20_000
MAX_ZIP_BYTES = 1024 * 1024 * 1024
"""All parts of an office file unpacked, pictures included: the library that reads it holds them in memory."""
MAX_ZIP_RATIO = 200
"""Text that unpacks to more than 200 times its size is a zip bomb: real documents reach fifty."""
_ZIPPED_TEXT = re.compile(r"\.(?:xml|rels|x?html?|opf|ncx|txt)$|(?:^|/)[^./]*$", re.IGNORECASE)

_BOMS = (
    (b"\xef\xbb\xbf", "utf-8-sig"),
    (b"\xff\xfe\x00\x00", "utf-32"),
    (b"\x00\x00\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)
# Zero-width characters and soft hyphens hide inside identifiers copied from web pages and defeat every search.
_INVISIBLE = re.compile("[\u200b-\u200d\u2060-\u2064\ufeff\u00ad]")
_CONTROL = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")
_FOREIGN_ALONE = re.compile(rb"(?<![\x80-\xff])[\x80-\xff](?![\x80-\xff])")
_RADICALS = {
    code: whole for code in range(0x2E80, 0x2FE0) if (whole := unicodedata.normalize("NFKC", chr(code))) != chr(code)
} | str.maketrans(
    "⺠⻄⻅⻆⻉⻋⻑⻓⻔⻗⻘⻙⻚⻛⻜⻝⻢⻣⻤⻥⻦⻧⻨⻩⻬⻮⻰", "民西见角贝车長长门雨青韦页风飞食马骨鬼鱼鸟卤麦黄齐齿龙"
)
"""Signs for the parts of Chinese characters, which programs that make PDFs give in place of the characters they look
like; Unicode has compatible forms for the first block, and lists equivalents of the second."""
_RADICAL = re.compile("[\u2e80-\u2fdf]")
_NEWLINES = re.compile("\r\n?|\x0c|\u2028|\u2029|\x85")


@dataclass(frozen=True, slots=True)
class SourceText:
    """The text of a file, and what had to be guessed to decode it, if anything."""

    text: str
    note: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """The note for a book's health report."""
        return (self.note,) if self.note else ()


def clean_text(text: str) -> str:
    """Make newlines Unix, unbroken spaces plain, and radicals characters.

    Drops control and zero-width characters and lone surrogates.
    """
    text = _NEWLINES.sub("\n", text)
    if not text.isascii() and _RADICAL.search(text):
        text = text.translate(_RADICALS)
    return _CONTROL.sub("", _INVISIBLE.sub("", text)).replace("\xa0", " ")


def unforeseen(what: str, error: Exception) -> str:
    """Log an error that no reader foresaw, and return it in words, for the health or the refusal of a book.

    The log's record carries it as `error`; its traceback is shown where the level is DEBUG.
    """
    words = whole_letters(f"{what} cannot be read, an error inside Coalesce: {type(error).__name__}: {error}"[:300])
    details = error if logger.isEnabledFor(logging.DEBUG) else None
    logger.error(words, exc_info=details, extra={"error": error})
    return words


def check_archive(file: zipfile.ZipFile, name: str, *, max_bytes: int | None = None) -> None:
    """Refuse a zip that would unpack to more than a book holds. `zipfile` unpacks no more than the sizes checked here.

    Raises:
        TooLarge: too many parts, too much text, or more than `max_bytes` in all.
    """
    members = file.infolist()
    texts = [member for member in members if _ZIPPED_TEXT.search(member.filename)]
    bomb = any(member.file_size > member.compress_size * MAX_ZIP_RATIO + 1_000_000 for member in texts)
    text, total = sum(member.file_size for member in texts), sum(member.file_size for member in members)
    too_much = text > MAX_TEXT_BYTES or (max_bytes is not None and total > max_bytes)
    if bomb or too_much or len(members) > MAX_ZIP_MEMBERS:
        raise TooLarge(
            msg(
                "'{}' would unpack to {} parts and {} bytes, more than a book has.",
                name,
                f"{len(members):,}",
                f"{total:,}",
            ),
            hint="add a copy from a source that you trust",
        )


def read_bytes(path: Path) -> bytes:
    """Read the whole file, or raise a clear error: missing, a folder, not permitted, too large."""
    try:
        size = path.stat().st_size
        if size > MAX_TEXT_BYTES:
            raise TooLarge(
                msg("'{}' has {} bytes; text files are read up to {}.", path.name, f"{size:,}", f"{MAX_TEXT_BYTES:,}")
            )
        return path.read_bytes()
    except OSError as error:
        raise UnreadableBook(
            msg("'{}' cannot be read: {}.", path, error.strerror or error), hint="check the path and its permissions"
        ) from error


def read_text(path: Path) -> SourceText:
    """Decode a text file.

    Raises:
        UnreadableBook: the file cannot be read, or holds binary data.
        TooLarge: more than `MAX_TEXT_BYTES`.
    """
    return decode(read_bytes(path), whole_letters(path.name))


def decode(data: bytes, name: str) -> SourceText:
    """Decode bytes by byte-order mark, as UTF-8, as UTF-8 with a few foreign lines, or by the likeliest encoding."""
    for mark, encoding in _BOMS:
        if data.startswith(mark):
            return SourceText(clean_text(data.decode(encoding, errors="replace")))
    if looks_binary(data):
        raise UnreadableBook(msg("'{}' holds binary data, not text.", name), hint="give a text file, a PDF or an EPUB")
    try:
        return SourceText(clean_text(data.decode("utf-8")))
    except UnicodeDecodeError:
        return _decode_foreign(data, name)


def looks_binary(data: bytes) -> bool:
    """True if the first 64 KiB hold NUL bytes or more than 5 % of other control characters."""
    head = data[:65536]
    if not head:
        return False
    controls = sum(head.count(bytes([code])) for code in (*range(1, 8), *range(14, 27), *range(28, 32), 127))
    return b"\x00" in head or controls > 0.05 * len(head)


def _decode_foreign(data: bytes, name: str) -> SourceText:
    lines = data.split(b"\n")
    decoded: list[str] = []
    foreign = 0
    for line in lines:
        try:
            decoded.append(line.decode("utf-8"))
        except UnicodeDecodeError:
            foreign += 1
            decoded.append(line.decode("cp1252", errors="replace"))
    multibyte = sum(1 for line in decoded if not line.isascii()) - foreign
    if multibyte >= foreign:
        # Mostly good UTF-8 with a few pasted lines: guessing one encoding for all would ruin the good lines.
        note = f"'{name}': {foreign} lines are not UTF-8 and were read as Windows-1252"
        return SourceText(clean_text("\n".join(decoded)), note)
    alone = len(_FOREIGN_ALONE.findall(data))
    if 2 * alone > sum(1 for byte in data if byte > 127):
        # Accents and curly quotes between plain letters: too few for statistics, and Windows wrote most of it. In other
        # scripts foreign bytes stand side by side, however much code there is between the words.
        return SourceText(clean_text(data.decode("cp1252", errors="replace")), f"'{name}' was read as Windows-1252")
    from charset_normalizer import from_bytes

    best = from_bytes(data).best()
    if best is None:
        raise UnreadableBook(msg("'{}' is in an unknown encoding.", name), hint="save it as UTF-8")
    return SourceText(clean_text(str(best)), f"'{name}' was read as {best.encoding}")


def included_file(name: str, file: Path, root: Path) -> Path | None:
    """Find the file that `name` means in `file`; a leading slash begins at `root`. None if it is outside `root`."""
    root = root.resolve()
    base = root if name.startswith("/") else file.resolve().parent
    try:
        target = (base / name.lstrip("/")).resolve()
        inside = target.is_relative_to(root) and target.is_file() and target.stat().st_size <= MAX_INCLUDED_BYTES
    except (OSError, RuntimeError, ValueError):  # a name that no file can have, or links in a ring
        return None
    return target if inside and os.access(target, os.R_OK) else None


def included_lines(target: Path, options: Mapping[str, str]) -> list[str]:
    """Return the lines of a file that Sphinx's options select: `start-after`, `end-before`, `lines` and their kin."""
    lines = clean_text(target.read_text(encoding="utf-8", errors="replace")).split("\n")
    start = _find(lines, options.get("start-after"), 1) or _find(lines, options.get("start-at"), 0) or 0
    rest = lines[start:]
    end = _find(rest, options.get("end-before"), 0) or _find(rest, options.get("end-at"), 1)
    rest = rest[:end] if end is not None else rest
    wanted = options.get("lines")
    if not wanted:
        return rest
    chosen: list[str] = []
    for part in wanted.split(","):
        bounds = re.fullmatch(r"\s*(\d{0,9})\s*(-?)\s*(\d{0,9})\s*", part)
        if bounds is not None and (bounds[1] or bounds[3]):
            first = max(1, int(bounds[1] or 1))
            last = int(bounds[3]) if bounds[3] else (len(rest) if bounds[2] else first)
            chosen.extend(rest[first - 1 : last])
    return chosen


def _find(lines: Sequence[str], wanted: str | None, after: int) -> int | None:
    if not wanted:
        return None
    return next((number + after for number, line in enumerate(lines) if wanted in line), None)
