"""One decoding step behind a long context: caches and attentions of several precisions, in turn."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from evals.bench.caches import Attention, CacheKind, make_cache, use_attention
from evals.bench.random_model import random_segment
from evals.bench.timing import rounds_of
from rag.generators.cache import Segment
from rag.models.loading import LoadedModel

_WARMUP = 2


@dataclass(frozen=True, slots=True)
class StepKey:
    """What a step is measured with."""

    precision: str
    cache: CacheKind
    attention: Attention


def measure_steps(models: Mapping[str, LoadedModel], context_tokens: int, rounds: int) -> dict[StepKey, list[float]]:
    """Seconds of a step in each round; the caches stay, as they would in a long answer."""
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
    """The measured steps as rows of a table."""
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
