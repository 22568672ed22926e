"""A generator that wraps another: it gives an answer again to the same request only."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes import ScriptedGenerator, answer_of, make_passage

from rag.generators.answer_cache import with_answer_cache
from rag.generators.protocol import GenerationRequest

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
