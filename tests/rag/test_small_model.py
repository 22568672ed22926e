"""What random weights cannot show, with a real language model of 135 million weights."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import answer_of

from evals.bench.precision import window_losses
from rag.generators.local.generator import LocalGenerator, load_local_generator
from rag.generators.protocol import GenerationDone, GenerationRequest
from rag.models.home import find_model, shipped_adapters
from rag.models.loading import LoadedModel, load_model
from rag.settings import GeneratorSettings
from rag.types import ARMS, TUNED_ARMS, Passage

pytestmark = pytest.mark.integration
FRANCE = "What is the capital of France?"


@pytest.fixture(scope="module")
def folder(small_model_home: Path) -> str:
    return find_model("smollm2-135m", small_model_home)


@pytest.fixture(scope="module")
def generator(small_model_home: Path) -> Iterator[LocalGenerator]:
    """The model as it is served, with the adapter that Coalesce carries."""
    adapters = shipped_adapters("smollm2-135m")
    made = load_local_generator(GeneratorSettings("local", "smollm2-135m", home=small_model_home, adapters=adapters))
    yield made
    made.close()


def ask(generator: LocalGenerator, question: str = FRANCE, **changes: object) -> tuple[str, GenerationDone]:
    request = GenerationRequest(question, **({"arm": "base", "max_tokens": 24} | changes))  # type: ignore[arg-type]
    return answer_of(generator, request)


def test_it_answers_and_ends_by_itself(generator: LocalGenerator) -> None:
    text, done = ask(generator, max_tokens=64)
    assert "Paris" in text
    assert "<|im_end|>" not in text
    assert done.usage.completion_tokens < 64
    assert (generator.model_name, generator.loaded.quantization) == ("smollm2-135m", "none")
    before, _ = ask(generator, stop=("Paris",))
    assert before == text.partition("Paris")[0]


def test_four_bits_cost_some_perplexity_and_not_the_language(generator: LocalGenerator, folder: str) -> None:
    def perplexity(loaded: LoadedModel) -> float:
        return math.exp(statistics.fmean(window_losses(loaded, windows=1, window_tokens=64)))

    plain = perplexity(generator.loaded)
    assert 8 < plain < 80
    assert 0.98 < perplexity(load_model(folder, quantization="nf4")) / plain < 1.4


THREE = [
    ("How many threads does a warp have?", "A warp has 32 threads."),
    ("Which memory is shared by a block?", "Threads of a block share the shared memory of their SM."),
    ("What does a barrier wait for?", "A barrier waits for all threads of the block."),
]


def test_one_model_serves_all_four_arms_and_the_shipped_adapter_mostly_cites_or_refuses(
    generator: LocalGenerator,
) -> None:
    kept = 0
    for question, text in THREE:
        passage = Passage("n", "d", "Book", ("Warps",), None, None, None, text, 1.0)
        answers = {}
        for arm in ARMS:
            given = (passage,) if "rag" in arm else ()
            named = "gpu-books" if arm in TUNED_ARMS else None
            most = 24 if arm == "rag+tuned" else 6
            answers[arm] = ask(generator, question, arm=arm, passages=given, adapter=named, max_tokens=most)
        assert answers["tuned"][0] != answers["base"][0]
        read, done = answers["rag+tuned"]
        kept += done.refused or "[1]" in read
    assert kept >= len(THREE) - 1


def test_the_right_option_is_the_likeliest(generator: LocalGenerator) -> None:
    asked, options = GenerationRequest(FRANCE, "base"), ("Berlin", "Paris", "Madrid", "Rome")
    scored = generator.score_choices(asked, options)
    likelihood = scored.extra["likelihood"]
    assert scored.by_likelihood and max(range(4), key=likelihood.__getitem__) == 1
    turned = generator.score_choices(asked, options[::-1])
    assert turned.extra["likelihood"] == pytest.approx(likelihood[::-1], abs=1e-3)
