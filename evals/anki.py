"""Cards for elsewhere: an Anki deck (`.apkg`) and CSV.

Ids of model, deck and notes are fixed, so importing a newer deck updates the old notes and keeps their history.
All text is escaped: Anki fields are HTML.
"""

from __future__ import annotations

import csv
import html
import io
import tempfile
from collections.abc import Sequence
from pathlib import Path

from evals.questions import BankQuestion

# Any fixed numbers do; changing one would orphan every deck exported before.
_MODEL_ID = 1_607_392_319
_DECK_ID = 2_059_400_110


def anki_deck(questions: Sequence[BankQuestion], name: str = "Coalesce") -> bytes:
    """The questions as the bytes of an `.apkg` file: question and options in front, answer and section behind."""
    import genanki

    model = genanki.Model(
        _MODEL_ID,
        "Coalesce question",
        fields=[{"name": "Question"}, {"name": "Answer"}, {"name": "Section"}, {"name": "Id"}],
        templates=[
            {
                "name": "Card",
                "qfmt": "{{Question}}",
                "afmt": '{{FrontSide}}<hr id="answer">{{Answer}}<p style="color:gray">{{Section}}</p>',
            }
        ],
    )
    deck = genanki.Deck(_DECK_ID, name)
    for question in questions:
        deck.add_note(
            genanki.Note(
                model=model,
                fields=[_front(question), _escaped(question.answer), _escaped(_section(question)), question.id],
                guid=genanki.guid_for("coalesce", question.id),
            )
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cards.apkg"
        genanki.Package(deck).write_to_file(str(path))
        return path.read_bytes()


def cards_csv(questions: Sequence[BankQuestion]) -> str:
    """The questions as CSV with a header row: id, chapter, question, choices, answer, section."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["id", "chapter", "question", "choices", "answer", "section"])
    for question in questions:
        writer.writerow(
            [
                question.id,
                question.chapter,
                question.question,
                " | ".join(question.choices),
                question.answer,
                _section(question),
            ]
        )
    return out.getvalue()


def _front(question: BankQuestion) -> str:
    front = _escaped(question.question)
    if question.type != "choice":
        return front
    options = "".join(f"<li>{_escaped(choice)}</li>" for choice in question.choices)
    return f'{front}<ol type="A">{options}</ol>'


def _section(question: BankQuestion) -> str:
    return (question.section or "").replace("#", " · ")


def _escaped(text: str) -> str:
    return html.escape(text).replace("\n", "<br>")
