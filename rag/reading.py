"""Reading on in a book: chapters in parts of readable length, the place of a quote, questions from headings."""

from __future__ import annotations

import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from indexes.errors import NotFound
from indexes.messages import msg
from indexes.types import Document, Section, StoredNode, page_at
from rag.retrieval import labels_by_page
from rag.types import Answer

if TYPE_CHECKING:
    from indexes.library import Library

PART_CHARACTERS = 30_000
"""A longer chapter is read in several parts, cut between sections, or between paragraphs of a long one."""
SUGGESTED = 3
KEPT_BOOKS = 4
_GENERIC = re.compile(
    r"introduction\b.*|summary|exercises?|pitfalls?|conclusions?|references|bibliography|appendix|index|contents|preface|"
    r"overview|further reading|acknowledge?ments?|glossary|notes|example|examples|abstract|copyright|about|"
    r"小结|总结|习题|练习|参考文献|目录|前言|附录",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"^(?:chapter\s+)?[\d.]+[.:)]?\s+", re.IGNORECASE)
_NAME = re.compile(r"[^\W\d_].{3,70}")
LEAST_WORTH_ASKING = 300
"""Characters of a section's text: a shorter one says too little to ask about."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A section of a part, or a piece of a long one.

    Attributes:
        section: the heading path.
        text: verbatim.
        begins: whether the section begins here.
        page_start, page_label: of its first page, None without pages.
    """

    section: tuple[str, ...]
    text: str
    begins: bool
    page_start: int | None
    page_label: str | None


