"""Source files as books: each function, class or kernel is a section, its comment before it prose."""

from __future__ import annotations

import re
from pathlib import Path

from indexes.readers.elements import Block, Element, Heading, Parsed, fence
from indexes.readers.source import read_text
from indexes.types import BookHealth

LANGUAGES = {
    ".cu": "cuda", ".cuh": "cuda", ".hip": "cpp", ".cl": "c", ".c": "c", ".cpp": "cpp", ".cc": "cpp", ".cxx": "cpp",
    ".h": "cpp", ".hpp": "cpp", ".py": "python",
}  # fmt: skip
_PYTHON_DEFINITION = re.compile(r"^(?:async\s+)?(?:def|class)\s+(\w+)|^@")
_C_DEFINITION = re.compile(
    r"^(?!\s|#|//|/\*|\*|\}|\{|using\b|typedef\b|return\b|extern\s+\"C\"\s*\{)"
    r"(?:[\w:<>,*&\s\"()=.-]*?\b)?([A-Za-z_]\w*)\s*\([^;]*$|^(?:struct|class|enum|namespace)\s+(\w+)[^;]*$"
)
_LICENCE = re.compile(r"copyright|licen[sc]ed?\b|spdx-", re.IGNORECASE)


def read_code(path: Path) -> Parsed:
    """Read a source file."""
    source = read_text(path)
    language = LANGUAGES.get(path.suffix.casefold(), "")
    notes = (source.note,) if source.note else ()
    elements = _elements(source.text.expandtabs(4), language)
    return Parsed(tuple(elements), path.name, health=BookHealth(notes=notes))


def _elements(text: str, language: str) -> list[Element]:
    lines = _without_licence(text.split("\n"), language)
    definition = _PYTHON_DEFINITION if language == "python" else _C_DEFINITION
    starts: list[tuple[int, str]] = []
    depth = 0
    for number, line in enumerate(lines):
        match = definition.match(line) if depth == 0 else None
        if match is not None:
            name = next((group for group in match.groups() if group), "")
            start = _with_comment(lines, number, starts[-1][0] if starts else -1)
            if starts and not starts[-1][1] and start <= starts[-1][0] + 8:
                starts[-1] = (starts[-1][0], name)  # a decorator and the definition below it
            else:
                starts.append((start, name))
        if language != "python":
            depth = max(0, depth + line.count("{") - line.count("}"))
    elements: list[Element] = []
    bounds = [*starts, (len(lines), "")]
    _append(elements, lines[: bounds[0][0]], language)
    for (start, name), (end, _) in zip(starts, bounds[1:], strict=True):
        if name:
            elements.append(Heading(2, name))
        _append(elements, lines[start:end], language)
    return elements


def _append(elements: list[Element], lines: list[str], language: str) -> None:
    code = "\n".join(lines).strip("\n")
    if code.strip():
        elements.append(Block(fence(code, language)))


def _with_comment(lines: list[str], number: int, after: int) -> int:
    """The first line of the comment, template line or attribute that stands right above a definition."""
    start = number
    while start - 1 > after and re.match(
        r"^\s*(//|/\*|\*|#(?!\s*(?:include|define|if|endif|pragma))|template\b)", lines[start - 1]
    ):
        start -= 1
    return start


def _without_licence(lines: list[str], language: str) -> list[str]:
    """The file without the comment at its head that holds the licence."""
    end = 0
    opened = False
    for number, line in enumerate(lines[:80]):
        stripped = line.strip()
        opened = opened or stripped.startswith("/*")
        comment = opened or stripped.startswith(("//", "#!") if language != "python" else ("#",)) or not stripped
        if "*/" in stripped:
            opened = False
        if not comment:
            break
        end = number + 1
    head = "\n".join(lines[:end])
    return lines[end:] if _LICENCE.search(head) else lines
