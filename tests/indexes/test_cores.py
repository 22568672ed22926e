"""How many cores a process may use, by its affinity and by its container's quota."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from indexes import cores

V1 = "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"


@pytest.mark.parametrize(
    ("files", "affine", "found", "heeded"),
    [
        ({}, 6, 6, None),
        ({"cpu.max": "max 100000\n"}, 6, 6, None),
        ({"cpu.max": "200000 100000\n"}, 6, 2, "2"),
        ({"cpu.max": "150000 100000\n"}, 6, 2, "2"),
        ({"cpu.max": "10000 100000\n"}, 6, 1, "1"),
        ({"cpu.max": "3200000 100000\n"}, 6, 6, "6"),
        (dict(zip(V1, ("300000\n", "100000\n"), strict=True)), 6, 3, "3"),
        (dict(zip(V1, ("-1\n", "100000\n"), strict=True)), 6, 6, None),
        ({"cpu.max": "not a number"}, 6, 6, None),
    ],
)
def test_a_process_uses_no_more_cores_than_its_affinity_and_its_quota(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, str],
    affine: int,
    found: int,
    heeded: str | None,
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(cores, "CGROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(affine)), raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "")  # so that what is set here goes afterwards
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert cores.usable_cores() == found
    cores.heed_quota()
    assert os.environ.get("OMP_NUM_THREADS") == heeded
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    cores.heed_quota()
    assert os.environ["OMP_NUM_THREADS"] == "5"
