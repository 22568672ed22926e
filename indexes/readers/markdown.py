"""Markdown and its dialects (MyST, Pandoc, MkDocs, Jekyll) through markdown-it into HTML, and that into elements.

Emphasis stays as its author typed it; links and images become their words. The second half holds the rules for
markdown-it: what MkDocs, Jekyll, kramdown, MyST, Pandoc and LaTeX habits add to CommonMark.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from itertools import dropwhile
from pathlib import Path

from bs4.element import Tag
from lxml.html import defs
from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.ruler import RuleOptionsType
from markdown_it.rules_block import StateBlock, html_block
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from mdit_py_plugins.attrs import attrs_plugin
from mdit_py_plugins.deflist import deflist_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin
from mdit_py_plugins.footnote import footnote_plugin
from mdit_py_plugins.myst_role import myst_role_plugin

from indexes.readers.elements import SPOKEN_LABELS, Block, Element, Heading, Parsed, bold, one_line, words_of_role
from indexes.readers.html import html_to_elements, make_soup, plain_title
from indexes.readers.source import included_file, included_lines, read_text
from indexes.types import BookHealth

_FRONT_MATTER = re.compile(
    r"\A(?:\s*<!--(?:(?!-->).)*+-->)*\s*(---|\+\+\+)[ \t]*\n(.*?)\n(?:\1|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL
)
_FRONT_LINE = re.compile(r"\s|[\w.\"'-]+[^:=]*[:=]|[-#\[\]{}\"']|$")
"""How a line of front matter begins: indented, with a name, or with a sign of YAML or TOML."""
_TITLE_LINE = re.compile(
    r"^title[ \t]*[:=][ \t]*(?:[>|][-+]?[ \t]*\n[ \t]+)?(.+?(?:\n[ \t]+\S.*)*)[ \t]*$", re.MULTILINE
)
_CODE_DIRECTIVES = frozenset({"code", "code-block", "code-cell", "sourcecode", "prompt", "parsed-literal"})
_SILENT_DIRECTIVES = frozenset({"toctree", "include", "raw", "contents", "bibliography", "tableofcontents", "mermaid"})
CELLS = frozenset({".qmd", ".rmd"})
"""Endings of Quarto and R Markdown, where every fence with braces is a cell of code: MyST has directives there."""
_CELL_OPTION = re.compile(r"(?:#|//|%%|--)\|")
_LABEL_BLOCKS = frozenset(Block(bold(label)) for label in SPOKEN_LABELS.values())


def read_markdown(path: Path, root: Path | None = None) -> Parsed:
    """Read a Markdown file; `root` is the book's folder, outside which `literalinclude` reads nothing."""
    source = read_text(path)
    missing: list[str] = []
    env = {"path": path, "root": root or path.parent, "missing": missing, "cells": path.suffix.casefold() in CELLS}
    parsed = _parse(source.text, env)
    health = BookHealth(notes=source.notes, skipped_files=tuple(dict.fromkeys(missing)))
    return Parsed(parsed.elements, parsed.title, health=health)


def parse_markdown(text: str) -> Parsed:
    """Turn Markdown into elements; the title is the front matter's. Follows no includes."""
    return _parse(text, {})


def markdown_to_html(text: str) -> str:
    """Turn Markdown into HTML for the walker. Follows no includes."""
    return str(_parser.render(text, {}))


def _parse(text: str, env: EnvType) -> Parsed:
    title = None
    front = _FRONT_MATTER.match(text)
    if front is not None and _is_front_matter(front[2]):
        text = text[front.end() :]
        line = _TITLE_LINE.search(front[2])
        title = plain_title(re.sub(r"<[^>]*>", " ", _unquoted(line[1]))) if line is not None else None
    elements: list[Element] = []
    for element in html_to_elements(_parser.render(text, env)):
        if isinstance(element, Heading) and elements and elements[-1] in _LABEL_BLOCKS:
            elements.pop()  # the heading inside the box says it better
        elements.append(element)
    return Parsed(tuple(elements), title or None)


def _is_front_matter(text: str) -> bool:
    named = re.search(r"^[\w-]+[ \t]*[:=]", text, re.MULTILINE) is not None
    return named and all(_FRONT_LINE.match(line) for line in text.split("\n"))


