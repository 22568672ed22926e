"""Generators that wrap another: one gives an answer again to the same request only, one only quotes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fakes import ScriptedGenerator, answer_of, make_passage, signals_only

from rag.errors import ArmUnavailable
from rag.generators.answer_cache import with_answer_cache
from rag.generators.extractive import ExtractiveGenerator
from rag.generators.protocol import ChoiceScores, GenerationRequest
from rag.generators.quotes import QuotingGenerator
from rag.sentence_reader import LearnedReader

REQUEST = GenerationRequest("What is a warp?", "rag", (make_passage("A warp has 32 threads."),))


def test_the_same_request_is_answered_once() -> None:
    scripted = ScriptedGenerator(("All ", "well."))
    generator = with_answer_cache(scripted, 2)
    first, again = answer_of(generator, REQUEST), answer_of(generator, replace(REQUEST, cancelled=lambda: False))
    assert first[0] == again[0] == "All well."
    assert again[1].usage.cached_prompt_tokens == first[1].usage.prompt_tokens
    assert len(scripted.requests) == 1
    assert generator.model_name == "script"


@pytest.mark.parametrize(
    "change",
    [{"passages": ()}, {"adapter": "qa"}, {"question": "Why?"}, {"max_tokens": 5}, {"temperature": 1.0, "seed": 1}],
)
def test_another_request_is_answered_anew(change: dict[str, object]) -> None:
    scripted = ScriptedGenerator()
    generator = with_answer_cache(scripted, 2)
    for request in (REQUEST, replace(REQUEST, **change)):  # type: ignore[arg-type]
        answer_of(generator, request)
    assert len(scripted.requests) == 2


def test_chance_failure_and_age_are_not_kept() -> None:
    scripted = ScriptedGenerator()
    generator = with_answer_cache(scripted, 1)
    for _ in range(2):
        answer_of(generator, replace(REQUEST, temperature=1.0))
    stopped = generator.stream(REQUEST)
    next(iter(stopped))
    stopped.close()  # type: ignore[attr-defined]
    for question in ("one", "two", "one"):
        answer_of(generator, replace(REQUEST, question=question))
    assert len(scripted.requests) == 6
    assert with_answer_cache(scripted, 0) is scripted


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
