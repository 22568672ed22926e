"""What is a book, which reader reads it, and how its headings and blocks become a `Book`.

A folder is one book, too: which of its files are chapters, and in what order, is found at the end of this module.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from indexes.disk import file_sha256
from indexes.errors import Cancelled, CoalesceError, TooLarge, UnreadableBook, UnsupportedFormat
from indexes.messages import msg
from indexes.readers.elements import Parsed, chapters_in_file, file_as_chapter, name_as_title, title_of, whole_letters
from indexes.readers.source import MAX_TEXT_BYTES, unforeseen
from indexes.types import Book, BookHealth, Section

CancelCheck = Callable[[], bool]
ReadListener = Callable[[int, int], None]
"""Called with `(done, total)`: pages of a PDF, files of a folder."""


@dataclass(frozen=True, slots=True)
class _Format:
    """A format's name, its reader as `module:function` (imported when first used), and the options it takes."""

    name: str
    reader: str
    options: tuple[str, ...] = ()


_MARKDOWN = _Format("markdown", "markdown:read_markdown", ("root",))
_RST = _Format("rst", "rst:read_rst", ("root",))
_TEXT = _Format("text", "text:read_text_file")
_HTML = _Format("html", "web_page:read_html")
_CODE = _Format("code", "text:read_code")

TEXT_FORMATS: dict[str, _Format] = {
    ".md": _MARKDOWN,
    ".markdown": _MARKDOWN,
    ".qmd": _MARKDOWN,
    ".rmd": _MARKDOWN,
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
    ".pdf": _Format("pdf", "pdf.document:read_pdf", ("cancelled", "progress", "ocr")),
    ".epub": _Format("epub", "epub:read_epub", ("cancelled", "progress")),
    ".docx": _Format("docx", "office:read_word", ("cancelled", "progress")),
    ".pptx": _Format("pptx", "office:read_slides", ("cancelled", "progress")),
}
"""Files that are books of their own wherever they lie."""

_ZIPPED = frozenset({"epub", "docx", "pptx"})
_INDEX_FILES = frozenset({"index", "readme", "_index"})
_MAGIC = {
    b"%PDF-": "a PDF", b"PK\x03\x04": "a zip archive", b"\x89PNG": "a PNG image", b"\xff\xd8\xff": "a JPEG image",
    b"GIF8": "a GIF image", b"\x7fELF": "a program", b"\x1f\x8b": "gzip data", b"{\\rtf": "an RTF document",
    b"MZ\x90": "a program", b"\xd0\xcf\x11\xe0": "an old Office document", b"SQLite format 3": "a database",
}  # fmt: skip


def find_books(path: Path, also: Collection[str] = ()) -> list[Path]:
    """Find the books at a path: the file itself; or the folder, if it holds text files, and each whole book below.

    Args:
        also: endings of whole books that readers outside this folder read.

    Raises:
        UnreadableBook: the path does not exist, or may not be looked at.
        UnsupportedFormat: no reader reads the file, or the folder holds no book.
    """
    try:
        is_file, is_folder = path.is_file(), path.is_dir()
    except OSError as error:
        raise _not_permitted(path, error) from error
    if is_file:
        if path.suffix.casefold() not in also:
            _format_of(path.name)
        return [path]
    if not is_folder:
        raise UnreadableBook(msg("'{}' does not exist.", path), hint="check the path")
    books = [path] if files_below(path, TEXT_FORMATS) else []
    whole = files_below(path, {*WHOLE_BOOKS, *also} - TEXT_FORMATS.keys())
    books.extend(sorted(whole, key=lambda book: natural_key(str(book.relative_to(path)))))
    if not books:
        raise UnsupportedFormat(
            msg("The folder '{}' holds no book.", path), hint=msg("These formats are read: {}.", readable_endings())
        )
    return books


def readable_endings(also: Collection[str] = ()) -> str:
    """List the endings that are read, for messages; `also` as for `find_books`."""
    return " ".join(sorted({*TEXT_FORMATS, *WHOLE_BOOKS, *also}))


def book_files(path: Path) -> list[Path]:
    """List the files of the book at `path` in reading order; a book of one file is that file."""
    return reading_order(path, files_below(path, TEXT_FORMATS)) if path.is_dir() else [path]


def document_id_of(source: str) -> str:
    """Make a document's id from its resolved path, or from the digest of an upload's content."""
    return hashlib.sha256(source.encode("utf-8", errors="surrogateescape")).hexdigest()[:16]


