"""reStructuredText through docutils into HTML, and that into elements; Sphinx's directives and roles are tolerated.

Nothing is executed. Only `literalinclude` and `include` are followed, and only inside the book's folder.
"""

from __future__ import annotations

import inspect
import re
import threading
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.core import publish_parts
from docutils.parsers.rst import Directive, Parser, directives, roles
from docutils.parsers.rst.states import Inliner
from docutils.statemachine import StringList
from docutils.transforms import Transform
from docutils.transforms.universal import FilterMessages, Messages
from docutils.utils import SystemMessage
from docutils.writers import html5_polyglot

from indexes.readers.elements import SPOKEN_LABELS, Parsed, caption_of, whole_letters, words_of_role
from indexes.readers.html import html_to_elements
from indexes.readers.source import included_file, included_lines, read_text
from indexes.readers.text import parse_plain_text
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
    "trim_footnote_reference_space": True,
    "line_length_limit": 1_000_000,
    "stylesheet_path": "",
    "embed_stylesheet": False,
    "strip_comments": True,
    "initial_header_level": 1,
    "table_style": "docutils",
}
_IDENTIFIER = re.compile(r"^[A-Za-z_][\w:.]*(\(\))?$")
_DIRECTIVE = re.compile(r"\s*\.\. [A-Za-z][\w:.+-]* ?::[ \t]*(.*)\n?")
_OPTION = re.compile(r":[\w-]+:")
_NAMES = re.compile(r"^[ \t]*\.\.[ \t]+(?:\|[^|\n]+\|[ \t]+)?([A-Za-z][\w:.+-]*?)[ \t]?::", re.MULTILINE)
_ROLES = re.compile(r":([A-Za-z][\w:.+-]*):`|`:([A-Za-z][\w:.+-]*):")

_NATIVE = frozenset(
    {"figure", "list-table", "table", "math", "parsed-literal", "replace", "unicode", "epigraph", "pull-quote",
     "highlights", "compound", "container", "rubric", "line-block", "date", "role", "default-role", "header",
     "footer", "csv-table", "topic", "sidebar", "attention", "caution", "danger", "error", "hint", "important", "note",
     "tip", "warning", "admonition", "image"}
)  # fmt: skip
"""Directives of docutils that keep their meaning; all others are replaced."""
_LISTINGS = frozenset({"code", "code-block", "sourcecode", "code-cell", "prompt", "highlight-block"})
_SILENT = frozenset(
    {"toctree", "meta", "highlight", "contents", "index", "raw", "currentmodule", "module", "default-domain",
     "sectionauthor", "codeauthor", "sectnum", "title", "target-notes", "bibliography", "automodule", "graphviz",
     "mermaid", "plot", "testsetup", "testcleanup", "tabularcolumns", "program"}
)  # fmt: skip
_NATIVE_ROLES = frozenset(
    {"math", "emphasis", "strong", "literal", "subscript", "superscript", "sub", "sup", "title-reference", "raw"}
)
_VERSIONS = {"versionadded": "New in version", "versionchanged": "Changed in version",
             "deprecated": "Deprecated since version", "versionremoved": "Removed in version"}  # fmt: skip
_DESCRIBED = re.compile(
    r"(c:|cpp:|py:|js:|auto|doxygen)|(function|(class|static)?method|class|exception|attribute|data|envvar)$"
)
"""Directives that describe what they name."""
MAX_INCLUDED_DEPTH = 5
MAX_SUBSTITUTED = 50_000
"""Parts of all that replacements put in; they may hold others: fifty lines can stand for more words than there are."""
MAX_INLINE_CHARS = 8_000
"""A longer paragraph is read in parts: docutils seeks the end of what opens in it from each place."""
_READ_ALONE = frozenset({".rst", ".rest", ".md", ".txt", ".html", ".htm", ".ipynb"})
"""Files that are chapters of a folder themselves: including them would say everything twice."""
# docutils keeps directives and roles in module-wide tables.
_lock = threading.Lock()


def read_rst(path: Path, root: Path | None = None) -> Parsed:
    """Read an rst file; `root` is the book's folder, outside which nothing is included."""
    source = read_text(path)
    parsed = parse_rst(source.text, path, root or path.parent)
    notes = (*source.notes, *parsed.health.notes)
    return Parsed(parsed.elements, health=BookHealth(notes=notes, skipped_files=parsed.health.skipped_files))


