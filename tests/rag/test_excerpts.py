"""What a small model is shown: the best sentences of the passages, under the passages' own numbers."""

from __future__ import annotations

from dataclasses import replace

from fakes import ScriptedReader, make_passage

from rag.generators.chat_prompt import Excerpts
from rag.generators.prompts import render_messages
from rag.generators.protocol import Excerpt, GenerationRequest

WARPS = "A warp has 32 threads. Warps are scheduled by the SM."
PASSAGES = (
    make_passage("Blocks run in any order. A grid holds blocks. Nothing is promised.", section=("Chapter", "Blocks")),
    make_passage(WARPS, section=("Chapter", "Warps")),
    make_passage("```\n" + "x = 1;\n" * 20 + "```", section=("Chapter", "Code")),
)
REQUEST = GenerationRequest("How many threads has a warp?", "rag", PASSAGES)
READER = ScriptedReader({"Warps are": 0.9, "```": 0.85, "A warp": 0.8, "A grid": 0.5, "Blocks": 0.4})


def shown(most_words: int) -> GenerationRequest:
    return Excerpts(READER, lambda text: len(text.split()), most_words).of(REQUEST)


def test_the_best_passage_comes_first_with_its_own_number_and_its_sentences_in_reading_order() -> None:
    """A sentence that does not fit leaves room for the next."""
    assert shown(16).excerpts == (
        Excerpt(2, ("Chapter", "Warps"), WARPS),
        Excerpt(1, ("Chapter", "Blocks"), "A grid holds blocks."),
    )
    assert shown(16).passages == PASSAGES


def test_the_best_sentence_is_shown_whatever_its_length_and_short_passages_whole() -> None:
    assert [each.text for each in shown(2).excerpts] == ["Warps are scheduled by the SM."]
    assert shown(200) is REQUEST


def test_the_brief_prompt_shows_excerpts_of_the_passages_that_are_left() -> None:
    system = render_messages(shown(16), brief=True)[0]["content"]
    assert system.endswith(f"Passages:\n\n[2] Warps: {WARPS}\n[1] Blocks: A grid holds blocks.")
    fewer = render_messages(replace(shown(16), passages=PASSAGES[:1]), brief=True)[0]["content"]
    assert fewer.endswith("Passages:\n\n[1] Blocks: A grid holds blocks.")
    assert len(system) < len(render_messages(shown(16))[0]["content"])
