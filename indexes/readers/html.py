"""A web page on disk: its main text, without navigation, as chapters and sections."""

from __future__ import annotations

from pathlib import Path

from bs4.element import Tag

from indexes.readers.elements import Parsed, one_line
from indexes.readers.html_blocks import elements_of, make_soup
from indexes.readers.source import read_text
from indexes.types import BookHealth

_MAIN = ("main", "[role=main]", "article", "div.document", "div.body", "div#content", "div.content", "body")
_ASIDE_NAMES = frozenset(
    {"sphinxsidebar", "toctree-wrapper", "related", "toc", "sidebar", "breadcrumb", "breadcrumbs", "prev-next-footer",
     "navfooter", "navheader", "titlearea", "nav-path", "side-nav", "nav", "navbar", "footer", "tableofcontents",
     "skip-link", "cookie-banner"}
)  # fmt: skip
_ASIDE_ROLES = frozenset({"navigation", "search", "banner", "contentinfo"})


def read_html(path: Path) -> Parsed:
    """Read an HTML file. The title is the page's own."""
    source = read_text(path)
    notes = (source.note,) if source.note else ()
    soup = make_soup(source.text)
    title = soup.find("title")
    main = next((found for selector in _MAIN if isinstance(found := soup.select_one(selector), Tag)), soup)
    for tag in main.find_all(_is_aside):
        tag.decompose()
    named = one_line(title.get_text()) if isinstance(title, Tag) else ""
    return Parsed(tuple(elements_of(main)), named or None, health=BookHealth(notes=notes))


def _is_aside(tag: Tag) -> bool:
    """True for what stands around a page's text."""
    names = {name.casefold() for name in (*tag.get_attribute_list("class"), tag.get("id")) if isinstance(name, str)}
    return tag.name == "nav" or tag.get("role") in _ASIDE_ROLES or bool(names & _ASIDE_NAMES)
