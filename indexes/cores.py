"""How many cores this process may use: a container's quota and an affinity may leave fewer than the machine has."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Cores that this process may use at once, at least one: those of its affinity, and no more than its quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, quota_cores() or cores)


def quota_cores() -> int | None:
    """The cores that a container's quota is worth, rounded up; None where it has none (cgroups v2, then v1)."""
    with suppress(OSError, ValueError):
        quota, period = (CGROUPS / "cpu.max").read_text().split()
        return math.ceil(int(quota) / int(period))  # "max" is no number
    with suppress(OSError, ValueError):
        quota, period = ((CGROUPS / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return math.ceil(int(quota) / int(period)) if int(quota) > 0 else None
    return None


def heed_quota() -> None:
    """Has libraries that are loaded later start no more threads than the quota is worth.

    OpenMP, which torch and FAISS compute with, heeds the affinity but no quota: with a thread for each core of a large
    machine, a small container is stopped for most of each period.
    """
    if (cores := quota_cores()) is not None:
        os.environ.setdefault("OMP_NUM_THREADS", str(min(cores, usable_cores())))
