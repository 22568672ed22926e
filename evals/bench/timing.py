"""Times functions side by side, in turn over several rounds, so that a machine whose speed drifts stays fair."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evals.statistics import Interval


def side_by_side(functions: Mapping[str, Callable[[], Any]], rounds: int, warmup: int = 1) -> dict[str, float]:
    """Median seconds of each function over `rounds` rounds; each round runs them all once, in turn."""
    return {name: statistics.median(values) for name, values in rounds_of(functions, rounds, warmup).items()}


def rounds_of(functions: Mapping[str, Callable[[], Any]], rounds: int, warmup: int = 1) -> dict[str, list[float]]:
    """Seconds of each function in each round; each round runs them all once, in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(warmup + rounds):
        for name, function in functions.items():
            started = time.perf_counter()
            function()
            if turn >= warmup:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def paired_ratio(slower: Sequence[float], faster: Sequence[float]) -> Interval:
    """How many times as long one function took as another: the median over `n` rounds.

    Ratios are taken within rounds, so that what slows a whole round cancels out. The interval is that of the sign test,
    at least 95 % confidence; the whole range below six rounds.
    """
    ratios = sorted(a / b for a, b in zip(slower, faster, strict=True))
    n = len(ratios)
    skipped, outside = 0, 0.0  # the interval runs from the k-th ratio from below to the k-th from above
    while skipped + 1 < n / 2:
        outside += 2 * math.comb(n, skipped) / 2**n
        if outside > 0.05:
            break
        skipped += 1
    first = max(skipped - 1, 0)
    return Interval(statistics.median(ratios), ratios[first], ratios[n - 1 - first], n)
