"""EPUB: the chapters of its spine, read in memory; nothing is unpacked to disk."""

from __future__ import annotations

import posixpath
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

from bs4.element import Tag

from indexes.errors import Cancelled, UnreadableBook
from indexes.readers.elements import Block, Element, Heading, Parsed, one_line, same_title
from indexes.readers.html import elements_of, make_soup
from indexes.readers.source import check_archive, clean_text, decode
from indexes.types import BookHealth

_TEXT_TYPES = frozenset({"application/xhtml+xml", "text/html", "text/x-oeb1-document"})
_NCX_TYPE = "application/x-dtbncx+xml"


def read_epub(
    path: Path,
    *,
    cancelled: Callable[[], bool] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Parsed:
    """Read an EPUB in the order of its spine.

    Raises:
        UnreadableBook: not a zip file, not an EPUB, encrypted, or damaged.
        TooLarge: it would unpack to more than a book can hold.
        Cancelled: `cancelled` returned True between two chapters.
    """
    with _damage(path.name), zipfile.ZipFile(path) as file:
        check_archive(file, path.name)
        return _read(file, path.name, cancelled, progress)


@contextmanager
def _damage(name: str) -> Iterator[None]:
    """Turn what `zipfile` raises over a damaged archive into UnreadableBook."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError) as error:
        raise UnreadableBook(
            f"'{name}' is damaged or cut short: {str(error).rstrip('.')}.", hint="copy or download the file again"
        ) from error


def _part(file: zipfile.ZipFile, member: str) -> bytes | None:
    """A file of the archive, or None if it is not there."""
    try:
        return file.read(member)
    except KeyError:
        return None
    except RuntimeError as error:
        raise _encrypted(Path(str(file.filename)).name) from error


def _encrypted(name: str) -> UnreadableBook:
    return UnreadableBook(f"'{name}' is encrypted.", hint="remove its protection first")


def _read(
    file: zipfile.ZipFile,
    name: str,
    cancelled: Callable[[], bool] | None,
    progress: Callable[[int, int], None] | None,
) -> Parsed:
    root = make_soup(_part(file, "META-INF/container.xml") or b"", "xml").find("rootfile")
    package_path = str(root.get("full-path") or "") if isinstance(root, Tag) else ""
    package_file = _part(file, package_path)
    if package_file is None:
        raise UnreadableBook(
            f"'{name}' is not an EPUB: it has no package file '{package_path}'.", hint="copy or download the file again"
        )
    package = make_soup(package_file, "xml")
    if _text_is_encrypted(_part(file, "META-INF/encryption.xml") or b""):
        raise _encrypted(name)
    base = posixpath.dirname(package_path)
    items = {str(item.get("id")): item for item in package.find_all("item")}
    spine = [items[ref] for itemref in package.find_all("itemref") if (ref := str(itemref.get("idref"))) in items]
    titles = _titles(file, base, list(items.values()))
    elements: list[Element] = []
    skipped: list[str] = []
    notes: list[str] = []
    for number, item in enumerate(spine, 1):
        if cancelled is not None and cancelled():
            raise Cancelled(f"Reading '{name}' was cancelled at part {number} of {len(spine)}.")
        member = _member(base, str(item.get("href", "")))
        if _is_nav(item) or str(item.get("media-type", "")) not in _TEXT_TYPES:
            continue
        data = _part(file, member)
        try:
            source = None if data is None else decode(data, member)
        except UnreadableBook:
            source = None
        if source is None:
            skipped.append(member)
            continue
        notes.extend(source.notes)
        elements.extend(_chapter(source.text, titles.get(member)))
        if progress is not None:
            progress(number, len(spine))
    title = package.find("title")
    named = one_line(clean_text(title.get_text())) if isinstance(title, Tag) else ""
    health = BookHealth(skipped_files=tuple(skipped), notes=tuple(notes))
    return Parsed(tuple(elements), named or None, health=health)


def _chapter(text: str, title: str | None) -> list[Element]:
    """Read one spine document: its headings go below the title that the table of contents gives it."""
    soup = make_soup(text)
    for label in soup.select("[epub\\:type~=pagebreak], [role=doc-pagebreak]"):
        label.decompose()
    elements = elements_of(soup.body if isinstance(soup.body, Tag) else soup)
    headings = [element for element in elements if isinstance(element, Heading)]
    if not any(isinstance(element, Block) for element in elements):
        return []
    top = min((heading.level for heading in headings), default=1)
    lowered = _moved(elements, (2 if title else 1) - top)
    if title is None:
        return lowered
    first = lowered[0]
    if isinstance(first, Heading) and same_title(first.title, title):
        alone = sum(heading.level == top for heading in headings) == 1
        lowered = _moved(lowered[1:], -1) if alone else lowered[1:]
    return [Heading(1, title), *lowered]


def _moved(elements: list[Element], levels: int) -> list[Element]:
    return [Heading(e.level + levels, e.title) if isinstance(e, Heading) else e for e in elements]


def _titles(file: zipfile.ZipFile, base: str, items: list[Tag]) -> dict[str, str]:
    """Find the title of each spine document in the table of contents: EPUB 3's nav, else EPUB 2's ncx."""
    titles: dict[str, str] = {}
    for item in items:
        is_ncx = item.get("media-type") == _NCX_TYPE
        if not is_ncx and not _is_nav(item):
            continue
        member = _member(base, str(item.get("href", "")))
        data = _part(file, member)
        if data is None:
            continue
        soup = make_soup(data, "xml" if is_ncx else "lxml")
        folder = posixpath.dirname(member)
        if is_ncx:
            pairs = [(point.find("content"), point.find("text")) for point in soup.find_all("navPoint")]
            named = [
                (str(c.get("src", "")), t.get_text()) for c, t in pairs if isinstance(c, Tag) and isinstance(t, Tag)
            ]
        else:
            named = [(str(link.get("href", "")), link.get_text()) for link in soup.select("nav a[href]")]
        for target, words in named:
            titles.setdefault(_member(folder, target), one_line(clean_text(words)))
    return {member: title for member, title in titles.items() if title}


def _member(base: str, href: str) -> str:
    """Resolve a reference inside the archive to a member's name; it can never name a file of the disk."""
    return posixpath.normpath(posixpath.join(base, unquote(href.split("#")[0]))).lstrip("/")


def _is_nav(item: Tag) -> bool:
    return "nav" in str(item.get("properties", "")).split()


def _text_is_encrypted(listed: bytes) -> bool:
    """True if more than fonts is listed as encrypted."""
    soup = make_soup(listed, "xml")
    targets = [str(reference.get("URI", "")) for reference in soup.find_all("CipherReference")]
    return any(target.casefold().endswith((".xhtml", ".html", ".htm", ".xml")) for target in targets)
