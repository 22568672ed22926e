"""Which reader reads a path, and how what it read becomes a `Book`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from indexes.errors import Cancelled, TooLarge, UnreadableBook, UnsupportedFormat
from indexes.readers.elements import (
    Parsed,
    chapters_in_file,
    file_as_chapter,
    merge_health,
    name_as_title,
    title_of,
)
from indexes.readers.folder import files_below, natural_key, reading_order
from indexes.types import Book, BookHealth, Section

CancelCheck = Callable[[], bool]
ReadListener = Callable[[int, int], None]
"""Called with `(done, total)`: pages of a PDF, files of a folder."""


@dataclass(frozen=True, slots=True)
class _Format:
    """A format's name, its reader as `module:function`, imported when first used, and what it wants to be told."""

    name: str
    reader: str
    wants: tuple[str, ...] = ()


_MARKDOWN = _Format("markdown", "markdown:read_markdown", ("root",))
_RST = _Format("rst", "rst:read_rst", ("root",))
_TEXT = _Format("text", "plain_text:read_plain_text")
_HTML = _Format("html", "html:read_html")
_CODE = _Format("code", "code:read_code")

TEXT_FORMATS: dict[str, _Format] = {
    ".md": _MARKDOWN,
    ".markdown": _MARKDOWN,
    ".qmd": _MARKDOWN,
    ".rst": _RST,
    ".txt": _TEXT,
    ".html": _HTML,
    ".htm": _HTML,
    ".xhtml": _HTML,
    ".ipynb": _Format("ipynb", "notebook:read_notebook"),
    **dict.fromkeys((".cu", ".cuh", ".hip", ".cl", ".c", ".cc", ".cpp", ".cxx", ".h", ".hpp", ".py"), _CODE),
}
"""Files that are chapters when they lie in a folder."""
WHOLE_BOOKS: dict[str, _Format] = {
    ".pdf": _Format("pdf", "pdf:read_pdf", ("cancelled", "progress", "ocr")),
    ".epub": _Format("epub", "epub:read_epub", ("cancelled", "progress")),
    ".docx": _Format("docx", "word:read_word", ("cancelled", "progress")),
    ".pptx": _Format("pptx", "slides:read_slides", ("cancelled", "progress")),
}
"""Files that are books of their own wherever they lie."""

_ZIPPED = frozenset({"epub", "docx", "pptx"})
_MAGIC = {
    b"%PDF-": "a PDF", b"PK\x03\x04": "a zip archive", b"\x89PNG": "a PNG image", b"\xff\xd8\xff": "a JPEG image",
    b"GIF8": "a GIF image", b"\x7fELF": "a program", b"\x1f\x8b": "gzip data", b"{\\rtf": "an RTF document",
    b"MZ\x90": "a program", b"\xd0\xcf\x11\xe0": "an old Office document", b"SQLite format 3": "a database",
}  # fmt: skip


def find_books(path: Path) -> list[Path]:
    """The books at a path: the file itself; or the folder, if it holds text files, and each whole book below.

    Raises:
        UnreadableBook: nothing is there.
        UnsupportedFormat: a file that no reader reads, or a folder without any book.
    """
    if path.is_file():
        _format_of(path.name)
        return [path]
    if not path.is_dir():
        raise UnreadableBook(f"'{path}' does not exist.", hint="check the path")
    books = [path] if files_below(path, TEXT_FORMATS) else []
    whole = files_below(path, WHOLE_BOOKS)
    books.extend(sorted(whole, key=lambda book: natural_key(str(book.relative_to(path)))))
    if not books:
        raise UnsupportedFormat(f"The folder '{path}' holds no book.", hint=f"formats read: {readable_endings()}")
    return books


def readable_endings() -> str:
    """The endings that are read, for messages."""
    return " ".join(sorted((*TEXT_FORMATS, *WHOLE_BOOKS)))


def book_files(path: Path) -> list[Path]:
    """The files that make up the book at `path`, in reading order; the file itself for a book of one file."""
    return reading_order(path, files_below(path, TEXT_FORMATS)) if path.is_dir() else [path]


