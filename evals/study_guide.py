"""A study guide: what each chapter of a book defines, its numbers with units, and the names of code it describes.

Every entry is a sentence of the book that can be read alone, as questions are made from (`evals/question_drafts.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import quote as url_quote

from evals.question_drafts import Draft, draft_questions
from evals.questions import BankQuestion
from indexes.types import StoredNode

MOST_EACH = 25
"""Entries of one kind in a chapter; those that a question was made from come before others where there are more."""


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

    @property
    def groups(self) -> Iterator[tuple[str, tuple[GuideEntry, ...]]]:
        """The kinds that the chapter has, by name."""
        for name, entries in (("definitions", self.definitions), ("numbers", self.numbers), ("names", self.names)):
            if entries:
                yield name, entries


@dataclass(slots=True)
class _Found:
    """Entries of one kind and chapter, each term once."""

    entries: dict[str, GuideEntry] = field(default_factory=dict)

    def add(self, draft: Draft, *, asked: bool) -> None:
        statement = draft.statement
        entry = GuideEntry(
            draft.answer, statement.text, statement.quote, statement.node.node_id, statement.node.heading_path,
            statement.node.page_start, asked,
        )  # fmt: skip
        known = self.entries.setdefault(draft.answer.lower(), entry)
        if asked and not known.asked:
            self.entries[draft.answer.lower()] = entry

    def chosen(self) -> tuple[GuideEntry, ...]:
        entries = list(self.entries.values())
        kept = sorted(range(len(entries)), key=lambda place: (not entries[place].asked, place))[:MOST_EACH]
        return tuple(entries[place] for place in sorted(kept))


def study_guide(
    nodes: Sequence[StoredNode], titles: Mapping[int, str], made: Sequence[BankQuestion] = ()
) -> tuple[GuideChapter, ...]:
    """The chapters of a book that have something to know, in order.

    Args:
        nodes: of the book, in reading order.
        titles: of its chapters, by number.
        made: the questions that were made from it.
    """
    quotes = {gold.evidence for question in made for gold in question.gold}
    found: dict[int, dict[str, _Found]] = defaultdict(lambda: defaultdict(_Found))
    for draft in draft_questions(nodes).drafts:
        if draft.kind == "term":
            continue  # such a sentence holds a term without saying what it is
        statement = draft.statement
        found[statement.node.chapter][draft.kind].add(draft, asked=statement.quote in quotes)
    return tuple(
        GuideChapter(
            chapter,
            titles.get(chapter, ""),
            kinds["definition"].chosen(),
            kinds["number"].chosen(),
            kinds["name"].chosen(),
        )
        for chapter, kinds in sorted(found.items())
    )


def without_entries(chapters: Sequence[GuideChapter], hidden: Callable[[str], bool]) -> tuple[GuideChapter, ...]:
    """The guide without the entries whose sentences are hidden."""

    def shown(entries: tuple[GuideEntry, ...]) -> tuple[GuideEntry, ...]:
        return tuple(entry for entry in entries if not hidden(entry.quote))

    return tuple(
        replace(each, definitions=shown(each.definitions), numbers=shown(each.numbers), names=shown(each.names))
        for each in chapters
    )


def guide_markdown(title: str, chapters: Sequence[GuideChapter], headings: Mapping[str, str], book_address: str) -> str:
    """The guide as Markdown; every entry leads to its place in the book.

    Args:
        headings: of `definitions`, `numbers` and `names`.
        book_address: of the book's page.
    """
    lines = [f"# {title}"]
    for chapter in chapters:
        lines += ["", f"## {chapter.chapter}. {chapter.title}".rstrip()]
        for name, entries in chapter.groups:
            lines += ["", f"### {headings[name]}", ""]
            for entry in entries:
                place = f"{book_address}?node={url_quote(entry.node_id, safe='')}"
                where = f"p. {entry.page_start}" if entry.page_start else entry.section[-1] if entry.section else "↗"
                lines.append(f"- **{entry.term}**: {entry.text} ([{where.replace('[', '').replace(']', '')}]({place}))")
    return "\n".join(lines) + "\n"
