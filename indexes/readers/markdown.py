"""Markdown, with front matter, MyST directives and roles, and Pandoc's fenced divs.

Inline markup stays as its author wrote it, except that links and images become their text.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markdown_it.tree import SyntaxTreeNode

from indexes.readers.elements import SPOKEN_LABELS, Block, Element, Heading, Parsed, fence, one_line, pipe_table
from indexes.readers.html_blocks import html_to_elements
from indexes.readers.markdown_dialects import as_markdown
from indexes.readers.markdown_directives import (
    DIRECTIVE,
    DIRECTIVE_OPTION,
    label_of,
    unwrap_colon_fences,
    with_included,
)
from indexes.readers.source import read_text
from indexes.types import BookHealth

_FRONT_MATTER = re.compile(r"\A(?:\s*<!--.*?-->)*\s*---[ \t]*\n(.*?)\n(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_TITLE_LINE = re.compile(r"^title[ \t]*:[ \t]*(.+?)[ \t]*$", re.MULTILINE)
_ATTRIBUTES = re.compile(r"[ \t]*\{[ \t]*[#.:=\w-][^{}]*\}[ \t]*$")
_ROLE = re.compile(r"\{[a-zA-Z][\w:+.-]*\}$")
_ROLE_TARGET = re.compile(r"^(.*?)[ \t]*<[^<>]*>$", re.DOTALL)

_CODE_DIRECTIVES = frozenset({"code", "code-block", "code-cell", "sourcecode", "prompt", "parsed-literal"})
_SILENT_DIRECTIVES = frozenset(
    {
        "toctree",
        "include",
        "raw",
        "eval-rst",
        "contents",
        "bibliography",
        "tableofcontents",
        "literalinclude",
        "mermaid",
    }
)
_FIGURE_DIRECTIVES = frozenset({"figure", "image"})
_LABEL_BLOCKS = frozenset(Block(f"**{label}**") for label in SPOKEN_LABELS.values())

_parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).disable("text_join")


def read_markdown(path: Path, root: Path | None = None) -> Parsed:
    """Read a Markdown file; `root` is the book's folder, within which `literalinclude` may look."""
    source = read_text(path)
    missing: list[str] = []
    parsed = parse_markdown(with_included(source.text, path, root or path.parent, missing))
    notes = (source.note,) if source.note else ()
    return Parsed(parsed.elements, parsed.title, health=BookHealth(notes=notes, skipped_files=tuple(missing)))


def parse_markdown(text: str) -> Parsed:
    """Markdown text to elements; the title is the front matter's."""
    title = None
    front = _FRONT_MATTER.match(text)
    if front is not None and re.search(r"^[\w-]+[ \t]*:", front[1], re.MULTILINE):
        text = text[front.end() :]
        line = _TITLE_LINE.search(front[1])
        title = _plain_title(re.sub(r"<[^>]*>", " ", line[1].strip("\"'"))) if line is not None else None
    return Parsed(tuple(_elements(text)), title or None)


def _elements(text: str) -> list[Element]:
    tree = SyntaxTreeNode(_parser.parse(unwrap_colon_fences(as_markdown(text))))
    elements: list[Element] = []
    for node in tree.children:
        for element in _element(node):
            if isinstance(element, Heading) and elements and elements[-1] in _LABEL_BLOCKS:
                elements.pop()  # the heading inside the div says it better
            elements.append(element)
    return elements


def _element(node: SyntaxTreeNode) -> list[Element]:
    if node.type == "heading":
        title = _ATTRIBUTES.sub("", _inline(node.children[0]) if node.children else "")
        return [Heading(int(node.tag[1]), _plain_title(title))]
    if node.type == "html_block":
        return html_to_elements(node.content)
    return [Block(block) for block in _blocks(node)]


def _plain_title(title: str) -> str:
    """A heading without emphasis and code marks, as it would stand in a table of contents."""
    title = re.sub(r"(\*\*|__)(?=\S)(.+?)(?<=\S)\1", r"\2", title)
    title = re.sub(r"(?<!\w)[*](?=\S)([^*]+?)(?<=\S)[*](?!\w)", r"\1", title)
    return one_line(title.replace("`", ""))


def _blocks(node: SyntaxTreeNode) -> list[str]:
    """One syntax node as texts; listings are texts of their own, at the left margin."""
    kind = node.type
    if kind == "paragraph":
        text = "\n".join(_inline(child) for child in node.children).strip()
        return [text] if text else []
    if kind in ("fence", "code_block"):
        return _listing(node)
    if kind in ("bullet_list", "ordered_list"):
        return _list(node)
    if kind == "table":
        return [_table(node)]
    if kind == "html_block":
        return [element.text for element in html_to_elements(node.content) if isinstance(element, Block)]
    if kind == "heading":
        return [f"**{_plain_title(_inline(node.children[0]))}**"] if node.children else []
    if kind == "blockquote":
        return [block for child in node.children for block in _blocks(child)]
    return []


