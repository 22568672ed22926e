"""Headings become sections: what a file's title is, and where its chapters and sections begin."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from indexes.readers.elements import Block, Element, Heading, Parsed, one_line
from indexes.types import PageMarks, Section

MAX_SECTION_CHARS = 60_000
"""A longer section is cut at the end of a block, so that a book without headings is not one huge section."""
_NO_TITLE = re.compile(
    r"readme|index|home|anonymous|unspecified|unnamed|unknown|no title|untitled\b.*"
    r"|(?:word )?document ?\d*|(?:powerpoint )?presentation ?\d*|slide \d+|microsoft (?:word|powerpoint|excel)\b.*"
    r"|\S+\.(?:md|html?|tex)|.*\.(?:docx?|odt|rtf|dvi|indd|qxd|pptx?|pdf|ps)",
    re.IGNORECASE,
)
"""What programs and habits give as a title: `README`, `(anonymous)`, `Microsoft Word - x.doc`, `x.dvi`."""
_ACRONYMS = {
    word.casefold(): word for word in ("GPU", "CUDA", "HIP", "OpenCL", "OpenMP", "MPI", "ROCm", "API", "CPU", "HPC")
}


def name_as_title(stem: str) -> str:
    """Make a title of a file or folder name: `01-gpu_data-layout` becomes `GPU data layout`."""
    words = re.sub(r"[-_\s]+", " ", re.sub(r"^[\d.]+[-_. ]+", "", stem)).strip()
    words = " ".join(_ACRONYMS.get(word.casefold(), word) for word in words.split(" "))
    return words[:1].upper() + words[1:] if words else stem


def real_title(text: str | None) -> str | None:
    """Return the title on one line, or None for names that programs and habits give: README, index, (anonymous)."""
    title = one_line(text or "")
    bare = title.strip("()[] ")
    return None if not bare or _NO_TITLE.fullmatch(bare) else title


def title_letters(title: str) -> str:
    """Return the letters and digits of a title, to compare it with others whatever their case and punctuation."""
    return re.sub(r"[\W_]+", "", title).casefold()


def same_title(one: str, other: str) -> bool:
    """True for titles that differ only in case, spaces and punctuation."""
    return title_letters(one) == title_letters(other)


def title_of(parsed: Parsed) -> tuple[str | None, tuple[Element, ...]]:
    """Return a file's title, and its elements without the heading that gave it.

    Metadata wins, and a first heading that repeats it is dropped. Else the title is the only heading of the highest
    level, if it comes before all text. A heading such as 'README' is dropped, and the next one is tried.
    """
    first = next((element for element in parsed.elements if _has_words(element)), None)
    title = real_title(parsed.title)
    if title is not None:
        same = first if isinstance(first, Heading) and same_title(first.title, title) else None
        return title, _without(parsed.elements, same)
    top = min((element.level for element in parsed.elements if isinstance(element, Heading)), default=0)
    tops = [element for element in parsed.elements if isinstance(element, Heading) and element.level == top]
    if len(tops) != 1 or first is not tops[0]:
        return None, parsed.elements
    title, rest = real_title(tops[0].title), _without(parsed.elements, tops[0])
    return (title, rest) if title is not None else title_of(replace(parsed, title=None, elements=rest))


def chapters_in_file(elements: Sequence[Element], title: str) -> tuple[Section, ...]:
    """Cut a book that is one file: each heading of the highest level opens a chapter.

    Text before the first chapter is chapter 0, under the book's title; a book with fewer than two headings of the
    highest level is one chapter under its title.
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
    """Cut one file of a folder book: the file is chapter number `chapter`, its headings are below it."""
    return _sections(elements, chapter, (title,), above=0)


def join_blocks(blocks: Sequence[Block]) -> tuple[str, PageMarks]:
    """Join blocks into one text with blank lines between; return it with where its pages begin."""
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


def _without(elements: tuple[Element, ...], dropped: Heading | None) -> tuple[Element, ...]:
    return tuple(element for element in elements if element is not dropped)