def content_digest(path: Path, cancelled: CancelCheck | None = None) -> str:
    """Return the SHA-256 of a file, or of a folder's book files and their names.

    Raises:
        UnreadableBook: a file is missing or may not be read.
        Cancelled: `cancelled` returned True.
    """
    try:
        if not path.is_dir():
            return file_sha256(path)
        whole = hashlib.sha256()
        for file in book_files(path):
            if cancelled is not None and cancelled():
                raise Cancelled(f"Adding '{path.name}' was cancelled.")
            name = file.relative_to(path).as_posix()
            whole.update(f"{name}\0{file_sha256(file)}\n".encode("utf-8", errors="surrogateescape"))
        return whole.hexdigest()
    except OSError as error:
        raise _not_permitted(path, error) from error


def _not_permitted(path: Path, error: OSError) -> UnreadableBook:
    return UnreadableBook(
        msg("'{}' cannot be read: {}.", error.filename or path, error.strerror),
        hint="check the path and its permissions",
    )


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
        progress: called with how many pages or files are done, and of how many.
        name: the file's own name, if `path` is a temporary one.
        ocr: recognise the text of PDF pages that are pictures.

    Raises:
        UnsupportedFormat: no reader reads this ending.
        UnreadableBook: broken, encrypted, without text, or not what its ending says.
        TooLarge: larger than a reader's limit.
        InvalidInput: `ocr` without the extra `ocr`.
        Cancelled: `cancelled` returned True.
    """
    if path.is_dir():
        with _readable(path.name):
            return _read_folder(path, cancelled, progress)
    if not path.exists():
        raise UnreadableBook(msg("'{}' does not exist.", path), hint="check the path")
    name = name or path.name
    with _readable(name):
        form, parsed = _read_file(path, name, root=path.parent, cancelled=cancelled, progress=progress, ocr=ocr)
        title, elements = title_of(parsed)
        title = title or name_as_title(Path(name).stem)
        sections = chapters_in_file(elements, title)
    _require_text(sections, name, can_be_scanned=form.name == "pdf")
    return Book(title, form.name, sections, parsed.pages, parsed.page_labels, parsed.health)


@contextmanager
def _readable(name: str) -> Iterator[None]:
    """Refuse a file by its name for whatever its reader raises: a file is a stranger's, and nobody foresees all."""
    try:
        yield
    except CoalesceError:
        raise
    except RecursionError as error:
        raise UnreadableBook(msg("'{}' is nested too deeply to be read.", name)) from error
    except MemoryError as error:
        raise TooLarge(msg("'{}' does not fit in memory.", name)) from error
    except Exception as error:
        raise UnreadableBook(unforeseen(f"'{name}'", error), hint="Please report it.") from error


def _read_folder(root: Path, cancelled: CancelCheck | None, progress: ReadListener | None) -> Book:
    files = book_files(root)
    if not files:
        raise UnsupportedFormat(
            msg("The folder '{}' holds no text files.", root),
            hint=msg("These formats are read: {}.", readable_endings()),
        )
    sections: list[Section] = []
    healths: list[BookHealth] = []
    book_title: str | None = None
    chapter = 0
    for path, parsed in _read_chapters(root, files, cancelled, progress):
        healths.append(parsed.health)
        title, elements = title_of(parsed)
        opener = path.stem.casefold() in _INDEX_FILES
        if opener and path.parent == root and book_title is None:
            book_title = title
        own_name = path.parent.resolve().name if opener else path.stem
        found = file_as_chapter(elements, chapter + 1, title or name_as_title(own_name))
        if found:
            chapter += 1
            sections.extend(found)
    _require_text(sections, root.name)
    health = _merged(healths)
    return Book(book_title or name_as_title(root.resolve().name), "folder", tuple(sections), health=health)


def _read_chapters(
    root: Path, files: list[Path], cancelled: CancelCheck | None, progress: ReadListener | None
) -> Iterator[tuple[Path, Parsed]]:
    """Read a folder's files in order; a file that cannot be read is empty, and its health says so."""
    for number, path in enumerate(files, 1):
        if cancelled is not None and cancelled():
            raise Cancelled(msg("Reading '{}' was cancelled.", root.name))
        relative = whole_letters(path.relative_to(root).as_posix())
        try:
            with _readable(relative):
                form, parsed = _read_file(path, relative, root=root, cancelled=cancelled)
            if form is _CODE:  # accents in a comment, in a guessed encoding, are no doubt about the book
                parsed = replace(parsed, health=BookHealth())
        except (UnreadableBook, UnsupportedFormat, TooLarge) as error:
            blank = TEXT_FORMATS[path.suffix.casefold()] is _CODE and not path.stat().st_size
            lost = BookHealth() if blank else BookHealth(skipped_files=(relative,), notes=(error.message,))
            parsed = Parsed((), health=lost)
        yield path, parsed
        if progress is not None:
            progress(number, len(files))


