"""EPUB: the chapters of its spine. Nothing is unpacked to disk, and no more is read than a book needs."""

from __future__ import annotations

import posixpath
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from bs4.element import Tag

from indexes.errors import Cancelled, TooLarge, UnreadableBook
from indexes.readers.elements import Block, Element, Heading, Parsed, one_line
from indexes.readers.html_blocks import elements_of, make_soup
from indexes.readers.source import clean_text
from indexes.types import BookHealth

MAX_MEMBERS = 20_000
MAX_MEMBER_BYTES = 32 * 1024 * 1024
MAX_TEXT_BYTES = 256 * 1024 * 1024
"""Unpacked text of all chapters together; a long book has two million bytes."""
MAX_RATIO = 200
"""A chapter that unpacks to more than 200 times its size is a zip bomb: text packs to a fifth, rarely a twentieth."""


@dataclass(slots=True)
class _Archive:
    """An opened EPUB and how many bytes may still be unpacked."""

    file: zipfile.ZipFile
    name: str
    left: int = MAX_TEXT_BYTES

    def read(self, member: str) -> bytes:
        """A member's bytes, within the limits. Raises KeyError when it is not there."""
        info = self.file.getinfo(member)
        if info.file_size > MAX_MEMBER_BYTES or info.file_size > max(info.compress_size, 1) * MAX_RATIO + 100_000:
            raise TooLarge(
                f"'{self.name}': '{member}' unpacks to {info.file_size:,} bytes.", hint="the file looks hostile"
            )
        with self.file.open(info) as stream:
            data = stream.read(min(info.file_size, self.left) + 1)
        self.left -= len(data)
        if len(data) > info.file_size or self.left < 0:
            raise TooLarge(
                f"'{self.name}' unpacks to more than {MAX_TEXT_BYTES:,} bytes.", hint="the file looks hostile"
            )
        return data


def read_epub(
    path: Path,
    *,
    cancelled: Callable[[], bool] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Parsed:
    """Read an EPUB in the order of its spine.

    Raises:
        UnreadableBook: no zip file, no EPUB, encrypted, or damaged.
        TooLarge: it would unpack to more than a book can hold.
        Cancelled: `cancelled` said so between two chapters.
    """
    try:
        with zipfile.ZipFile(path) as file:
            if len(file.namelist()) > MAX_MEMBERS:
                raise TooLarge(f"'{path.name}' holds {len(file.namelist()):,} files.", hint="the file looks hostile")
            return _read(_Archive(file, path.name), cancelled, progress)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError, ValueError) as error:
        raise UnreadableBook(
            f"'{path.name}' is damaged or cut short: {str(error).rstrip('.')}.", hint="get another copy"
        ) from error
    except KeyError as error:
        raise UnreadableBook(f"'{path.name}' is no EPUB: {error.args[0]}.", hint="get another copy") from error
    except RuntimeError as error:
        raise UnreadableBook(f"'{path.name}' is encrypted.", hint="remove its protection first") from error


def _read(
    archive: _Archive, cancelled: Callable[[], bool] | None, progress: Callable[[int, int], None] | None
) -> Parsed:
    container = make_soup(archive.read("META-INF/container.xml"), "xml")
    root = container.find("rootfile")
    if not isinstance(root, Tag) or not root.get("full-path"):
        raise KeyError("its container names no package file")
    package_path = str(root["full-path"])
    package = make_soup(archive.read(package_path), "xml")
    if "META-INF/encryption.xml" in archive.file.namelist() and _text_is_encrypted(archive):
        raise RuntimeError("encrypted")
    base = posixpath.dirname(package_path)
    items = {str(item.get("id")): item for item in package.find_all("item")}
    spine = [items[name] for ref in package.find_all("itemref") if (name := str(ref.get("idref"))) in items]
    titles = _titles(archive, base, list(items.values()))
    elements: list[Element] = []
    skipped: list[str] = []
    for number, item in enumerate(spine, 1):
        if cancelled is not None and cancelled():
            raise Cancelled(f"Reading '{archive.name}' was cancelled at part {number} of {len(spine)}.")
        member = _member(base, str(item.get("href", "")))
        if "nav" in str(item.get("properties", "")).split() or not _is_text(item):
            continue
        try:
            chapter = _chapter(archive.read(member), titles.get(member))
        except KeyError:
            skipped.append(member)
            continue
        elements.extend(chapter)
        if progress is not None:
            progress(number, len(spine))
    title = package.find("title")
    named = one_line(title.get_text()) if isinstance(title, Tag) else ""
    return Parsed(tuple(elements), named or None, health=BookHealth(skipped_files=tuple(skipped)))


