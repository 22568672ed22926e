"""Stand-ins for the directives and roles that Sphinx and its extensions add to docutils."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import Directive, directives, roles
from docutils.statemachine import StringList

from indexes.readers.elements import SPOKEN_LABELS
from indexes.readers.included import included_file, included_lines

_NAMES = re.compile(r"^[ \t]*\.\.[ \t]+(?:\|[^|\n]+\|[ \t]+)?([A-Za-z][\w:.+-]*?)[ \t]?::", re.MULTILINE)
_ROLES = re.compile(r":([A-Za-z][\w:.+-]*):`|`:([A-Za-z][\w:.+-]*):")
_STYLES = re.compile(r"[a-z][a-z0-9-]*( [a-z][a-z0-9-]*)*$")
_ROLE_TARGET = re.compile(r"^(.*?)\s*<[^<>]*>$", re.DOTALL)

# docutils' own, whose meaning is kept.
_NATIVE = frozenset(
    {"figure", "list-table", "table", "math", "parsed-literal", "replace", "unicode", "epigraph", "pull-quote",
     "highlights", "compound", "container", "rubric", "line-block", "date", "role", "default-role", "header",
     "footer", "csv-table", "topic", "sidebar", "attention", "caution", "danger", "error", "hint", "important", "note",
     "tip", "warning", "admonition", "image"}
)  # fmt: skip
_LISTINGS = frozenset({"code", "code-block", "sourcecode", "code-cell", "prompt", "highlight-block"})
_SILENT = frozenset(
    {"toctree", "meta", "highlight", "contents", "index", "raw", "currentmodule", "module", "default-domain",
     "sectionauthor", "codeauthor", "sectnum", "title", "target-notes", "bibliography", "automodule", "graphviz",
     "mermaid", "plot", "testsetup", "testcleanup", "tabularcolumns", "program"}
)  # fmt: skip
_NATIVE_ROLES = frozenset(
    {"math", "emphasis", "strong", "literal", "subscript", "superscript", "sub", "sup", "title-reference", "raw"}
)
_CODE_ROLES = re.compile(
    r"(^|:)(func|class|meth|attr|mod|data|exc|obj|envvar|file|command|option|code|c|cpp|py|kbd|samp|program|const|macro"
    r"|type|member|struct|enum|var|expr|literal|any|hip|cuda)$"
)
_VERSIONS = {"versionadded": "New in version", "versionchanged": "Changed in version",
             "deprecated": "Deprecated since version", "versionremoved": "Removed in version"}  # fmt: skip
_LAYOUT = frozenset({"only", "ifconfig", "grid", "grid-item", "hlist", "columns", "column", "tabularcolumns", "row"})
"""Their arguments are conditions and sizes, not words of the book."""
MAX_INCLUDED_DEPTH = 5
_READ_ALONE = frozenset({".rst", ".rest", ".md", ".txt", ".html", ".htm", ".ipynb"})
"""What a folder's reader reads as files of their own: including them would say everything twice."""


class _AnyOptions(dict[str, Any]):
    """An option specification that takes every option as it stands."""

    def __missing__(self, name: str) -> Any:
        return directives.unchanged

    def __bool__(self) -> bool:
        return True


class _Tolerant(Directive):  # type: ignore[misc]  # docutils carries no types
    """Arguments, options and content of any kind; the tree keeps the words."""

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


class Unwrapped(_Tolerant):
    """An unknown directive: its argument as a line, then its content."""

    def run(self) -> list[nodes.Node]:
        """The words of the directive."""
        name = self.name.lower()
        lead = "" if name in _LAYOUT else self.argument or SPOKEN_LABELS.get(name, "")
        if name in _VERSIONS:
            # The argument is the version and, on the same line, what it brought.
            version, _, what = " ".join(lead.split()).partition(" ")
            words = f"{_VERSIONS[name]} {version}" + (f": {what}" if what else "")
            inline, _ = self.state.inline_text(words, self.lineno)
            return [nodes.paragraph("", "", *inline), *self.nested()]
        styles = name in ("class", "rst-class", "cssclass") and not self.content and _STYLES.match(lead)
        if not lead or styles:
            return self.nested()
        inline, _ = self.state.inline_text(lead, self.lineno)
        plain = name in SPOKEN_LABELS or "tab" in name or not self.content
        described = re.match(
            r"(c:|cpp:|py:|js:|auto|doxygen)|(function|(class|static)?method|class|exception|attribute|data|envvar)$",
            name,
        )
        if described:
            return [nodes.paragraph("", "", nodes.literal("", lead)), *self.nested()]
        body = nodes.strong("", "", *inline) if plain and self.content else nodes.inline("", "", *inline)
        return [nodes.paragraph("", "", body), *self.nested()]


