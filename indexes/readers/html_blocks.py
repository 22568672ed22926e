"""A piece of HTML to headings and blocks. Knows tags; nothing of files, spines or pages."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator

from bs4 import BeautifulSoup
from bs4.element import Comment, NavigableString, PreformattedString, Tag

from indexes.readers.elements import Block, Element, Heading, fence, one_line, pipe_table

_SILENT = frozenset(
    {"script", "style", "nav", "head", "template", "noscript", "svg", "button", "form", "input", "select", "iframe",
     "object", "canvas", "audio", "video"}
)  # fmt: skip
_CONTAINERS = frozenset(
    {"html", "body", "main", "article", "section", "div", "header", "footer", "aside", "details", "figure", "center",
     "blockquote", "dl", "dd", "fieldset", "hgroup", "address"}
)  # fmt: skip
_BLOCK_TAGS = _CONTAINERS | frozenset(
    {"p", "pre", "ul", "ol", "table", "h1", "h2", "h3", "h4", "h5", "h6", "dt", "figcaption", "summary", "hr", "math"}
)
_LANGUAGE = re.compile(r"(?:language|lang|highlight|brush)[-:_ ]?(?:source-)?([\w+#-]+)")
_NO_LANGUAGE = frozenset({"default", "none", "text", "plaintext", "notranslate", "highlight"})
_HEADERLINK = frozenset({"headerlink", "anchor", "anchor-link", "heading-anchor", "hash-link"})
MAX_SPANNED_ROWS, MAX_SPANNED_COLUMNS = 1_000, 50
MAX_DEPTH = 200
"""Tags nested deeper than this are read as plain text; hostile files nest without end."""


def make_soup(markup: str | bytes, parser: str = "lxml") -> BeautifulSoup:
    """Parsed markup; never fetches anything that it names."""
    with warnings.catch_warnings():
        # bs4 guesses that short markup is a path or URL, or that XHTML is XML; neither matters here.
        warnings.simplefilter("ignore")
        return BeautifulSoup(markup, parser)


def html_to_elements(markup: str) -> list[Element]:
    """A piece of HTML (a page's body, or what stands inside Markdown) as elements."""
    soup = make_soup(markup)
    return elements_of(soup)


def elements_of(root: Tag) -> list[Element]:
    """Elements below a tag, in reading order."""
    elements: list[Element] = []
    for element in _walk(root, 0):
        if isinstance(element, Heading) or element.text.strip():
            elements.append(element)
    return elements


def _walk(tag: Tag, depth: int) -> Iterator[Element]:
    if depth > MAX_DEPTH:
        yield Block(one_line(" ".join(tag.strings)))
        return
    loose: list[str] = []
    for child in tag.children:
        if isinstance(child, Tag) and child.name in _SILENT and child.name != "script":
            continue
        if isinstance(child, Tag) and (child.name in _BLOCK_TAGS or _holds_blocks(child, depth)):
            if text := _tidy("".join(loose)):
                yield Block(text)
            loose = []
            yield from _block(child, depth + 1)
        else:
            loose.append(_inline(child, depth))
    if text := _tidy("".join(loose)):
        yield Block(text)


def _holds_blocks(tag: Tag, depth: int) -> bool:
    return depth < MAX_DEPTH and tag.find(list(_BLOCK_TAGS)) is not None


def _block(tag: Tag, depth: int) -> Iterator[Element]:
    name = tag.name
    if re.fullmatch(r"h[1-6]", name):
        title = one_line(_inline(tag, depth).replace("`", "").replace("*", ""))
        if title:
            yield Heading(int(name[1]), title)
    elif name == "pre":
        yield Block(_listing(tag))
    elif lines := tag.select(":scope > div.line, :scope > code > div.line") if name in ("div", "figure") else []:
        # Doxygen and its like: a listing without `pre`, each line a box of its own.
        yield Block(fence("\n".join(_line(line) for line in lines), ""))
    elif name in ("ul", "ol"):
        yield from (Block(text) for text in _list(tag, depth))
    elif name == "table":
        yield from _table(tag, depth)
    elif name == "math":
        yield Block(_formula(tag))
    elif name == "hr":
        return
    elif name == "dl":
        yield from _definitions(tag, depth)
    else:
        yield from _walk(tag, depth)


def _definitions(tag: Tag, depth: int) -> Iterator[Element]:
    """A definition list: each term before the first paragraph of its definition."""
    term = ""
    for child in tag.children:
        if not isinstance(child, Tag):
            continue
        if child.name == "dt":
            if term:
                yield Block(term)
            term = one_line(_inline(child, depth))
            continue
        for element in _walk(child, depth):
            if term and isinstance(element, Block) and not element.text.startswith(("```", "| ")):
                yield Block(f"{term.rstrip(':')}: {element.text}")
            else:
                yield from ([Block(term), element] if term else [element])
            term = ""
    if term:
        yield Block(term)


def _listing(tag: Tag) -> str:
    for line_break in tag.find_all("br"):
        line_break.replace_with("\n")
    code = "".join(str(piece) for piece in tag.strings)
    if not code.strip():
        return ""
    owner: Tag | None = tag
    language = ""
    for candidate in (tag.find("code"), tag, tag.parent, tag.parent.parent if tag.parent else None):
        owner = candidate if isinstance(candidate, Tag) else None
        classes = " ".join(owner.get_attribute_list("class")) if owner is not None and owner.has_attr("class") else ""
        found = [name for name in _LANGUAGE.findall(classes) if name.lower() not in _NO_LANGUAGE]
        if found:
            language = found[0]
            break
    return fence(code, language)


def _line(tag: Tag) -> str:
    """A line of a listing without its number."""
    for number in tag.select("span.lineno"):
        number.decompose()
    return "".join(str(piece) for piece in tag.strings if not isinstance(piece, Comment)).rstrip().replace("\xa0", " ")


def _list(tag: Tag, depth: int, level: int = 0) -> list[str]:
    texts: list[str] = []
    lines: list[str] = []
    number = 1
    for item in tag.find_all("li", recursive=False):
        marker = f"{number}." if tag.name == "ol" else "-"
        number += 1
        opened = False
        for element in _walk_item(item, depth + 1, level):
            text = element.text if isinstance(element, Block) else f"**{element.title}**"
            if text.startswith(("```", "| ")):
                if lines:
                    texts.append("\n".join(lines))
                texts.append(text)
                lines = []
            elif re.match(r"^ *(-|\d+\.) ", text) and opened:
                lines.append(text)
            else:
                lead = "  " * level + (f"{marker} " if not opened else " " * (len(marker) + 1))
                lines.append(lead + text)
                opened = True
    if lines:
        texts.append("\n".join(lines))
    return texts


def _walk_item(item: Tag, depth: int, level: int) -> Iterator[Element]:
    loose: list[str] = []
    for child in item.children:
        is_list = isinstance(child, Tag) and child.name in ("ul", "ol")
        if isinstance(child, Tag) and (is_list or child.name in _BLOCK_TAGS):
            if text := _tidy("".join(loose)):
                yield Block(text)
            loose = []
            if is_list and depth < MAX_DEPTH:
                yield from (Block(text) for text in _list(child, depth, level + 1))
            else:
                yield from _block(child, depth)
        elif not (isinstance(child, Tag) and child.name in _SILENT):
            loose.append(_inline(child, depth))
    if text := _tidy("".join(loose)):
        yield Block(text)


def _table(tag: Tag, depth: int) -> Iterator[Element]:
    code = tag.select_one("td.code pre, td.rouge-code pre")
    if code is not None:
        # Highlighters lay a listing out as a table of line numbers and code.
        yield Block(_listing(code))
        return
    caption = tag.find("caption")
    if isinstance(caption, Tag) and (text := _tidy(_inline(caption, depth))):
        yield Block(text)
    rows = [row for row in _rows(tag, depth) if any(row)]
    if not rows:
        return
    if max(len(row) for row in rows) == 1:
        yield from (Block(row[0]) for row in rows if row)
        return
    yield Block(pipe_table(rows))


def _rows(tag: Tag, depth: int) -> list[list[str]]:
    """Cells by row; one that spans rows stands in each of them, so that columns stay one below the other."""
    rows: list[list[str]] = []
    hanging: dict[int, tuple[int, str]] = {}
    for row in tag.find_all("tr"):
        cells = iter(row.find_all(["td", "th"], recursive=False))
        texts: list[str] = []
        while True:
            left, text = hanging.pop(len(texts), (0, ""))
            if left:
                if left > 1:
                    hanging[len(texts)] = (left - 1, text)
                texts.append(text)
                continue
            cell = next(cells, None)
            if cell is None:
                break
            text = one_line(_inline(cell, depth))
            span = str(cell.get("rowspan") or "")
            if span.isdecimal() and 1 < int(span) <= MAX_SPANNED_ROWS:
                hanging[len(texts)] = (int(span) - 1, text)
            texts.append(text)
            wide = str(cell.get("colspan") or "")
            texts.extend([""] * (min(int(wide), MAX_SPANNED_COLUMNS) - 1 if wide.isdecimal() else 0))
        rows.append(texts)
    return rows


def _formula(tag: Tag) -> str:
    note = tag.find("annotation", attrs={"encoding": "application/x-tex"})
    if isinstance(note, Tag):
        return f"${one_line(note.get_text())}$"
    if tag.get("alttext"):
        return f"${one_line(str(tag['alttext']))}$"
    return one_line(tag.get_text(" "))


def _inline(node: object, depth: int) -> str:
    if isinstance(node, NavigableString):
        return "" if isinstance(node, (Comment, PreformattedString)) else re.sub(r"\s+", " ", str(node))
    if isinstance(node, Tag) and node.name == "script" and str(node.get("type") or "").startswith("math/tex"):
        return f"${one_line(node.get_text())}$"  # as MathJax takes formulas
    if not isinstance(node, Tag) or node.name in _SILENT:
        return ""
    if node.name == "br":
        return "\n"
    if node.name == "img":
        return str(node.get("alt") or "")
    if node.name == "math":
        return _formula(node)
    if node.name == "a" and set(node.get_attribute_list("class")) & _HEADERLINK:
        return ""
    if depth > MAX_DEPTH:
        return re.sub(r"\s+", " ", node.get_text(" "))
    inner = "".join(_inline(child, depth + 1) for child in node.children)
    if node.name in ("code", "kbd", "tt", "samp"):
        inner = inner.strip()
        return f"`{inner}`" if inner and "`" not in inner else inner
    if node.name == "sup" and re.fullmatch(r"[\w+-]{1,4}", inner):
        return f"^{inner}"
    if node.name in _BLOCK_TAGS or node.name in ("li", "tr"):
        return f" {inner} "
    return inner


def _tidy(text: str) -> str:
    lines = [" ".join(line.split()) for line in text.split("\n")]
    return "\n".join(line for line in lines if line)