def _chapter(data: bytes, title: str | None) -> list[Element]:
    """One spine document: its headings stand below the title that the table of contents gives it."""
    soup = make_soup(clean_text(data.decode("utf-8", errors="replace")))
    for label in soup.select("[epub\\:type~=pagebreak], [role=doc-pagebreak]"):
        label.decompose()
    elements = elements_of(soup.body if isinstance(soup.body, Tag) else soup)
    headings = [element for element in elements if isinstance(element, Heading)]
    if not any(isinstance(element, Block) for element in elements):
        return []
    top = min((heading.level for heading in headings), default=1)
    lowered: list[Element] = [
        Heading(element.level - top + (2 if title else 1), element.title) if isinstance(element, Heading) else element
        for element in elements
    ]
    if title is None:
        return lowered
    first = lowered[0]
    if isinstance(first, Heading) and _alike(first.title, title):
        lowered = lowered[1:]
        if sum(1 for heading in headings if heading.level == top) == 1:
            lowered = [Heading(e.level - 1, e.title) if isinstance(e, Heading) else e for e in lowered]
    return [Heading(1, title), *lowered]


def _titles(archive: _Archive, base: str, items: list[Tag]) -> dict[str, str]:
    """Title of each spine document that the table of contents names (EPUB 3's nav, else EPUB 2's ncx)."""
    titles: dict[str, str] = {}
    for item in items:
        is_nav = "nav" in str(item.get("properties", "")).split()
        is_ncx = item.get("media-type") == "application/x-dtbncx+xml"
        if not is_nav and not is_ncx:
            continue
        member = _member(base, str(item.get("href", "")))
        try:
            soup = make_soup(archive.read(member), "xml" if is_ncx else "lxml")
        except KeyError:
            continue
        folder = posixpath.dirname(member)
        if is_ncx:
            pairs = [(point.find("content"), point.find("text")) for point in soup.find_all("navPoint")]
            named = [
                (str(c.get("src", "")), t.get_text()) for c, t in pairs if isinstance(c, Tag) and isinstance(t, Tag)
            ]
        else:
            named = [(str(link.get("href", "")), link.get_text()) for link in soup.select("nav a[href]")]
        for target, words in named:
            titles.setdefault(_member(folder, target), one_line(words))
    return {member: title for member, title in titles.items() if title}


def _member(base: str, href: str) -> str:
    """A reference inside the archive as a member's name. It names a member or nothing: no file of the disk."""
    return posixpath.normpath(posixpath.join(base, unquote(href.split("#")[0]))).lstrip("/")


def _is_text(item: Tag) -> bool:
    return str(item.get("media-type", "")) in ("application/xhtml+xml", "text/html", "text/x-oeb1-document")


def _text_is_encrypted(archive: _Archive) -> bool:
    """True when more than fonts is encrypted."""
    soup = make_soup(archive.read("META-INF/encryption.xml"), "xml")
    targets = [str(reference.get("URI", "")) for reference in soup.find_all("CipherReference")]
    return any(target.casefold().endswith((".xhtml", ".html", ".htm", ".xml")) for target in targets)


def _alike(one: str, other: str) -> bool:
    return "".join(filter(str.isalnum, one)).casefold() == "".join(filter(str.isalnum, other)).casefold()
