"""Finds the passage that justifies a question's reference answer.

The gold evidence is looked up in the library; where the book is not there, the bundled book's own section stands in,
without ids that could be opened. A question without gold gets the best passage for question and answer together.
"""

from __future__ import annotations

from evals.book_sections import sections_of
from evals.metrics.key_facts import normalize
from evals.questions import BankQuestion
from indexes.sample import SAMPLE_PATH
from rag.passages import passage_from_nodes
from rag.retrieval.protocol import SearchableLibrary
from rag.types import Passage

_CANDIDATES = 8


def justify(question: BankQuestion, library: SearchableLibrary | None) -> Passage | None:
    """The passage, or None when neither the library nor the bundled book has one."""
    if library is not None:
        for gold in question.gold:
            evidence = normalize(gold.evidence)
            for hit in library.lexical(f"{gold.heading} {gold.evidence}", _CANDIDATES):
                if evidence and evidence in normalize(hit.node.text):
                    return passage_from_nodes([hit.node], hit.node, hit.score)
        if not question.gold:
            hits = library.lexical(f"{question.question} {question.answer}", 1)
            return passage_from_nodes([hits[0].node], hits[0].node, hits[0].score) if hits else None
    return _from_bundled_book(question) if question.gold else None


def _from_bundled_book(question: BankQuestion) -> Passage | None:
    gold = question.gold[0]
    path = SAMPLE_PATH / gold.file
    if path.parent != SAMPLE_PATH or not path.is_file():
        return None
    text = sections_of(path).get(gold.heading, "").strip()
    if not text:
        return None
    return Passage("", "", "", (gold.heading,), None, None, None, text, 0.0, question.chapter)