def _read_file(path: Path, name: str, **options: Any) -> tuple[_Format, Parsed]:
    form = _format_of(name)
    _check_content(path, name, form)
    module, function = form.reader.split(":")
    reader = getattr(import_module(f"indexes.readers.{module}"), function)
    parsed: Parsed = reader(path, **{option: options.get(option) for option in form.options})
    return form, parsed


def _format_of(name: str) -> _Format:
    suffix = Path(name).suffix.casefold()
    form = TEXT_FORMATS.get(suffix) or WHOLE_BOOKS.get(suffix)
    if form is None:
        what = msg("files ending in {}", f"'{suffix}'") if suffix else "files without an ending"
        raise UnsupportedFormat(
            msg("{}: {} are not read.", f"'{name}'", what), hint=msg("These formats are read: {}.", readable_endings())
        )
    return form


def _check_content(path: Path, name: str, form: _Format) -> None:
    """Refuse a file whose first bytes contradict its ending."""
    try:
        with path.open("rb") as file:
            head = file.read(1024)
    except OSError as error:
        raise UnreadableBook(msg("'{}' cannot be read: {}.", name, error.strerror or error)) from error
    if not head:
        raise UnreadableBook(msg("'{}' is empty.", name))
    if form.name == "pdf":
        if b"%PDF-" not in head:
            raise UnreadableBook(
                msg("'{}' ends in .pdf but is not a PDF.", name), hint="give the file its right ending"
            )
        return
    kind = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)
    if kind is not None and not (form.name in _ZIPPED and kind == "a zip archive"):
        raise UnreadableBook(
            msg("'{}' is {}, not what its ending says.", name, kind),
            hint="give the file its right ending, or another file",
        )


def _require_text(sections: Sequence[Section], name: str, *, can_be_scanned: bool = False) -> None:
    if not any(character.isalnum() for section in sections for character in section.text):
        scanned, wordless = "a scanned book needs OCR before it can be added", "pictures, markup and signs are not read"
        raise UnreadableBook(msg("'{}' holds no text.", name), hint=scanned if can_be_scanned else wordless)
    characters = sum(len(section.text) for section in sections)
    if characters > MAX_TEXT_BYTES:  # a page of a few bytes may show the same text a million times
        raise TooLarge(
            msg(
                "'{}' holds {} characters of text; books are read up to {}.",
                name,
                f"{characters:,}",
                f"{MAX_TEXT_BYTES:,}",
            )
        )


def _merged(parts: Sequence[BookHealth]) -> BookHealth:
    """Join the reports of a book's files."""
    names = [field.name for field in fields(BookHealth)]
    return BookHealth(**{name: tuple(entry for part in parts for entry in getattr(part, name)) for name in names})


# --- folders

