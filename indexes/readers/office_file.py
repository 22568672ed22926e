"""What `.docx` and `.pptx` share: a zip of XML, opened only when it is no bomb, by a library that is an extra."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from indexes.errors import CoalesceError, TooLarge, UnreadableBook, UnsupportedFormat
from indexes.readers.source import clean_text

MAX_MEMBERS = 20_000
MAX_XML_BYTES = 256 * 1024 * 1024
MAX_BYTES = 1024 * 1024 * 1024
"""All parts unpacked, pictures included; the library that reads the file holds them in memory."""
MAX_RATIO = 200
"""XML that unpacks to more than 200 times its size is a zip bomb: real documents reach fifty."""
TEMPLATE_TITLES = frozenset({"", "powerpoint presentation", "word document", "presentation", "untitled"})
"""Titles in the metadata that nobody gave."""
_MONO = re.compile(
    r"mono|courier|consol|menlo|monaco|inconsolata|(?:fira|source|cascadia) ?code|typewriter|lucida console|fixed",
    re.IGNORECASE,
)


def open_office(path: Path, package: str, function: str) -> Any:
    """The file, opened by `package.function`.

    Raises:
        UnsupportedFormat: the package is not installed.
        UnreadableBook: no file of this kind, encrypted or damaged.
        TooLarge: it would unpack to more than a book can hold.
    """
    try:
        opener = getattr(import_module(package), function)
    except ImportError as error:
        raise UnsupportedFormat(
            f"'{path.name}' needs the package python-{package}, which is not installed.",
            hint="python -m pip install 'coalesce-rag[office]'",
        ) from error
    with unreadable(path):
        _check_size(path)
        return opener(str(path))


@contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """Whatever is raised over a damaged part, as UnreadableBook."""
    try:
        yield
    except (CoalesceError, MemoryError, RecursionError):
        raise
    except Exception as error:  # what either package raises on odd XML stands nowhere
        raise UnreadableBook(
            f"'{path.name}' is damaged, encrypted or no {path.suffix} file: {str(error)[:100]}.",
            hint="open it in an office program and save it again",
        ) from error


def given_title(properties: Any) -> str | None:
    """The title in the file's metadata, if somebody gave it one."""
    title = " ".join(str(properties.title or "").split())
    return None if title.casefold() in TEMPLATE_TITLES else title


def is_listing(paragraph: Any) -> bool:
    """True when every run with words is set in letters of one width: a line of code."""
    names = [str(run.font.name or "") for run in paragraph.runs if run.text.strip()]
    return bool(names) and all(_MONO.search(name) for name in names)


def plain(text: str) -> str:
    """A paragraph's text with its line breaks as spaces."""
    return " ".join(clean_text(text.replace("\v", "\n")).split())


def typed(text: str) -> str:
    """A listing's text with its line breaks and indentation."""
    return clean_text(text.replace("\v", "\n")).replace("\xa0", " ").rstrip()


def joined_list(items: Iterable[tuple[int, str]]) -> str:
    """`(level, text)` items as a Markdown list."""
    return "\n".join(f"{'  ' * level}- {text}" for level, text in items)


def _check_size(path: Path) -> None:
    with zipfile.ZipFile(path) as file:
        members = file.infolist()
    xml = [info for info in members if info.filename.casefold().endswith((".xml", ".rels"))]
    bomb = next((info for info in xml if info.file_size > info.compress_size * MAX_RATIO + 1_000_000), None)
    total, text = sum(info.file_size for info in members), sum(info.file_size for info in xml)
    if len(members) > MAX_MEMBERS or total > MAX_BYTES or text > MAX_XML_BYTES or bomb is not None:
        raise TooLarge(
            f"'{path.name}' unpacks to {len(members):,} parts and {total:,} bytes.", hint="the file looks hostile"
        )
