"""Starting the server on a home with a library, and removing a book from it, as a client sees both."""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

TIMEOUT_S = 120.0


def bench_startup(rounds: int = 3) -> dict[str, Any]:
    """Median seconds to `/healthz` and `/readyz` with an existing library; seconds to remove a book, what is left."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        with _server(home) as (address, _):
            _wait(f"{address}/readyz", time.perf_counter())  # the first start adds the sample book
        health, ready = [], []
        for _ in range(rounds):
            with _server(home) as (address, started):
                health.append(_wait(f"{address}/healthz", started))
                ready.append(_wait(f"{address}/readyz", started))
        with _server(home) as (address, started):
            _wait(f"{address}/readyz", started)
            document = httpx.get(f"{address}/v1/documents").json()["documents"][0]
            begun = time.perf_counter()
            httpx.delete(f"{address}/v1/documents/{document['id']}").raise_for_status()
            removed_s = time.perf_counter() - begun
            left = httpx.post(f"{address}/v1/search", json={"query": "warp"}).json()["passages"]
    return {
        "bench": "startup",
        "rounds": rounds,
        "healthz_s": round(statistics.median(health), 2),
        "readyz_s": round(statistics.median(ready), 2),
        "remove_s": round(removed_s, 3),
        "removed_nodes": document["nodes"],
        "passages_left": len(left),
    }


@contextmanager
def _server(home: Path) -> Iterator[tuple[str, float]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "api.cli", "serve", "--port", str(port)],
        env={**os.environ, "COALESCE_HOME": str(home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{port}", started
    finally:
        process.terminate()
        process.wait(30)


def _wait(address: str, started: float) -> float:
    """Seconds from `started` until the address answers 200."""
    while time.perf_counter() - started < TIMEOUT_S:
        try:
            if httpx.get(address, timeout=5).status_code == 200:
                return time.perf_counter() - started
        except httpx.HTTPError:
            pass
        time.sleep(0.02)
    raise TimeoutError(f"{address} did not answer 200 within {TIMEOUT_S} s")
