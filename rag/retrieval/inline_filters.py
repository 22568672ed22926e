"""Filters written into a question: `#book` and `@chapter`, taken out of it and applied before ranking.

`#cuda-guide what is a warp` looks in books whose title, source name or id holds "cuda guide"; `@3` and `@"memory
model"` look in chapter 3, or in chapters whose title holds those words. A word that matches no book or chapter stays
what it was: `#pragma unroll` and `@cuda.jit` are words of the subject.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath

from indexes.types import Chapter, Document, Filters
from rag.retrieval.protocol import SearchableLibrary

MAX_ORDINAL_DIGITS = 6
_TAG = re.compile(r"(?<![^\s(（，。；])([#@])(?:\"([^\"]{1,200})\"|“([^”]{1,200})”|([^\s\"“”,，。？?!！;；]{1,200}))")
_NOT_A_LETTER = re.compile(r"[\W_]+")


def split_inline_filters(question: str, filters: Filters, library: SearchableLibrary) -> tuple[str, Filters]:
    """The question without its inline filters, and `filters` narrowed by them."""
    if "#" not in question and "@" not in question:
        return question, filters
    documents = library.documents()
    book_ids: list[str] = []
    chapter_tags: list[str] = []
    kept: list[str] = []
    position = 0
    for match in _TAG.finditer(question):
        wanted = next(group for group in match.groups()[1:] if group).rstrip(".:")
        if match.group(1) == "#":
            found = [d.document_id for d in documents if _names_book(wanted, d)]
            book_ids.extend(found)
        else:
            found = [wanted] if any(_chapters(wanted, library.chapters(d.document_id)) for d in documents) else []
            chapter_tags.extend(found)
        if found:
            kept.append(question[position : match.start()])
            position = match.end()
    kept.append(question[position:])
    rest = " ".join("".join(kept).split())
    if book_ids:
        named = tuple(dict.fromkeys(book_ids))
        both = tuple(i for i in named if i in filters.document_ids)
        filters = replace(filters, document_ids=both or named)
    if chapter_tags:
        filters = replace(filters, chapters=filters.chapters + _titles(chapter_tags, filters, documents, library))
    return rest or question, filters


def _names_book(wanted: str, document: Document) -> bool:
    plain = _plain(wanted)
    names = (document.title, PurePath(document.source).stem, PurePath(document.source).name, document.document_id)
    return bool(plain) and any(plain in _plain(name) for name in names)


def _chapters(wanted: str, chapters: Sequence[Chapter]) -> list[Chapter]:
    if _is_ordinal(wanted):
        return [chapter for chapter in chapters if chapter.ordinal == int(wanted)]
    plain = _plain(wanted)
    return [chapter for chapter in chapters if plain and plain in _plain(chapter.title)]


def _is_ordinal(wanted: str) -> bool:
    """Digits that `int` reads: not `²`, and not more of them than any chapter has."""
    return wanted.isdecimal() and len(wanted) <= MAX_ORDINAL_DIGITS


def _titles(
    tags: list[str], filters: Filters, documents: Sequence[Document], library: SearchableLibrary
) -> tuple[int | str, ...]:
    found: list[int | str] = []
    for tag in tags:
        if _is_ordinal(tag):
            found.append(int(tag))
            continue
        for document in documents:
            if not filters.document_ids or document.document_id in filters.document_ids:
                found.extend(chapter.title for chapter in _chapters(tag, library.chapters(document.document_id)))
    return tuple(dict.fromkeys(found))


def _plain(name: str) -> str:
    return _NOT_A_LETTER.sub(" ", name).casefold().strip()
