"""MyST's directives and Pandoc's fenced divs, as far as lines tell them: unwrapped, named by a bold line, followed.

Knows lines; nothing of elements or chapters.
"""

from __future__ import annotations

import re
from pathlib import Path

from indexes.readers.elements import SPOKEN_LABELS, code_lines, fence
from indexes.readers.included import included_file, included_lines

DIRECTIVE = re.compile(r"^\{([\w:+.-]+)\}[ \t]*(.*)$")
"""The info string of a directive: its name and its argument."""
DIRECTIVE_OPTION = re.compile(r"^[ \t]*:([\w-]+):(.*)$")
_COLON_FENCE = re.compile(r"^[ \t]*:{3,}[ \t]*(.*?)[ \t]*:*$")
_LABEL = re.compile(r"^\([\w:.-]+\)=[ \t]*$")
_LITERAL_INCLUDE = re.compile(
    r"^(?P<fence>`{3,}|:{3,})\{literalinclude\}[ \t]+(?P<name>\S+)[ \t]*\n"
    r"(?P<options>(?:[ \t]*:[\w-]+:.*\n)*)(?P=fence)[ \t]*$",
    re.MULTILINE,
)
_NO_TITLE = frozenset({"column", "columns", "grid", "grid-item", "tab-set", "div", "container"})


def with_included(text: str, path: Path, root: Path, missing: list[str]) -> str:
    """MyST's `literalinclude` as the listing that it means; files that are not there are named in `missing`."""

    def listing(match: re.Match[str]) -> str:
        options = dict(re.findall(r"^[ \t]*:([\w-]+):[ \t]*(.*?)[ \t]*$", match["options"], re.MULTILINE))
        target = included_file(match["name"], path, root)
        if target is None:
            missing.append(match["name"])
            return ""
        caption = f"{options['caption']}\n\n" if options.get("caption") else ""
        language = options.get("language") or target.suffix.lstrip(".")
        return caption + fence("\n".join(included_lines(target, options)), language)

    return _LITERAL_INCLUDE.sub(listing, text)


def unwrap_colon_fences(text: str) -> str:
    """Fenced divs and colon directives lose their markers; what they are called stays as a bold line."""
    out: list[str] = []
    skip_options = False
    lines = text.split("\n")
    for line, is_code in zip(lines, code_lines(lines), strict=True):
        if is_code:
            skip_options = False
            out.append(line)
            continue
        colon = _COLON_FENCE.match(line)
        if colon is not None:
            out.extend(("", label_of(colon[1]), ""))
            skip_options = bool(colon[1])
            continue
        if skip_options and DIRECTIVE_OPTION.match(line):
            continue
        skip_options = skip_options and not line.strip()
        out.append("" if _LABEL.match(line) else line)
    return "\n".join(out)


def label_of(opener: str) -> str:
    """The bold line that stands for a div's or directive's opening line; empty for mere layout."""
    directive = DIRECTIVE.match(opener)
    name, title = (directive[1], directive[2]) if directive else ("", "")
    if not directive:
        named = re.match(r"^\{?[ \t]*\.?([\w-]+)", opener)
        name = named[1] if named else ""
    if name in _NO_TITLE:
        return ""
    title = title or SPOKEN_LABELS.get(name.lower(), "")
    return f"**{title}**" if title else ""
