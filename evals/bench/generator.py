"""The local generator at a real size: precision, cache, attention, speculation and kept prefixes, side by side.

Everything that is compared is measured in turn in one run, with all precisions in memory together. Text of random
weights repeats nothing useful, so what speculation saves is measured on given text (`answer_table`) and what it costs
as the price of a verifying step; how often a guess is right on real answers is not measured here.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evals.bench.answer_table import GUESSED_TOKENS, answer_rows
from evals.bench.decode_steps import StepKey, measure_steps, step_rows
from evals.bench.random_model import random_model, random_prompt, random_segment
from evals.bench.timing import Ratio, paired_ratio, rounds_of
from rag.generators.cache import SlabCache
from rag.generators.decode import decode, prefill
from rag.models.devices import peak_memory_bytes
from rag.models.loading import LoadedModel, load_model
from rag.models.memory import linear_layers

QUESTION_TOKENS = 30
SHORT_CONTEXT_TOKENS = 256


def bench_generator(
    shape: str = "0.6b",
    rounds: int = 8,
    context_tokens: int = 4000,
    prefix_tokens: int = 2000,
    prompt_tokens: int = 512,
    answer_tokens: int = 17,
    precisions: tuple[str, ...] = ("none", "int8", "nf4"),
) -> dict[str, Any]:
    """Bytes, milliseconds a token and to the first token, and the ratios that the project is held to.

    Args:
        rounds: of every comparison; whole answers and first tokens take a third as many.
        precisions: of the table of answers; `none` and `nf4` are in it and are compared further.
    """
    few = max(rounds // 3, 2)
    with tempfile.TemporaryDirectory() as folder:
        path = str(random_model(Path(folder), shape))
        models = {name: load_model(path, quantization=name, dtype="bfloat16") for name in precisions}
    compared = {name: models[name] for name in ("none", "nf4")}
    answers = answer_rows(
        models, {name: _sizes(each)["all"] for name, each in models.items()}, few, prompt_tokens, answer_tokens
    )
    sizes = {name: _sizes(each) for name, each in models.items()}  # some processors repack at the first pass
    del models
    short = measure_steps(compared, SHORT_CONTEXT_TOKENS, 3 * rounds)
    long = measure_steps(compared, context_tokens, rounds)
    nf4 = compared["nf4"]
    first = _first_token(nf4, prefix_tokens, few)
    ratios = _ratios(short, long) | {
        "prefix_first_token_speedup": paired_ratio(first["full"], first["kept"]),
        "verify_step_over_one_token": _verify_ratio(nf4, rounds),
    }
    return {
        "bench": "generator",
        "shape": shape,
        "context_tokens": context_tokens,
        "weights_bytes": {name: size["all"] for name, size in sizes.items()},
        "answers": answers,
        "steps": [*step_rows(short, SHORT_CONTEXT_TOKENS), *step_rows(long, context_tokens)],
        "first_token_s": {name: [round(value, 3) for value in values] for name, values in first.items()},
        "ratios": {
            "nf4_linear_share_of_bf16": round(sizes["nf4"]["linear"] / sizes["none"]["linear"], 4),
            "nf4_model_share_of_bf16": round(sizes["nf4"]["all"] / sizes["none"]["all"], 4),
            **{name: round(ratio.value, 3) for name, ratio in ratios.items()},
        },
        "intervals": {name: asdict(ratio) for name, ratio in ratios.items()},
        "peak_memory_bytes": peak_memory_bytes(nf4.device),
    }


def _ratios(short: Mapping[StepKey, list[float]], long: Mapping[StepKey, list[float]]) -> dict[str, Ratio]:
    """Decoding ratios: precisions as they are served; cache and attention together and each alone, in NF4."""
    stock = long[StepKey("nf4", "dynamic", "stock")]
    return {
        "nf4_over_bf16_decode": paired_ratio(
            short[StepKey("none", "slab", "grouped")], short[StepKey("nf4", "slab", "grouped")]
        ),
        "long_decode_speedup": paired_ratio(stock, long[StepKey("nf4", "slab", "grouped")]),
        "long_decode_speedup_cache_alone": paired_ratio(stock, long[StepKey("nf4", "slab", "stock")]),
        "long_decode_speedup_attention_alone": paired_ratio(stock, long[StepKey("nf4", "dynamic", "grouped")]),
    }


def _sizes(loaded: LoadedModel) -> dict[str, int]:
    """Bytes of the linear layers that get quantized, and of everything, with the quantization's own scales."""

    def held(parameter: Any) -> int:
        state = getattr(parameter, "quant_state", None)
        scales = 0 if state is None else state.absmax.nbytes + (state.state2.absmax.nbytes if state.nested else 0)
        rows = getattr(parameter, "SCB", None)  # int8's scale a row
        return int(parameter.numel() * parameter.element_size() + scales + (0 if rows is None else rows.nbytes))

    linear = sum(held(layer.weight) for _, layer in linear_layers(loaded.model))
    everything = sum(held(p) for p in {id(p): p for p in loaded.model.parameters()}.values())
    return {"linear": linear, "all": everything}


def _first_token(loaded: LoadedModel, prefix_tokens: int, rounds: int) -> dict[str, list[float]]:
    """Seconds to the first token of a prompt, read whole and behind a kept prefix."""
    layers = loaded.capabilities.num_layers
    prompt = random_prompt(loaded, prefix_tokens + QUESTION_TOKENS)
    capacity = len(prompt) + 4
    reader = SlabCache(layers, capacity)
    prefill(loaded.model, prompt[:prefix_tokens], reader)
    kept = reader.copy_out(0, prefix_tokens)

    def first(cache: SlabCache) -> None:
        next(decode(loaded.model, prompt, cache, max_new_tokens=1))

    def from_prefix() -> None:
        cache = SlabCache(layers, capacity)
        cache.append(kept, prefix_tokens)
        first(cache)

    return rounds_of({"full": lambda: first(SlabCache(layers, capacity)), "kept": from_prefix}, rounds)


def _verify_ratio(loaded: LoadedModel, rounds: int) -> Ratio:
    """What a step that verifies eight guesses costs, in steps that write one token: below it guesses must pay off."""
    import torch

    tokens = 1000
    cache = SlabCache(loaded.capabilities.num_layers, tokens + GUESSED_TOKENS + 2)
    cache.append(random_segment(loaded, tokens), tokens)

    def step(count: int) -> None:
        ids = torch.full((1, count), 7, device=loaded.model.device)
        with torch.inference_mode():
            output = loaded.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=count)
            int(output.logits[0, -1].argmax())
        cache.cut(tokens)

    seconds = rounds_of({"one": lambda: step(1), "verify": lambda: step(GUESSED_TOKENS + 1)}, rounds, warmup=2)
    return paired_ratio(seconds["verify"], seconds["one"])
