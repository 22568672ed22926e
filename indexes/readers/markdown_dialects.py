"""What MkDocs, Jekyll, kramdown, MyST and LaTeX habits add to Markdown's block syntax, as plain Markdown.

Fenced listings are left alone. Knows lines; nothing of elements or chapters.
"""

from __future__ import annotations

import re

from indexes.readers.elements import code_lines

_ADMONITION = re.compile(
    r'^(?P<indent> *)(?:!!!|\?\?\?\+?)[ \t]+(?P<kind>[\w-]+)(?:[ \t]+[\w ]+)?(?:[ \t]+"(?P<title>.*)")?$'
)
_TAB = re.compile(r'^(?P<indent> *)===[+!]?[ \t]+"(?P<title>.+)"$')
_DROPPED = re.compile(r"^[ \t]*(?:\{:[^}]*\}|\{%.*%\}|\+\+\+(?:[ \t]*\{.*\})?|-+8<-+.*|\*\[[^\]]+\]:.*)[ \t]*$")
_COMMENT = re.compile(r"^%[ \t]")
_DISPLAY = re.compile(r"^([ \t]*)\\\[(.*?)(\\\])?[ \t]*$")
_INLINE_FORMULA = re.compile(r"\\\((.+?)\\\)")
_CODE_SPAN = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")
_BOX_TAG = re.compile(r"^ {0,3}</?(?:div|section|article|aside|center|details|figure)\b[^<>]*>[ \t]*$", re.IGNORECASE)
_STARTS_TEXT = re.compile(r"^ {0,3}[^\s<]")
"""Right behind a box's tag, CommonMark takes Markdown for more HTML; Pandoc and writers of slides mean Markdown."""
_INDENT = 4
MAX_DEPTH = 20
"""Boxes nested deeper stay as they are; hostile files nest without end."""


def as_markdown(text: str) -> str:
    """The text with admonitions and tabs of MkDocs as paragraphs under a bold line, and without template marks.

    `\\[ … \\]` and `\\( … \\)` become `$$ … $$` and `$ … $`.
    """
    return "\n".join(_plain(text.split("\n")))


def _plain(lines: list[str], depth: int = 0) -> list[str]:
    out: list[str] = []
    is_code = code_lines(lines)
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if is_code[number - 1]:
            out.append(line)
            continue
        box = _ADMONITION.match(line) or _TAB.match(line)
        if box is not None and depth < MAX_DEPTH:
            end = _end_of_box(lines, number, len(box["indent"]) + _INDENT)
            title = box["title"]
            if title is None:
                title = box["kind"].replace("-", " ").capitalize()
            body = [inner[_INDENT:] if inner.strip() else "" for inner in lines[number:end]]
            out.extend(("", f"{box['indent']}**{title}**" if title else "", "", *_plain(body, depth + 1), ""))
            number = end
        elif _BOX_TAG.match(line) and number < len(lines) and _STARTS_TEXT.match(lines[number]):
            out.extend((line, ""))
        elif not (_DROPPED.match(line) or (_COMMENT.match(line) and not (out and out[-1].strip()))):
            out.append(_formulas(line))
    return out


def _end_of_box(lines: list[str], start: int, indent: int) -> int:
    """The first line behind the body: one that is not blank and stands further left than `indent`."""
    end = start
    for number in range(start, len(lines)):
        if not lines[number].strip():
            continue
        if len(lines[number]) - len(lines[number].lstrip(" ")) < indent:
            break
        end = number + 1
    return end


def _formulas(line: str) -> str:
    if "\\" not in line:
        return line
    display = _DISPLAY.match(line)
    if display is not None:
        return f"{display[1]}$${display[2]}" + ("$$" if display[3] else "")
    if line.strip() == "\\]":
        return line.replace("\\]", "$$")
    pieces: list[str] = []
    at = 0
    for code in _CODE_SPAN.finditer(line):
        pieces.extend((_INLINE_FORMULA.sub(r"$\1$", line[at : code.start()]), code.group()))
        at = code.end()
    return "".join(pieces) + _INLINE_FORMULA.sub(r"$\1$", line[at:])
