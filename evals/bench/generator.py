"""Benchmarks of the local generator: precision, cache and kept prefixes, side by side in one run.

All precisions are in memory together. A model of random weights computes as long as a real one, whatever it writes.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, get_args

from evals.bench.local_model import (
    PeakMemory,
    Way,
    cache_bytes,
    make_cache,
    random_held,
    random_model,
    random_prompt,
    times_of,
    use_way,
    write,
)
from evals.bench.timing import paired_ratio, rounds_of
from rag.generators.local.batch import MOST_ROWS, Batch, Row
from rag.generators.local.decode import prefill, step
from rag.generators.local.recorder import GraphMemory, Recorder
from rag.models.devices import choose_device, peak_memory_bytes
from rag.models.loading import LoadedModel, load_model
from rag.models.memory import linear_layers

QUESTION_TOKENS = 30
SHORT_CONTEXT_TOKENS = 256
_WARMUP = 2


def bench_generator(
    shape: str = "0.6b",
    rounds: int = 8,
    context_tokens: int = 4000,
    prefix_tokens: int = 2000,
    prompt_tokens: int = 512,
    answer_tokens: int = 17,
    precisions: tuple[str, ...] = ("none", "int8", "nf4"),
) -> dict[str, Any]:
    """Bytes, milliseconds per token and to the first token, and their ratios.

    Args:
        rounds: of every comparison; whole answers and first tokens take a third as many.
        precisions: rows of the table of answers; must hold `none` and `nf4`, which are compared further.
    """
    few = max(rounds // 3, 2)
    with tempfile.TemporaryDirectory() as folder:
        path = str(random_model(Path(folder), shape, choose_device("auto")))
        models = {name: load_model(path, quantization=name, dtype="bfloat16") for name in precisions}
    compared = {name: models[name] for name in ("none", "nf4")}
    before = {name: weight_sizes(each)["all"] for name, each in models.items()}
    answers = answer_rows(models, before, few, prompt_tokens, answer_tokens)
    # some processors repack weights at the first pass
    sizes = {name: weight_sizes(each) for name, each in models.items()}
    del models
    short = step_seconds(compared, SHORT_CONTEXT_TOKENS, 3 * rounds)
    long = step_seconds(compared, context_tokens, rounds)
    first = _first_token(compared["nf4"], prefix_tokens, few)
    intervals = {
        "nf4_over_bf16_decode": paired_ratio(short["none", "ours"], short["nf4", "ours"]),
        "long_decode_speedup": paired_ratio(long["nf4", "library"], long["nf4", "ours"]),
        "prefix_first_token_speedup": paired_ratio(first["full"], first["kept"]),
    }
    return {
        "bench": "generator",
        "shape": shape,
        "context_tokens": context_tokens,
        "weights_bytes": {name: size["all"] for name, size in sizes.items()},
        "answers": answers,
        "steps": [
            {"precision": precision, "way": way, "context_tokens": held, **_speed(values)}
            for held, found in ((SHORT_CONTEXT_TOKENS, short), (context_tokens, long))
            for (precision, way), values in found.items()
        ],
        "together": together_rows(compared, context_tokens, rounds),
        "first_token_s": {name: [round(value, 3) for value in values] for name, values in first.items()},
        "ratios": {
            "nf4_linear_share_of_bf16": round(sizes["nf4"]["linear"] / sizes["none"]["linear"], 4),
            "nf4_model_share_of_bf16": round(sizes["nf4"]["all"] / sizes["none"]["all"], 4),
        },
        "intervals": {name: asdict(ratio) for name, ratio in intervals.items()},
        "peak_memory_bytes": peak_memory_bytes(compared["nf4"].device),
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


def _speed(seconds: list[float], tokens: int = 1) -> dict[str, float]:
    taken = statistics.median(seconds)
    return {"ms": round(1000 * taken, 2), "tokens_per_s": round(tokens / taken, 1)}


def _first_token(loaded: LoadedModel, prefix_tokens: int, rounds: int) -> dict[str, list[float]]:
    """Seconds to the first token of a prompt, read whole and after a kept prefix."""
    prompt = random_prompt(loaded, prefix_tokens + QUESTION_TOKENS)
    kept = random_held(loaded, prefix_tokens)

    def first(*, reuse: bool) -> None:
        cache = make_cache(loaded, "ours", len(prompt) + 4, kept if reuse else None)
        int(prefill(loaded.model, prompt, cache)[-1].argmax())

    return rounds_of({"full": partial(first, reuse=False), "kept": partial(first, reuse=True)}, rounds)


def step_seconds(
    models: Mapping[str, LoadedModel], context_tokens: int, rounds: int
) -> dict[tuple[str, Way], list[float]]:
    """Seconds of one decoding step in each round, by precision and cache, which is kept between rounds."""
    steps: dict[str, Callable[[], None]] = {}
    keys: list[tuple[str, Way]] = []
    for precision, loaded in models.items():
        held = random_held(loaded, context_tokens)
        for way in ("library", "ours"):
            cache = make_cache(loaded, way, context_tokens + rounds + _WARMUP, held)
            keys.append((precision, way))
            steps[f"{precision} {way}"] = partial(_one_step, loaded, way, cache)
    return dict(zip(keys, rounds_of(steps, rounds, _WARMUP).values(), strict=True))


def _one_step(loaded: LoadedModel, way: Way, cache: Any) -> None:
    with use_way(loaded, way):
        int(step(loaded.model, [7], cache)[-1].argmax())  # waits for the device


def together_rows(models: Mapping[str, LoadedModel], context_tokens: int, rounds: int) -> list[dict[str, Any]]:
    """Rows of the table of steps as they are served: of one answer and of many; on a GPU captured and not."""
    rows: list[dict[str, Any]] = []
    for precision, loaded in models.items():
        ways: dict[str, Recorder | None] = {"eager": None}
        if loaded.device.startswith("cuda"):
            ways["captured"] = Recorder(loaded.model, GraphMemory())
        for count in (1, MOST_ROWS):
            steps = {name: _shared_step(loaded, count, context_tokens, recorder) for name, recorder in ways.items()}
            for name, values in rounds_of(steps, rounds, _WARMUP).items():
                row = {"precision": precision, "answers": count, "step": name, "context_tokens": context_tokens}
                rows.append(row | _speed(values, count))
    return rows


def _shared_step(loaded: LoadedModel, count: int, context_tokens: int, recorder: Recorder | None) -> Callable[[], None]:
    """One step of `count` answers, each behind `context_tokens` tokens; the same ones every time."""
    if recorder is not None:
        recorder.clear()
    batch, held = Batch(loaded.model, recorder), random_held(loaded, context_tokens)
    rows = [Row(make_cache(loaded, "ours", context_tokens + 1, held), 7) for _ in range(count)]

    def once() -> None:
        for row, logits in zip(rows, batch.step(rows), strict=True):
            int(logits[-1].argmax())  # waits for the device
            row.cache.cut(context_tokens)

    return once


def answer_rows(
    models: Mapping[str, LoadedModel],
    weights_bytes: Mapping[str, int],
    rounds: int,
    prompt_tokens: int,
    answer_tokens: int,
) -> list[dict[str, Any]]:
    """Rows of the table of answers; each round writes every row's answer once, in turn."""
    prompts = {precision: random_prompt(loaded, prompt_tokens) for precision, loaded in models.items()}
    taken: dict[tuple[str, Way], list[tuple[float, float, float]]] = {
        (name, way): [] for name in models for way in get_args(Way)
    }
    kv_bytes: dict[tuple[str, Way], int] = {}
    working: dict[tuple[str, Way], int | None] = {}

    def answer(precision: str, way: Way) -> tuple[float, float, float]:
        loaded, prompt = models[precision], prompts[precision]
        peak = PeakMemory(loaded.device)
        cache = make_cache(loaded, way, prompt_tokens + answer_tokens)
        with use_way(loaded, way):
            times = times_of(write(loaded, prompt, cache, answer_tokens if cache is not None else 3))
        kv_bytes[precision, way] = cache_bytes(cache)
        working[precision, way] = max(working.get((precision, way)) or 0, peak.extra_bytes() or 0) or None
        return times

    for precision in models:  # reads the weights from disk; some processors repack them at the first pass
        answer(precision, "ours")
    for _ in range(rounds):
        for row, times in taken.items():
            times.append(answer(*row))
    rows = []
    for (precision, way), times in taken.items():
        first_s, second_s, tokens_per_s = (statistics.median(values) for values in zip(*times, strict=True))
        rows.append(
            {
                "precision": precision,
                "kv_cache": way,
                "prompt_tokens": prompt_tokens,
                "weights_bytes": weights_bytes[precision],
                "kv_bytes": kv_bytes[precision, way],
                "working_bytes": working[precision, way],
                "ttft_s": round(first_s, 4),
                "second_token_ms": round(1000 * second_s, 2),
                "tokens_per_s": round(tokens_per_s, 2),
            }
        )
    return rows