def parse_rst(text: str, path: Path, root: Path) -> Parsed:
    """Turn rst into elements. What docutils cannot parse at all is read as plain text, with a note."""
    missing: list[str] = []
    html = rst_to_html(text, path, root, missing)
    if html is None:
        note = f"'{whole_letters(path.name)}' is not valid reStructuredText and was read as plain text"
        return Parsed(tuple(parse_plain_text(text)), health=BookHealth(notes=(note,)))
    return Parsed(tuple(html_to_elements(html)), health=BookHealth(skipped_files=tuple(dict.fromkeys(missing))))


def rst_to_html(text: str, path: Path | None, root: Path | None, missing: list[str]) -> str | None:
    """Turn rst into HTML, or None where docutils cannot; files that are not there are added to `missing`.

    Without a path no file is followed.
    """
    settings = {**_SETTINGS, "book_root": root, "book_file": path, "book_missing": missing, "book_including": 0}
    try:
        with _lock:
            _register_for(text)
            parser = Parser(inliner=_inliner())
            parts = publish_parts(
                text, source_path=str(path), parser=parser, writer=_Writer(), settings_overrides=settings
            )
        return str(parts["fragment"])
    except (SystemMessage, ValueError, TypeError, AttributeError, IndexError, KeyError, AssertionError, RecursionError):
        # docutils may raise any error over broken markup, which must not lose the whole book.
        return None


class _Translator(html5_polyglot.HTMLTranslator):  # type: ignore[misc]  # docutils has no types
    """Writes HTML for the walker: emphasis as typed, listings and formulas as they are, no marks of its own."""

    def unknown_visit(self, node: nodes.Node) -> None:
        """Read on below a node without HTML, such as a pending one."""

    unknown_departure = unknown_visit

    def _skip(self, _node: nodes.Node) -> None:
        raise nodes.SkipNode

    visit_footnote_reference = visit_raw = visit_pending = visit_meta = visit_comment = _skip

    def visit_emphasis(self, _node: nodes.Node) -> None:
        """Emphasis in stars."""
        self.body.append("*")

    depart_emphasis = visit_emphasis

    def visit_strong(self, _node: nodes.Node) -> None:
        """Strong emphasis in two stars."""
        self.body.append("**")

    depart_strong = visit_strong

    def visit_literal(self, node: nodes.Node) -> None:
        """A code span."""
        self._write(f"<code>{self.encode(node.astext())}</code>")

    def visit_literal_block(self, node: nodes.Node) -> None:
        """A listing, as typed."""
        language = "python" if isinstance(node, nodes.doctest_block) else node.get("language", "")
        self._write(f'<pre data-language="{self.attval(language)}">{self.encode(node.astext())}</pre>')

    visit_doctest_block = visit_literal_block

    def visit_math(self, node: nodes.Node) -> None:
        """A formula in a line."""
        self._write(f'<span class="math">{self.encode(node.astext())}</span>')

    def visit_math_block(self, node: nodes.Node) -> None:
        """A displayed formula."""
        self._write(f'<div class="math">\n{self.encode(node.astext())}\n</div>')

    def visit_image(self, node: nodes.Node) -> None:
        """An image's caption."""
        self._write(f" {self.encode(caption_of(node.get('alt', '')))} ")

    def visit_classifier(self, _node: nodes.Node) -> None:
        """A term's kind behind a colon."""
        self.body.append(" : ")

    depart_classifier = unknown_visit

    def visit_footnote(self, _node: nodes.Node) -> None:
        """A footnote or citation as a definition."""
        self.body.append("<dl>")

    def depart_footnote(self, _node: nodes.Node) -> None:
        """The end of a footnote."""
        self.body.append("</dd></dl>")

    visit_citation, depart_citation = visit_footnote, depart_footnote

    def visit_label(self, node: nodes.Node) -> None:
        """The number of a footnote."""
        self._write(f"<dt>[{self.encode(node.astext())}]</dt><dd>")

    def visit_problematic(self, node: nodes.Node) -> None:
        """What docutils could not resolve, as words."""
        self._write(_mended(node.astext(), self.encode))

    def visit_system_message(self, node: nodes.Node) -> None:
        """The words of a directive that docutils refused: only its message carries them."""
        source = next((child.astext() for child in node.children if isinstance(child, nodes.literal_block)), "")
        self._write("".join(f"<p>{self.encode(piece)}</p>" for piece in _refused_words(source)))

    def _write(self, html: str) -> None:
        self.body.append(html)
        raise nodes.SkipNode