def _unquoted(value: str) -> str:
    """A value of front matter without its quotes, or without the comment behind it."""
    value = one_line(value)
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        return value[1:-1].replace("''", "'") if value[0] == "'" else value[1:-1]
    return f" {value}".split(" #")[0].strip()


def _formula(token: Token) -> str:
    tag = "span" if token.type in ("math_inline", "myst_role") else "div"
    return f'<{tag} class="math">{escapeHtml(token.content)}</{tag}>'


def _role(token: Token) -> str:
    """The words of a MyST role."""
    if token.meta["name"] == "math":
        return _formula(token)
    words, is_code = words_of_role(token.meta["name"], token.content)
    return f"<code>{escapeHtml(words)}</code>" if is_code else escapeHtml(words)


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
    info, content = tokens[index].info.strip(), tokens[index].content
    is_cell = env.get("cells") and info.startswith("{")
    if DIRECTIVE.match(info) and not is_cell:
        return _directive(info, content, env)
    if info.startswith("{"):
        info = re.sub(r"[{}.,]", " ", info).split("=")[0]
    if is_cell:
        if not info.strip() or info.split()[0] in _SILENT_DIRECTIVES:
            return ""  # raw HTML, a drawing
        content = "".join(dropwhile(_CELL_OPTION.match, content.splitlines(keepends=True)))
    return _listing(content, info) if content.strip() else ""


def _listing(code: str, info: str = "") -> str:
    language = escapeHtml(info.split()[0]) if info.split() else ""
    return f'<pre data-language="{language}">{escapeHtml(code)}</pre>'


def _directive(info: str, content: str, env: EnvType) -> str:
    """A directive of MyST as HTML."""
    found = DIRECTIVE.match(info)
    name, argument = (found[1].lower(), found[2]) if found else ("", "")
    lines = content.split("\n")
    count = _option_lines(lines)
    options = {found[1]: found[2].strip() for line in lines[:count] if (found := DIRECTIVE_OPTION.match(line))}
    content = "\n".join(lines[count:])
    caption = _paragraph(options.get("caption", ""))
    if name in _CODE_DIRECTIVES:
        return caption + _listing(content, argument)
    if name == "literalinclude":
        return _included(argument, options, env)
    if name == "eval-rst":
        return _restructured(content, env)
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


def _option_lines(lines: Sequence[str]) -> int:
    """How many lines at the head of a directive hold its options: `:name: value`, or YAML between two rules."""
    if lines and lines[0].strip() == "---":
        count = next((number for number, line in enumerate(lines[1:], 2) if line.strip() == "---"), 0)
        return count if _is_front_matter("\n".join(lines[1 : count - 1])) else 0
    return next((number for number, line in enumerate(lines) if not COLON_OPTION.match(line)), len(lines))


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


def _restructured(content: str, env: EnvType) -> str:
    """reStructuredText inside Markdown; as it is written where it cannot be read."""
    from indexes.readers.rst import rst_to_html

    html = rst_to_html(content, env.get("path"), env.get("root"), env.get("missing", []))
    return _listing(content) if html is None else html


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
    parser.use(attrs_plugin, after=("code_inline",))  # Pandoc's `name`{.class}
    parser.use(footnote_plugin, inline=False, move_to_end=False)
    add_dialects(parser)
    for kind, write in _WRITERS.items():
        parser.add_render_rule(kind, _rule(write))
    parser.add_render_rule("fence", _write_fence)
    return parser


def _rule(write: Callable[[Token], str]) -> Callable[..., str]:
    return lambda _self, tokens, index, _options, _env: write(tokens[index])


# --- rules for markdown-it