def read_book(
    path: Path,
    *,
    cancelled: CancelCheck | None = None,
    progress: ReadListener | None = None,
    name: str | None = None,
    ocr: bool = False,
) -> Book:
    """Read a file, or a folder of text files, as one book.

    Args:
        path: the file or folder.
        cancelled: asked between pages and files.
        progress: told how far reading has come.
        name: the file's own name, when `path` is a temporary one.
        ocr: recognise the text of PDF pages that are pictures.

    Raises:
        UnsupportedFormat: no reader for this ending.
        UnreadableBook: broken, encrypted, without text, or not what its ending says.
        TooLarge: larger than a reader's limit.
        InvalidInput: `ocr` without the extra `ocr`.
        Cancelled: `cancelled` said so.
    """
    if path.is_dir():
        return _read_folder(path, cancelled, progress)
    if not path.exists():
        raise UnreadableBook(f"'{path}' does not exist.", hint="check the path")
    name = name or path.name
    form = _format_of(name)
    _check_content(path, name, form)
    parsed = _read(form, path, path.parent, cancelled, progress, ocr=ocr)
    title, elements = title_of(parsed)
    title = title or name_as_title(Path(name).stem)
    sections = chapters_in_file(elements, title)
    _require_text(sections, name)
    return Book(title, form.name, sections, parsed.pages, parsed.page_labels, parsed.health)


def _read(
    form: _Format,
    path: Path,
    root: Path,
    cancelled: CancelCheck | None,
    progress: ReadListener | None,
    *,
    ocr: bool = False,
) -> Parsed:
    module, function = form.reader.split(":")
    reader = getattr(import_module(f"indexes.readers.{module}"), function)
    told = {"root": root, "cancelled": cancelled, "progress": progress, "ocr": ocr}
    try:
        parsed: Parsed = reader(path, **{name: told[name] for name in form.wants})
    except RecursionError as error:
        raise UnreadableBook(f"'{path.name}' is nested too deeply to be read.") from error
    except MemoryError as error:
        raise TooLarge(f"'{path.name}' does not fit in memory.") from error
    return parsed


def _read_folder(root: Path, cancelled: CancelCheck | None, progress: ReadListener | None) -> Book:
    files = book_files(root)
    if not files:
        raise UnsupportedFormat(f"The folder '{root}' holds no text files.", hint=f"formats read: {readable_endings()}")
    sections: list[Section] = []
    healths: list[BookHealth] = []
    book_title: str | None = None
    chapter = 0
    for number, path in enumerate(files):
        if cancelled is not None and cancelled():
            raise Cancelled(f"Reading '{root.name}' was cancelled.")
        relative = path.relative_to(root).as_posix()
        try:
            form = _format_of(path.name)
            _check_content(path, relative, form)
            parsed = _read(form, path, root, cancelled, None)
        except (UnreadableBook, UnsupportedFormat, TooLarge) as error:
            healths.append(BookHealth(skipped_files=(relative,), notes=(error.message,)))
            continue
        title, elements = title_of(parsed)
        if path.parent == root and path.stem.casefold() in ("index", "readme", "_index") and book_title is None:
            book_title = title
        own = path.parent.name if path.stem.casefold() in ("index", "readme", "_index") else path.stem
        found = file_as_chapter(elements, chapter + 1, title or name_as_title(own))
        if found:
            chapter += 1
            sections.extend(found)
        healths.append(parsed.health)
        if progress is not None:
            progress(number + 1, len(files))
    _require_text(tuple(sections), root.name)
    health = merge_health(healths)
    return Book(book_title or name_as_title(root.resolve().name), "folder", tuple(sections), health=health)


def _format_of(name: str) -> _Format:
    suffix = Path(name).suffix.casefold()
    form = TEXT_FORMATS.get(suffix) or WHOLE_BOOKS.get(suffix)
    if form is None:
        what = f"files ending in '{suffix}'" if suffix else "files without an ending"
        raise UnsupportedFormat(f"'{name}': {what} are not read.", hint=f"formats read: {readable_endings()}")
    return form


def _check_content(path: Path, name: str, form: _Format) -> None:
    """Refuse a file whose first bytes say that it is something else than its ending says."""
    try:
        with path.open("rb") as file:
            head = file.read(1024)
    except OSError as error:
        raise UnreadableBook(f"'{name}' cannot be read: {error.strerror or error}.") from error
    if not head:
        raise UnreadableBook(f"'{name}' is empty.")
    if form.name == "pdf":
        if b"%PDF-" not in head:
            raise UnreadableBook(f"'{name}' ends in .pdf but is no PDF.", hint="give the file its right ending")
        return
    kind = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)
    if kind is not None and not (form.name in _ZIPPED and kind == "a zip archive"):
        raise UnreadableBook(
            f"'{name}' is {kind}, not what its ending says.", hint="give the file its right ending, or another file"
        )


def _require_text(sections: tuple[Section, ...], name: str) -> None:
    if not any(character.isalnum() for section in sections for character in section.text):
        raise UnreadableBook(f"'{name}' holds no text.", hint="a scanned book needs OCR before it can be added")