@dataclass(frozen=True, slots=True)
class Part:
    """What is read at once: a chapter, or a piece of a long one.

    Attributes:
        number: from 1; chapter: its ordinal in the book, 0 before the first.
    """

    number: int
    chapter: int
    title: str
    sections: tuple[Stretch, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a quote: the part, its section from 0, and `text[char_start:char_end]` of that."""

    part: int
    section: int
    char_start: int
    char_end: int


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A question that a section of a book answers, by its heading without number and markup."""

    document_id: str
    title: str
    section: tuple[str, ...]
    heading: str
    question: str


class Reading:
    """The books of a library to read in. The last few that were opened are kept in memory.

    Args:
        library: gives the library; raises NotReady until it is open.
    """

    def __init__(self, library: Callable[[], Library]) -> None:
        self._library = library
        self._kept: OrderedDict[tuple[str, str], tuple[Part, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def parts(self, document_id: str) -> tuple[Part, ...]:
        """A book in parts, in order. Raises NotFound."""
        library = self._library()
        document = library.document(document_id)
        key = (document_id, document.sha256)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        parts = _read(library, document)
        with self._lock:
            self._kept[key] = parts
            while len(self._kept) > KEPT_BOOKS:
                self._kept.popitem(last=False)
        return parts

    def place(self, document_id: str, node_id: str, quote: str = "") -> Place:
        """The place of a quote of a passage, or of the passage's node if there is no quote.

        A passage may reach past its node: the quote nearest the node is taken.

        Raises:
            NotFound: the book has no such node any more.
        """
        parts = self.parts(document_id)
        node = next(iter(self._library().get_nodes([node_id])), None)
        found = _find(parts, node) if node is not None else None
        if found is None:
            raise NotFound("the book has changed since this passage was found", hint="Search for it in the book.")
        every = list(_all_places(parts, quote))
        near = [place for place in every if place.part == found.part] or every
        return min(near, key=lambda place: abs(place.section - found.section), default=found)

    def suggest(self, document_ids: Sequence[str], most: int = SUGGESTED) -> tuple[Suggestion, ...]:
        """Questions to begin with, by headings from all over the books. Raises NotFound."""
        found: list[Suggestion] = []
        for document_id in document_ids[:most]:
            document = self._library().document(document_id)
            sections = _askable(self.parts(document_id), document)
            share = -(-most // len(document_ids[:most]))
            places = (len(sections) * (2 * place + 1) // (2 * share) for place in range(share))
            chosen = dict.fromkeys(places) if sections else {}
            found += [_suggestion(document, sections[place]) for place in chosen]
        return tuple(found[:most])

    def suggest_next(self, answer: Answer, most: int = SUGGESTED) -> tuple[Suggestion, ...]:
        """What to ask after an answer: the sections that follow the first one that it cites, then those before it."""
        source = next(iter(answer.citations), None)
        if source is None:
            return ()
        try:
            document = self._library().document(source.document_id)
            parts = self.parts(source.document_id)
        except NotFound:
            return ()
        paths = list(dict.fromkeys(section.section for part in parts for section in part.sections))
        if source.section not in paths:
            return ()
        here, order = paths.index(source.section), {path: place for place, path in enumerate(paths)}
        asked = answer.question.casefold()
        said = {citation.section for citation in answer.citations}
        sections = [
            section
            for section in _askable(parts, document)
            if section.section not in said and _name(section).casefold() not in asked
        ]
        after = [section for section in sections if order[section.section] > here]
        before = [section for section in reversed(sections) if order[section.section] < here]
        return tuple(_suggestion(document, section) for section in (*after, *before)[:most])


def find_part(parts: Sequence[Part], *, number: int | None = None, chapter: int | None = None) -> Part:
    """A part by its number or its chapter's, else the first.

    Raises:
        NotFound: there is none.
    """
    for part in parts:
        if part.number == number or (number is None and chapter in (None, part.chapter)):
            return part
    what = f"part {number}" if number is not None else f"chapter {chapter}"
    raise NotFound(msg("the book has no {}", what), hint=msg("It has {} parts.", len(parts)))


def _read(library: Library, document: Document) -> tuple[Part, ...]:
    labels = labels_by_page(library.nodes_of(document.document_id))
    parts: list[Part] = []
    for chapter, sections in groupby(library.sections_of(document.document_id), key=lambda section: section.chapter):
        for number, stretches in enumerate(_in_lengths(list(sections), labels), 1):
            path = stretches[0].section
            title = path[0] if path else document.title
            parts.append(Part(len(parts) + 1, chapter, title if number == 1 else f"{title} ({number})", stretches))
    return tuple(parts)


def _askable(parts: Sequence[Part], document: Document) -> list[Stretch]:
    """Sections with a heading of their own that says what they are about, and enough text to answer from."""
    sections = [section for part in parts for section in part.sections if section.section and section.begins]
    named = Counter(_kind(_name(section)) for section in sections)
    return [
        section
        for section in sections
        if named[kind := _kind(name := _name(section))] == 1
        and len(section.text) >= LEAST_WORTH_ASKING
        and _NAME.fullmatch(name)
        and not _GENERIC.fullmatch(kind.partition(":")[0].strip())
        and name != document.title
    ]


def _kind(name: str) -> str:
    """A heading without its numbers: 'Exercise 3' is one of many 'Exercise'."""
    return "".join(character for character in name if not character.isdigit()).strip(" .")


def _name(section: Stretch) -> str:
    """The heading, without its number and without the marks of markup."""
    return _NUMBER.sub("", section.section[-1].replace("`", ""))


def _suggestion(document: Document, section: Stretch) -> Suggestion:
    name = _name(section)
    question = name if name.endswith(("?", "？")) else f"Explain “{name}”"
    return Suggestion(document.document_id, document.title, section.section, name, question)


def _in_lengths(sections: Sequence[Section], labels: dict[int, str | None]) -> Iterator[tuple[Stretch, ...]]:
    """The sections of a chapter, together as long as a part may be."""
    kept: list[Stretch] = []
    length = 0
    for section in sections:
        for start, end in _pieces(section.text):
            if kept and length + end - start > PART_CHARACTERS:
                yield tuple(kept)
                kept, length = [], 0
            page = page_at(section.page_marks, start) if section.page_marks else None
            label = labels.get(page) if page is not None else None
            kept.append(Stretch(section.heading_path, section.text[start:end], start == 0, page, label))
            length += end - start
    if kept:
        yield tuple(kept)


def _pieces(text: str) -> Iterator[tuple[int, int]]:
    """A text in pieces of at most a part's length, cut between paragraphs where there are any."""
    start = 0
    while len(text) - start > PART_CHARACTERS:
        cut = text.rfind("\n\n", start + 1, start + PART_CHARACTERS)
        end = cut if cut > start else start + PART_CHARACTERS
        yield start, end
        start = end
    yield start, len(text)


def _find(parts: Sequence[Part], node: StoredNode) -> Place | None:
    """The place of a node's text, or of its beginning where a part ends inside it."""
    for wanted in (node.text, node.text[:80]):
        places = list(_all_places(parts, wanted))
        own = [place for place in places if parts[place.part - 1].sections[place.section].section == node.heading_path]
        if places:
            return (own or places)[0]
    return None


def _all_places(parts: Sequence[Part], text: str) -> Iterator[Place]:
    """All places of a text, whatever its white space."""
    words = text.split()
    if not words:
        return
    pattern = re.compile(r"\s+".join(map(re.escape, words)))
    for part in parts:
        for index, stretch in enumerate(part.sections):
            for found in pattern.finditer(stretch.text):
                yield Place(part.number, index, found.start(), found.end())
