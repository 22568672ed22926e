"""reStructuredText through docutils, with Sphinx's directives and roles tolerated.

Nothing is executed. `literalinclude` and `include` alone are followed, and only inside the book's folder.
"""

from __future__ import annotations

import inspect
import re
import threading
from pathlib import Path

from docutils import nodes
from docutils.core import publish_doctree
from docutils.utils import SystemMessage

from indexes.readers.elements import Block, Element, Heading, Parsed, fence, one_line
from indexes.readers.rst_directives import register_for
from indexes.readers.source import read_text
from indexes.types import BookHealth

_SETTINGS = {
    "file_insertion_enabled": False,
    "raw_enabled": False,
    "_disable_config": True,
    "report_level": 5,
    "halt_level": 5,
    "warning_stream": False,
    "syntax_highlight": "none",
    "doctitle_xform": False,
    "sectsubtitle_xform": False,
    "docinfo_xform": False,
    "smart_quotes": False,
    "line_length_limit": 1_000_000,
}
_IDENTIFIER = re.compile(r"^[A-Za-z_][\w:.]*(\(\))?$")
_UNDERLINE = re.compile(r"^([=\-~^\"'`:.+#*<>_!])\1{2,}\s*$")
_DIRECTIVE = re.compile(r"\s*\.\. [A-Za-z][\w:.+-]* ?::[ \t]*(.*)\n?")
_OPTION = re.compile(r":[\w-]+:")
# docutils keeps directives and roles in module-wide tables.
_lock = threading.Lock()


def read_rst(path: Path, root: Path | None = None) -> Parsed:
    """Read an rst file; `root` is the book's folder, within which `literalinclude` may look."""
    source = read_text(path)
    parsed = parse_rst(source.text, path, root or path.parent)
    notes = ((source.note,) if source.note else ()) + parsed.health.notes
    return Parsed(parsed.elements, health=BookHealth(notes=notes, skipped_files=parsed.health.skipped_files))


def parse_rst(text: str, path: Path, root: Path) -> Parsed:
    """rst text to elements. What docutils cannot parse at all is read as plain paragraphs, with a note."""
    missing: list[str] = []
    settings = {**_SETTINGS, "book_root": root, "book_file": path, "book_missing": missing, "book_including": 0}
    try:
        with _lock:
            register_for(text)
            tree = publish_doctree(text, source_path=str(path), settings_overrides=settings)
        elements = tuple(_children(tree, 1))
    except (SystemMessage, ValueError, TypeError, AttributeError, IndexError, KeyError, AssertionError, RecursionError):
        # docutils raises what its parsers stumble over: broken markup must not lose the whole book.
        note = f"'{path.name}' is not valid reStructuredText and was read as plain text"
        return Parsed(tuple(plain_paragraphs(text)), health=BookHealth(notes=(note,)))
    return Parsed(elements, health=BookHealth(skipped_files=tuple(missing)))


def plain_paragraphs(text: str) -> list[Element]:
    """Paragraphs between blank lines; a line underlined with punctuation is a heading."""
    elements: list[Element] = []
    for piece in re.split(r"\n[ \t]*\n", text):
        lines = piece.strip("\n").split("\n")
        if len(lines) == 2 and _UNDERLINE.match(lines[1]) and lines[0].strip():
            elements.append(Heading(1 if lines[1][0] in "=#" else 2, lines[0].strip()))
        elif piece.strip():
            elements.append(Block(piece.strip("\n").rstrip()))
    return elements


def _children(node: nodes.Node, level: int) -> list[Element]:
    return [element for child in node.children for element in _element(child, level)]


def _element(node: nodes.Node, level: int) -> list[Element]:
    if isinstance(node, nodes.section):
        title = next((child for child in node.children if isinstance(child, nodes.title)), None)
        heading = [Heading(level, one_line(_inline(title).replace("`", "")))] if title is not None else []
        rest = [element for child in node.children if child is not title for element in _element(child, level + 1)]
        return [*heading, *rest]
    return [Block(text) for text in _blocks(node) if text.strip()]


