"""Times functions side by side: in turn, several rounds, medians, so that a machine whose speed drifts stays fair."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any


def side_by_side(functions: Mapping[str, Callable[[], Any]], rounds: int, warmup: int = 1) -> dict[str, float]:
    """Median seconds of each function over `rounds` rounds; each round runs them all once, in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(warmup + rounds):
        for name, function in functions.items():
            started = time.perf_counter()
            function()
            if turn >= warmup:
                seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in seconds.items()}


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of the values lie, nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