class Silent(_Tolerant):
    """A directive that holds no text of the book."""

    def run(self) -> list[nodes.Node]:
        """Nothing."""
        return []


class Listing(_Tolerant):
    """`code-block` and its kin; a caption comes before the listing."""

    def run(self) -> list[nodes.Node]:
        """A caption, if any, and a literal block that knows its language."""
        code = "\n".join(self.content)
        block = nodes.literal_block(code, code, language=_language(self.argument))
        caption = self.options.get("caption")
        return [nodes.paragraph(caption, caption), block] if caption else [block]


class _FromFile(_Tolerant):
    """What another file holds, if that file lies inside the book's folder; else its name is reported."""

    def target(self) -> Path | None:
        """The file, or None."""
        settings = self.state.document.settings
        target = included_file(self.argument, Path(settings.book_file), Path(settings.book_root))
        if target is None:
            settings.book_missing.append(self.argument)
        return target


class LiteralInclude(_FromFile):
    """A listing from a file."""

    def run(self) -> list[nodes.Node]:
        """A caption, if any, and a literal block; or nothing."""
        target = self.target()
        code = "\n".join(included_lines(target, self.options)) if target is not None else ""
        if target is None or not code.strip():
            return []
        language = self.options.get("language") or target.suffix.lstrip(".")
        block = nodes.literal_block(code, code, language=_language(language))
        caption = self.options.get("caption")
        return [nodes.paragraph(caption, caption), block] if caption else [block]


class Include(_FromFile):
    """A part of the text from a file that is not read as a file of its own, such as `.inc`."""

    def run(self) -> list[nodes.Node]:
        """Its text, parsed in place."""
        settings = self.state.document.settings
        target = self.target()
        if target is None or target.suffix.lower() in _READ_ALONE or settings.book_including >= MAX_INCLUDED_DEPTH:
            return []
        lines = included_lines(target, self.options)
        register_for("\n".join(lines))
        box = nodes.container()
        settings.book_including += 1
        try:
            self.state.nested_parse(StringList(lines, source=str(target)), 0, box, match_titles=1)
        finally:
            settings.book_including -= 1
        return list(box.children)


def _language(name: str) -> str:
    first = name.split()[0] if name.split() else ""
    return re.sub(r"[^\w+#-]", "", first).lower()


def _words_role(name: str, rawtext: str, text: str, *_where: Any) -> tuple[list[nodes.Node], list[nodes.Node]]:
    """An unknown role: its words, as code where the role names code."""
    text = re.sub(r"\x00", "", text).strip()
    target = _ROLE_TARGET.match(text)
    words = (target[1] if target and target[1] else text.strip("<>")).lstrip("~!")
    if _CODE_ROLES.search(name.lower()):
        return [nodes.literal(rawtext, words)], []
    return [nodes.inline(rawtext, words)], []


_FROM_FILES: dict[str, type[Directive]] = {"literalinclude": LiteralInclude, "include": Include}


def register_for(text: str) -> None:
    """Register a stand-in for every directive and role that `text` uses and docutils does not know."""
    for name in {match.lower() for match in _NAMES.findall(text)}:
        if name in _NATIVE:
            continue
        if name in _LISTINGS:
            directives.register_directive(name, Listing)
        elif name in _FROM_FILES:
            directives.register_directive(name, _FROM_FILES[name])
        elif name in _SILENT:
            directives.register_directive(name, Silent)
        else:
            directives.register_directive(name, Unwrapped)
    for first, second in _ROLES.findall(text):
        name = (first or second).lower()
        if name not in _NATIVE_ROLES:
            roles.register_local_role(name, _words_role)