DIRECTIVE = re.compile(r"^\{([\w:+.-]+)\}[ \t]*(.*)$")
"""The info string of a directive: its name and its argument."""
DIRECTIVE_OPTION = re.compile(r"^[ \t]*:?([\w-]+):(.*)$")
"""An option's name and value, in either way of writing it."""
COLON_OPTION = re.compile(r"^[ \t]*:[\w-]+:")
MAX_OPTION_LINES = 50
"""Rules farther apart part text."""
IMAGE_DIRECTIVES = frozenset({"figure", "image"})
"""Directives whose argument is a file, not words."""
VERBATIM_DIRECTIVES = frozenset(
    {"code", "code-block", "code-cell", "sourcecode", "prompt", "parsed-literal", "literalinclude", "math",
     "list-table", "csv-table", "mermaid", "raw", "eval-rst"}
)  # fmt: skip
"""Directives whose content is not Markdown."""
_BOX = re.compile(r'^(?:!!!|\?\?\?\+?)[ \t]+(?P<kind>[\w-]+)(?:[ \t][\w \t]*)?(?:"(?P<title>.*)")?$')
_TAB = re.compile(r'^===[+!]?[ \t]+"(?P<title>.+)"$')
_TEMPLATE_MARK = re.compile(
    r"^(?:\{:[^}]*\}|\{%.*%\}|\+\+\+(?:[ \t]*\{.*\})?|-+8<-+.*|\*\[[^\]]+\]:.*|\([^()\s][^()]*\)=)$"
)
_ALERT = re.compile(r"\[!(\w+)\][-+]?[ \t]*(.*)\n?")
_COLONS = re.compile(r"^(:{3,})(.*)$")
_LAYOUT = frozenset({"column", "columns", "grid", "grid-item", "tab-set", "div", "container"})
_BOX_TAG = re.compile(r"^</?(?:div|section|article|aside|center|details|figure)\b[^<>]*>$", re.IGNORECASE)
_VERBATIM_TAG = re.compile(r"<(?:pre|script|style|textarea)\b", re.IGNORECASE)
_ATTRIBUTES = re.compile(r"\{[^{}\n]*\}")
_HEADING_ATTRIBUTES = re.compile(r"\{[ \t]*[#.:=\w-][^{}]*\}[ \t]*$")
_TAG_NAME = re.compile(r"</?([A-Za-z][\w-]*)")
_BROKEN_LINK = re.compile(
    r"!?\[([^\[\]]*)\]\(+(?:\.{0,2}/|https?://|#|[\\@][a-z]|[^()\s]+\.(?:png|jpe?g|gif|svg)\b)[^()]*\)+(?:\{[^{}]*\})?"
)
_TEX_BLOCK = re.compile(
    r"\\(?:\[|begin\{((?:equation|multline|gather|align|alignat|flalign|eqnarray|[pbBvV]?matrix)\*?\}))"
)
_INDENT = 4
_MAX_FORMULA_LINES = 100
"""Longer formulas are text: hostile files open one formula after the other and close none."""
_MAX_INLINE_CHARS = 30_000
"""A longer paragraph is read in parts: what may open in it, the parser seeks the end of from each place."""
_MAX_INLINE_NESTING = 6
"""Brackets in brackets: each level is read again for each one around it."""
_MAX_NESTING = 100
"""Boxes, lists and quotations nested deeper stay as they are; hostile files nest without end."""
_INTERRUPTS: RuleOptionsType = {"alt": ["paragraph", "reference", "blockquote", "list", "footnote_def"]}


def add_dialects(parser: MarkdownIt) -> None:
    """Add the rules of this file to a parser."""
    parser.options["maxNesting"] = _MAX_NESTING
    block = parser.block.ruler
    block.before("fence", "box", _box, _INTERRUPTS)
    block.before("fence", "colons", _colons, _INTERRUPTS)
    block.before("fence", "template_mark", _template_mark, _INTERRUPTS)
    block.before("fence", "comment", _comment)
    block.before("fence", "tex_block", tex_block, _INTERRUPTS)
    block.at("html_block", _html, {"alt": ["paragraph", "reference", "blockquote"]})
    inline = parser.inline.ruler
    inline.after("image", "broken_link", _broken_link)
    inline.after("broken_link", "attributes", _attributes)
    parser.core.ruler.after("block", "heading_attributes", _drop_heading_attributes)
    parser.core.ruler.after("heading_attributes", "alerts", _name_alerts)
    parser.core.ruler.at("inline", _parse_inline)


def label_of(opener: str) -> str:
    """The words for a div's or directive's opening line: its title, else its name if that says something."""
    directive = DIRECTIVE.match(opener)
    name, title = (directive[1], directive[2]) if directive else ("", "")
    if not directive:
        named = re.match(r"^\{?[ \t]*\.?([\w-]+)", opener)
        name = named[1] if named else ""
    if name in _LAYOUT or name in IMAGE_DIRECTIVES:
        return ""
    return title or SPOKEN_LABELS.get(name.lower(), "")


