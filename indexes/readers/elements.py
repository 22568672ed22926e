"""What a format's reader hands on: headings and blocks in reading order; and how they become sections.

Every reader turns its file into `Parsed`; here, and only here, headings become a chapter tree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from indexes.types import BookHealth, PageMarks, Section

MAX_SECTION_CHARS = 60_000
"""A section longer than this is cut at a block's end, so that a book without headings is not one huge section."""
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
"""What stands for a directive or div without a title of its own."""


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading: `level` 1 is the highest; `page` is its file page, from 1, or None."""

    level: int
    title: str
    page: int | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """A paragraph, list, table or fenced listing, as text, with the pages it stands on."""

    text: str
    page_marks: PageMarks = ()


Element = Heading | Block
_CODE_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})")


@dataclass(frozen=True, slots=True)
class Parsed:
    """A file as its format's reader saw it.

    Attributes:
        title: title that the file gives itself in metadata or front matter; None when it gives none.
        pages, page_labels: as in `Book`.
    """

    elements: tuple[Element, ...]
    title: str | None = None
    pages: int | None = None
    page_labels: tuple[str | None, ...] = ()
    health: BookHealth = field(default_factory=BookHealth)


_ACRONYMS = {
    word.casefold(): word for word in ("GPU", "CUDA", "HIP", "OpenCL", "OpenMP", "MPI", "ROCm", "API", "CPU", "HPC")
}


def name_as_title(stem: str) -> str:
    """A file or folder name as a title: `01-gpu_data-layout` becomes `GPU data layout`."""
    words = re.sub(r"[-_\s]+", " ", re.sub(r"^[\d.]+[-_. ]+", "", stem)).strip()
    words = " ".join(_ACRONYMS.get(word.casefold(), word) for word in words.split(" "))
    return words[:1].upper() + words[1:] if words else stem


def fence(code: str, language: str = "") -> str:
    """A listing in a fence that is longer than any run of backticks inside it."""
    code = code.strip("\n").rstrip()
    longest = max((len(run) for run in re.findall(r"^\s*(`{3,})", code, flags=re.MULTILINE)), default=2)
    ticks = "`" * max(3, longest + 1)
    return f"{ticks}{language}\n{code}\n{ticks}"


def code_lines(lines: Sequence[str]) -> list[bool]:
    """For each line of Markdown whether it belongs to a fenced listing, its fences included."""
    found: list[bool] = []
    closing: str | None = None
    for line in lines:
        opened = _CODE_FENCE.match(line) if closing is None else None
        found.append(closing is not None or opened is not None)
        if opened is not None:
            closing = opened[1]
        elif closing is not None and line.strip().startswith(closing) and not line.strip().strip(closing[0]):
            closing = None
    return found


def one_line(text: str) -> str:
    """Text with every run of white space made one space."""
    return " ".join(text.split())


def pipe_table(rows: Sequence[Sequence[str]]) -> str:
    """Cells as a Markdown table, the first row its head; rows without any word are left out, all may be."""
    cells = [[one_line(cell).replace("|", "\\|") for cell in row] for row in rows]
    lines = ["| " + " | ".join(row) + " |" for row in cells if any(row)]
    if lines:
        lines.insert(1, "|" + " --- |" * len(cells[0]))
    return "\n".join(lines)


def title_of(parsed: Parsed) -> tuple[str | None, tuple[Element, ...]]:
    """The file's title, and its elements without the heading that said it.

    Metadata wins (a first heading that repeats it is dropped); else the only heading of the highest level, when it
    comes before all text.
    """
    headings = [element for element in parsed.elements if isinstance(element, Heading)]
    top = min((heading.level for heading in headings), default=0)
    tops = [heading for heading in headings if heading.level == top]
    first = next((element for element in parsed.elements if _has_words(element)), None)
    lone = tops[0] if len(tops) == 1 and first is tops[0] else None
    if parsed.title:
        same = first if isinstance(first, Heading) and _same_title(first.title, parsed.title) else None
        return parsed.title, _without(parsed.elements, same)
    return (lone.title, _without(parsed.elements, lone)) if lone is not None else (None, parsed.elements)


def chapters_in_file(elements: Sequence[Element], title: str) -> tuple[Section, ...]:
    """Sections of a book that is one file: each heading of the highest level opens a chapter.

    What stands before the first chapter is chapter 0, under the book's title; a book with fewer than two headings of
    the highest level is one chapter under its title.
    """
    levels = [element.level for element in elements if isinstance(element, Heading)]
    top = min(levels, default=0)
    if levels.count(top) < 2:
        return _sections(elements, 1, (title,), above=top - 1 if levels else 0)
    sections: list[Section] = []
    chapter, path = 0, (title,)
    pending: list[Element] = []
    for element in elements:
        if isinstance(element, Heading) and element.level == top:
            sections.extend(_sections(pending, chapter, path, above=top))
            chapter, path, pending = chapter + 1, (element.title,), []
        else:
            pending.append(element)
    sections.extend(_sections(pending, chapter, path, above=top))
    return tuple(sections)


def file_as_chapter(elements: Sequence[Element], chapter: int, title: str) -> tuple[Section, ...]:
    """Sections of one file of a folder book: the file is chapter number `chapter`, its headings stand below it."""
    return _sections(elements, chapter, (title,), above=0)


def merge_health(parts: Iterable[BookHealth]) -> BookHealth:
    """One report for a book of many files."""
    merged = BookHealth()
    for part in parts:
        merged = replace(
            merged,
            pages_without_text=merged.pages_without_text + part.pages_without_text,
            recognised_pages=merged.recognised_pages + part.recognised_pages,
            duplicate_pages=merged.duplicate_pages + part.duplicate_pages,
            suspected_columns=merged.suspected_columns + part.suspected_columns,
            broken_listings=merged.broken_listings + part.broken_listings,
            skipped_files=merged.skipped_files + part.skipped_files,
            notes=merged.notes + part.notes,
        )
    return merged


def join_blocks(blocks: Sequence[Block]) -> tuple[str, PageMarks]:
    """Blocks as one text with blank lines between, and where its pages begin."""
    texts: list[str] = []
    marks: list[tuple[int, int]] = []
    offset = 0
    for block in blocks:
        for mark, page in block.page_marks:
            if not marks or marks[-1][1] != page:
                marks.append((offset + mark if marks else 0, page))
        texts.append(block.text)
        offset += len(block.text) + 2
    return "\n\n".join(texts), tuple(marks)


def _sections(elements: Sequence[Element], chapter: int, path: tuple[str, ...], above: int) -> tuple[Section, ...]:
    """Sections under `path`; `above` is the level of the heading that opened it."""
    sections: list[Section] = []
    stack: list[Heading] = []
    blocks: list[Block] = []
    size = 0

    def close() -> None:
        nonlocal size
        if blocks:
            text, marks = join_blocks(blocks)
            sections.append(Section((*path, *(heading.title for heading in stack)), text, chapter, marks))
            blocks.clear()
        size = 0

    for element in elements:
        if isinstance(element, Block):
            if not element.text.strip():
                continue
            if size and size + len(element.text) > MAX_SECTION_CHARS:
                close()
            blocks.append(element)
            size += len(element.text) + 2
            continue
        close()
        level = max(element.level, above + 1)
        while stack and stack[-1].level >= level:
            stack.pop()
        if element.title:
            stack.append(replace(element, level=level))
    close()
    return tuple(sections)


def _has_words(element: Element) -> bool:
    return bool((element.title if isinstance(element, Heading) else element.text).strip())


def _same_title(one: str, other: str) -> bool:
    return re.sub(r"\W+", "", one).casefold() == re.sub(r"\W+", "", other).casefold()


def _without(elements: tuple[Element, ...], dropped: Heading | None) -> tuple[Element, ...]:
    return tuple(element for element in elements if element is not dropped)
