"""Answers and passages as HTML that cannot run: everything of a book, a question or a model is escaped.

Answers are CommonMark with tables, formulas and citation markers. Raw HTML is shown as text, images are not loaded (a
picture in an answer would call another machine), and only web links become links.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from itertools import islice
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from mdit_py_plugins.dollarmath import dollarmath_plugin

from indexes.readers.markdown import tex_block
from rag.citations import MARKER
from rag.types import Citation

_FENCE = re.compile(r"^[ ]{0,3}```([^\n`]*)\n(.*?)(?:^[ ]{0,3}```[ \t]*$\n?|\Z)", re.DOTALL | re.MULTILINE)
_FENCE_LINE = re.compile(r"^[ ]{0,3}```[ \t]*([^\n`]*)$\n?", re.MULTILINE)
_LOOKS_LIKE_CODE = re.compile(r"[;{})]\s*$|^\s*(?:def|for|if|return|import|#include|@)\b", re.MULTILINE)
_SPECIAL = re.compile(
    r"`(?P<code>[^`\n]+)`"
    r"|(?<![\\$\w])\$(?P<formula>[^\s$](?:[^$\n]*[^\s$])?)\$(?![\d$])"
    r"|^#{1,6} +(?P<heading>[^\n]+)$"
    r"|(?<![\w*])\*(?P<stress>[^\s*](?:[^*\n]*[^\s*])?)\*(?![\w*])",
    re.MULTILINE,
)
_BRACKETS = {"\\(": ("math_inline", "\\)"), "\\[": ("math_inline_double", "\\]")}
_CODE = re.compile(r"`(?P<code>[^`\n]+)`")
_IDENTIFIER = re.compile(r"__[a-z][a-z0-9_]*__(?!\w)")
_SPECIAL_HTML = {
    "code": "<code>{}</code>",
    "formula": '<span class="formula">{}</span>',
    "stress": "<em>{}</em>",
    "heading": "<strong>{}</strong>",
}
_LOOKS_LIKE_C = re.compile(r"__\w+__|<<<|#include|;\s*$|^\s*(?:void|int|float|for)\b", re.MULTILINE)
_ALIASES = {"cu": "cuda", "cuh": "cuda", "hip": "cuda", "cl": "c", "opencl": "c", "ptx": "gas", "pycon": "pycon"}
LONGEST_HIGHLIGHTED = 20_000
MARKS = "marks"


@dataclass(slots=True)
class Markers:
    """Which citation the next `[n]` belongs to: the n-th marker to the n-th citation with it.

    Attributes:
        label: the name of a marker's button, with `{n}`.
    """

    citations: Sequence[Citation]
    num_passages: int
    label: str = "[{n}]"
    seen: dict[int, int] | None = None

    def shown(self, number: int) -> int:
        """The number that the reader sees: 1 for the passage that is cited first."""
        return list(self.seen or {}).index(number) + 1

    def take(self, number: int) -> int | None:
        """Index of the citation, -1 for a passage that has no citation (yet), None for no passage at all."""
        if not 1 <= number <= self.num_passages:
            return None
        self.seen = self.seen or {}
        mine = [index for index, citation in enumerate(self.citations) if citation.marker == number]
        place = self.seen.get(number, 0)
        self.seen[number] = place + 1
        return mine[min(place, len(mine) - 1)] if mine else -1


def answer_html(text: str, markers: Markers) -> str:
    """A whole or half-written answer.

    Equal markers in a row of one paragraph become one, behind the last of its sentences; markers are numbered as they
    come.
    """
    renderer, environment = _renderer(), {MARKS: markers}
    tokens = renderer.parse(text, environment)
    for token in tokens:
        if token.children:
            token.children = _merged(token.children)
    return str(renderer.renderer.render(tokens, renderer.options, environment))


def _merged(tokens: Sequence[Token]) -> list[Token]:
    """The tokens of a paragraph, each marker that the same one follows left out; the last has the citations of all."""
    kept: list[Token] = []
    last: Token | None = None
    for token in reversed(tokens):
        if token.type == "citation":
            if last is not None and last.meta["number"] == token.meta["number"]:
                last.meta["indices"][:0] = token.meta["indices"]
                continue
            last = token
        kept.append(token)
    return kept[::-1]


def plain_html(text: str) -> str:
    """Markdown without markers: questions, reference answers."""
    return answer_html(text, Markers((), 0))


Spans = Sequence[tuple[int, int]]


def passage_html(text: str, start: int = 0, end: int = 0, *, also: Spans = (), plain: bool = False) -> str:
    """A passage word for word, its listings set as code, `text[start:end]` marked.

    Args:
        also: further stretches to mark.
        plain: stars, hashes and dollars are text, as in books that are not written in markup.
    """
    special = _CODE if plain else _SPECIAL
    spans = sorted({(start, end), *also})
    pieces: list[str] = []
    position = 0
    if within := _listing_end(text):
        body = _marked(text, 0, within.start(), spans)
        pieces.append(f'<pre tabindex="0"><code>{body}</code></pre>')
        position = within.end()
    for fence in _FENCE.finditer(text, position):
        pieces.append(_prose(text, position, fence.start(), spans, special))
        body = _marked(text, fence.start(2), fence.end(2), spans)
        pieces.append(f'<pre tabindex="0"><code>{body}</code></pre>')
        position = fence.end()
    pieces.append(_prose(text, position, len(text), spans, special))
    return "".join(pieces)


def _listing_end(text: str) -> re.Match[str] | None:
    """Where a listing ends that began before the passage: long listings are cut, and a cut has no opening fence.

    An opening fence names its language in most books, a closing one never does: a bare fence comes first and the
    next one, if there is any, opens another listing.
    """
    fences = list(islice(_FENCE_LINE.finditer(text), 2))
    if not fences or fences[0].group(1):
        return None
    opens_next = len(fences) == 1 or bool(fences[1].group(1))
    return fences[0] if opens_next and _LOOKS_LIKE_CODE.search(text, 0, fences[0].start()) else None


def without_fences(text: str) -> str:
    """A passage without the lines that open and close its listings."""
    return _FENCE_LINE.sub("", text)


def code_html(code: str, language: str) -> str:
    """A listing with its words coloured."""
    return f'<div class="listing"><pre tabindex="0"><code>{_coloured(code, language)}</code></pre></div>'


def _prose(text: str, begin: int, stop: int, spans: Spans, special: re.Pattern[str]) -> str:
    """Running text as it is written, with what `special` matches set as code, formula and so on."""
    while begin < stop and text[begin] == "\n":
        begin += 1
    while stop > begin and text[stop - 1] == "\n":
        stop -= 1
    pieces: list[str] = []
    position = begin
    for found in special.finditer(text, begin, stop):
        pieces.append(_marked(text, position, found.start(), spans))
        kind = found.lastgroup or "code"
        body = _SPECIAL_HTML[kind].format(escape(found.group(kind)))
        inside = any(found.start() < end and found.end() > start for start, end in spans)
        pieces.append(f"<mark>{body}</mark>" if inside else body)
        position = found.end()
    pieces.append(_marked(text, position, stop, spans))
    return f'<div class="prose">{"".join(pieces)}</div>' if begin < stop else ""


def _marked(text: str, begin: int, stop: int, spans: Spans) -> str:
    pieces: list[str] = []
    position = begin
    for start, end in spans:
        low, high = max(position, start), min(stop, end)
        if low < high:
            pieces.append(f"{escape(text[position:low])}<mark>{escape(text[low:high])}</mark>")
            position = high
    return "".join((*pieces, escape(text[position:stop])))


def _coloured(code: str, language: str) -> str:
    if len(code) > LONGEST_HIGHLIGHTED:
        return escape(code)
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    name = _ALIASES.get(language, language) or ("cuda" if _LOOKS_LIKE_C.search(code) else "text")
    try:
        lexer = get_lexer_by_name(name, stripnl=False)
    except ClassNotFound:
        return escape(code)
    return str(highlight(code, lexer, HtmlFormatter(nowrap=True)))


@lru_cache(maxsize=1)
def _renderer() -> MarkdownIt:
    markdown = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable(["image"])
    markdown.validateLink = lambda url: url.startswith(("https://", "http://"))  # type: ignore[method-assign]  # documented way
    markdown.use(dollarmath_plugin, allow_labels=False, allow_space=False, allow_digits=False, double_inline=True)
    markdown.inline.ruler.before("escape", "bracket_math", _bracket_rule)
    markdown.inline.ruler.before("link", "citation", _citation_rule)
    markdown.inline.ruler.before("emphasis", "identifier", _identifier_rule)
    markdown.block.ruler.before("fence", "tex_block", tex_block, {"alt": ["paragraph"]})
    markdown.add_render_rule("citation", _render_citation)
    for kind in ("math_inline", "math_inline_double", "math_block"):
        markdown.add_render_rule(kind, _render_formula)
    markdown.add_render_rule("fence", _render_fence)
    markdown.add_render_rule("code_block", _render_fence)
    markdown.add_render_rule("link_open", _render_link_open)
    return markdown


def _citation_rule(state: StateInline, silent: bool) -> bool:
    if state.src[state.pos] != "[":
        return False
    match = MARKER.match(state.src, state.pos)
    before = state.src[state.pos - 1] if state.pos else " "
    if match is None or state.src[match.end() : match.end() + 1] == "(":
        return False
    # `a[1]` is code, not a marker: the same rule as in `rag.citations`.
    if before.isascii() and (before.isalnum() or before in "_)"):
        return False
    if not silent:
        index = state.env[MARKS].take(int(match.group(1)))
        if index is None:
            return False
        state.push("citation", "", 0).meta = {"number": int(match.group(1)), "indices": [index]}
    state.pos = match.end()
    return True


def _identifier_rule(state: StateInline, silent: bool) -> bool:
    """`__shared__` is a name in the books' languages, not a bold word."""
    match = _IDENTIFIER.match(state.src, state.pos)
    if match is None or state.src[max(state.pos - 1, 0) : state.pos].isalnum():
        return False
    if not silent:
        state.push("code_inline", "code", 0).content = match.group()
    state.pos = match.end()
    return True


