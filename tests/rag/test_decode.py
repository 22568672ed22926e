"""The decoding loop writes what the library's own `generate` writes, from any cache it is given."""

from __future__ import annotations

from typing import Any

import pytest
from tiny_models import DEVICE, build_model, write_alone

from rag.generators.local.cache import PrefixCache, SlabCache
from rag.generators.local.decode import Sampler, log_probability, new_cache, prefill
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
RUNS = [[11, 480, 33, 7, 256, 98], [302, 17, 540, 64, 5, 129], [77, 410, 22, 599, 8, 350]]
PROMPT = [token for run in (0, 1, 0, 2, 2, 1, 0, 1, 2, 0, 0, 2, 1, 1, 2, 0, 1) for token in RUNS[run]][:100]
"""No model ends its answer behind it."""


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    attention, kind, shape = FAMILIES[request.param]
    folder = build_model(tmp_path_factory.mktemp("families") / kind, family=kind, **shape)
    loaded = load_model(str(folder), dtype="float32", device=DEVICE)
    assert loaded.capabilities.attention == attention
    return loaded


def generated(model: Any, prompt: list[int], count: int) -> list[int]:
    """The library's greedy continuation."""
    import torch

    ids = torch.tensor([prompt], device=DEVICE)
    with torch.inference_mode():
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, min_new_tokens=count, do_sample=False
        )
    return list(output[0, len(prompt) :].tolist())


def test_greedy_tokens_are_those_of_generate_also_behind_a_kept_beginning(family: LoadedModel) -> None:
    model, cuttable = family.model, family.capabilities.keeps_every_token
    assert cuttable == (family.capabilities.attention == "full")
    expected = generated(model, PROMPT, 40)
    assert write_alone(model, PROMPT, new_cache(model, 140, cuttable=cuttable), 40) == expected
    for held in (60, 1, 99) if cuttable else ():
        read, kept = SlabCache(3, 100), PrefixCache(1 << 30)
        prefill(model, PROMPT, read)
        kept.keep(None, PROMPT, read)
        entry, alike = kept.find(None, PROMPT[:held])
        assert entry is not None
        cache = SlabCache(3, 140)
        cache.begin_with(entry, alike)
        assert cache.get_seq_length() == held
        assert write_alone(model, PROMPT, cache, 40) == expected


def test_the_likelihood_of_an_option_is_that_of_the_whole_text_read_for_every_token(family: LoadedModel) -> None:
    import torch

    model, prompt, cuttable = family.model, PROMPT[:50], family.capabilities.keeps_every_token
    cache = None
    for option in ([5], [7, 8, 9], PROMPT[60:72], [7, 8, 10]):
        expected = 0.0
        for place, token in enumerate(option):
            with torch.inference_mode():
                logits = model(input_ids=torch.tensor([[*prompt, *option[:place]]], device=DEVICE)).logits[0, -1]
            expected += float(logits.float().log_softmax(-1)[token])
        if cache is None or not cuttable:  # what can be cut holds the prompt again after each
            cache = new_cache(model, 62, cuttable=cuttable)
            after = prefill(model, prompt, cache)
        assert log_probability(model, after, option, cache) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("spread", [0.1, 3.0])
@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k"), [(1.0, 1.0, 0), (0.7, 0.9, 0), (1.5, 0.5, 0), (0.8, 0.05, 0), (1.0, 0.9, 40)]
)
def test_sampling_draws_from_the_distribution_that_generate_draws_from(
    monkeypatch: pytest.MonkeyPatch, spread: float, temperature: float, top_p: float, top_k: int
) -> None:
    """Of 20,000 tokens in the order of likelihood, also where the likeliest 1,024 hold a small part of the mass."""
    import torch
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    logits = torch.randn(1, 20_000, generator=torch.Generator().manual_seed(3)) * spread
    warm = TemperatureLogitsWarper(temperature)(None, logits)
    warped = TopPLogitsWarper(top_p)(None, TopKLogitsWarper(top_k)(None, warm) if top_k else warm)
    ordered, tokens = warped[0].double().softmax(-1).sort(descending=True, stable=True)
    below = ordered.cumsum(0) - ordered
    points = (torch.arange(60) + 0.5) / 60
    coming = iter(points)
    monkeypatch.setattr(torch, "rand", lambda *_, **__: next(coming))
    sampler = Sampler(temperature=temperature, top_p=top_p, seed=0, top_k=top_k)
    for point in points:
        place = int((tokens == sampler.pick(logits[0])).nonzero())
        assert below[place] - 1e-4 <= point <= below[place] + ordered[place] + 1e-4
