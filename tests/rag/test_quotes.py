"""A model that may only quote: it says what the default says, and scores options itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes import answer_of, make_passage, signals_only

from indexes.errors import InvalidInput
from rag.assemble import check_before_loading
from rag.errors import ArmUnavailable
from rag.generators.extractive import ExtractiveGenerator
from rag.generators.protocol import ChoiceScores, GenerationRequest
from rag.generators.quotes import QuotingGenerator
from rag.sentence_reader import LearnedReader
from rag.settings import GeneratorSettings, RagSettings
from rag.types import Question

REQUEST = GenerationRequest("How many threads has a warp?", "rag", (make_passage("A warp has 32 threads."),))


class Model:
    """A local model that writes nothing and likes the second option."""

    name, model_name, adapters, closed = "local", "small", ("qa",), False

    def score_choices(self, request: GenerationRequest, choices: tuple[str, ...]) -> ChoiceScores:
        return ChoiceScores((0.0, 1.0))

    def close(self) -> None:
        self.closed = True


def test_a_quoting_model_says_what_the_default_says_and_scores_options_itself() -> None:
    reader, model = LearnedReader(signals_only), Model()
    quoting = QuotingGenerator(model, reader)  # type: ignore[arg-type]
    assert answer_of(quoting, REQUEST)[0] == answer_of(ExtractiveGenerator(reader, "default"), REQUEST)[0] != ""
    assert (quoting.name, quoting.model_name, quoting.arms, quoting.adapters) == ("local", "small", ("rag",), ())
    assert quoting.score_choices(REQUEST, ("a", "b")).scores == (0.0, 1.0)
    quoting.close()
    assert model.closed


@pytest.mark.parametrize("arm", ["base", "tuned", "rag+tuned"])
def test_there_is_nothing_to_quote_without_passages_and_nothing_to_tune(arm: Any) -> None:
    with pytest.raises(ArmUnavailable, match="only quotes"):
        QuotingGenerator(Model(), LearnedReader(signals_only)).check(GenerationRequest("Why?", arm))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["auto", "extractive", "remote"])
def test_only_a_local_model_answers_in_quotes(kind: str) -> None:
    settings = RagSettings(Path(), generator=GeneratorSettings(kind, answers="quotes"))
    with pytest.raises(InvalidInput, match="only a local model can"):
        check_before_loading(settings, None, Question("What is a warp?"))  # type: ignore[arg-type]
