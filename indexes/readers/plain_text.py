"""Plain text: paragraphs, headings that look like headings, and listings by their indentation."""

from __future__ import annotations

import re
from pathlib import Path

from indexes.readers.elements import Block, Element, Heading, Parsed, fence
from indexes.readers.source import read_text
from indexes.types import BookHealth

_UNDERLINE = re.compile(r"^([=\-~^*#])\1{2,}[ \t]*$")
_CHAPTER = re.compile(
    r"^(?:chapter|part|appendix|lecture|lesson)\s+(?:\d+|[ivxlc]+|[a-z])\b[.:)]?.{0,90}$", re.IGNORECASE
)
_NUMBERED = re.compile(r"^(\d{1,2}(?:\.\d{1,2}){0,3})[.)]?[ \t]{1,4}(?=[A-Z\u4e00-\u9fff])(\S.{1,78})$")
_CJK_CHAPTER = re.compile(r"^第[\d一二三四五六七八九十百零]+[章节部]\s*\S.{0,40}$")
_LIST_ITEM = re.compile(r"^[ \t]*(?:[-*•]|\d{1,3}[.)])[ \t]+\S")
_CODE_LINE = re.compile(
    r"[;{}]\s*$|^\s*(?:#include|//|/\*|\*/|__\w+__|(?:def|for|if|while|return|int|float|void|import)\b.*[:({;])"
)


def read_plain_text(path: Path) -> Parsed:
    """Read a .txt file."""
    source = read_text(path)
    notes = (source.note,) if source.note else ()
    return Parsed(tuple(parse_plain_text(source.text)), health=BookHealth(notes=notes))


def parse_plain_text(text: str) -> list[Element]:
    """Text to elements: blank lines part paragraphs, whose hard line breaks are undone."""
    elements: list[Element] = []
    for piece in re.split(r"\n(?:[ \t]*\n)+", text.expandtabs(4)):
        lines = [line.rstrip() for line in piece.split("\n") if line.strip()]
        if not lines:
            continue
        heading = _heading(lines)
        if heading is not None:
            elements.append(heading)
            lines = lines[2:] if len(lines) > 1 and _UNDERLINE.match(lines[1]) else lines[1:]
        if lines:
            _append_block(elements, lines)
    return elements


def _heading(lines: list[str]) -> Heading | None:
    first = lines[0].strip()
    if len(lines) > 1 and _UNDERLINE.match(lines[1]) and len(first) <= 100:
        return Heading(1 if lines[1].strip()[0] in "=#*" else 2, first)
    if len(lines) > 1:
        return None
    if _CHAPTER.match(first) or _CJK_CHAPTER.match(first):
        return Heading(1, first)
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
