"""Benchmarks of the local generator: precision, cache, attention and kept prefixes, side by side in one run.

All precisions are in memory together. A model of random weights computes as long as a real one, whatever it writes.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias, get_args

from evals.bench.local_model import (
    Attention,
    CacheKind,
    PeakMemory,
    cache_bytes,
    make_cache,
    random_model,
    random_prompt,
    random_segment,
    times_of,
    use_attention,
)
from evals.bench.timing import paired_ratio, rounds_of
from evals.statistics import Interval
from rag.generators.local.batch import MOST_ROWS, Batch, decode
from rag.generators.local.cache import Segment, SlabCache
from rag.generators.local.decode import Decoding, Sampler, prefill
from rag.generators.local.recorder import GraphMemory, Recorder
from rag.models.devices import choose_device, peak_memory_bytes
from rag.models.loading import LoadedModel, load_model
from rag.models.memory import linear_layers

QUESTION_TOKENS = 30
SHORT_CONTEXT_TOKENS = 256
_WARMUP = 2
_UNCACHED_TOKENS = 3  # each reads the whole prompt again


def bench_generator(
    shape: str = "0.6b",
    rounds: int = 8,
    context_tokens: int = 4000,
    prefix_tokens: int = 2000,
    prompt_tokens: int = 512,
    answer_tokens: int = 17,
    precisions: tuple[str, ...] = ("none", "int8", "nf4"),
) -> dict[str, Any]:
    """Bytes, milliseconds per token and to the first token, and the ratios that the project promises.

    Args:
        rounds: of every comparison; whole answers and first tokens take a third as many.
        precisions: rows of the table of answers; must hold `none` and `nf4`, which are compared further.
    """
    few = max(rounds // 3, 2)
    with tempfile.TemporaryDirectory() as folder:
        path = str(random_model(Path(folder), shape, choose_device("auto")))
        models = {name: load_model(path, quantization=name, dtype="bfloat16") for name in precisions}
    compared = {name: models[name] for name in ("none", "nf4")}
    answers = answer_rows(
        models, {name: weight_sizes(each)["all"] for name, each in models.items()}, few, prompt_tokens, answer_tokens
    )
    sizes = {
        name: weight_sizes(each) for name, each in models.items()
    }  # some processors repack weights at the first pass
    del models
    short = measure_steps(compared, SHORT_CONTEXT_TOKENS, 3 * rounds)
    long = measure_steps(compared, context_tokens, rounds)
    nf4 = compared["nf4"]
    first = _first_token(nf4, prefix_tokens, few)
    ratios = _ratios(short, long) | {
        "prefix_first_token_speedup": paired_ratio(first["full"], first["kept"]),
    }
    return {
        "bench": "generator",
        "shape": shape,
        "context_tokens": context_tokens,
        "weights_bytes": {name: size["all"] for name, size in sizes.items()},
        "answers": answers,
        "steps": [*step_rows(short, SHORT_CONTEXT_TOKENS), *step_rows(long, context_tokens)],
        "together": together_rows(compared, context_tokens, rounds) if nf4.device == "cuda" else [],
        "first_token_s": {name: [round(value, 3) for value in values] for name, values in first.items()},
        "ratios": {
            "nf4_linear_share_of_bf16": round(sizes["nf4"]["linear"] / sizes["none"]["linear"], 4),
            "nf4_model_share_of_bf16": round(sizes["nf4"]["all"] / sizes["none"]["all"], 4),
            **{name: round(ratio.value, 3) for name, ratio in ratios.items()},
        },
        "intervals": {name: asdict(ratio) for name, ratio in ratios.items()},
        "peak_memory_bytes": peak_memory_bytes(nf4.device),
    }


def _ratios(short: Mapping[StepKey, list[float]], long: Mapping[StepKey, list[float]]) -> dict[str, Interval]:
    """Decoding ratios: precisions as served; cache and attention together and each alone, in NF4."""
    stock = long[StepKey("nf4", "dynamic", "stock")]
    return {
        "nf4_over_bf16_decode": paired_ratio(
            short[StepKey("none", "slab", "grouped")], short[StepKey("nf4", "slab", "grouped")]
        ),
        "long_decode_speedup": paired_ratio(stock, long[StepKey("nf4", "slab", "grouped")]),
        "long_decode_speedup_cache_alone": paired_ratio(stock, long[StepKey("nf4", "slab", "stock")]),
        "long_decode_speedup_attention_alone": paired_ratio(stock, long[StepKey("nf4", "dynamic", "grouped")]),
    }


def weight_sizes(loaded: LoadedModel) -> dict[str, int]:
    """Bytes of the quantized linear layers and of everything, the quantization's scales included."""

    def held(parameter: Any) -> int:
        state = getattr(parameter, "quant_state", None)
        scales = 0 if state is None else state.absmax.nbytes + (state.state2.absmax.nbytes if state.nested else 0)
        rows = getattr(parameter, "SCB", None)  # int8's scale per row
        return int(parameter.numel() * parameter.element_size() + scales + (0 if rows is None else rows.nbytes))

    linear = sum(held(layer.weight) for _, layer in linear_layers(loaded.model))
    everything = sum(held(p) for p in {id(p): p for p in loaded.model.parameters()}.values())
    return {"linear": linear, "all": everything}


