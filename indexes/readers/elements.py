"""What readers make of a file: headings and blocks in reading order, and how the text of blocks is written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from indexes.types import BookHealth, PageMarks

SPOKEN_LABELS = {
    "callout": "Note",
    "note": "Note",
    "tip": "Tip",
    "hint": "Hint",
    "warning": "Warning",
    "caution": "Caution",
    "danger": "Danger",
    "important": "Important",
    "seealso": "See also",
    "challenge": "Challenge",
    "exercise": "Exercise",
    "solution": "Solution",
    "questions": "Questions",
    "objectives": "Objectives",
    "keypoints": "Key points",
    "prereq": "Prerequisites",
    "discussion": "Discussion",
}
"""Words shown for a directive or div that has no title of its own."""
_MONOSPACE = re.compile(
    r"mono|courier|consol|typewriter|menlo|fira ?code|source ?code|hack|cmtt|cmsltt|letter ?gothic|txtt|pcr|monaco"
    r"|andale|ocr-?[ab]|fixed|zi4|nimbusmon|sftt|sfit?tt|ectt|lmtt|cursor|iosevka|cascadia|anonymous ?pro|pragmata|qcr",
    re.IGNORECASE,
)
_ADDRESS = re.compile(r"https?://|^\.{0,2}/|\.(?:png|jpe?g|gif|svg|webp|bmp)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading: `level` 1 is the highest; `page` is its file page, from 1, or None."""

    level: int
    title: str
    page: int | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """A paragraph, list, table, formula or listing as text, and the pages it is on."""

    text: str
    page_marks: PageMarks = ()


Element = Heading | Block


@dataclass(frozen=True, slots=True)
class Parsed:
    """A file as its reader understood it.

    Attributes:
        title: title given in metadata or front matter, or None.
        pages, page_labels: as in `Book`.
    """

    elements: tuple[Element, ...]
    title: str | None = None
    pages: int | None = None
    page_labels: tuple[str | None, ...] = ()
    health: BookHealth = field(default_factory=BookHealth)


def is_monospace(font_name: str) -> bool:
    """True for names of monospaced fonts."""
    return _MONOSPACE.search(font_name) is not None


def one_line(text: str) -> str:
    """Replace every run of white space by one space."""
    return " ".join(text.split())


def bold(text: str) -> str:
    """Write a label or a heading that opens no section."""
    return f"**{text}**" if text else ""


def fence(code: str, language: str = "") -> str:
    """Write a listing between fences that are longer than any run of backticks inside it."""
    code = code.strip("\n").rstrip()
    longest = max((len(run) for run in re.findall(r"^\s*(`{3,})", code, flags=re.MULTILINE)), default=2)
    ticks = "`" * max(3, longest + 1)
    return f"{ticks}{language}\n{code}\n{ticks}"


def pipe_table(rows: Sequence[Sequence[str]]) -> str:
    """Write cells as a Markdown table whose first row is the head. Leaves out empty rows; '' if all are empty."""
    cells = [[one_line(cell).replace("|", "\\|") for cell in row] for row in rows]
    if not any(cell for row in cells for cell in row):
        return ""
    lines = ["| " + " | ".join(row) + " |" for number, row in enumerate(cells) if number == 0 or any(row)]
    lines.insert(1, "|" + " --- |" * len(cells[0]))
    return "\n".join(lines)


def nested_list(items: Iterable[tuple[int, str]]) -> str:
    """Write `(level, text)` items as a Markdown list."""
    return "\n".join(f"{'  ' * level}- {text}" for level, text in items)


def stands_alone(text: str) -> bool:
    """True for a listing, table or displayed formula: it is never joined to a list item or a term."""
    return text.startswith(("```", "| ", "$$"))


def caption_of(alt: str) -> str:
    """Return an image's alternative text if it reads as a caption (two words or more, no address), else ''."""
    words = one_line(alt)
    return words if " " in words and not _ADDRESS.search(words) else ""