def _bracket_rule(state: StateInline, silent: bool) -> bool:
    r"""A formula in `\( … \)` or `\[ … \]` within a line, which the plugin does not read."""
    opening = state.src[state.pos : state.pos + 2]
    kind, closing = _BRACKETS.get(opening, ("", ""))
    end = state.src.find(closing, state.pos + 2) if closing else -1
    if end < 0 or not state.src[state.pos + 2 : end].strip():
        return False
    if not silent:
        state.push(kind, "math", 0).content = state.src[state.pos + 2 : end]
    state.pos = end + 2
    return True


def _render_citation(_: RendererHTML, tokens: Sequence[Token], index: int, __: Any, env: Any) -> str:
    meta = tokens[index].meta
    number = env[MARKS].shown(meta["number"])
    label = escape(env[MARKS].label.format(n=number))
    cited = ",".join(map(str, meta["indices"]))
    return (
        f'<button type="button" class="cite" data-cite="{cited}" data-passage="{meta["number"]}" '
        f'aria-label="{label}">{number}</button>'
    )


def _render_formula(_: RendererHTML, tokens: Sequence[Token], index: int, __: Any, ___: Any) -> str:
    kind = "formula" if tokens[index].type == "math_inline" else "formula display"
    return f'<span class="{kind}">{escape(tokens[index].content.strip())}</span>'


def _render_fence(_: RendererHTML, tokens: Sequence[Token], index: int, __: Any, ___: Any) -> str:
    return code_html(
        tokens[index].content, tokens[index].info.split(maxsplit=1)[0].lower() if tokens[index].info else ""
    )


def _render_link_open(renderer: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    tokens[index].attrSet("target", "_blank")
    tokens[index].attrSet("rel", "noopener noreferrer")
    return renderer.renderToken(tokens, index, options, env)
