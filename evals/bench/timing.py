"""Times functions side by side, in turn over several rounds, so that a machine whose speed drifts stays fair."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as long one function took as another: the median over rounds, with its interval.

    Attributes:
        low, high: at least 95 % confidence by the sign test (the whole range below six rounds).
        n: rounds.
    """

    value: float
    low: float
    high: float
    n: int


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


def paired_ratio(slower: Sequence[float], faster: Sequence[float]) -> Ratio:
    """The median of the ratios within rounds, so that what slows a whole round cancels out."""
    ratios = sorted(a / b for a, b in zip(slower, faster, strict=True))
    n = len(ratios)
    skipped, outside = 0, 0.0  # the interval runs from the k-th ratio from below to the k-th from above
    while skipped + 1 < n / 2:
        outside += 2 * math.comb(n, skipped) / 2**n
        if outside > 0.05:
            break
        skipped += 1
    first = max(skipped - 1, 0)
    return Ratio(statistics.median(ratios), ratios[first], ratios[n - 1 - first], n)


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of the values lie, nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
