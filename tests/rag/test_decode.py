"""The decoding loop writes what the library's own `generate` writes, from any cache it is given."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tiny_models import DEVICE, build_model

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
from rag.models.loading import load_model

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("one_thread")]

FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "qwen2": {},
    "llama": {},
    "mistral": {"sliding_window": None},
    "gemma": {"num_key_value_heads": 1},
    "phi3": {"num_key_value_heads": 8, "hidden_size": 128},
    "granite": {},
    "gemma2": {"sliding_window": 2048},
}


@pytest.fixture(scope="module", params=list(FAMILIES))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    family: str = request.param
    folder = build_model(tmp_path_factory.mktemp("families") / family, family=family, **FAMILIES[family])
    return load_model(str(folder), dtype="float32", device=DEVICE).model


@pytest.fixture(scope="module")
def one_model(tiny_model: Path) -> Any:
    return load_model(str(tiny_model), dtype="float32", device=DEVICE).model


def random_prompt(length: int, seed: int = 0) -> list[int]:
    """Tokens in which short runs come back, so that prompt lookup finds something."""
    draw = random.Random(seed)
    runs = [[draw.randrange(3, 600) for _ in range(6)] for _ in range(4)]
    tokens: list[int] = []
    while len(tokens) < length:
        tokens += draw.choice(runs)
    return tokens[:length]


def generated(model: Any, prompt: list[int], count: int) -> list[int]:
    """The library's greedy continuation."""
    import torch

    ids = torch.tensor([prompt], device=DEVICE)
    with torch.inference_mode():
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, min_new_tokens=count, do_sample=False
        )
    return list(output[0, len(prompt) :].tolist())


@pytest.mark.parametrize("lookup_tokens", [0, 6])
def test_greedy_tokens_are_those_of_generate(model: Any, lookup_tokens: int) -> None:
    prompt = random_prompt(150)
    cache = new_cache(model, 150 + 40, cuttable=True)
    ours = list(decode(model, prompt, cache, max_new_tokens=40, lookup_tokens=lookup_tokens))
    assert ours == generated(model, prompt, 40)


@pytest.mark.parametrize("cached_tokens", [1, 70, 149])
def test_a_kept_prefix_changes_no_token(one_model: Any, cached_tokens: int) -> None:
    prompt = random_prompt(150)
    first = SlabCache(3, 150)
    prefill(one_model, prompt, first)
    second = SlabCache(3, 190)
    second.append(first.copy_out(0, 150), cached_tokens)
    assert second.get_seq_length() == cached_tokens
    assert list(decode(one_model, prompt, second, max_new_tokens=40, lookup_tokens=6)) == generated(
        one_model, prompt, 40
    )


def test_a_cache_as_long_as_the_prompt_is_refused(one_model: Any) -> None:
    cache = SlabCache(3, 60)
    prefill(one_model, random_prompt(50), cache)
    with pytest.raises(ValueError, match="cannot precede"):
        next(decode(one_model, random_prompt(50), cache, max_new_tokens=2))


def test_guessed_tokens_save_steps_on_text_that_repeats(one_model: Any) -> None:
    """The model's own greedy text soon repeats itself; guesses must then be verified several at a time."""
    prompt = random_prompt(60)
    steps = 0
    forward = one_model.forward

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal steps
        steps += 1
        return forward(*args, **kwargs)

    one_model.forward = counted
    try:
        written = list(decode(one_model, prompt, SlabCache(3, 200), max_new_tokens=120, lookup_tokens=8))
    finally:
        one_model.forward = forward
    assert len(written) == 120
    assert steps < 90
    assert written == generated(one_model, prompt, 120)


def test_one_seed_writes_one_text_with_and_without_guesses(one_model: Any) -> None:
    prompt = random_prompt(60)

    def text(seed: int, lookup_tokens: int) -> list[int]:
        sampler = Sampler(temperature=0.7, top_p=0.9, seed=seed)
        cache = SlabCache(3, 120)
        return list(decode(one_model, prompt, cache, max_new_tokens=50, sampler=sampler, lookup_tokens=lookup_tokens))

    assert text(1, 0) == text(1, 0) == text(1, 8)
    assert text(1, 0) != text(2, 0)