def _first_token(loaded: LoadedModel, prefix_tokens: int, rounds: int) -> dict[str, list[float]]:
    """Seconds to the first token of a prompt, read whole and after a kept prefix."""
    layers = loaded.capabilities.num_layers
    prompt = random_prompt(loaded, prefix_tokens + QUESTION_TOKENS)
    capacity = len(prompt) + 4
    prefix_cache = SlabCache(layers, capacity)
    prefill(loaded.model, prompt[:prefix_tokens], prefix_cache)
    kept = prefix_cache.copy_out(0, prefix_tokens)

    def first(cache: SlabCache) -> None:
        next(decode(loaded.model, prompt, cache, max_new_tokens=1))

    def from_prefix() -> None:
        cache = SlabCache(layers, capacity)
        cache.append(kept, prefix_tokens)
        first(cache)

    return rounds_of({"full": lambda: first(SlabCache(layers, capacity)), "kept": from_prefix}, rounds)


@dataclass(frozen=True, slots=True)
class StepKey:
    """The configuration of one decoding step."""

    precision: str
    cache: CacheKind
    attention: Attention


def measure_steps(models: Mapping[str, LoadedModel], context_tokens: int, rounds: int) -> dict[StepKey, list[float]]:
    """Seconds of one decoding step in each round; caches are kept between rounds, as in a long answer."""
    steps: dict[StepKey, Callable[[], None]] = {}
    for precision, loaded in models.items():
        held = random_segment(loaded, context_tokens)
        for cache in get_args(CacheKind):
            for attention in get_args(Attention):
                step = _step(loaded, cache, attention, held, context_tokens + rounds + _WARMUP)
                steps[StepKey(precision, cache, attention)] = step
    by_name = {str(number): step for number, step in enumerate(steps.values())}
    seconds = rounds_of(by_name, rounds, _WARMUP)
    for loaded in models.values():
        use_attention(loaded, "grouped")
    return dict(zip(steps, seconds.values(), strict=True))


def step_rows(seconds: Mapping[StepKey, list[float]], context_tokens: int) -> list[dict[str, Any]]:
    """Rows of the table of steps."""
    return [
        {
            "precision": key.precision,
            "cache": key.cache,
            "attention": key.attention,
            "context_tokens": context_tokens,
            "ms_per_token": round(1000 * statistics.median(values), 2),
            "tokens_per_s": round(1 / statistics.median(values), 1),
        }
        for key, values in seconds.items()
    ]


def _step(
    loaded: LoadedModel, kind: CacheKind, attention: Attention, held: Segment, capacity_tokens: int
) -> Callable[[], None]:
    import torch

    cache = make_cache(loaded, kind, capacity_tokens, held)
    token = torch.tensor([[7]], device=loaded.model.device)

    def step() -> None:
        use_attention(loaded, attention)
        with torch.inference_mode():
            output = loaded.model(input_ids=token, past_key_values=cache, use_cache=True, logits_to_keep=1)
            int(output.logits[0, -1].argmax())  # waits for the device

    return step