def _inliner() -> Inliner:
    """Reads the words of a paragraph as docutils does, a long one in parts that end at a space."""
    inliner = Inliner()
    whole = inliner.parse

    def parse(text: str, *where: Any) -> tuple[list[Any], list[Any]]:
        if len(text) <= MAX_INLINE_CHARS:
            return whole(text, *where)  # type: ignore[no-any-return]
        found: list[Any] = []
        messages: list[Any] = []
        while text:
            end = len(text)
            if end > MAX_INLINE_CHARS:
                end = max(text.rfind(mark, 0, MAX_INLINE_CHARS) for mark in " \n") + 1 or MAX_INLINE_CHARS
            some, more = whole(text[:end], *where)
            found.append(nodes.inline("", "", *some))  # docutils seeks each reference among its neighbours
            messages += more
            text = text[end:]
        return found, messages

    inliner.parse = parse
    return inliner


class _CountedDefinitions(dict[str, Any]):
    """Definitions of replacements, which docutils looks up to copy them, and of which it gets only so much."""

    copied = 0

    def __getitem__(self, name: str) -> Any:
        definition = super().__getitem__(name)
        self.copied += sum(1 for _ in definition.findall())
        if self.copied > MAX_SUBSTITUTED:
            raise ValueError("replacements of replacements without end")
        return definition


class _Bounds(Transform):  # type: ignore[misc]  # docutils has no types
    """Runs before docutils replaces, and bounds it."""

    default_priority = 219

    def apply(self) -> None:
        """Put counted definitions in place of docutils' own, and drop rules, which it checks against all around."""
        for parent in {rule.parent for rule in self.document.findall(nodes.transition)}:
            parent.children = [child for child in parent.children if not isinstance(child, nodes.transition)]
        self.document.substitution_defs = _CountedDefinitions(self.document.substitution_defs)


class _Writer(html5_polyglot.Writer):  # type: ignore[misc]  # docutils has no types
    """docutils' HTML writer with our translator."""

    def __init__(self) -> None:
        super().__init__()
        self.translator_class = _Translator

    def get_transforms(self) -> list[Any]:
        """All but those that drop and move messages: messages carry the words of what docutils refused."""
        others = [transform for transform in super().get_transforms() if transform not in (FilterMessages, Messages)]
        return [*others, _Bounds]


def _mended(text: str, encode: Any) -> str:
    """`|cudaMalloc|` names something even if nothing defines it."""
    substitution = re.fullmatch(r"\|([^|]+)\|_{0,2}", text)
    name = substitution[1] if substitution is not None else text
    return f"<code>{encode(name)}</code>" if substitution and _IDENTIFIER.match(name) else str(encode(name))


def _refused_words(source: str) -> list[str]:
    directive = _DIRECTIVE.match(source)
    if directive is None:
        return []
    lines = inspect.cleandoc("\n" + source[directive.end() :]).split("\n")
    while lines and _OPTION.match(lines[0]):
        del lines[0]
    return [piece for piece in (directive[1], *re.split(r"\n[ \t]*\n", "\n".join(lines))) if piece.strip()]


class _AnyOptions(dict[str, Any]):
    """An option specification that accepts every option unchanged."""

    def __missing__(self, name: str) -> Any:
        return directives.unchanged

    def __bool__(self) -> bool:
        return True


class _Tolerant(Directive):  # type: ignore[misc]  # docutils has no types
    """A directive that takes arguments, options and content of any kind."""

    optional_arguments = 1
    final_argument_whitespace = True
    has_content = True
    option_spec: ClassVar[Any] = _AnyOptions()

    @property
    def argument(self) -> str:
        return self.arguments[0].strip() if self.arguments else ""

    def nested(self) -> list[nodes.Node]:
        """The content, parsed."""
        box = nodes.container()
        self.state.nested_parse(self.content, self.content_offset, box)
        return list(box.children)

    def listing(self, code: str, language: str) -> list[nodes.Node]:
        """A listing in a language, below the caption that the options give."""
        name = re.sub(r"[^\w+#-]", "", language.split()[0]).lower() if language.split() else ""
        block = nodes.literal_block(code, code, language=name)
        caption = self.options.get("caption")
        if not caption:
            return [block]
        words, _ = self.state.inline_text(caption, self.lineno)
        return [nodes.paragraph(caption, "", *words), block]


