"""Markdown and its dialects (MyST, Pandoc, MkDocs, Jekyll) through markdown-it into HTML, and that into elements.

Emphasis stays as its author typed it; links and images become their words.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from bs4.element import Tag
from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from mdit_py_plugins.deflist import deflist_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin
from mdit_py_plugins.footnote import footnote_plugin
from mdit_py_plugins.myst_role import myst_role_plugin

from indexes.readers.elements import SPOKEN_LABELS, Block, Element, Heading, Parsed, bold, one_line
from indexes.readers.html import html_to_elements, make_soup, plain_title
from indexes.readers.markdown_rules import (
    DIRECTIVE,
    DIRECTIVE_OPTION,
    IMAGE_DIRECTIVES,
    add_dialects,
    label_of,
    visible_tag,
    without_links,
)
from indexes.readers.source import included_file, included_lines, read_text
from indexes.types import BookHealth

_FRONT_MATTER = re.compile(
    r"\A(?:\s*<!--(?:(?!-->).)*+-->)*+\s*---[ \t]*\n(.*?)\n(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL
)
_TITLE_LINE = re.compile(r"^title[ \t]*:[ \t]*(.+?)[ \t]*$", re.MULTILINE)
_ROLE_TARGET = re.compile(r"^(.*?)<[^<>]*>$", re.DOTALL)
_CODE_DIRECTIVES = frozenset({"code", "code-block", "code-cell", "sourcecode", "prompt", "parsed-literal"})
_SILENT_DIRECTIVES = frozenset(
    {"toctree", "include", "raw", "eval-rst", "contents", "bibliography", "tableofcontents", "mermaid"}
)
_LABEL_BLOCKS = frozenset(Block(bold(label)) for label in SPOKEN_LABELS.values())


def read_markdown(path: Path, root: Path | None = None) -> Parsed:
    """Read a Markdown file; `root` is the book's folder, outside which `literalinclude` reads nothing."""
    source = read_text(path)
    missing: list[str] = []
    parsed = _parse(source.text, {"path": path, "root": root or path.parent, "missing": missing})
    return Parsed(parsed.elements, parsed.title, health=BookHealth(notes=source.notes, skipped_files=tuple(missing)))


def parse_markdown(text: str) -> Parsed:
    """Turn Markdown into elements; the title is the front matter's. Follows no includes."""
    return _parse(text, {})


def _parse(text: str, env: EnvType) -> Parsed:
    title = None
    front = _FRONT_MATTER.match(text)
    if front is not None and re.search(r"^[\w-]+[ \t]*:", front[1], re.MULTILINE):
        text = text[front.end() :]
        line = _TITLE_LINE.search(front[1])
        title = plain_title(re.sub(r"<[^>]*>", " ", line[1].strip("\"'"))) if line is not None else None
    elements: list[Element] = []
    for element in html_to_elements(_parser.render(text, env)):
        if isinstance(element, Heading) and elements and elements[-1] in _LABEL_BLOCKS:
            elements.pop()  # the heading inside the box says it better
        elements.append(element)
    return Parsed(tuple(elements), title or None)


def _formula(token: Token) -> str:
    tag = "span" if token.type in ("math_inline", "myst_role") else "div"
    return f'<{tag} class="math">{escapeHtml(token.content)}</{tag}>'


def _role(token: Token) -> str:
    """The words of a MyST role, without the target behind them."""
    if token.meta["name"] == "math":
        return _formula(token)
    target = _ROLE_TARGET.match(token.content)
    return escapeHtml(target[1].rstrip() if target and target[1].strip() else token.content.strip("<>"))


def _closed_html(token: Token) -> str:
    """HTML between blank lines with every tag closed, so that it cannot swallow what follows."""
    body = make_soup(without_links(token.content)).body
    return body.decode_contents() if isinstance(body, Tag) else ""


_WRITERS: dict[str, Callable[[Token], str]] = {
    # Emphasis as typed.
    "em_open": lambda token: token.markup,
    "em_close": lambda token: token.markup,
    "strong_open": lambda token: token.markup,
    "strong_close": lambda token: token.markup,
    "code_block": lambda token: _listing(token.content),
    "html_block": _closed_html,
    "html_inline": lambda token: visible_tag(token.content),
    "math_inline": _formula,
    "math_inline_double": lambda token: f"$${escapeHtml(token.content)}$$",
    "math_block": _formula,
    "math_block_label": _formula,
    "myst_role": _role,
    # The number of a footnote serves no reader of a passage; the note is a definition where its author put it.
    "footnote_ref": lambda _: "",
    "footnote_reference_open": lambda token: f"<dl><dt>[{escapeHtml(str(token.meta['label']))}]</dt><dd>",
    "footnote_reference_close": lambda _: "</dd></dl>",
}
"""How tokens are written as HTML, where markdown-it's own way does not serve the walker."""


