"""Files without markup: plain text, by what looks like a heading or a listing; and source code, by definitions."""

from __future__ import annotations

import re
from pathlib import Path

from indexes.readers.elements import Block, Element, Heading, Parsed, fence, whole_letters
from indexes.readers.source import read_text
from indexes.types import BookHealth
from indexes.words import CJK

_UNDERLINE = re.compile(r"^([=\-~^*#])\1{2,}[ \t]*$")
_NUMBERED = re.compile(r"^(\d{1,2}(?:\.\d{1,2}){0,3})[.)]?[ \t]{1,4}(?=[A-Z" + CJK + r"])(\S.{1,78})$")
_FENCE = re.compile(r"^(`{3,})(?=[^`\n]*\n)[ \t]*([\w+-]*).*\n", re.MULTILINE)
_LIST_ITEM = re.compile(r"^[ \t]*(?:[-*•]|\d{1,3}[.)])[ \t]+\S")
_CODE_LINE = re.compile(
    r"[;{}]\s*$|^\s*(?:#include|//|/\*|\*/|__\w+__|(?:def|for|if|while|return|int|float|void|import)\b.*[:({;])"
)
_LANGUAGES = {
    ".cu": "cuda", ".cuh": "cuda", ".hip": "cpp", ".cl": "c", ".c": "c", ".cpp": "cpp", ".cc": "cpp", ".cxx": "cpp",
    ".h": "cpp", ".hpp": "cpp", ".py": "python",
}  # fmt: skip
_PYTHON_DEFINITION = re.compile(r"^(?:async\s+)?(?:def|class)\s+(\w+)|^@")
_C_DEFINITION = re.compile(
    r"^(?!\s|#|//|/\*|\*|\}|\{|using\b|typedef\b|return\b|extern\s+\"C\"\s*\{)"
    r"(?:[\w:<>,*&\s\"()=.-]*?\b)?([A-Za-z_]\w*)\s*\([^;]*$|^(?:struct|class|enum|namespace)\s+(\w+)[^;]*$"
)
MAX_DEFINITION_CHARS = 1_000
"""Longer lines are data; looking for a definition in one of many brackets takes quadratic time."""
_LICENCE = re.compile(r"copyright|licen[sc]ed?\b|spdx-", re.IGNORECASE)


def read_text_file(path: Path) -> Parsed:
    """Read a .txt file."""
    source = read_text(path)
    return Parsed(tuple(parse_plain_text(source.text)), health=BookHealth(notes=source.notes))


def parse_plain_text(text: str) -> list[Element]:
    """Turn text into elements: blank lines separate paragraphs, whose hard line breaks are undone; fences hold code."""
    elements: list[Element] = []
    text, start = text.expandtabs(4), 0
    while opener := _FENCE.search(text, start):
        closer = re.compile(rf"^{opener[1]}+[ \t]*$", re.MULTILINE).search(text, opener.end())
        if closer is None:
            break
        _append_paragraphs(elements, text[start : opener.start()])
        code = text[opener.end() : closer.start()].rstrip("\n")
        elements += [Block(fence(code, opener[2]))] if code.strip() else []
        start = closer.end()
    _append_paragraphs(elements, text[start:])
    return elements


def _append_paragraphs(elements: list[Element], text: str) -> None:
    for piece in re.split(r"\n(?:[ \t]*\n)+", text):
        lines = [line.rstrip() for line in piece.split("\n") if line.strip()]
        if not lines:
            continue
        heading = _heading(lines)
        if heading is not None:
            elements.append(heading)
            lines = lines[2:] if len(lines) > 1 and _UNDERLINE.match(lines[1]) else lines[1:]
        if lines:
            _append_block(elements, lines)


def _heading(lines: list[str]) -> Heading | None:
    first = lines[0].strip()
    if len(lines) > 1 and _UNDERLINE.match(lines[1]) and len(first) <= 100:
        return Heading(1 if lines[1].strip()[0] in "=#*" else 2, first)
    if len(lines) > 1:
        return None
    numbered = _NUMBERED.match(first)
    if numbered is not None and first[-1] not in ".;:,?!":
        return Heading(1 + numbered[1].count("."), first)
    return None


def _append_block(elements: list[Element], lines: list[str]) -> None:
    if _is_listing(lines):
        margin = min(len(line) - len(line.lstrip()) for line in lines)
        code = "\n".join(line[margin:] for line in lines)
        last = elements[-1] if elements else None
        if isinstance(last, Block) and last.text.startswith("```\n"):
            elements[-1] = Block(fence(last.text[4:-4] + "\n\n" + code))  # one listing with a blank line in it
        else:
            elements.append(Block(fence(code)))
        return
    out: list[str] = []
    widest = max(len(line) for line in lines)
    for line in lines:
        wrapped = out and not _LIST_ITEM.match(line) and len(out[-1]) and widest > 50
        if wrapped:
            out[-1] = f"{out[-1]} {line.strip()}"
        else:
            out.append(line.strip() if not _LIST_ITEM.match(line) else line)
    elements.append(Block("\n".join(out)))


def _is_listing(lines: list[str]) -> bool:
    codelike = sum(1 for line in lines if _CODE_LINE.search(line))
    indented = all(line.startswith("    ") for line in lines)
    return (indented and not _LIST_ITEM.match(lines[0]) and (codelike > 0 or len(lines) > 1)) or (
        len(lines) > 1 and codelike * 2 > len(lines)
    )


def read_code(path: Path) -> Parsed:
    """Read a source file: each function, class or kernel is a section, with the comment right above it."""
    source = read_text(path)
    language = _LANGUAGES.get(path.suffix.casefold(), "")
    elements = _code_elements(source.text.expandtabs(4), language)
    return Parsed(tuple(elements), whole_letters(path.name), health=BookHealth(notes=source.notes))


def _code_elements(text: str, language: str) -> list[Element]:
    lines = _without_licence(text.split("\n"), language)
    definition = _PYTHON_DEFINITION if language == "python" else _C_DEFINITION
    starts: list[tuple[int, str]] = []
    depth = 0
    for number, line in enumerate(lines):
        match = definition.match(line) if depth == 0 and len(line) <= MAX_DEFINITION_CHARS else None
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
    _append_code(elements, lines[: bounds[0][0]], language)
    for (start, name), (end, _) in zip(starts, bounds[1:], strict=True):
        if name:
            elements.append(Heading(2, name))
        _append_code(elements, lines[start:end], language)
    return elements


def _append_code(elements: list[Element], lines: list[str], language: str) -> None:
    code = "\n".join(lines).strip("\n")
    if code.strip():
        elements.append(Block(fence(code, language)))


def _with_comment(lines: list[str], number: int, after: int) -> int:
    """Find the first line of the comment, template line or attribute right above a definition."""
    start = number
    while start - 1 > after and re.match(
        r"^\s*(//|/\*|\*|#(?!\s*(?:include|define|if|endif|pragma))|template\b)", lines[start - 1]
    ):
        start -= 1
    return start


def _without_licence(lines: list[str], language: str) -> list[str]:
    """Drop the comments at the head of the file up to the last that speaks of its licence."""
    start = end = 0
    opened = False
    for number, line in enumerate(lines[:80], 1):
        stripped = line.strip()
        opened = opened or stripped.startswith("/*")
        if stripped and not opened and not stripped.startswith(("//", "#!") if language != "python" else ("#",)):
            break
        if stripped and _LICENCE.search("\n".join(lines[start:number])):
            end = number
        opened = opened and "*/" not in stripped
        if not opened and (not stripped or "*/" in stripped):
            start = number  # another comment begins
    return lines[end:]