def without_links(markup: str) -> str:
    """Replace Markdown links inside HTML by their words: CommonMark leaves them as they are."""
    return _BROKEN_LINK.sub(r"\1", markup) if "](" in markup else markup


def visible_tag(tag: str) -> str:
    """What an inline tag shows: known tags keep what the walker reads, other `<words>` are words."""
    name = _TAG_NAME.match(tag)
    if name is None:
        return ""
    if name[1].lower() in ("br", "sup", "sub", "code"):
        return tag
    if name[1].lower() in defs.list_tags | defs.table_tags | {"p", "div"}:
        return " "  # items in a table's cell are words apart
    return "" if name[1].lower() in defs.tags else escapeHtml(tag)


def _line(state: StateBlock, number: int) -> str:
    return state.src[state.bMarks[number] + state.tShift[number] : state.eMarks[number]].rstrip()


def _say(state: StateBlock, words: str, line: int) -> None:
    """Push a paragraph."""
    for kind, nesting in (("paragraph_open", 1), ("inline", 0), ("paragraph_close", -1)):
        token = state.push(kind, "p" if nesting else "", nesting)  # type: ignore[arg-type]
        token.map = [line, line + 1]
        if not nesting:
            token.content, token.children = words, []


def _box(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """An admonition or a tab of MkDocs: its title in bold, then its indented body."""
    text = _line(state, start)
    box = _BOX.match(text) or _TAB.match(text)
    if box is None or state.is_code_block(start) or state.level >= _MAX_NESTING - 1:
        return False
    if silent:
        return True
    title = box["title"]
    if title is None:
        title = box["kind"].replace("-", " ").capitalize()
    if title:
        _say(state, bold(title), start)
    indent = state.sCount[start] + _INDENT
    last = start + 1
    for number in range(start + 1, end):
        if state.isEmpty(number):
            continue
        if state.sCount[number] < indent:
            break
        last = number + 1
    outer, state.blkIndent = state.blkIndent, indent
    line_max, state.lineMax = state.lineMax, last
    state.level += 1
    state.md.block.tokenize(state, start + 1, last)
    state.level -= 1
    state.blkIndent, state.lineMax = outer, line_max
    state.line = last
    return True


def _colons(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """A line of a fenced div: the label of what it opens; a directive with verbatim content is a fence."""
    if state.is_code_block(start):
        return False
    found = _COLONS.match(_line(state, start))
    if found is None:
        return False
    if silent:
        return True
    colons, opener = found[1], found[2].strip().rstrip(":").rstrip()
    directive = DIRECTIVE.match(opener)
    following = start + 1
    if directive is not None and directive[1].lower() in VERBATIM_DIRECTIVES:
        while following < end and not re.fullmatch(rf"{colons}:*", _line(state, following)):
            following += 1
        token = state.push("fence", "code", 0)
        token.info = opener
        token.content = state.getLines(start + 1, following, state.sCount[start], True)
        token.map = [start, following]
        state.line = min(following + 1, end)
        return True
    if label := label_of(opener):
        _say(state, bold(label), start)
    if directive is not None:
        following += _option_lines(
            [_line(state, number) for number in range(start + 1, min(end, start + MAX_OPTION_LINES))]
        )
    while opener and following < end and (state.isEmpty(following) or COLON_OPTION.match(_line(state, following))):
        following += 1
    state.line = following
    return True


def _template_mark(state: StateBlock, start: int, _end: int, silent: bool) -> bool:
    """A line that only a template engine reads."""
    if state.is_code_block(start) or not _TEMPLATE_MARK.match(_line(state, start)):
        return False
    if not silent:
        state.line = start + 1
    return True


def _comment(state: StateBlock, start: int, _end: int, silent: bool) -> bool:
    """A comment of MyST. It cannot interrupt a paragraph: '30 % of all' may be broken before the '%'."""
    if silent or state.is_code_block(start) or not re.match(r"%[ \t]", _line(state, start)):
        return False
    state.line = start + 1
    return True


def tex_block(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    r"""A displayed formula between `\[` and `\]`, or an environment such as `align`."""
    opening = _TEX_BLOCK.match(_line(state, start))
    if opening is None or state.is_code_block(start):
        return False
    closing = "\\end{" + opening[1] if opening[1] else "\\]"
    for number in range(start, min(end, start + _MAX_FORMULA_LINES)):
        line = _line(state, number)
        if not line:
            return False
        if line.endswith(closing):
            break
    else:
        return False
    if not silent:
        token = state.push("math_block", "math", 0)
        content = state.getLines(start, number + 1, state.sCount[start], False).strip()
        token.content = content if opening[1] else content[2:-2]
        token.map = [start, number + 1]
        state.line = number + 1
    return True


def _html(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """HTML up to a blank line, a fenced div or a box's tag right before text.

    CommonMark takes such text for HTML; Pandoc and writers of slides mean Markdown.
    """
    text = _text_in_box(state, start, end)
    if text is not None:
        if not silent:
            state.line = text
        return True
    if not html_block(state, start, end, silent):
        return False
    if not silent and not _VERBATIM_TAG.match(_line(state, start)):
        for number in range(start + 1, state.line):
            if _BOX_TAG.match(_line(state, number - 1)):
                continue  # looked at with the tag before it
            if _COLONS.match(_line(state, number)) or _text_in_box(state, number, end) is not None:
                state.tokens[-1].content = state.getLines(start, number, state.blkIndent, True)
                state.line = number
                break
    return True


def _text_in_box(state: StateBlock, start: int, end: int) -> int | None:
    """The line of the text that follows one or more tags of boxes, if the line `start` is such a tag."""
    number = start
    while number < end and _BOX_TAG.match(_line(state, number)) and not state.is_code_block(number):
        number += 1
    if number in (start, end) or state.is_code_block(number) or _line(state, number)[:1] in ("", "<"):
        return None
    return number


def _broken_link(state: StateInline, silent: bool) -> bool:
    """A link that Markdown's rules do not accept, as of Doxygen and Documenter: its words stay, its target goes."""
    if state.src[state.pos] not in "![":
        return False
    found = _BROKEN_LINK.match(state.src, state.pos)
    if found is None:
        return False
    if not silent:
        state.pending += found[1]
    state.pos = found.end()
    return True


def _attributes(state: StateInline, silent: bool) -> bool:
    """Attributes in braces right behind an image or a link."""
    if state.src[state.pos] != "{" or silent or state.pending or not state.tokens:
        return False
    found = _ATTRIBUTES.match(state.src, state.pos)
    if found is None or state.tokens[-1].type not in ("image", "link_close"):
        return False
    state.pos = found.end()
    return True


def _parse_inline(state: StateCore) -> None:
    """Read the words of every paragraph, as markdown-it does, but long ones in parts that end at a space."""
    parser = copy(state.md)
    parser.options = deepcopy(parser.options)
    parser.options["maxNesting"] = _MAX_INLINE_NESTING
    for token in state.tokens:
        if token.type == "inline":
            token.children = []
            rest = token.content
            while rest:
                end = len(rest)
                if end > _MAX_INLINE_CHARS:
                    end = max(rest.rfind(mark, 0, _MAX_INLINE_CHARS) for mark in " \n") + 1 or _MAX_INLINE_CHARS
                part: list[Token] = []
                parser.inline.parse(rest[:end], parser, state.env, part)
                token.children += part
                rest = rest[end:]


def _name_alerts(state: StateCore) -> None:
    """`> [!NOTE] Title` opens a box of GitHub or Obsidian: its title, else its kind, as a paragraph in bold."""
    tokens: list[Token] = []
    for token in state.tokens:
        box = token.type == "inline" and len(tokens) > 1 and tokens[-2].type == "blockquote_open"
        if box and (found := _ALERT.match(token.content)):
            label = found[2] or SPOKEN_LABELS.get(found[1].lower(), found[1].capitalize())
            named = Token("inline", "", 0, content=bold(label), children=[])
            tokens += named, Token("paragraph_close", "p", -1), tokens[-1]
            token.content = token.content[found.end() :]
        tokens.append(token)
    state.tokens = tokens


def _drop_heading_attributes(state: StateCore) -> None:
    for before, token in zip(state.tokens, state.tokens[1:], strict=False):
        if before.type == "heading_open":
            token.content = _HEADING_ATTRIBUTES.sub("", token.content).rstrip()


_parser = _make_parser()
