"""What readers make of a file: headings and blocks in reading order, and the sections they make."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from indexes.types import BookHealth, PageMarks, Section

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
_ROLE_TARGET = re.compile(r"^(.*?)<[^<>]*>$", re.DOTALL)
_CODE_ROLES = re.compile(
    r"(^|:)(func|class|meth|attr|mod|data|exc|obj|envvar|file|command|option|code|c|cpp|py|kbd|samp|program|const|macro"
    r"|type|member|struct|enum|var|expr|literal|any|hip|cuda)$"
)
_SCRIPT = re.compile(r"[+−-]?\w{1,4}|[+−-]|\([^()]*\)")
_LONG_SCRIPT = re.compile(r"[\d+−-].*|\w+[^\w\s]\S*")
_HALF_PAIR = re.compile("[\ud800-\udfff]")


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

    def __post_init__(self) -> None:
        """No half of a surrogate pair goes on: neither the database nor the embedder takes it."""
        object.__setattr__(self, "elements", tuple(map(_whole, self.elements)))
        object.__setattr__(self, "title", self.title and whole_letters(self.title))
        labels = tuple(label and whole_letters(label) for label in self.page_labels)
        object.__setattr__(self, "page_labels", labels)


def _whole(element: Element) -> Element:
    text = element.title if isinstance(element, Heading) else element.text
    whole = whole_letters(text)
    if whole is text:
        return element
    return replace(element, title=whole) if isinstance(element, Heading) else replace(element, text=whole)


def whole_letters(text: str) -> str:
    """Replace halves of surrogate pairs, which UTF-8 cannot carry, by U+FFFD.

    In a file's name they stand for bytes that are not UTF-8.
    """
    return text if text.isascii() or not _HALF_PAIR.search(text) else _HALF_PAIR.sub("\ufffd", text)


def is_monospace(font_name: str) -> bool:
    """True for names of monospaced fonts."""
    return _MONOSPACE.search(font_name) is not None


def one_line(text: str) -> str:
    """Replace every run of white space by one space."""
    return " ".join(text.split())


def bold(text: str) -> str:
    """Write a label or a heading that opens no section."""
    return f"**{text}**" if text else ""


def raised(text: str, sign: str = "^") -> str:
    """Write an exponent or the number of a note, `^16`, or what is set low, where `sign` is `_`.

    Words that are only printed raised or small stay as they are.
    """
    bare = one_line(text)
    if _SCRIPT.fullmatch(bare):
        return sign + bare
    return f"{sign}({bare})" if _LONG_SCRIPT.fullmatch(bare) else text


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
    """Return an image's alternative text if it reads as a caption (two words or more) or a formula, else ''."""
    words = one_line(alt)
    formula = any(map(str.isalnum, words)) and any(unicodedata.category(letter) == "Sm" for letter in words)
    return words if formula or " " in words else ""


def words_of_role(name: str, content: str) -> tuple[str, bool]:
    """Return the words of one of Sphinx's roles, without the target behind them, and whether they are code."""
    content = content.strip()
    target = _ROLE_TARGET.match(content)
    words = target[1].rstrip() if target and target[1].strip() else content.strip("<>")
    return words.lstrip("~!"), _CODE_ROLES.search(name.lower()) is not None


# --- sections and titles

MAX_SECTION_CHARS = 60_000
"""A longer section is cut at the end of a block, so that a book without headings is not one huge section."""
_NO_TITLE = re.compile(
    r"readme|index|home|anonymous|unspecified|unnamed|unknown|no title|untitled\b.*"
    r"|(?:word )?document ?\d*|presentation ?\d*|slide \d+|microsoft (?:word|powerpoint|excel)\b.*"
    r"|(?=.*(?:pr[eéä][sz]en|[^\x00-\xff]))(?:\S+ ){0,2}powerpoint(?:[- ]\S+)?"
    r"|\S+\.(?:md|html?|tex)|.*\.(?:docx?|odt|rtf|dvi|indd|qxd|pptx?|pdf|ps)",
    re.IGNORECASE,
)
"""What programs and habits give as a title: `README`, `(anonymous)`, `Microsoft Word - x.doc`, `x.dvi`, and
`PowerPoint Presentation` in other languages."""
_ACRONYMS = {
    word.casefold(): word for word in ("GPU", "CUDA", "HIP", "OpenCL", "OpenMP", "MPI", "ROCm", "API", "CPU", "HPC")
}


def name_as_title(stem: str) -> str:
    """Make a title of a file or folder name: `01-gpu_data-layout` becomes `GPU data layout`."""
    words = re.sub(r"[-_\s]+", " ", re.sub(r"^[\d.]+[-_. ]+", "", whole_letters(stem))).strip()
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
