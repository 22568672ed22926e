"""What a small model is shown: the best sentences of the passages, under the passages' own numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rag.generators.chat_prompt import Excerpts
from rag.generators.prompts import BRIEF_WITH_PASSAGES, render_messages
from rag.generators.protocol import Excerpt, GenerationRequest
from rag.sentence_reader import ScoredUnit, units_of
from rag.types import Passage

FIRST = "Blocks run in any order. A grid holds blocks. Nothing is promised about their order."
SECOND = "A warp has 32 threads. Warps are scheduled by the SM."


def passage(text: str, heading: str) -> Passage:
    return Passage("n", "d", "Book", ("Chapter", heading), None, None, None, text, 1.0)


REQUEST = GenerationRequest("How many threads has a warp?", "rag", (passage(FIRST, "Blocks"), passage(SECOND, "Warps")))


class Reader:
    """Scores sentences by a table; those that are not in it are not read."""

    def __init__(self, scores: dict[str, float]) -> None:
        self._scores = scores

    def read(self, question: str, passages: Sequence[Passage]) -> list[ScoredUnit]:
        found = [ScoredUnit(unit, self._scores[unit.text]) for unit in units_of(passages) if unit.text in self._scores]
        return sorted(found, key=lambda item: -item.score)


SCORES = {
    "Warps are scheduled by the SM.": 0.9,
    "A warp has 32 threads.": 0.8,
    "A grid holds blocks.": 0.5,
    "Blocks run in any order.": 0.4,
}


def words(text: str) -> int:
    return len(text.split())


def test_the_best_passage_comes_first_with_its_own_number_and_its_sentences_in_reading_order() -> None:
    shown = Excerpts(Reader(SCORES), words, 16).of(REQUEST)
    assert shown.excerpts == (
        Excerpt(2, ("Chapter", "Warps"), SECOND),
        Excerpt(1, ("Chapter", "Blocks"), "A grid holds blocks."),
    )
    assert shown.passages == REQUEST.passages


def test_a_sentence_that_does_not_fit_leaves_room_for_the_next() -> None:
    listing = passage("```\n" + "x = 1;\n" * 20 + "```\nIt sets x.", "Code")
    request = replace(REQUEST, passages=(listing, REQUEST.passages[1]))
    scores = SCORES | {unit.text: 0.85 for unit in units_of([listing]) if unit.kind == "code"}
    assert [each.text for each in Excerpts(Reader(scores), words, 12).of(request).excerpts] == [SECOND]


def test_the_best_sentence_is_shown_whatever_its_length() -> None:
    request = Excerpts(Reader(SCORES), words, 2).of(REQUEST)
    assert [each.text for each in request.excerpts] == ["Warps are scheduled by the SM."]


def test_short_passages_are_shown_whole() -> None:
    assert Excerpts(Reader(SCORES), words, 200).of(REQUEST) is REQUEST


def test_the_brief_prompt_shows_excerpts_of_the_passages_that_are_left() -> None:
    shown = Excerpts(Reader(SCORES), words, 16).of(REQUEST)
    system = render_messages(shown, brief=True)[0]["content"]
    assert system.endswith(f"Passages:\n\n[2] Warps: {SECOND}\n[1] Blocks: A grid holds blocks.")
    fewer = render_messages(replace(shown, passages=shown.passages[:1]), brief=True)[0]["content"]
    assert fewer.endswith("Passages:\n\n[1] Blocks: A grid holds blocks.")
    assert len(system) < len(render_messages(shown)[0]["content"])


def test_the_documents_list_the_rules_as_they_are_served() -> None:
    listed = (Path(__file__).parents[2] / "docs/serving.md").read_text("utf-8").splitlines()
    assert [line for line in BRIEF_WITH_PASSAGES.splitlines() if f"    {line}" not in listed] == []
