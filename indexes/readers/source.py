"""Bytes of a text file to clean text. Knows encodings and control characters, nothing of formats."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from indexes.errors import TooLarge, UnreadableBook

MAX_TEXT_BYTES = 256 * 1024 * 1024
"""Largest text file that is read whole; books of words are a thousand times smaller."""

_BOMS = (
    (b"\xef\xbb\xbf", "utf-8-sig"),
    (b"\xff\xfe\x00\x00", "utf-32"),
    (b"\x00\x00\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)
# Zero-width characters and soft hyphens hide inside identifiers copied from web pages and defeat every search.
_INVISIBLE = re.compile("[\u200b-\u200d\u2060\ufeff\u00ad]")
_CONTROL = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")
_NEWLINES = re.compile("\r\n?|\x0c|\u2028|\u2029|\x85")


@dataclass(frozen=True, slots=True)
class SourceText:
    """The text of a file, and what had to be guessed to get it (empty when nothing was)."""

    text: str
    note: str = ""


def clean_text(text: str) -> str:
    """Unix newlines, no control or zero-width characters, no lone surrogates, plain spaces for unbroken ones."""
    text = _NEWLINES.sub("\n", text)
    return _CONTROL.sub("", _INVISIBLE.sub("", text)).replace("\xa0", " ")


def read_bytes(path: Path) -> bytes:
    """The whole file, or a clear error: missing, a folder, not permitted, too large."""
    try:
        size = path.stat().st_size
        if size > MAX_TEXT_BYTES:
            raise TooLarge(f"'{path.name}' has {size:,} bytes; text files are read up to {MAX_TEXT_BYTES:,}.")
        return path.read_bytes()
    except OSError as error:
        raise UnreadableBook(
            f"'{path}' cannot be read: {error.strerror or error}.", hint="check the path and its permissions"
        ) from error


def read_text(path: Path) -> SourceText:
    """Decode a text file.

    Raises:
        UnreadableBook: the file cannot be read, or holds binary data.
        TooLarge: more than `MAX_TEXT_BYTES`.
    """
    return decode(read_bytes(path), path.name)


def decode(data: bytes, name: str) -> SourceText:
    """Decode bytes: by byte-order mark, as UTF-8, as UTF-8 with a few foreign bytes, or by the likeliest encoding."""
    for mark, encoding in _BOMS:
        if data.startswith(mark):
            return SourceText(clean_text(data.decode(encoding, errors="replace")))
    if looks_binary(data):
        raise UnreadableBook(f"'{name}' holds binary data, not text.", hint="give a text file, a PDF or an EPUB")
    try:
        return SourceText(clean_text(data.decode("utf-8")))
    except UnicodeDecodeError:
        return _decode_foreign(data, name)


def looks_binary(data: bytes) -> bool:
    """True when the first 64 KiB hold NUL bytes or more than 5 % of other control characters."""
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
    high = sum(1 for byte in data if byte > 127)
    if high < 0.3 * len(data):
        # Mostly ASCII with some accents and curly quotes: too little for statistics, and Windows wrote most of it.
        return SourceText(clean_text(data.decode("cp1252", errors="replace")), f"'{name}' was read as Windows-1252")
    from charset_normalizer import from_bytes

    best = from_bytes(data).best()
    if best is None:
        raise UnreadableBook(f"'{name}' is in no encoding that could be recognised.", hint="save it as UTF-8")
    return SourceText(clean_text(str(best)), f"'{name}' was read as {best.encoding}")
