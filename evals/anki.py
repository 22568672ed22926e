"""Cards for other programs: an Anki deck (`.apkg`) and CSV.

Ids of model, decks and notes are fixed, so importing a newer deck updates the old notes and keeps their history. Every
book is a deck of its own below `Coalesce`; book and chapter are tags too. Fields are HTML: code spans, emphasis and
formulas become Anki's forms of them, everything else is escaped.
"""

from __future__ import annotations

import hashlib
import html
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from evals.questions import BankQuestion, csv_table
from indexes.database import sqlite_errors
from indexes.sample import SAMPLE_PATH, SAMPLE_TITLE
from rag.generators.prompts import CHOICE_LETTERS

# Any fixed number does; changing it would orphan every deck exported before.
_MODEL_ID = 1_607_392_320
_FIELDS = ("Question", "Answer", "Quote", "Source", "Id")
_BACK = """{{FrontSide}}<hr id="answer">{{Answer}}
{{#Quote}}<blockquote style="text-align:left">{{Quote}}</blockquote>{{/Quote}}<p style="color:gray">{{Source}}</p>"""
_MARKUP = re.compile(
    r"(?P<fence>```[^\n]*\n(?P<block>.*?)\n?```)|(?P<ticks>`+)(?P<code>.+?)(?P=ticks)|\$\$(?P<display>.+?)\$\$"
    r"|(?<![\w$])\$(?P<formula>[^\s$](?:[^$\n]*[^\s$])?)\$(?![\w$])|\*\*(?P<bold>[^*\n]+?)\*\*"
    r"|(?<![\w*])\*(?P<italic>[^*\s](?:[^*\n]*[^*\s])?)\*(?![\w*])",
    re.DOTALL,
)
_FORMS = {
    "block": "<pre><code>{}</code></pre>",
    "code": "<code>{}</code>",
    "display": "\\[{}\\]",
    "formula": "\\({}\\)",
    "bold": "<b>{}</b>",
    "italic": "<i>{}</i>",
}


def anki_deck(questions: Sequence[BankQuestion], name: str = "Coalesce") -> bytes:
    """The questions as the bytes of an `.apkg` file: question and options in front, answer, quote and source behind."""
    import genanki

    template = {"name": "Card", "qfmt": "{{Question}}", "afmt": _BACK}
    model = genanki.Model(
        _MODEL_ID, "Coalesce card", fields=[{"name": field} for field in _FIELDS], templates=[template]
    )
    decks: dict[str, genanki.Deck] = {}
    for question in questions:
        book = book_of(question)
        deck = decks.setdefault(book, genanki.Deck(_deck_id(f"{name}::{book}"), f"{name}::{book}"))
        deck.add_note(
            genanki.Note(
                model=model,
                fields=[
                    _front(question),
                    _back(question),
                    _quote(question),
                    _escaped(source_of(question)),
                    question.id,
                ],
                guid=genanki.guid_for("coalesce", question.id),
                tags=[f"book::{_tag(book)}", f"chapter::{question.chapter:02}"],
            )
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cards.apkg"
        with sqlite_errors(path):
            genanki.Package(list(decks.values()) or [genanki.Deck(_deck_id(name), name)]).write_to_file(str(path))
        return path.read_bytes()


def book_of(question: BankQuestion) -> str:
    """The title of the book that a question is about; `Questions` where it is not known."""
    if question.gold and (SAMPLE_PATH / question.gold[0].file).is_file():
        return SAMPLE_TITLE
    return question.gold[0].file if question.gold and question.book else "Questions"


def source_of(question: BankQuestion, in_chapter: str = "chapter {n}") -> str:
    """Book, chapter and section of a question, for people; `in_chapter` is how the chapter `n` is called."""
    section = (question.section or "").rpartition("#")[2]
    heading = question.gold[0].heading if question.gold else ""
    chapter = in_chapter.format(n=question.chapter) if question.chapter else ""
    return " · ".join(dict.fromkeys(part for part in (book_of(question), chapter, section or heading) if part))


def _deck_id(name: str) -> int:
    return (1 << 30) + int.from_bytes(hashlib.sha256(name.encode()).digest()[:3], "big")


def _tag(text: str) -> str:
    return re.sub(r"[^\w\-]+", "_", text).strip("_") or "book"


def _quote(question: BankQuestion) -> str:
    return "<br>".join(rich_html(gold.evidence) for gold in question.gold if gold.evidence)


def _back(question: BankQuestion) -> str:
    answer = rich_html(question.answer)
    if question.type != "choice" or question.answer_index is None:
        return answer
    right = f"<b>{CHOICE_LETTERS[question.answer_index]}.</b> {rich_html(question.choices[question.answer_index])}"
    return right if question.answer == question.choices[question.answer_index] else f"{right}<br>{answer}"


def rich_html(text: str) -> str:
    """A text with code spans, emphasis and formulas as Anki shows them, everything else escaped."""
    pieces: list[str] = []
    end = 0
    for match in _MARKUP.finditer(text):
        pieces.append(_escaped(text[end : match.start()]))
        kind = next(name for name in _FORMS if match[name] is not None)
        inner = html.escape(match[kind])
        pieces.append(_FORMS[kind].format(inner if kind == "block" else inner.replace("\n", " ")))
        end = match.end()
    pieces.append(_escaped(text[end:]))
    return "".join(pieces)


def cards_csv(questions: Sequence[BankQuestion]) -> str:
    """The questions as CSV with a header row."""
    rows = [
        (
            question.id,
            question.chapter,
            question.question,
            " | ".join(question.choices),
            question.answer,
            (question.section or "").replace("#", " · "),
            " ".join(gold.evidence for gold in question.gold),
            book_of(question),
        )
        for question in questions
    ]
    return csv_table([("id", "chapter", "question", "choices", "answer", "section", "quote", "book"), *rows])


def _front(question: BankQuestion) -> str:
    front = rich_html(question.question)
    if question.type != "choice":
        return front
    options = "".join(f"<li>{rich_html(choice)}</li>" for choice in question.choices)
    return f'{front}<ol type="A">{options}</ol>'


def _escaped(text: str) -> str:
    return html.escape(text).replace("\n", "<br>")
