"""A model that may only quote: what its reading changes, and what it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexes.errors import InvalidInput
from rag.assemble import check_before_loading
from rag.errors import ArmUnavailable
from rag.generators.protocol import GenerationDone, GenerationRequest, TextPiece
from rag.generators.quotes import READ_SENTENCES, LikelihoodReader, QuotingGenerator, together
from rag.sentence_reader import ScoredUnit, units_of
from rag.settings import GeneratorSettings, RagSettings
from rag.types import Passage, Question

TEXT = "A grid holds blocks. A warp has 32 threads. Blocks run in any order."
PASSAGE = Passage("n", "d", "Book", ("Chapter", "Warps"), None, None, None, TEXT, 1.0)


class First:
    """Finds every sentence equally good."""

    def read(self, question: str, passages: Sequence[Passage]) -> list[ScoredUnit]:
        return [ScoredUnit(unit, 0.5 - 0.01 * place) for place, unit in enumerate(units_of(passages))]


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


def answer(generator: QuotingGenerator, **changes: Any) -> tuple[str, GenerationDone]:
    pieces = list(generator.stream(GenerationRequest("How many threads?", **({"arm": "rag"} | changes))))
    assert isinstance(pieces[-1], GenerationDone)
    return "".join(piece.text for piece in pieces if isinstance(piece, TextPiece)), pieces[-1]


def test_the_sentence_behind_which_the_question_is_likeliest_is_said_first_verbatim_and_cited() -> None:
    model = Model("32 threads")
    text, done = answer(QuotingGenerator(model, First()), passages=(PASSAGE,))  # type: ignore[arg-type]
    assert text.startswith("A warp has 32 threads. [1]")
    assert not done.refused
    ((contexts, asked, adapter),) = model.asked
    assert contexts[1] == "Passage: Chapter > Warps: A warp has 32 threads.\nQuestion:"
    assert (asked, adapter) == (" How many threads?", None)


def test_the_tuned_arm_reads_with_its_adapter() -> None:
    model = Model("any order")
    generator = QuotingGenerator(model, First())  # type: ignore[arg-type]
    answer(generator, arm="rag+tuned", adapter="qa", passages=(PASSAGE,))
    assert model.asked[0][2] == "qa"


@pytest.mark.parametrize("arm", ["base", "tuned"])
def test_there_is_nothing_to_quote_without_passages(arm: Any) -> None:
    with pytest.raises(ArmUnavailable, match="no passages to quote"):
        QuotingGenerator(Model(""), First()).check(GenerationRequest("Why?", arm))  # type: ignore[arg-type]


def test_only_the_best_sentences_are_read_and_none_is_lost() -> None:
    text = " ".join(f"Sentence number {number} is here." for number in range(30))
    passage = Passage("n", "d", "Book", ("S",), None, None, None, text, 1.0)
    model = Model("number 1 ")
    read = LikelihoodReader(model, First()).read("Which?", [passage])  # type: ignore[arg-type]
    assert len(model.asked[0][0]) == READ_SENTENCES
    assert len(read) == 30
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
