"""The decoding loop writes what the library's own `generate` writes, from any cache it is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_models import DEVICE, Misleading, build_model

from rag.generators.local.batch import decode
from rag.generators.local.cache import SlabCache
from rag.generators.local.decode import (
    Sampler,
    has_rotary_positions,
    new_cache,
    option_log_probabilities,
    prefill,
    traced_step,
)
from rag.models.loading import LoadedModel, load_model

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("one_thread")]

HYBRID = {"num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
HYBRID |= {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "qwen3": ("full", "qwen3", {}),
    "qwen2": ("full", "qwen2", {}),
    "llama": ("full", "llama", {}),
    "mistral": ("full", "mistral", {"sliding_window": None}),
    "gemma": ("full", "gemma", {"num_key_value_heads": 1}),
    "phi3": ("full", "phi3", {"num_key_value_heads": 8, "hidden_size": 128}),
    "granite": ("full", "granite", {}),
    "a window as long as the context": ("full", "mistral", {"sliding_window": 2048}),
    "phi3 with such a window": ("full", "phi3", {"sliding_window": 2048}),
    "gemma2 with such a window": ("full", "gemma2", {"sliding_window": 2048}),
    "a sliding window": ("sliding", "mistral", {"sliding_window": 32}),
    "hybrid layers": ("hybrid", "qwen3_5_text", HYBRID),
}
KEEPING = [name for name, (attention, *_) in FAMILIES.items() if attention == "full"]
RUNS = [[11, 480, 33, 7, 256, 98], [302, 17, 540, 64, 5, 129], [77, 410, 22, 599, 8, 350]]
PROMPT = [token for run in (0, 1, 0, 2, 2, 1, 0, 1, 2, 0, 0, 2, 1, 1, 2, 0, 1) for token in RUNS[run]][:100]
"""Short runs come back in it, so that prompt lookup finds something."""


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    attention, kind, shape = FAMILIES[request.param]
    folder = build_model(tmp_path_factory.mktemp("families") / kind, family=kind, **shape)
    loaded = load_model(str(folder), dtype="float32", device=DEVICE)
    assert loaded.capabilities.attention == attention
    return loaded


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Any:
    return load_model(str(tiny_model), dtype="float32", device=DEVICE).model


def generated(model: Any, prompt: list[int], count: int) -> list[int]:
    """The library's greedy continuation."""
    import torch

    ids = torch.tensor([prompt], device=DEVICE)
    with torch.inference_mode():
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, min_new_tokens=count, do_sample=False
        )
    return list(output[0, len(prompt) :].tolist())


def test_greedy_tokens_are_those_of_generate_from_a_kept_beginning_and_with_guesses(family: LoadedModel) -> None:
    model, cuttable = family.model, family.capabilities.keeps_every_token
    assert cuttable == (family.capabilities.attention == "full")
    expected = generated(model, PROMPT, 40)
    for held, lookup_tokens in [(0, 0), (60, 6), (1, 6), (99, 0)] if cuttable else [(0, 0)]:
        cache = new_cache(model, 140, cuttable=cuttable)
        if held:
            kept = SlabCache(3, 100)
            prefill(model, PROMPT, kept)
            cache.append(kept.copy_out(0, 100), held)
            assert cache.get_seq_length() == held
        assert list(decode(model, PROMPT, cache, max_new_tokens=40, lookup_tokens=lookup_tokens)) == expected


