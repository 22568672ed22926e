"""The walker of markup: a tree of HTML becomes headings and blocks.

Web pages, EPUB chapters, and what Markdown, reStructuredText and notebooks are turned into are walked here.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from bs4 import BeautifulSoup
from bs4.element import Comment, NavigableString, PreformattedString, Tag

from indexes.readers.elements import (
    Block,
    Element,
    Heading,
    bold,
    caption_of,
    fence,
    is_monospace,
    one_line,
    pipe_table,
    raised,
    stands_alone,
    whole_letters,
)
from indexes.readers.formula import formula_text, local_name, tex_of
from indexes.readers.source import clean_text

_SILENT = frozenset(
    {"script", "style", "nav", "head", "title", "template", "noscript", "svg", "button", "input", "select", "iframe",
     "object", "canvas", "audio", "video"}
)  # fmt: skip
_CONTAINERS = frozenset(
    {"html", "body", "main", "article", "section", "div", "header", "footer", "aside", "details", "figure", "center",
     "blockquote", "dl", "dd", "form", "fieldset", "hgroup", "address"}
)  # fmt: skip
_BLOCK_TAGS = _CONTAINERS | frozenset(
    {"p", "pre", "ul", "ol", "table", "h1", "h2", "h3", "h4", "h5", "h6", "dt", "figcaption", "summary", "hr"}
)
_LISTS = frozenset({"ul", "ol"})
_PARAGRAPHS = ("p", "li", "dt", "dd", "td", "th")
_CODE = frozenset({"code", "kbd", "tt", "samp"})
_LINES = frozenset({"div", "p", "li", "tr"})
"""Tags that set a line of their own inside a listing."""
_SCRIPTS = {"sup": "^", "sub": "_"}
_LABELS = frozenset({"rubric", "admonition-title", "topic-title", "sidebar-title", "markdown-alert-title"})
"""Classes of paragraphs that name the box around them, as docutils and Sphinx write them."""
_LANGUAGE = re.compile(r"(?:language|lang|highlight|brush)[-:_ ]?(?:source-)?([\w+#-]+)")
_NO_LANGUAGE = frozenset({"default", "none", "text", "plaintext", "notranslate", "highlight"})
_TEX_MARKS = (("\\(", "\\)"), ("\\[", "\\]"))
_STRONG = re.compile(r"\*\*(?=\S)([^*]+)(?<=\S)\*\*")
_EMPHASIS = re.compile(r"(?<!\w)\*(?=\S)([^*]+)(?<=\S)\*(?!\w)")
_SPACES = re.compile(r"\s+")
_WRAPPED = re.compile(r"\s*\n\s*")
_FONT = re.compile(r"font(?:-family)?\s*:([^;]*)")
MAX_SPANNED_ROWS, MAX_SPANNED_COLUMNS = 1_000, 50
MAX_DEPTH = 200
"""Tags nested deeper than this are read as plain text; hostile files nest without end."""


def make_soup(markup: str | bytes, parser: str = "lxml") -> BeautifulSoup:
    """Parse markup; never fetches anything that it names."""
    with warnings.catch_warnings():
        # bs4 guesses that short markup is a path or URL, or that XHTML is XML; neither matters here.
        warnings.simplefilter("ignore")
        soup = BeautifulSoup(whole_letters(markup) if isinstance(markup, str) else markup, parser)
    head = soup.head
    if head is not None and head.find(list(_BLOCK_TAGS)):
        # The parser leaves tags that it does not know, such as a `<section>` after the title, in the head.
        head.name = "div"
        if soup.body is None:
            head.wrap(soup.new_tag("body"))
        else:
            soup.body.insert(0, head)
    return soup


def html_to_elements(markup: str) -> list[Element]:
    """Turn a piece of HTML into elements."""
    return elements_of(make_soup(markup))


def elements_of(root: Tag, css: str | None = None) -> list[Element]:
    """Elements below a tag, in reading order. Takes time linear in the size of the tree.

    Args:
        css: the style sheets of a page, which may set listings as paragraphs; None for what was written otherwise.
    """
    _mark_scripts(root)
    elements = map(_cleaned, _Walker(root, None if css is None else _fixed_classes(css)).flow(root, 0))
    return [element for element in elements if isinstance(element, Heading) or element.text.strip()]


def _cleaned(element: Element) -> Element:
    """An element without the invisible characters that markup wrote as `&shy;` and the like."""
    if isinstance(element, Heading):
        return replace(element, title=clean_text(element.title))
    return Block(clean_text(element.text))


def plain_title(title: str) -> str:
    """Drop emphasis and code marks from a heading, as a table of contents would."""
    for emphasis in (_STRONG, _EMPHASIS, _STRONG):
        title = emphasis.sub(r"\1", title)
    return one_line(title.replace("`", ""))


def heading_text(tag: Tag, depth: int = 0) -> str:
    """Text of a heading; a number in a tag of its own is set apart by style alone, and here by a space."""
    text, number = "", False
    inner = [child for child in tag.children if isinstance(child, Tag) or str(child).strip()]
    if len(inner) == 1 and isinstance(inner[0], Tag) and _whole(inner[0]) is None and depth < MAX_DEPTH:
        return heading_text(inner[0], depth + 1)
    for child in tag.children:
        piece = _inline(child, depth)
        text += f" {piece}" if number and piece[:1].isalpha() else piece
        number = isinstance(child, Tag) and re.search(r"^[^\W_].*?\d\.?$|^\d\.?$", piece) is not None
    return plain_title(text)


def _mark_scripts(root: Tag) -> None:
    """Write what is raised or set low as text, so that no number is read as another, in listings either."""
    for tag in root.find_all(list(_SCRIPTS)):
        inner = [child for child in tag.contents if isinstance(child, Tag)]
        text = tag.get_text() if all(not child.find(True, recursive=False) for child in inner) else ""
        marked = raised(text, _SCRIPTS[tag.name])
        if marked != text and not any(child.name in _SCRIPTS for child in inner):
            after = tag.next_sibling
            apart = " " if isinstance(after, NavigableString) and after[:1].isdigit() else ""
            tag.string = marked + apart  # its own tags show nothing
            tag.name = "span"


def _fixed_classes(css: str) -> frozenset[str]:
    """Classes that style sheets set in a fixed-width font."""
    found: set[str] = set()
    for rule in css.split("}"):
        selectors, _, style = rule.rpartition("{")
        if any(map(is_monospace, _FONT.findall(style))):
            last = [selector.split()[-1] for selector in selectors.split("{")[-1].split(",") if selector.strip()]
            found.update(one.rpartition(".")[2] for one in last if one.count(".") == 1)
    return frozenset(found)


class _Walker:
    """Walks one tree. Knows beforehand which tags hold blocks, so that no tag is searched twice."""

    def __init__(self, root: Tag, fixed: frozenset[str] | None) -> None:
        self._fixed = fixed
        self._holding: set[int] = set()
        for node in root.descendants:
            if isinstance(node, Tag) and (node.name in _BLOCK_TAGS or _is_displayed(node)):
                for parent in node.parents:
                    if id(parent) in self._holding or parent is root:
                        break
                    self._holding.add(id(parent))

    def flow(self, tag: Tag, depth: int, level: int = 0) -> Iterator[Element]:
        """Elements of a tag that holds text and blocks; `level` is how deep its lists are nested."""
        loose: list[str] = []
        typed: list[Tag] = []
        for child in tag.children:
            if typed and isinstance(child, NavigableString) and not child.strip():
                continue
            line = isinstance(child, Tag) and self._is_typed(child)
            if typed and not line:
                yield from _typed_lines(typed)
                typed = []
            if not (isinstance(child, Tag) and self._is_block(child)):
                loose.append(_inline(child, depth))
                continue
            if text := _tidy("".join(loose)):
                yield Block(text)
            loose = []
            if line:
                typed.append(child)
            else:
                yield from self._block(child, depth + 1, level)
        yield from _typed_lines(typed)
        if text := _tidy("".join(loose)):
            yield Block(text)

    def _is_block(self, tag: Tag) -> bool:
        inside = tag.name in _BLOCK_TAGS or id(tag) in self._holding or _is_displayed(tag)
        return tag.name not in _SILENT and inside

    def _is_typed(self, tag: Tag) -> bool:
        """True for a paragraph that is set in a fixed-width font from its first letter to its last."""
        if self._fixed is None or tag.name not in ("p", "div") or id(tag) in self._holding:
            return False
        return self._is_fixed(tag, 0) and not _is_verse(tag) and bool(tag.get_text(strip=True))

    def _is_fixed(self, node: object, depth: int) -> bool:
        if not isinstance(node, Tag):
            return not str(node).strip()
        if node.name in _CODE or (self._fixed and _classes(node) & self._fixed):
            return True
        if any(map(is_monospace, _FONT.findall(str(node.get("style", ""))))):
            return True
        return depth < MAX_DEPTH and all(self._is_fixed(child, depth + 1) for child in node.children)

    def _block(self, tag: Tag, depth: int, level: int) -> Iterator[Element]:
        name = tag.name
        if depth > MAX_DEPTH:
            yield Block(one_line(" ".join(tag.strings)))
        elif re.fullmatch(r"h[1-6]", name):
            if title := heading_text(tag, depth):
                yield Heading(int(name[1]), title)
        elif name == "pre":
            yield Block(_listing(tag))
        elif name in _LISTS:
            yield from (Block(text) for text in self._list(tag, depth, level))
        elif name == "table":
            yield from self._table(tag, depth)
        elif _is_displayed(tag):
            yield Block(_formula(tag, "$$ {} $$"))
        elif name == "dl":
            yield from self._definitions(tag, depth)
        elif name == "blockquote":
            yield from _boxed(self.flow(tag, depth, level))
        elif name == "p" and _classes(tag) & _LABELS:
            yield Block(bold(_tidy(_inline(tag, depth))))
        elif name == "div" and "math" in _classes(tag):
            yield Block(_display(tag))
        elif name == "div" and "line-block" in _classes(tag):
            yield Block("\n".join(filter(None, (_tidy(_inline(line, depth)) for line in tag.find_all(_is_verse)))))
        elif lines := _drawn_lines(tag):
            yield Block(fence("\n".join(_drawn_line(line) for line in lines)))
        elif name != "hr":
            yield from self.flow(tag, depth, level)

    def _list(self, tag: Tag, depth: int, level: int) -> list[str]:
        """A list as one text, items on lines of their own; listings, tables and formulas inside break it."""
        texts: list[str] = []
        lines: list[str] = []
        number = _number(tag, "start")
        for item in tag.children:
            if not isinstance(item, Tag) or item.name in _SILENT:
                continue
            marker = f"{number}. " if tag.name == "ol" else "- "
            number += item.name == "li"
            lead = "  " * level + marker
            for text in self._item(item, depth, level + 1):
                if stands_alone(text):
                    if lines:
                        texts.append("\n".join(lines))
                    texts.append(text)
                    lines = []
                elif text.startswith("  "):  # a list inside this one
                    lines.append(text)
                else:
                    lines.append(lead + text)
                    lead = " " * len(lead)
        if lines:
            texts.append("\n".join(lines))
        return texts

    def _item(self, item: Tag, depth: int, level: int) -> Iterator[str]:
        blocks = self.flow(item, depth + 1, level) if item.name == "li" else self._block(item, depth + 2, level)
        return (block.text for block in _boxed(blocks) if block.text.strip())

    def _definitions(self, tag: Tag, depth: int) -> Iterator[Element]:
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
            for element in self.flow(child, depth + 1):
                if term and isinstance(element, Block) and not stands_alone(element.text):
                    yield Block(f"{term.rstrip(':')}: {element.text}")
                else:
                    yield from ([Block(term), element] if term else [element])
                term = ""
        if term:
            yield Block(term)

    def _table(self, tag: Tag, depth: int) -> Iterator[Element]:
        parts = [child for child in tag.children if isinstance(child, Tag) and child.name not in ("colgroup", "col")]
        trs: list[Tag] = []
        for part in parts:
            if part.name == "caption":
                yield Block(_tidy(_inline(part, depth)))
            elif part.name == "tr":
                trs.append(part)
            elif part.name in ("thead", "tbody", "tfoot"):
                trs.extend(part.find_all("tr", recursive=False))
            else:
                yield from self._block(part, depth + 1, 0)
        cells = [tr.find_all(["td", "th"], recursive=False) for tr in trs]
        code = next((cell for row in cells for cell in row if _classes(cell) & {"code", "rouge-code"}), None)
        listing = code.find("pre") if code is not None else None
        if isinstance(listing, Tag):
            # Highlighters lay a listing out as a table of line numbers and code.
            yield Block(_listing(listing))
        elif _is_frame(tag, cells):
            for row in cells:
                for cell in row:
                    yield from self.flow(cell, depth + 1)
        else:
            yield Block(pipe_table(_spread(cells, depth)))


def _boxed(elements: Iterable[Element]) -> Iterator[Block]:
    """Elements of a quotation or list item, whose headings open no section."""
    for element in elements:
        yield element if isinstance(element, Block) else Block(bold(element.title))


def _spread(rows: Sequence[Sequence[Tag]], depth: int) -> list[list[str]]:
    """Cells by row; one that spans rows is repeated in each of them, so that columns stay one below the other."""
    spread: list[list[str]] = []
    hanging: dict[int, tuple[int, str]] = {}
    for row in rows:
        cells = iter(row)
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
            if (down := min(_number(cell, "rowspan"), MAX_SPANNED_ROWS)) > 1:
                hanging[len(texts)] = (down - 1, text)
            texts.extend((text, *[""] * (min(_number(cell, "colspan"), MAX_SPANNED_COLUMNS) - 1)))
        spread.append(texts)
    return spread


def _is_frame(table: Tag, rows: Sequence[Sequence[Tag]]) -> bool:
    """True for a table of one column without a head that only lays out; docutils marks those that hold data."""
    wide = any(len(row) > 1 or any(cell.name == "th" for cell in row) for row in rows)
    return not wide and "docutils" not in _classes(table)


def _number(tag: Tag, attribute: str) -> int:
    value = str(tag.get(attribute) or "")
    return int(value) if value.isdecimal() and len(value) < 10 else 1


def _listing(tag: Tag) -> str:
    code = _typed(tag)
    return fence(code, _language(tag)) if code.strip() else ""


def _typed(tag: Tag) -> str:
    """A listing as typed; a line may be a tag of its own."""
    pieces: list[str] = []
    for piece in tag.descendants:
        text = "" if isinstance(piece, (Tag, PreformattedString)) else str(piece)
        begins = isinstance(piece, Tag) and piece.name in _LINES
        ends = isinstance(piece.previous_sibling, Tag) and piece.previous_sibling.name in _LINES
        if (begins or ends) and pieces and not pieces[-1].endswith("\n") and not text.startswith("\n"):
            pieces.append("\n")
        if text or (isinstance(piece, Tag) and piece.name == "br"):
            pieces.append(text or "\n")
    return "".join(pieces)


def _typed_lines(paragraphs: Sequence[Tag]) -> Iterator[Block]:
    """Paragraphs of code as one listing; one alone is a line of text."""
    lines: list[str] = []
    for paragraph in paragraphs:
        begun = re.match(r"\s*\n", paragraph.get_text()) is not None
        for piece in paragraph.find_all(string=_WRAPPED):
            piece.replace_with(_WRAPPED.sub(" ", piece))  # its lines are the file's
        line = _typed(paragraph).rstrip()
        lines.append(line.lstrip() if begun else line)
    if len(lines) > 1 or any("\n" in line for line in lines):
        yield Block(fence("\n".join(lines)))
    elif paragraphs and (text := _tidy(_inline(paragraphs[0], 0))):
        yield Block(text)


def _language(tag: Tag) -> str:
    """The language that a listing, the `code` inside it or one of the two boxes around it names."""
    if tag.has_attr("data-language"):
        return str(tag["data-language"])
    for owner in (tag.find("code"), tag, tag.parent, tag.parent.parent if tag.parent else None):
        if isinstance(owner, Tag):
            found = _LANGUAGE.findall(" ".join(owner.get_attribute_list("class") if owner.has_attr("class") else ()))
            if named := [name for name in found if name.lower() not in _NO_LANGUAGE]:
                return str(named[0])
    return ""


def _drawn_lines(tag: Tag) -> list[Tag]:
    """Lines of a listing that is drawn with one `div.line` per line, as Doxygen does."""
    if tag.name not in ("div", "figure"):
        return []
    lines: list[Tag] = tag.find_all("div", class_="line", recursive=False)
    for code in [] if lines else tag.find_all("code", recursive=False):
        lines.extend(code.find_all("div", class_="line", recursive=False))
    return lines


def _drawn_line(tag: Tag) -> str:
    """A line of a listing without its number."""
    for number in tag.select("span.lineno"):
        number.decompose()
    return "".join(str(piece) for piece in tag.strings if not isinstance(piece, Comment)).rstrip()


def _is_displayed(tag: Tag) -> bool:
    """True for a formula on lines of its own."""
    return local_name(tag) == "math" and (tag.get("display") == "block" or tag.get("mode") == "display")


def _formula(tag: Tag, tex: str = "${}$") -> str:
    return tex.format(note) if (note := tex_of(tag)) else formula_text(tag)


def _display(tag: Tag) -> str:
    """A displayed formula, on one line only if it was written so."""
    text = tag.get_text()
    tex = _tex(text)
    return "" if not tex else f"$$\n{tex}\n$$" if "\n" in text else f"$$ {tex} $$"


def _tex(text: str) -> str:
    """TeX without the marks that MathJax looks for."""
    text = text.strip()
    for opening, closing in _TEX_MARKS:
        if text.startswith(opening) and text.endswith(closing) and len(text) >= len(opening) + len(closing):
            return text[len(opening) : -len(closing)].strip()
    return text


def _inline(node: object, depth: int) -> str:
    """Text of a node inside a paragraph, a heading or a cell."""
    if isinstance(node, NavigableString):
        return "" if isinstance(node, PreformattedString) else _SPACES.sub(" ", str(node))
    if not isinstance(node, Tag):
        return ""
    whole = _whole(node)
    if whole is not None:
        return whole
    if depth > MAX_DEPTH:
        return _SPACES.sub(" ", node.get_text(" "))
    inner = "".join(_inline(child, depth + 1) for child in node.children)
    if node.name in _SCRIPTS:
        return raised(inner, _SCRIPTS[node.name])
    return f" {inner} " if node.name in _BLOCK_TAGS or node.name in ("li", "tr") else inner


def _whole(tag: Tag) -> str | None:
    """Text of a tag that is read as a whole, such as code or a formula; None for one that is read child by child."""
    name = tag.name
    if name in _SILENT or (name == "a" and "headerlink" in _classes(tag)) or tag.get("aria-hidden") == "true":
        return ""  # what is hidden from readers aloud adorns, or says again what stands beside it
    if name == "br":
        return "\n"
    if name == "img":
        return caption_of(str(tag.get("alt") or ""))
    if local_name(tag) == "math":
        return _formula(tag)
    if name in _CODE:
        return _code_span(_SPACES.sub(" ", tag.get_text()).strip())
    if name in ("span", "div") and "math" in _classes(tag):
        tex = one_line(_tex(tag.get_text()))
        return f"${tex}$" if name == "span" else f"$${tex}$$"
    return None


def without_words(part: Tag) -> list[str]:
    """A note about images that stand inside a sentence and say nothing, as pictures of formulas do; empty if none."""
    count, spoken = 0, False
    paragraph: Tag | None = None
    for node in part.descendants:
        if isinstance(node, Tag) and node.name in _PARAGRAPHS:
            paragraph, spoken = node, False
        elif isinstance(node, Tag) and node.name == "img" and spoken and not str(node.get("alt") or "").strip():
            count += node.find_parent(_PARAGRAPHS) is paragraph
        elif isinstance(node, NavigableString) and not isinstance(node, PreformattedString):
            spoken = spoken or any(map(str.isalnum, node))
    if not count:
        return []
    return [f"{count} images inside sentences have no words for them: formulas among them are lost"]


def _code_span(code: str) -> str:
    """Code between backticks, more of them than it holds in a row itself."""
    if "`" not in code:
        return f"`{code}`" if code else ""
    ticks = "`" * (max(len(run) for run in re.findall("`+", code)) + 1)
    return f"{ticks} {code} {ticks}"


def _classes(tag: Tag) -> frozenset[str]:
    return frozenset(str(name) for name in tag.get_attribute_list("class")) if tag.has_attr("class") else frozenset()


def _is_verse(tag: Tag) -> bool:
    return tag.name == "div" and "line" in _classes(tag)


def _tidy(text: str) -> str:
    lines = [" ".join(line.split()) for line in text.split("\n")]
    return "\n".join(line for line in lines if line)
