"""A real model before and after quantization: what it costs in quality, and what it saves in memory and time.

Quality is perplexity on the bundled book: windows of 512 tokens from all over it, each read from its own beginning, the
first token of each unscored. Precisions read the same windows, so their difference is paired.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from functools import partial
from typing import Any

from evals.bench.generator import weight_sizes
from evals.bench.local_model import PeakMemory, make_cache, times_of, write
from evals.bench.timing import rounds_of
from indexes.sample import SAMPLE_PATH
from rag.models.devices import choose_device
from rag.models.loading import LoadedModel, load_model

WINDOW_TOKENS = 512
_ANSWER_TOKENS = 17


def bench_precision(
    model: str,
    precisions: tuple[str, ...] = ("none", "int8", "nf4"),
    windows: int = 16,
    rounds: int = 8,
    dtype: str = "auto",
) -> dict[str, Any]:
    """Perplexity, bytes, seconds to the first token and tokens per second of one model in several precisions.

    Args:
        model: a folder or hub name, as `find_model` gives it.
        windows: of text that is read; rounds: of the timings, taken in turn.
        dtype: of arithmetic, as the setting of that name.
    """
    rows: dict[str, dict[str, Any]] = {}
    models: dict[str, LoadedModel] = {}
    losses: dict[str, list[float]] = {}
    for precision in precisions:
        gc.collect()
        peak, started = PeakMemory(choose_device("auto")), time.perf_counter()
        loaded = models[precision] = load_model(model, quantization=precision, dtype=dtype)
        rows[precision] = {
            "precision": precision,
            "dtype": loaded.dtype,
            "weights_bytes": weight_sizes(loaded)["all"],
            "load_s": round(time.perf_counter() - started, 2),
            "load_peak_bytes": peak.extra_bytes(),
        }
        losses[precision] = window_losses(loaded, windows)
    timed = _timings(models, rounds)
    plain = losses[precisions[0]]
    for precision, row in rows.items():
        nats = statistics.fmean(losses[precision])
        row["perplexity"] = round(math.exp(nats), 3)
        if precision != precisions[0]:
            pairs = zip(losses[precision], plain, strict=True)
            row["perplexity_ratio"] = _ratio([after - before for after, before in pairs])
        row.update(timed[precision])
    return {
        "bench": "precision",
        "model": models[precisions[0]].name,
        "text": f"the bundled book, {windows} windows of {WINDOW_TOKENS} tokens",
        "rounds": rounds,
        "rows": list(rows.values()),
    }


def window_losses(loaded: LoadedModel, windows: int, window_tokens: int = WINDOW_TOKENS) -> list[float]:
    """Mean negative log-likelihood in nats per token of each window, from all over the bundled book."""
    import torch

    text = "\n\n".join(file.read_text("utf-8") for file in sorted(SAMPLE_PATH.glob("*.md")))
    found = []
    for number in range(windows):
        start = len(text) * number // windows
        piece = text[start : start + window_tokens * 8]  # no tokenizer takes more characters for a token of prose
        ids = loaded.tokenizer.encode(piece, add_special_tokens=False)[:window_tokens]
        tokens = torch.tensor([ids], device=loaded.model.device)
        with torch.inference_mode():
            logits = loaded.model(input_ids=tokens, use_cache=False).logits[0, :-1].float()
            found.append(float(torch.nn.functional.cross_entropy(logits, tokens[0, 1:])))
    return found


def _ratio(differences: list[float]) -> dict[str, float]:
    """exp of the mean paired difference of the windows' losses, with Student's 95 % interval."""
    from scipy.stats import t

    mean, n = statistics.fmean(differences), len(differences)
    reach = float(t.ppf(0.975, n - 1)) * statistics.stdev(differences) / math.sqrt(n) if n > 1 else math.inf
    value, low, high = (round(math.exp(each), 4) for each in (mean, mean - reach, mean + reach))
    return {"value": value, "low": low, "high": high, "n": n}


def _timings(models: dict[str, LoadedModel], rounds: int) -> dict[str, dict[str, float]]:
    """Seconds to the first token of a prompt of 512, and tokens per second after it, medians over rounds in turn."""
    measured: dict[str, list[tuple[float, float, float]]] = {precision: [] for precision in models}
    text = min(SAMPLE_PATH.glob("*.md")).read_text("utf-8")

    def answer(precision: str) -> None:
        loaded = models[precision]
        prompt = loaded.tokenizer.encode(text, add_special_tokens=False)[:WINDOW_TOKENS]
        cache = make_cache(loaded, "ours", len(prompt) + _ANSWER_TOKENS)
        measured[precision].append(times_of(write(loaded, prompt, cache, _ANSWER_TOKENS)))

    rounds_of({precision: partial(answer, precision) for precision in models}, rounds)
    return {
        precision: {
            "first_token_s": round(statistics.median(first for first, _, _ in taken[1:]), 3),
            "tokens_per_s": round(statistics.median(speed for _, _, speed in taken[1:]), 1),
        }
        for precision, taken in measured.items()
    }