def _write_fence(_self: object, tokens: Sequence[Token], index: int, _options: OptionsDict, env: EnvType) -> str:
    """A fenced listing or a directive."""
    info = tokens[index].info.strip()
    if DIRECTIVE.match(info):
        return _directive(info, tokens[index].content, env)
    if info.startswith("{"):
        info = re.sub(r"[{}.]", " ", info).split("=")[0]
    return _listing(tokens[index].content, info)


def _listing(code: str, info: str = "") -> str:
    language = escapeHtml(info.split()[0]) if info.split() else ""
    return f'<pre data-language="{language}">{escapeHtml(code)}</pre>'


def _directive(info: str, content: str, env: EnvType) -> str:
    """A directive of MyST as HTML."""
    found = DIRECTIVE.match(info)
    name, argument = (found[1].lower(), found[2]) if found else ("", "")
    lines = content.split("\n")
    options: dict[str, str] = {}
    while lines and (option := DIRECTIVE_OPTION.match(lines[0])):
        options[option[1]] = option[2].strip()
        lines.pop(0)
    content = "\n".join(lines)
    caption = _paragraph(options.get("caption", ""))
    if name in _CODE_DIRECTIVES:
        return caption + _listing(content, argument)
    if name == "literalinclude":
        return _included(argument, options, env)
    if name in _SILENT_DIRECTIVES:
        return ""
    if name == "math":
        return f'<div class="math">\n{escapeHtml(content)}\n</div>'
    if name in ("list-table", "csv-table"):
        rows = _listed_rows(content) if name == "list-table" else _csv_rows(content, options.get("header", ""))
        if rows:
            return _paragraph(argument) + _table(rows)
    label = "" if name in IMAGE_DIRECTIVES else bold(label_of(info))
    return f"{_paragraph(label)}<blockquote>{_parser.render(content, env)}</blockquote>"


def _paragraph(words: str) -> str:
    return f"<p>{_parser.renderInline(words)}</p>" if words else ""


def _included(name: str, options: dict[str, str], env: EnvType) -> str:
    """A listing from another file of the book; a file that is missing is reported."""
    if "path" not in env:
        return ""
    target = included_file(name.strip(), env["path"], env["root"])
    if target is None:
        env["missing"].append(name.strip())
        return ""
    language = options.get("language") or target.suffix.lstrip(".")
    return _paragraph(options.get("caption", "")) + _listing("\n".join(included_lines(target, options)), language)


def _table(rows: list[list[str]]) -> str:
    """A table of cells that are HTML, the first row its head."""
    lines = [
        "".join(f"<{tag}>{cell}</{tag}>" for cell in row)
        for tag, row in zip(["th"] + ["td"] * len(rows), rows, strict=False)
    ]
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def _listed_rows(content: str) -> list[list[str]]:
    """The rows of a table written as a list of lists."""
    tree = make_soup(_parser.render(content))
    outer = tree.find("ul")
    rows = outer.find_all("li", recursive=False) if isinstance(outer, Tag) else []
    found = [row.find("ul") for row in rows]
    return [
        [cell.decode_contents() for cell in row.find_all("li", recursive=False)]
        for row in found
        if isinstance(row, Tag)
    ]


def _csv_rows(content: str, header: str) -> list[list[str]]:
    """The rows of a table written with commas; none if it is not."""
    lines = [header, *content.strip().split("\n")] if header else content.strip().split("\n")
    try:
        rows = [row for row in csv.reader(lines, skipinitialspace=True) if row]
    except csv.Error:
        return []
    return [[_parser.renderInline(one_line(cell)) for cell in row] for row in rows]


def _make_parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    parser.use(dollarmath_plugin, allow_space=False, allow_digits=False, allow_blank_lines=False, double_inline=True)
    parser.use(deflist_plugin).use(myst_role_plugin)
    parser.use(footnote_plugin, inline=False, move_to_end=False)
    add_dialects(parser)
    for kind, write in _WRITERS.items():
        parser.add_render_rule(kind, _rule(write))
    parser.add_render_rule("fence", _write_fence)
    return parser


def _rule(write: Callable[[Token], str]) -> Callable[..., str]:
    return lambda _self, tokens, index, _options, _env: write(tokens[index])


_parser = _make_parser()