_SKIPPED_FOLDERS = frozenset(
    {"licenses", "license", "licences", "licence", "node_modules", "__pycache__", "_build", "_site", "site-packages",
     "venv", "target", "dist"}
)  # fmt: skip
_LICENCE_FILE = re.compile(
    r"^(licen[sc]es?|notice|copying|copyright|code[-_]of[-_]conduct|contributing)([-_.].*)?$",
    re.IGNORECASE,
)
_BUILD_FILES = frozenset({"conf.py", "setup.py", "cmakelists.txt", "requirements.txt", "__init__.py", "robots.txt"})
_OPENERS = ("index", "readme", "_index", "preface", "foreword", "introduction", "intro", "overview", "home")
_CLOSERS = ("appendix", "glossary", "references", "bibliography", "afterword", "changelog")
_ORDER_FILES = ("_toc.yml", "_quarto.yml", "_bookdown.yml", "mkdocs.yml", "SUMMARY.md", "src/SUMMARY.md", "toc.yml")
_TOCTREE = re.compile(r"^(?:[ \t]*\.\. toctree::|[`:]{3,}\{(?:toctree|tableofcontents)\}).*$", re.MULTILINE)
_FENCE, _UNINDENTED = re.compile(r"\n[`:]{3,}"), re.compile(r"\n(?=\S)")
_ENDINGS_LEFT_OUT = ("", ".rst", ".md", ".ipynb", ".qmd", ".txt")
_PATH_LIKE = re.compile(r"[\w./][\w./-]*")


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Make a sort key that puts `2-b` before `10-a`."""
    return tuple(
        (0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name.casefold()) if part
    )


def files_below(root: Path, suffixes: Iterable[str]) -> list[Path]:
    """List files with these endings below a folder, without licences, hidden and build folders.

    Links that lead out of the folder or nowhere are left out, and what is no file, such as a pipe.
    """
    wanted = frozenset(suffixes)
    found: list[Path] = []
    for folder, names, files in os.walk(root):
        names[:] = sorted(
            name for name in names if not name.startswith(".") and name.casefold() not in _SKIPPED_FOLDERS
        )
        for name in files:
            path = Path(folder, name)
            if path.suffix.casefold() not in wanted or name.startswith("."):
                continue
            if _LICENCE_FILE.match(name) or name.casefold() in _BUILD_FILES:
                continue
            if not path.is_file() or (path.is_symlink() and not path.resolve().is_relative_to(root.resolve())):
                continue
            found.append(path)
    return found


def reading_order(root: Path, files: list[Path]) -> list[Path]:
    """Order chapters as a table of contents in the folder says, else by name, with openers first."""
    by_name = sorted(files, key=lambda path: _order_key(path.relative_to(root)))
    named = _declared_order(root, by_name)
    if not named:
        return by_name
    # A file that the table of contents does not name follows the last named file of its folder; an opener comes first.
    openers: dict[Path, list[Path]] = {}
    others: dict[Path, list[Path]] = {}
    known = set(named)
    for path in by_name:
        if path not in known:
            kind = openers if _place(path.stem) == 0 else others
            kind.setdefault(path.parent, []).append(path)
    last = {path.parent: path for path in named}
    placed: list[Path] = []
    for path in named:
        placed.extend(openers.pop(path.parent, []))
        placed.append(path)
        if last[path.parent] == path:
            placed.extend(others.pop(path.parent, []))
    done = set(placed)
    return [*placed, *(path for path in by_name if path not in done)]


def _order_key(relative: Path) -> tuple[tuple[int, tuple[tuple[int, int, str], ...]], ...]:
    keys: list[tuple[int, tuple[tuple[int, int, str], ...]]] = []
    for part in relative.parts[:-1]:
        keys.append((_place(part), natural_key(part)))
    stem = relative.stem.casefold()
    # Files of a folder come before its subfolders, its opener first of all.
    keys.append((_place(stem), natural_key(stem)) if _place(stem) else (0, natural_key(str(_OPENERS.index(stem)))))
    return tuple(keys)


def _place(name: str) -> int:
    stem = name.casefold()
    if stem in _OPENERS:
        return 0
    return 2 if stem in _CLOSERS else 1


def _declared_order(root: Path, files: list[Path]) -> list[Path]:
    """Files as the folder's own table of contents lists them; empty if it has none."""
    known = {place: path for path in files for place in (os.path.normpath(path.absolute()), str(path.resolve()))}
    for name in _ORDER_FILES:
        order_file = root / name
        if order_file.is_file():
            names = _PATH_LIKE.findall(order_file.read_text(encoding="utf-8", errors="replace"))
            order = _named_files(names, order_file.parent, known)
            if len(order) > 1:
                return order
    for stem in ("index.rst", "index.md"):
        if (root / stem).is_file():
            order = _follow_toctrees(root / stem, known)
            if len(order) > 1:
                return order
    return []


def _follow_toctrees(start: Path, known: dict[str, Path]) -> list[Path]:
    order: dict[Path, None] = {}
    waiting = _named_files([start.name], start.parent, known)
    while waiting:
        path = waiting.pop()
        if path not in order:
            order[path] = None
            names = _toctree_entries(path.read_text(encoding="utf-8", errors="replace"))
            waiting.extend(reversed(_named_files(names, path.parent, known)))
    return list(order)


def _toctree_entries(text: str) -> Iterator[str]:
    """What the directives of a file list; each ends before the next one, so the time is linear in the text."""
    directives = list(_TOCTREE.finditer(text))
    ends = [match.start() for match in directives[1:]] + [len(text)]
    for match, end in zip(directives, ends, strict=False):
        closing = _FENCE if match[0].lstrip().startswith(("`", ":")) else _UNINDENTED
        stop = closing.search(text, match.end(), end)
        for line in text[match.end() : stop.start() if stop else end].split("\n"):
            entry = re.sub(r"^.*<([^<>]+)>\s*$", r"\1", line.strip())
            if entry and not entry.startswith(":"):
                yield entry


def _named_files(names: Iterable[str], base: Path, known: dict[str, Path]) -> list[Path]:
    """The book's files among these names, which may leave out the ending; no other file is looked at."""
    found: dict[Path, None] = {}
    for name in dict.fromkeys(names):
        place = os.path.normpath(base.absolute() / name.lstrip("/"))
        path = next((known[place + ending] for ending in _ENDINGS_LEFT_OUT if place + ending in known), None)
        if path is not None:
            found[path] = None
    return list(found)
