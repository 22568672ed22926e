"""EPUB: the chapters of its spine, read in memory; nothing is unpacked to disk."""

from __future__ import annotations

import posixpath
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from bs4 import BeautifulSoup
from bs4.element import Tag

from indexes.errors import Cancelled, UnreadableBook
from indexes.messages import msg
from indexes.readers.elements import Block, Element, Heading, Parsed, one_line, same_title
from indexes.readers.html import elements_of, heading_text, make_soup, without_words
from indexes.readers.source import check_archive, clean_text, decode
from indexes.types import BookHealth

_TEXT_TYPES = frozenset({"application/xhtml+xml", "text/html", "text/x-oeb1-document"})
_NCX_TYPE = "application/x-dtbncx+xml"
_FLOW = frozenset({"body", "div", "section", "article", "main", "header", "aside"})
"""Tags in which a heading may stand."""
_MARK = "\ue000"
"""Begins a heading that stands for the entry of the table of contents with the number behind it."""


class _Entry(NamedTuple):
    """An entry of the table of contents: the member it leads to, the place in it, its depth from 1, its words."""

    member: str
    fragment: str
    depth: int
    title: str


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
            msg("'{}' is damaged or cut short: {}.", name, str(error).rstrip(".")),
            hint="copy or download the file again",
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
    return UnreadableBook(msg("'{}' is encrypted.", name), hint="remove its protection first")


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
            msg("'{}' is not an EPUB: {}.", name, msg("it has no package file '{}'", package_path)),
            hint="copy or download the file again",
        )
    package = make_soup(package_file, "xml")
    if _text_is_encrypted(_part(file, "META-INF/encryption.xml") or b""):
        raise _encrypted(name)
    base = posixpath.dirname(package_path)
    items = {str(item.get("id")): item for item in package.find_all("item")}
    spine = [items[ref] for itemref in package.find_all("itemref") if (ref := str(itemref.get("idref"))) in items]
    entries: dict[str, list[_Entry]] = {}
    for entry in _contents(file, base, list(items.values())):
        entries.setdefault(entry.member, []).append(entry)
    sheets = [
        _part(file, _member(base, str(one.get("href"))))
        for one in items.values()
        if one.get("media-type") == "text/css"
    ]
    css = "\n".join(sheet.decode(errors="replace") for sheet in sheets if sheet)
    seen: set[str] = set()
    elements: list[Element] = []
    skipped: list[str] = []
    notes: list[str] = []
    for number, item in enumerate(spine, 1):
        if cancelled is not None and cancelled():
            raise Cancelled(f"Reading '{name}' was cancelled at part {number} of {len(spine)}.")
        member = _member(base, str(item.get("href", "")))
        if _is_nav(item) or member in seen or str(item.get("media-type", "")) not in _TEXT_TYPES:
            continue
        seen.add(member)
        data = _part(file, member)
        try:
            source = None if data is None else decode(data, member)
        except UnreadableBook:
            source = None
        if source is None:
            skipped.append(member)
            continue
        notes.extend(source.notes)
        soup = make_soup(source.text)
        notes.extend(f"{member}: {note}" for note in without_words(soup))
        elements.extend(_chapters(soup, entries.get(member, []), css))
        if progress is not None:
            progress(number, len(spine))
    title = package.find("title")
    named = one_line(clean_text(title.get_text())) if isinstance(title, Tag) else ""
    health = BookHealth(skipped_files=tuple(skipped), notes=tuple(notes))
    return Parsed(tuple(elements), named or None, health=health)


def _chapters(soup: BeautifulSoup, entries: list[_Entry], css: str) -> list[Element]:
    """Read one spine document: entries of the table of contents that lead into it open chapters and sections there.

    Those as high as the first are chapters; deeper ones are sections, unless a heading of the document stands there.
    """
    for label in soup.select("[epub\\:type~=pagebreak], [role=doc-pagebreak]"):
        label.decompose()
    _mark(soup, entries)
    css += "".join(style.get_text() for style in soup.find_all("style"))
    elements = elements_of(soup.body if isinstance(soup.body, Tag) else soup, css)
    top = min((one.level for one in elements if isinstance(one, Heading) and one.title[0] != _MARK), default=1)
    title = entries[0].title if entries and not entries[0].fragment else None
    found: list[Element] = []
    part: list[Element] = []
    opened = ""
    for element, after in zip_longest(elements, elements[1:]):
        if not isinstance(element, Heading) or element.title[0] != _MARK:
            if not (opened and isinstance(element, Block) and same_title(element.text, opened)):
                part.append(element)
            opened = ""
            continue
        _, _, depth, opened = entries[int(element.title[1:])]
        if depth > entries[0].depth:
            part.extend([] if isinstance(after, Heading) else [Heading(top + depth - entries[0].depth, opened)])
            continue
        if title is not None or any(isinstance(one, Block) for one in part):
            found.extend(_chapter(part, title))
            part = []
        title = opened
    return [*found, *_chapter(part, title or (entries[0].title if entries else None))]


def _mark(soup: BeautifulSoup, entries: list[_Entry]) -> None:
    """Put a heading with the number of each entry before the place that the entry leads to."""
    wanted = {entry.fragment: number for number, entry in reversed(list(enumerate(entries))) if entry.fragment}
    for target in soup.find_all(lambda tag: tag.get("id") in wanted or tag.get("name") in wanted) if wanted else ():
        name = next((name for name in (target.get("id"), target.get("name")) if name in wanted), None)
        if name is None:
            continue  # a second place of that name
        mark = soup.new_tag("h1")
        mark.string = f"{_MARK}{wanted.pop(str(name))}"
        around = [one for one in target.parents if one.name not in ("[document]", "html", *_FLOW)]
        place = around[-1] if around else target
        if place.name == "body":
            place.insert(0, mark)
        else:
            place.insert_before(mark)


def _chapter(elements: list[Element], title: str | None) -> list[Element]:
    """Put headings below the title that the table of contents gives."""
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


def _contents(file: zipfile.ZipFile, base: str, items: list[Tag]) -> Iterator[_Entry]:
    """The table of contents: EPUB 3's nav, and for members that it does not name EPUB 2's ncx."""
    named: set[str] = set()
    for item in sorted(items, key=_is_nav, reverse=True):
        is_ncx = item.get("media-type") == _NCX_TYPE
        if not is_ncx and not _is_nav(item):
            continue
        member = _member(base, str(item.get("href", "")))
        data = _part(file, member)
        if data is None:
            continue
        soup = make_soup(data, "xml" if is_ncx else "lxml")
        if is_ncx:
            links = [(point, point.find("content"), point.find("text")) for point in soup.find_all("navPoint")]
        else:
            tocs = soup.select("nav[epub\\:type~=toc] a[href]") or soup.select("nav a[href]")
            links = [(link, link, link) for link in tocs]
        entries = [
            _Entry(
                _member(posixpath.dirname(member), target := str(to.get("src") or to.get("href") or "")),
                unquote(target.partition("#")[2]),
                len(place.find_parents(["navPoint", "ol"])),
                clean_text(heading_text(words)),
            )
            for place, to, words in links
            if isinstance(to, Tag) and isinstance(words, Tag)
        ]
        yield from (entry for entry in entries if entry.title and entry.member not in named)
        named.update(entry.member for entry in entries)


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