class _Unwrapped(_Tolerant):
    """An unknown directive: its argument as a line, then its content."""

    def run(self) -> list[nodes.Node]:
        """The words of the directive."""
        name = self.name.lower()
        lead = self.argument or SPOKEN_LABELS.get(name, "")
        if name in _VERSIONS:
            # The argument is the version and, on the same line, what changed.
            version, _, what = " ".join(lead.split()).partition(" ")
            words, _ = self.state.inline_text(
                f"{_VERSIONS[name]} {version}" + (f": {what}" if what else ""), self.lineno
            )
            return [nodes.paragraph("", "", *words), *self.nested()]
        if not lead:
            return self.nested()
        if _DESCRIBED.match(name):
            return [nodes.paragraph("", "", nodes.literal("", lead)), *self.nested()]
        words, _ = self.state.inline_text(lead, self.lineno)
        label = bool(self.content) and (name in SPOKEN_LABELS or "tab" in name)
        body = nodes.strong("", "", *words) if label else nodes.inline("", "", *words)
        return [nodes.paragraph("", "", body), *self.nested()]


class _Silent(_Tolerant):
    """A directive that holds no text of the book."""

    def run(self) -> list[nodes.Node]:
        """Nothing."""
        return []


class _Listing(_Tolerant):
    """`code-block` and its kin; a caption comes before the listing."""

    def run(self) -> list[nodes.Node]:
        """A caption, if any, and a listing."""
        return self.listing("\n".join(self.content), self.argument)


class _FromFile(_Tolerant):
    """A directive that names another file of the book. A file that is missing or outside is reported."""

    def target(self) -> Path | None:
        """The file, or None."""
        settings = self.state.document.settings
        if settings.book_file is None:
            return None
        target = included_file(self.argument, Path(settings.book_file), Path(settings.book_root))
        if target is None:
            settings.book_missing.append(self.argument)
        return target


class _LiteralInclude(_FromFile):
    """A listing from a file."""

    def run(self) -> list[nodes.Node]:
        """A caption, if any, and a literal block; or nothing."""
        target = self.target()
        code = "\n".join(included_lines(target, self.options)) if target is not None else ""
        if target is None or not code.strip():
            return []
        return self.listing(code, self.options.get("language") or target.suffix.lstrip("."))


class _Include(_FromFile):
    """Text from a file that is not a chapter itself, such as `.inc`."""

    def run(self) -> list[nodes.Node]:
        """Its text, parsed in place."""
        settings = self.state.document.settings
        target = self.target()
        if target is None or target.suffix.lower() in _READ_ALONE or settings.book_including >= MAX_INCLUDED_DEPTH:
            return []
        lines = included_lines(target, self.options)
        _register_for("\n".join(lines))
        box = nodes.container()
        settings.book_including += 1
        try:
            self.state.nested_parse(StringList(lines, source=str(target)), 0, box, match_titles=1)
        finally:
            settings.book_including -= 1
        return list(box.children)


def _words_role(name: str, rawtext: str, text: str, *_where: Any) -> tuple[list[nodes.Node], list[nodes.Node]]:
    """An unknown role: its words, as code where the role names code."""
    words, is_code = words_of_role(name, text.replace("\x00", ""))
    return [(nodes.literal if is_code else nodes.inline)(rawtext, words)], []


_FROM_FILES: dict[str, type[Directive]] = {"literalinclude": _LiteralInclude, "include": _Include}


def _register_for(text: str) -> None:
    """Register a stand-in for every directive and role that `text` uses and docutils does not know."""
    for name in {match.lower() for match in _NAMES.findall(text)}:
        if name in _NATIVE:
            continue
        if name in _LISTINGS:
            directives.register_directive(name, _Listing)
        elif name in _FROM_FILES:
            directives.register_directive(name, _FROM_FILES[name])
        elif name in _SILENT:
            directives.register_directive(name, _Silent)
        else:
            directives.register_directive(name, _Unwrapped)
    for first, second in _ROLES.findall(text):
        name = (first or second).lower()
        if name not in _NATIVE_ROLES:
            roles.register_local_role(name, _words_role)
