"""A model that may only quote: what its reading changes, and what it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import ScriptedReader, make_passage

from indexes.errors import InvalidInput
from rag.assemble import check_before_loading
from rag.errors import ArmUnavailable
from rag.generators.protocol import GenerationDone, GenerationRequest, TextPiece
from rag.generators.quotes import READ_SENTENCES, LikelihoodReader, QuotingGenerator, together
from rag.query import english_query
from rag.settings import GeneratorSettings, RagSettings
from rag.types import Question

TEXT = "A grid holds blocks. A warp has 32 threads. Blocks run in any order."
PASSAGE = make_passage(TEXT, section=("Chapter", "Warps"))
FIRST = ScriptedReader({"A grid": 0.5, "A warp": 0.49, "Blocks": 0.48})


class Model:
    """A local model to which the question is likely behind sentences that hold `likely`."""

    name, model_name, adapters = "local", "small", ("qa",)

    def __init__(self, likely: str) -> None:
        self.likely = likely
        self.asked: list[Any] = []

    def log_likelihoods(self, contexts: Sequence[str], text: str, adapter: str | None = None) -> list[float]:
        self.asked.append((list(contexts), text, adapter))
        return [-10.0 if self.likely in context else -40.0 for context in contexts]

    def check(self, request: GenerationRequest) -> None:
        """Runs everything."""


def answer(model: Model, **changes: Any) -> str:
    generator = QuotingGenerator(model, FIRST)  # type: ignore[arg-type]
    *pieces, done = generator.stream(GenerationRequest("How many threads?", passages=(PASSAGE,), **changes))
    assert isinstance(done, GenerationDone) and not done.refused
    return "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))


@pytest.mark.parametrize(("arm", "adapter"), [("rag", None), ("rag+tuned", "qa")])
def test_the_sentence_behind_which_the_question_is_likeliest_is_said_first(arm: Any, adapter: str | None) -> None:
    model = Model("32 threads")
    assert answer(model, arm=arm, adapter=adapter).startswith("A warp has 32 threads. [1]")
    ((contexts, *asked),) = model.asked
    assert contexts[1] == "Passage: Chapter > Warps: A warp has 32 threads.\nQuestion:"
    assert asked == [" How many threads?", adapter]


@pytest.mark.parametrize("arm", ["base", "tuned"])
def test_there_is_nothing_to_quote_without_passages(arm: Any) -> None:
    with pytest.raises(ArmUnavailable, match="no passages to quote"):
        QuotingGenerator(Model(""), FIRST).check(GenerationRequest("Why?", arm))  # type: ignore[arg-type]


def test_only_the_best_sentences_are_read_and_none_is_lost() -> None:
    passage = make_passage(" ".join(f"Sentence number {number} is here." for number in range(30)))
    model = Model("number 1 ")
    first = ScriptedReader({f"Sentence number {number} ": 0.5 - 0.01 * number for number in range(30)})
    read = LikelihoodReader(model, first).read(english_query("Which?"), [passage])  # type: ignore[arg-type]
    assert len(model.asked[0][0]) == READ_SENTENCES and len(read) == 30
    assert read[0].unit.text == "Sentence number 1 is here."


def test_both_readers_count_alike_on_the_scale_of_the_first() -> None:
    scores = np.array([0.9, 0.5, 0.1])
    assert together(scores, np.array([3.0, 3.0, 3.0])) == pytest.approx([0.75, 0.5, 0.25])  # half the log odds
    assert together(scores, np.array([2.0, 1.0, 0.0])) == pytest.approx(scores)
    assert together(scores, np.array([0.0, 1.0, 2.0])) == pytest.approx([0.5, 0.5, 0.5])


@pytest.mark.parametrize("kind", ["auto", "extractive", "remote"])
def test_only_a_local_model_answers_in_quotes(kind: str) -> None:
    settings = RagSettings(Path(), generator=GeneratorSettings(kind, answers="quotes"))
    with pytest.raises(InvalidInput, match="only a local model can"):
        check_before_loading(settings, None, Question("What is a warp?"))  # type: ignore[arg-type]
