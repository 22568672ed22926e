"""A book in the library view: what it is, what reading it lost, its chapters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

from nicegui.element import Element

from api.pages.controls import button, tag
from api.pages.frame import Visit
from api.pages.texts import Texts
from indexes.errors import CoalesceError
from indexes.types import BookHealth, Document

MOST_LISTED = 60


def show_book(visit: Visit, document: Document, on_remove: Callable[[], None] | None) -> None:
    """Draws one book into the current slot; with `on_remove`, also the button that asks for it."""
    t = visit.t
    with tag("article", "", "card book"):
        with tag("div", "", "book-head"):
            with tag("div"):
                tag("h2", document.title)
                tag("p", _extent(t, document), "soft")
                tag("p", t("library.sample") if document.sample else document.source, "soft source-name")
            if on_remove is not None:
                label = t("library.remove_book", title=document.title)
                button("", on_remove, kind="quiet", icon_name="trash", label=label)
        _health(t, document.health)
        with tag("details", "", "chapters-of") as details:
            tag("summary", t("library.chapters"))
            tree = tag("ol", "", "chapter-tree")
        details.on("toggle", lambda: _chapters(visit, document, tree), js_handler="(e) => e.target.open && emit()")


def _extent(t: Texts, document: Document) -> str:
    extent = (
        t.count("library.pages", document.pages) if document.pages else t.count("library.sections", document.sections)
    )
    added = document.added_at[:10]
    return " · ".join(
        (
            t.either(f"format.{document.format}", document.format),
            extent,
            t.count("library.nodes", document.nodes),
            t("library.added", day=added),
        )
    )


def _health(t: Texts, health: BookHealth) -> None:
    found = {name: items for name, items in asdict(health).items() if items}
    if not found:
        tag("p", f"✓ {t('health.good')}", "health good")
        return
    with tag("details", "", "health doubtful"):
        tag("summary", t.count("health.doubts", sum(len(items) for items in found.values())))
        with tag("ul"):
            for name, items in found.items():
                tag("li", f"{t(f'health.{name}')}: {_listed(items)}")


def _listed(items: Sequence[object]) -> str:
    """Items in a row; neighbouring numbers as ranges, the end of a long list left out."""
    parts: list[str] = []
    numbers = [item for item in items if isinstance(item, int)]
    if len(numbers) == len(items):
        start = last = None
        for number in [*sorted(numbers), None]:
            if last is not None and number == last + 1:
                last = number
                continue
            if start is not None:
                parts.append(str(start) if start == last else f"{start}–{last}")
            start = last = number
    else:
        parts = [str(item) for item in items]
    return ", ".join(parts[:MOST_LISTED]) + (" …" if len(parts) > MOST_LISTED else "")


def _chapters(visit: Visit, document: Document, tree: Element) -> None:
    """Chapters and the headings below them, fetched when they are first looked at."""
    if list(tree):
        return
    library = visit.page.services.library
    try:
        headings: dict[int, list[tuple[str, ...]]] = {}
        for node in library.nodes_of(document.document_id):
            below = headings.setdefault(node.chapter, [])
            path = tuple(node.heading_path[1:3])
            if path and path not in below:
                below.append(path)
        chapters = library.chapters(document.document_id)
    except CoalesceError:
        return
    with tree:
        for chapter in chapters:
            with tag("li"):
                tag("span", f"{chapter.ordinal}. {chapter.title}")
                tag("span", visit.t.count("library.nodes", chapter.nodes), "soft")
                if paths := headings.get(chapter.ordinal):
                    with tag("ul"):
                        for path in paths:
                            tag("li", path[-1], f"level-{len(path)}")