def _listing(node: SyntaxTreeNode) -> list[str]:
    info = (node.info or "").strip() if node.type == "fence" else ""
    directive = DIRECTIVE.match(info)
    if directive is None:
        if info.startswith("{"):
            info = re.sub(r"[{}.]", " ", info).split("=")[0]
        language = info.split()[0] if info.split() else ""
        return [fence(node.content, language)] if node.content.strip() else []
    name, argument = directive[1].lower(), directive[2]
    body = node.content.split("\n")
    options: dict[str, str] = {}
    while body and (option := DIRECTIVE_OPTION.match(body[0])):
        options[option[1]] = option[2].strip()
        body.pop(0)
    content = "\n".join(body)
    if name in _CODE_DIRECTIVES:
        code = [fence(content, argument.split()[0] if argument.split() else "")] if content.strip() else []
        return [options["caption"], *code] if options.get("caption") else code
    if name in ("list-table", "csv-table"):
        rows = _listed_rows(content) if name == "list-table" else _csv_rows(content, options.get("header", ""))
        if rows:
            return [*([argument] if argument else []), pipe_table(rows)]
    if name in _SILENT_DIRECTIVES:
        return []
    if name == "math":
        return [f"$$\n{content.strip()}\n$$"] if content.strip() else []
    label = "" if name in _FIGURE_DIRECTIVES else label_of(info)
    texts = [label] if label else []
    for element in _elements(content):
        texts.append(element.text if isinstance(element, Block) else f"**{element.title}**")
    return texts


def _listed_rows(content: str) -> list[list[str]]:
    """The rows of a table written as a list of lists."""
    tree = SyntaxTreeNode(_parser.parse(content))
    items = [item for node in tree.children if node.type == "bullet_list" for item in node.children]
    rows = [item.children[0] for item in items if item.children]
    return [
        [" ".join(block for child in cell.children for block in _blocks(child)) for cell in row.children]
        for row in rows
        if row.type == "bullet_list"
    ]


def _csv_rows(content: str, header: str) -> list[list[str]]:
    """The rows of a table written with commas; none when it is not."""
    lines = [header, *content.strip().split("\n")] if header else content.strip().split("\n")
    try:
        return [[cell.strip() for cell in row] for row in csv.reader(lines, skipinitialspace=True) if row]
    except csv.Error:
        return []


def _list(node: SyntaxTreeNode, depth: int = 0) -> list[str]:
    """A list as one text, items on lines of their own; listings inside break it into several texts."""
    texts: list[str] = []
    lines: list[str] = []
    number = int(node.attrs.get("start", 1) or 1) if node.type == "ordered_list" else 0
    indent = "  " * depth
    for item in node.children:
        marker = f"{number}." if node.type == "ordered_list" else "-"
        number += 1
        opened = False
        for child in item.children:
            nested = _list(child, depth + 1) if child.type in ("bullet_list", "ordered_list") else _blocks(child)
            for text in nested:
                if text.startswith(("```", "|", "$$")):
                    if lines:
                        texts.append("\n".join(lines))
                    texts.append(text)
                    lines = []
                elif child.type in ("bullet_list", "ordered_list"):
                    lines.append(text)
                else:
                    lead = f"{indent}{marker} " if not opened else f"{indent}{' ' * (len(marker) + 1)}"
                    lines.append(lead + text)
                    opened = True
    if lines:
        texts.append("\n".join(lines))
    return texts


def _table(node: SyntaxTreeNode) -> str:
    rows: list[str] = []
    for part in node.children:
        for row in part.children:
            cells = [_inline(cell.children[0]) if cell.children else "" for cell in row.children]
            rows.append("| " + " | ".join(one_line(cell).replace("|", "\\|") for cell in cells) + " |")
            if part.type == "thead":
                rows.append("|" + " --- |" * len(cells))
    return "\n".join(rows)


def _inline(node: SyntaxTreeNode) -> str:
    """Inline content as text: links and images become their words, MyST roles their content."""
    if node.type != "inline":
        return node.content
    out: list[str] = []
    after_image = False
    for token in _flat(node.to_tokens()):
        piece = _inline_token(token, out)
        if after_image and piece.startswith("{"):
            piece = re.sub(r"^\{[^{}]*\}", "", piece)
        after_image = token.type in ("image", "link_close")
        out.append(piece)
    lines = [" ".join(line.split()) for line in "".join(out).split("\n")]
    return "\n".join(lines).strip()


def _flat(tokens: list[Token]) -> list[Token]:
    return [child for token in tokens for child in (token.children or [])]


def _inline_token(token: Token, before: list[str]) -> str:
    kind = token.type
    if kind == "text":
        return token.content
    if kind == "text_special":
        # Inside a formula a backslash belongs to LaTeX, elsewhere it only protects a character.
        in_formula = sum(piece.count("$") for piece in before) % 2 == 1
        return token.markup if in_formula else token.content
    if kind == "code_inline":
        role = _ROLE.search(before[-1]) if before else None
        if role is None:
            return f"{token.markup}{token.content}{token.markup}"
        before[-1] = before[-1][: role.start()]
        if role[0] == "{math}":
            return f"${token.content}$"
        target = _ROLE_TARGET.match(token.content)
        return target[1] if target and target[1] else token.content.strip("<>")
    if kind in ("em_open", "em_close", "strong_open", "strong_close"):
        return token.markup
    if kind == "softbreak":
        return " "
    if kind == "hardbreak":
        return "\n"
    if kind == "image":
        return token.content
    if kind == "html_inline":
        return "\n" if re.match(r"<br\b", token.content, re.IGNORECASE) else ""
    return ""
