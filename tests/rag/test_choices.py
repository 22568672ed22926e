"""Laws of prompts, and of choosing options by the encoder."""

from __future__ import annotations

import pytest
from fakes import hash_embed, make_passage

from rag.errors import ArmUnavailable
from rag.generators.encoder import EncoderAnswerer
from rag.generators.prompts import render_choices, render_messages
from rag.generators.protocol import GenerationRequest, Turn

PASSAGE = make_passage("A warp holds 32 threads.", page_start=4, page_label="iv", section=("Warps",))


def test_what_repeats_comes_first_and_the_question_last() -> None:
    turns = (Turn("Earlier?", "So."),)
    request = GenerationRequest("What is a warp?", "rag", (PASSAGE,), turns)
    messages = render_messages(request)
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert "[1] A Book > Warps, p. iv\nA warp holds 32 threads." in messages[0]["content"]
    assert messages[-1]["content"].startswith("What is a warp?")
    other = render_messages(GenerationRequest("Another question?", "rag", (PASSAGE,), turns))
    assert other[:-1] == messages[:-1]


def test_the_answers_language_is_the_questions_and_without_passages_no_marker_is_asked_for() -> None:
    chinese, english = (
        render_messages(GenerationRequest(text, "base")) for text in ("什么是线程束？", "What is a warp?")
    )
    assert "Chinese" in chinese[-1]["content"] and "English" in english[-1]["content"]
    assert "square brackets" not in english[0]["content"]
    assert "A. one\nB. two\n" in render_choices("Which?", ["one", "two"])


OPTIONS = ("It holds 32 threads", "It holds 64 bananas", "It holds one register", "It holds nothing")


def test_passages_decide_between_options_whatever_their_order() -> None:
    answerer = EncoderAnswerer(hash_embed, "hash")
    request = GenerationRequest("How many threads does a warp hold?", "rag", (PASSAGE,))
    forwards = answerer.score_choices(request, OPTIONS).scores
    backwards = answerer.score_choices(request, OPTIONS[::-1]).scores
    assert forwards == pytest.approx(backwards[::-1]) and max(forwards) == forwards[0]
    bare = GenerationRequest("How many threads?", "rag", (make_passage("# Only a heading"),))
    assert len(answerer.score_choices(bare, OPTIONS).scores) == 4


def test_an_adapter_is_opened_once_and_only_for_tuned_arms() -> None:
    opened: list[str] = []

    def open_adapter():
        opened.append("once")
        return lambda texts: -hash_embed(texts) * 1.0

    answerer = EncoderAnswerer(hash_embed, "hash", lambda: {"a": open_adapter})
    assert answerer.arms == ("base", "tuned", "rag", "rag+tuned")
    answerer.score_choices(GenerationRequest("q", "base"), OPTIONS)
    assert opened == []
    for _ in range(2):
        answerer.score_choices(GenerationRequest("q", "tuned", adapter="a"), OPTIONS)
    assert opened == ["once"]
    for adapter in (None, "nobody"):
        with pytest.raises(ArmUnavailable):
            answerer.score_choices(GenerationRequest("q", "tuned", adapter=adapter), OPTIONS)