def _blocks(node: nodes.Node) -> list[str]:
    """One node as texts; listings and tables are texts of their own."""
    if isinstance(node, nodes.system_message):
        return _unparsed(node)
    if isinstance(node, (nodes.comment, nodes.target, nodes.substitution_definition,
                         nodes.pending, nodes.raw, nodes.meta, nodes.decoration)):  # fmt: skip
        return []
    if isinstance(node, nodes.literal_block):
        return [fence(node.astext(), node.get("language", ""))] if node.astext().strip() else []
    if isinstance(node, nodes.doctest_block):
        return [fence(node.astext(), "python")]
    if isinstance(node, nodes.math_block):
        return [f"$$\n{node.astext().strip()}\n$$"]
    if isinstance(node, (nodes.bullet_list, nodes.enumerated_list)):
        return _list(node)
    if isinstance(node, nodes.definition_list_item):
        terms = [_inline(child) for child in node.children if isinstance(child, (nodes.term, nodes.classifier))]
        body = [text for child in node.children if isinstance(child, nodes.definition) for text in _all(child)]
        return _lead(" : ".join(terms), body)
    if isinstance(node, nodes.field):
        return _lead(_inline(node.children[0]), _all(node.children[1]))
    if isinstance(node, nodes.option_list_item):
        return _lead(f"`{node.children[0].astext()}`", _all(node.children[1]))
    if isinstance(node, nodes.line_block):
        return ["\n".join(text for child in node.children for text in _blocks(child))]
    if isinstance(node, (nodes.paragraph, nodes.line, nodes.caption, nodes.attribution, nodes.term)):
        return [_inline(node)]
    if isinstance(node, (nodes.title, nodes.rubric, nodes.subtitle)):
        return [f"**{_inline(node)}**"] if node.astext().strip() else []
    if isinstance(node, nodes.image):
        return [node["alt"]] if node.get("alt") and not node["alt"].startswith(("/", ".")) else []
    if isinstance(node, nodes.table):
        return _table(node)
    if isinstance(node, nodes.footnote):
        return _lead(f"[{node.children[0].astext()}]", [text for c in node.children[1:] for text in _blocks(c)])
    if isinstance(node, nodes.problematic):
        return []
    if isinstance(node, nodes.TextElement):
        return [_inline(node)]
    return _all(node)


def _unparsed(message: nodes.system_message) -> list[str]:
    """The words of a directive that docutils refused: its message carries the source, and the tree nothing else."""
    source = next((child.astext() for child in message.children if isinstance(child, nodes.literal_block)), "")
    directive = _DIRECTIVE.match(source)
    if directive is None:
        return []
    lines = inspect.cleandoc("\n" + source[directive.end() :]).split("\n")
    while lines and _OPTION.match(lines[0]):
        del lines[0]
    pieces = re.split(r"\n[ \t]*\n", "\n".join(lines))
    return [piece.strip("\n") for piece in (directive[1], *pieces) if piece.strip()]


def _all(node: nodes.Node) -> list[str]:
    return [text for child in node.children for text in _blocks(child) if text.strip()]


def _lead(lead: str, body: list[str]) -> list[str]:
    """A term and its definition in one text, unless the definition opens with a listing."""
    if not body or body[0].startswith(("```", "|", "$$")):
        return [lead, *body]
    return [f"{lead}: {body[0]}" if not lead.endswith(":") else f"{lead} {body[0]}", *body[1:]]


def _list(node: nodes.Node) -> list[str]:
    texts: list[str] = []
    lines: list[str] = []
    start = int(node.get("start", 1)) if isinstance(node, nodes.enumerated_list) else 0
    for number, item in enumerate(node.children, start):
        marker = f"{number}." if start else "-"
        opened = False
        for child in item.children:
            nested = isinstance(child, (nodes.bullet_list, nodes.enumerated_list))
            for text in _blocks(child):
                if text.startswith(("```", "|", "$$")):
                    if lines:
                        texts.append("\n".join(lines))
                    texts.append(text)
                    lines = []
                elif nested:
                    lines.append("\n".join(f"  {line}" for line in text.split("\n")))
                else:
                    lines.append((f"{marker} " if not opened else " " * (len(marker) + 1)) + text)
                    opened = True
    if lines:
        texts.append("\n".join(lines))
    return texts


def _table(node: nodes.Node) -> list[str]:
    texts = [_inline(child) for child in node.children if isinstance(child, nodes.title)]
    rows: list[str] = []
    for row in node.findall(nodes.row):
        cells = [one_line(" ".join(_all(entry))) for entry in row.children if isinstance(entry, nodes.entry)]
        rows.append("| " + " | ".join(cells) + " |")
        if len(rows) == 1:
            rows.append("|" + " --- |" * len(cells))
    return [*texts, "\n".join(rows)] if rows else texts


def _inline(node: nodes.Node) -> str:
    """Inline content: literals in backticks, emphasis in stars, references as their words."""
    out: list[str] = []
    for child in node.children:
        if isinstance(child, nodes.Text):
            out.append(child.astext())
        elif isinstance(child, nodes.literal):
            out.append(f"`{child.astext()}`")
        elif isinstance(child, nodes.math):
            out.append(f"${child.astext()}$")
        elif isinstance(child, nodes.emphasis):
            out.append(f"*{_inline(child)}*")
        elif isinstance(child, nodes.strong):
            out.append(f"**{_inline(child)}**")
        elif isinstance(child, nodes.image):
            out.append(child.get("alt", ""))
        elif isinstance(child, nodes.problematic):
            out.append(_mend(child.astext()))
        elif not isinstance(child, (nodes.system_message, nodes.target, nodes.raw, nodes.footnote_reference)):
            out.append(_inline(child))
    return one_line("".join(out))


def _mend(text: str) -> str:
    """What docutils could not resolve, as words: `|cudaMalloc|` and `` `a link`_ `` name something all the same."""
    substitution = re.fullmatch(r"\|([^|]+)\|_{0,2}", text)
    if substitution is not None:
        name = substitution[1]
        return f"`{name}`" if _IDENTIFIER.match(name) else name
    link = re.fullmatch(r"`([^`<]*?)\s*(?:<[^>]*>)?`_{1,2}", text)
    return link[1] if link is not None else text.strip("|").removesuffix("_")