def together_rows(models: Mapping[str, LoadedModel], context_tokens: int, rounds: int) -> list[dict[str, Any]]:
    """Rows of the table of steps as they are served: of one answer and of many, with CUDA-graph capture and without."""
    rows: list[dict[str, Any]] = []
    for precision, loaded in models.items():
        for count in (1, MOST_ROWS):
            steps = {
                name: _step_of(loaded, count, context_tokens, recorder)
                for name, recorder in (("eager", None), ("captured", Recorder(loaded.model, GraphMemory())))
            }
            for name, values in rounds_of(steps, rounds, _WARMUP).items():
                seconds = statistics.median(values)
                rows.append(
                    {
                        "precision": precision,
                        "answers": count,
                        "step": name,
                        "context_tokens": context_tokens,
                        "ms": round(1000 * seconds, 2),
                        "tokens_per_s": round(count / seconds, 1),
                    }
                )
    return rows


def _step_of(loaded: LoadedModel, count: int, context_tokens: int, recorder: Recorder | None) -> Callable[[], None]:
    """One step of `count` answers, each behind `context_tokens` tokens; the same ones every time."""
    batch = Batch(loaded.model, recorder=recorder)
    answers = []
    for _ in range(count):
        cache = make_cache(loaded, "slab", context_tokens + 2, random_segment(loaded, context_tokens))
        answers.append(Decoding([7] * (context_tokens + 1), cache, Sampler()))

    def step() -> None:
        for answer, logits in zip(answers, batch.step(answers), strict=True):
            answer.take(logits)  # waits for the device; nothing is written, so the next step is the same

    return step


WAYS: tuple[tuple[CacheKind | None, Attention], ...] = (
    (None, "grouped"),
    ("dynamic", "stock"),
    ("dynamic", "grouped"),
    ("slab", "stock"),
    ("slab", "grouped"),
)
"""How an answer is written: with which cache and attention. Without a cache all is read again for every token."""
_Row: TypeAlias = tuple[str, CacheKind | None, Attention]
"""Precision, cache and attention."""


def answer_rows(
    models: Mapping[str, LoadedModel],
    weights_bytes: Mapping[str, int],
    rounds: int,
    prompt_tokens: int,
    answer_tokens: int,
) -> list[dict[str, Any]]:
    """Rows of the table of answers; each round writes every row's answer once, in turn."""
    prompts = {precision: random_prompt(loaded, prompt_tokens) for precision, loaded in models.items()}
    times: dict[_Row, list[tuple[float, float, float]]] = {(name, *way): [] for name in models for way in WAYS}
    kv_bytes: dict[_Row, int] = {}
    working: dict[_Row, int | None] = {}

    def answer(row: _Row) -> None:
        precision, kind, attention = row
        loaded, prompt = models[precision], prompts[precision]
        use_attention(loaded, attention)
        peak = PeakMemory(loaded.device)
        cache = make_cache(loaded, kind, prompt_tokens + answer_tokens) if kind else None
        tokens = _read_again(loaded, prompt)
        if cache is not None:
            tokens = decode(loaded.model, prompt, cache, max_new_tokens=answer_tokens)
        times[row].append(times_of(tokens))
        kv_bytes[row] = cache_bytes(cache) if cache is not None else 0
        extra = peak.extra_bytes()
        working[row] = extra if working.get(row) is None else max(working[row] or 0, extra or 0)

    for precision in models:  # reads the weights from disk; some processors repack them at the first pass
        answer((precision, *WAYS[-1]))
        times[precision, *WAYS[-1]].clear()
    for _ in range(rounds):
        for row in times:
            answer(row)
    for loaded in models.values():
        use_attention(loaded, "grouped")
    rows = []
    for row, taken in times.items():
        first_s, second_s, tokens_per_s = (statistics.median(values) for values in zip(*taken, strict=True))
        rows.append(
            {
                "precision": row[0],
                "kv_cache": row[1] or "off",
                "attention": row[2],
                "prompt_tokens": prompt_tokens,
                "weights_bytes": weights_bytes[row[0]],
                "kv_bytes": kv_bytes[row],
                "working_bytes": working[row],
                "ttft_s": round(first_s, 4),
                "second_token_ms": round(1000 * second_s, 2),
                "tokens_per_s": round(tokens_per_s, 2),
            }
        )
    return rows


def _read_again(loaded: LoadedModel, prompt: list[int]) -> Iterator[int]:
    """Decodes a few tokens without any cache."""
    import torch

    held = list(prompt)
    for _ in range(_UNCACHED_TOKENS):
        ids = torch.tensor([held], device=loaded.model.device)
        with torch.inference_mode():
            logits = loaded.model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[0]
        held.append(int(logits.argmax()))
        yield held[-1]
