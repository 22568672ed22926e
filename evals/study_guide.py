"""A study guide: what each chapter of a book defines, its numbers, the names of code it describes, and what it says.

Every entry is a sentence of the book, as questions are made from (`evals/question_drafts.py`); a chapter without any,
as in another language or of listings only, has what its sections begin with.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote as url_quote

from evals.question_drafts import Draft, draft_questions
from evals.questions import BankQuestion
from indexes.sentences import split_spans
from indexes.types import StoredNode

MOST_EACH = 25
"""Entries of one kind in a chapter, unless more questions were made: theirs are all there, then those that promise
most."""
MOST_SENTENCES = 8
GROUPS = ("definitions", "numbers", "names", "sentences")
_GROUP_OF = {
    "definition": "definitions",
    "abbreviation": "definitions",
    "number": "numbers",
    "name": "names",
    "term": "sentences",
    "statement": "sentences",
}


@dataclass(frozen=True, slots=True)
class GuideEntry:
    """A term, a number or a name, and the sentence of the book that says what it is.

    Attributes:
        text: the sentence as it reads; quote: verbatim in the node; section: its heading path.
        asked: a question was made from the sentence.
    """

    term: str
    text: str
    quote: str
    node_id: str
    section: tuple[str, ...]
    page_start: int | None
    asked: bool


@dataclass(frozen=True, slots=True)
class GuideChapter:
    """What to know of one chapter, in reading order."""

    chapter: int
    title: str
    definitions: tuple[GuideEntry, ...] = ()
    numbers: tuple[GuideEntry, ...] = ()
    names: tuple[GuideEntry, ...] = ()
    sentences: tuple[GuideEntry, ...] = ()

    @property
    def groups(self) -> Iterator[tuple[str, tuple[GuideEntry, ...]]]:
        """The kinds that the chapter has, by name."""
        for name in GROUPS:
            if entries := getattr(self, name):
                yield name, entries


def study_guide(
    nodes: Sequence[StoredNode], titles: Mapping[int, str], made: Sequence[BankQuestion] = ()
) -> tuple[GuideChapter, ...]:
    """The chapters of a book that have text, in order.

    Args:
        nodes: of the book, in reading order.
        titles: of its chapters, by number.
        made: the questions that were made from it.
    """
    asked = {gold.evidence for question in made for gold in question.gold}
    found: dict[int, dict[str, dict[str, GuideEntry]]] = defaultdict(lambda: defaultdict(dict))
    drafts = draft_questions(nodes).drafts  # the best first
    for draft in sorted(drafts, key=lambda draft: (draft.statement.quote not in asked, draft.kind == "statement")):
        group, statement, entries = _GROUP_OF[draft.kind], draft.statement, found[draft.statement.node.chapter]
        is_asked, most = statement.quote in asked, MOST_SENTENCES if group == "sentences" else MOST_EACH
        if is_asked or (draft.stands_alone and draft.kind != "statement" and len(entries[group]) < most):
            key = statement.quote if is_asked or group == "sentences" else _term(draft).lower()
            entry = _entry(_term(draft), statement.text, statement.quote, statement.node, asked=is_asked)
            entries[group].setdefault(key, entry)
    for node in nodes:
        if not found[node.chapter].keys() - {"begins"}:
            _begin(node, found[node.chapter]["begins"])
    order = {node.node_id: node.ordinal for node in nodes}
    chapters = []
    for chapter, groups in sorted(found.items()):
        told = {entry.quote for name in GROUPS[:-1] for entry in groups[name].values()}
        said = {term: entry for term, entry in groups["sentences"].items() if entry.quote not in told}
        groups["sentences"] = said | groups.pop("begins", {})
        kept = {name: tuple(sorted(groups[name].values(), key=lambda entry: order[entry.node_id])) for name in GROUPS}
        if any(kept.values()):
            chapters.append(GuideChapter(chapter, titles.get(chapter, ""), **kept))
    return tuple(chapters)


def _term(draft: Draft) -> str:
    """What a draft asks for; `warp` of 'What is a warp?'; of a statement, the heading over it."""
    if draft.kind == "statement":
        return _heading(draft.statement.node)
    if draft.kind != "definition" or draft.options:
        return draft.answer
    words = draft.question.removesuffix("?").split()[2:]
    return " ".join(words[1:] if words[0].lower() in ("a", "an", "the") and words[1:] else words)


def _heading(node: StoredNode) -> str:
    return node.heading_path[-1] if node.heading_path else node.title


def _begin(node: StoredNode, entries: dict[str, GuideEntry]) -> None:
    """Adds the first sentence of a node under its heading; where it has none, as a listing, its first line."""
    heading = _heading(node)
    if len(entries) < MOST_SENTENCES and heading not in entries:
        spans = split_spans(node.text)
        said = next((span for span in spans if span.kind in ("sentence", "item")), None)
        quote = node.text[said.start : said.end] if said is not None else _first_line(node.text)
        if quote:
            entries[heading] = _entry(heading, " ".join(quote.split()), quote, node, asked=False)


def _first_line(text: str) -> str:
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if any(map(str.isalnum, line)) and not line.startswith(("#", "```"))), "")


def _entry(term: str, text: str, quote: str, node: StoredNode, *, asked: bool) -> GuideEntry:
    return GuideEntry(term, text, quote, node.node_id, node.heading_path, node.page_start, asked)


def without_entries(chapters: Sequence[GuideChapter], hidden: Callable[[str], bool]) -> tuple[GuideChapter, ...]:
    """The guide without the entries whose sentences are hidden."""

    def shown(entries: tuple[GuideEntry, ...]) -> tuple[GuideEntry, ...]:
        return tuple(entry for entry in entries if not hidden(entry.quote))

    groups: list[dict[str, Any]] = [{name: shown(getattr(each, name)) for name in GROUPS} for each in chapters]
    return tuple(replace(each, **shown_only) for each, shown_only in zip(chapters, groups, strict=True))


def guide_markdown(title: str, chapters: Sequence[GuideChapter], headings: Mapping[str, str], book_address: str) -> str:
    """The guide as Markdown; every entry leads to its place in the book.

    Args:
        headings: of the groups, by name.
        book_address: of the book's page.
    """
    lines = [f"# {title}"]
    for chapter in chapters:
        numbered = chapter.chapter and not re.match(r"\d+[.:]?\s", chapter.title)  # many books number them themselves
        name = f"{chapter.chapter}. {chapter.title}".rstrip() if numbered else chapter.title
        lines += ["", f"## {name}"] if name else []
        for name, entries in chapter.groups:
            lines += ["", f"### {headings[name]}", ""]
            for entry in entries:
                place = f"{book_address}?node={url_quote(entry.node_id, safe='')}"
                where = f"p. {entry.page_start}" if entry.page_start else entry.section[-1] if entry.section else "↗"
                lines.append(f"- **{entry.term}**: {entry.text} ([{where.replace('[', '').replace(']', '')}]({place}))")
    return "\n".join(lines) + "\n"
