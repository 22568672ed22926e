"""Web pages on disk: their text without what surrounds it, and the Markdown that pages of slides carry."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from textwrap import dedent

from bs4 import BeautifulSoup
from bs4.element import Tag

from indexes.readers.elements import Element, Parsed, one_line
from indexes.readers.html import elements_of, make_soup, without_words
from indexes.readers.markdown import markdown_to_html
from indexes.readers.source import clean_text, read_text
from indexes.types import BookHealth

_MAIN = ("main", "[role=main]", "article", "div.content", "body")
_ASIDE_NAMES = frozenset({"toctree-wrapper", "toc", "sidebar", "nav", "footer"})
_ASIDE_ROLES = frozenset({"navigation", "search", "banner", "contentinfo"})


_CARRIER = re.compile(
    r"<(textarea)\b[^>]*>|<(script)\b[^>]*\btype=[\"']?text/(?:template|x-markdown|markdown)\b[^>]*>", re.IGNORECASE
)


def read_html(path: Path) -> Parsed:
    """Read a web page without its navigation. The title is the page's own."""
    source = read_text(path)
    soup = make_soup(_with_markdown(source.text))
    css = "".join(style.get_text() for style in soup.find_all("style"))
    title = soup.find("title")
    elements: list[Element] = []
    notes = list(source.notes)
    for part in _main_parts(soup):
        for tag in part.find_all(_is_aside):
            tag.decompose()
        elements.extend(elements_of(part, css))
        notes.extend(without_words(part))
    named = one_line(clean_text(title.get_text())) if isinstance(title, Tag) else ""
    return Parsed(tuple(elements), named or None, health=BookHealth(notes=tuple(notes)))


def _with_markdown(page: str) -> str:
    """The page with the Markdown in text areas and templates written as HTML, as a browser's script would do it."""
    parts: list[str] = []
    done = 0
    for opening in _CARRIER.finditer(page):
        name = (opening[1] or opening[2]).lower()
        end = page.find(f"</{name}", opening.end()) if opening.start() >= done else done
        if end < 0:
            break
        if opening.start() >= done:
            text = unescape(page[opening.end() : end])
            parts += page[done : opening.start()], "<div>", markdown_to_html(dedent(text)), "</div>"
            done = page.find(">", end) + 1 or len(page)
    return "".join((*parts, page[done:]))


def _main_parts(soup: BeautifulSoup) -> list[Tag]:
    """The tags that hold a page's text, of the first kind in `_MAIN` that it has: a page may have several articles."""
    found: list[Tag] = next((tags for selector in _MAIN if (tags := soup.select(selector))), [soup])
    known = set(map(id, found))
    return [tag for tag in found if not any(id(parent) in known for parent in tag.parents)]


def _is_aside(tag: Tag) -> bool:
    """True for what surrounds a page's text."""
    names = {name.casefold() for name in (*tag.get_attribute_list("class"), tag.get("id")) if isinstance(name, str)}
    return tag.name == "nav" or tag.get("role") in _ASIDE_ROLES or bool(names & _ASIDE_NAMES)