@pytest.mark.parametrize("family", KEEPING, indirect=True)
def test_options_read_together_score_as_each_alone(family: LoadedModel) -> None:
    """And as log P(option | prompt) the slow way: the whole text is read again for every token."""
    import torch

    model, prompt = family.model, PROMPT[:50]
    options = [[5], [7, 8, 9], PROMPT[60:72], [7, 8, 10]]
    expected = [0.0] * len(options)
    for number, option in enumerate(options):
        for place, token in enumerate(option):
            with torch.inference_mode():
                logits = model(input_ids=torch.tensor([[*prompt, *option[:place]]], device=DEVICE)).logits[0, -1]
            expected[number] += float(logits.float().log_softmax(-1)[token])
    cache = SlabCache(3, 50 + sum(map(len, options)))
    logits = prefill(model, prompt, cache)
    assert has_rotary_positions(model)
    for together in (True, False, True):  # the cache holds the prompt again after each
        found = option_log_probabilities(model, logits, options, cache, together=together)
        assert found == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_guesses_right_or_wrong_change_no_token_and_right_ones_save_steps(
    model: Any, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    """A guess is verified in one step, however many tokens it has."""
    forward, steps = model.forward, 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal steps
        steps += 1
        return forward(*args, **kwargs)

    def text(lookup_tokens: int, seed: int = 1) -> list[int]:
        sampler = Sampler(temperature=temperature, top_p=0.9, seed=seed)
        cache = SlabCache(3, 200)
        return list(decode(model, PROMPT[:60], cache, max_new_tokens=120, sampler=sampler, lookup_tokens=lookup_tokens))

    expected = text(0)
    assert (text(0, seed=2) != expected) == (temperature > 0)
    assert text(8) == expected
    monkeypatch.setattr(Misleading, "truth", expected)
    monkeypatch.setattr("rag.generators.local.decode.PromptLookup", Misleading)
    monkeypatch.setattr(model, "forward", counted)
    assert text(8) == expected
    assert steps < 90


@pytest.mark.parametrize("computes", [False, True])
def test_bfloat16_rows_are_multiplied_in_float32_where_the_processor_has_no_units_for_them(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, computes: bool
) -> None:
    import torch
    from torch.nn.functional import linear

    monkeypatch.setattr("rag.models.loading.cpu_computes_bfloat16", lambda: computes)
    loaded = load_model(str(tiny_model), dtype="bfloat16", device="cpu")
    layer = loaded.model.get_submodule("model.layers.0.mlp.up_proj")
    rows = torch.randn(6, layer.in_features, generator=torch.Generator().manual_seed(1)).bfloat16()
    wide = linear(rows.float(), layer.weight.float())
    assert torch.equal(layer(rows[:1]), linear(rows[:1], layer.weight))
    assert torch.equal(layer(rows), linear(rows, layer.weight) if computes else wide.bfloat16())
    shape = (2, loaded.capabilities.kv_heads, 256, loaded.capabilities.key_dim)
    keys, values = ([torch.zeros(shape, dtype=torch.bfloat16) for _ in range(3)] for _ in "kv")
    assert traced_step(loaded.model, keys, values) is not None


@pytest.mark.parametrize("spread", [0.1, 3.0])
@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 0.9), (1.5, 0.5), (0.8, 0.05)])
def test_sampling_draws_from_the_distribution_that_generate_draws_from(
    monkeypatch: pytest.MonkeyPatch, spread: float, temperature: float, top_p: float
) -> None:
    """Of 20,000 tokens in the order of likelihood, also where the likeliest 1,024 hold a small part of the mass."""
    import torch
    from transformers import TemperatureLogitsWarper, TopPLogitsWarper

    logits = torch.randn(1, 20_000, generator=torch.Generator().manual_seed(3)) * spread
    warped = TopPLogitsWarper(top_p)(None, TemperatureLogitsWarper(temperature)(None, logits))
    ordered, tokens = warped[0].double().softmax(-1).sort(descending=True, stable=True)
    below = ordered.cumsum(0) - ordered
    points = (torch.arange(60) + 0.5) / 60
    coming = iter(points)
    monkeypatch.setattr(torch, "rand", lambda *_, **__: next(coming))
    sampler = Sampler(temperature=temperature, top_p=top_p, seed=0)
    for point in points:
        place = int((tokens == sampler.accept(logits, [])[0]).nonzero())
        assert below[place] - 1e-4 <= point <= below[place] + ordered[place] + 1e-4