class Misleading:
    """Guesses that are right for a few tokens, sometimes none, and then wrong."""

    truth: ClassVar[list[int]] = []

    def __init__(self, prompt: list[int], most_tokens: int) -> None:
        self.written = 0

    def extend(self, tokens: list[int]) -> None:
        self.written += len(tokens)

    def accepted(self, accepted_tokens: int, guessed_tokens: int) -> None:
        """Learns nothing."""

    def guess(self, room_tokens: int) -> list[int]:
        coming = self.truth[self.written : self.written + self.written % 3]
        return [*coming, 5, 6, 7][:room_tokens]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_wrong_guesses_change_no_token(one_model: Any, monkeypatch: pytest.MonkeyPatch, temperature: float) -> None:
    prompt = random_prompt(60)

    def text(lookup_tokens: int) -> list[int]:
        sampler = Sampler(temperature=temperature, seed=11)
        cache = SlabCache(3, 120)
        return list(decode(one_model, prompt, cache, max_new_tokens=50, sampler=sampler, lookup_tokens=lookup_tokens))

    expected = text(0)
    monkeypatch.setattr(Misleading, "truth", expected)
    monkeypatch.setattr("rag.generators.local.decode.PromptLookup", Misleading)
    assert text(8) == expected


def test_sliding_window_models_fall_back_and_agree_with_generate(tmp_path: Path) -> None:
    folder = build_model(tmp_path / "sliding", family="mistral", sliding_window=32)
    loaded = load_model(str(folder), dtype="float32", device=DEVICE)
    assert loaded.capabilities.attention == "sliding"
    prompt = random_prompt(100)
    cache = new_cache(loaded.model, 140, cuttable=loaded.capabilities.keeps_every_token)
    assert list(decode(loaded.model, prompt, cache, max_new_tokens=30)) == generated(loaded.model, prompt, 30)


@pytest.mark.parametrize("family", ["mistral", "phi3", "gemma2"])
def test_a_window_as_long_as_the_context_is_full_attention(tmp_path: Path, family: str) -> None:
    folder = build_model(tmp_path / family, family=family, sliding_window=2048)
    loaded = load_model(str(folder), dtype="float32", device=DEVICE)
    assert loaded.capabilities.attention == "full"
    prompt = random_prompt(100)
    cache = SlabCache(3, 140)
    prefill(loaded.model, prompt[:60], cache)
    expected = generated(loaded.model, prompt, 30)
    assert list(decode(loaded.model, prompt, cache, max_new_tokens=30, lookup_tokens=4)) == expected


def test_hybrid_models_fall_back_and_agree_with_generate(tmp_path: Path) -> None:
    folder = build_model(
        tmp_path / "hybrid",
        family="qwen3_5_text",
        num_hidden_layers=4,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
    )
    loaded = load_model(str(folder), dtype="float32", device=DEVICE)
    assert loaded.capabilities.attention == "hybrid"
    prompt = random_prompt(100)
    cache = new_cache(loaded.model, 140, cuttable=loaded.capabilities.keeps_every_token)
    ours = list(decode(loaded.model, prompt, cache, max_new_tokens=20))
    assert ours == generated(loaded.model, prompt, 20)


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


def test_writing_beyond_the_promised_size_is_an_error(one_model: Any) -> None:
    with pytest.raises(ValueError, match="holds 20 tokens"):
        prefill(one_model, random_prompt(30), SlabCache(3, 20))


def test_nucleus_sampling_keeps_the_most_likely_tokens_only() -> None:
    import torch

    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    sampler = Sampler(temperature=1.0, top_p=0.7, seed=3)
    drawn = [sampler.accept(logits, [])[0] for _ in range(400)]
    assert set(drawn) == {0, 1}  # 0.5 + 0.3 reaches 0.7
    assert 0.55 < drawn.count(0) / 400 < 0.70  # 0.5 / 0.8 = 0.625


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 0.9), (1.5, 0.5), (0.3, 0.95)])
def test_sampling_draws_from_the_distribution_that_generate_draws_from(
    monkeypatch: pytest.MonkeyPatch, temperature: float, top_p: float
) -> None:
    """Token by token the draws differ, because ours spend one random number per token; the distribution does not."""
    import torch
    from transformers import TemperatureLogitsWarper, TopPLogitsWarper

    logits = torch.randn(1, 40, generator=torch.Generator().manual_seed(3)) * 2
    warped = TopPLogitsWarper(top_p)(None, TemperatureLogitsWarper(temperature)(None, logits))
    expected = warped.softmax(-1)[0]
    points = iter((torch.arange(4000) + 0.5) / 4000)
    monkeypatch.setattr(torch, "rand", lambda *_, **__: next(points))
    sampler = Sampler(temperature=temperature, top_p=top_p, seed=0)
    drawn = torch.bincount(torch.tensor([sampler.accept(logits, [])[0] for _ in range(4000)]), minlength=40) / 4000
    torch.testing.assert_close(drawn, expected, atol=1e-3, rtol=0)
    assert ((drawn > 0) <= (expected > 0)).all()


def test_accepted_guesses_are_drawn_from_the_models_own_distribution() -> None:
    import torch

    logits = torch.log(torch.tensor([[0.75, 0.25], [0.5, 0.5]]))
    sampler = Sampler(temperature=1.0, seed=5)
    drawn = [sampler.accept(logits, [1])[0] for _ in range(800)]
    assert 0.20 < drawn.count(1) / 800 < 0.30  # the guess is taken no more often than it is likely


def summed_one_by_one(model: Any, prompt: list[int], option: list[int]) -> float:
    """log P(option | prompt) the slow way: the whole text read anew for every token."""
    import torch

    total = 0.0
    for place, token in enumerate(option):
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([[*prompt, *option[:place]]], device=DEVICE)).logits[0, -1]
        total += float(logits.float().log_softmax(-1)[token])
    return total


@pytest.mark.parametrize("together", [True, False])
def test_options_read_together_score_as_each_alone(model: Any, together: bool) -> None:
    prompt = random_prompt(50)
    options = [[5], [7, 8, 9], random_prompt(12, seed=1), [7, 8, 10]]
    cache = SlabCache(3, 50 + sum(map(len, options)))
    logits = prefill(model, prompt, cache)
    found = option_log_probabilities(model, logits, options, cache, together=together)
    assert found == pytest.approx([summed_one_by_one(model, prompt, option) for option in options], abs=1e-3)
    assert has_rotary_positions(model)
    assert cache.get_seq_length() == 50
    again = option_log_probabilities(model, logits, options, cache, together=together)
    assert again == pytest.approx(found, abs=1e-4)


def sorted_draw(logits: Any, temperature: float, top_p: float, point: Any) -> int:
    """The token at `point` of the whole vocabulary in the order of likelihood."""
    import torch

    ordered, tokens = torch.softmax(logits.float() / temperature, -1).sort(descending=True, stable=True)
    cumulative = ordered.cumsum(0)
    kept = int((cumulative - ordered < top_p).sum())
    place = int(torch.searchsorted(cumulative[:kept], point * cumulative[kept - 1], right=True))
    return int(tokens[min(place, kept - 1)])


@pytest.mark.parametrize(("spread", "top_p"), [(3.0, 0.9), (3.0, 1.0), (0.1, 0.9), (0.1, 1.0), (0.1, 0.05)])
def test_looking_at_the_likeliest_first_draws_what_sorting_everything_draws(spread: float, top_p: float) -> None:
    """Also where the likeliest 1,024 tokens hold a small part of the mass."""
    import torch

    logits = torch.randn(1, 20_000, generator=torch.Generator().manual_seed(1)) * spread
    sampler, points = Sampler(0.8, top_p, seed=4), torch.Generator().manual_seed(4)
    for _ in range(60):
        expected = sorted_draw(logits[0], 0.8, top_p, torch.rand((), generator=points))
        assert sampler.accept(logits, [])[0] == expected
