"""Benchmarks of serving: extractive answers from a library of 1,000 nodes, and starting the server.

python -m tools.bench_serving answers|startup [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from evals.bench.timing import side_by_side
from evals.questions import load_bank
from indexes.library import open_library
from indexes.sample import SAMPLE_PATH
from indexes.settings import IndexSettings
from rag.assemble import build_engine
from rag.settings import GeneratorSettings, RagSettings
from rag.types import Question

NODES = 1000
CLIENTS = 16
TIMEOUT_S = 120.0


def bench_answers(rounds: int = 40) -> dict[str, Any]:
    """Median milliseconds of an answer and of a search; answers per second of one client and of `CLIENTS`.

    The library is the bundled book and pages drawn from it again, so that questions are answered among many similar
    passages. Every question is new to the process, as a reader's would be; `again` repeats one just answered.
    """
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        library = open_library(IndexSettings(home=home))
        library.load()
        texts = [node.text for node in library.nodes_of(library.add(SAMPLE_PATH).document.document_id)]
        library.add(_write_synthetic_book(home / "again.md", texts, NODES - len(texts)))
        engine = build_engine(RagSettings(home=home, generator=GeneratorSettings(kind="extractive")), library)
        engine.load()
        questions = [question.question for question in load_bank(split="tune")]
        turns = cycle(questions)
        current = {"text": next(turns)}

        def search() -> None:
            current["text"] = next(turns)
            engine.search(current["text"])

        def answer() -> None:
            engine.ask(Question(current["text"]), keep=False)

        seconds = side_by_side({"search": search, "answer": answer, "again": answer}, rounds, warmup=3)
        one = _throughput(engine, turns, 1, rounds)
        many = _throughput(engine, turns, CLIENTS, max(2, rounds // 8))
        count = sum(document.nodes for document in library.documents())
        engine.close()
        library.close()
    return {
        "bench": "answers",
        "nodes": count,
        "ms": {name: round(1000 * value, 1) for name, value in seconds.items()},
        "answers_per_s": {"1": round(one[0], 1), str(CLIENTS): round(many[0], 1)},
        "many_over_one": round(many[0] / one[0], 2),
        "errors": one[1] + many[1],
    }


def _throughput(engine: Any, questions: Iterator[str], clients: int, each: int) -> tuple[float, int]:
    """Answers per second, the median of three tries, and how many failed; every answer is to another question."""
    rates: list[float] = []
    errors: list[BaseException] = []

    def client() -> None:
        for _ in range(each):
            try:
                engine.ask(Question(next(questions)), keep=False)
            except Exception as error:  # noqa: BLE001  every failure counts
                errors.append(error)

    for _ in range(3):
        threads = [threading.Thread(target=client) for _ in range(clients)]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rates.append(clients * each / (time.perf_counter() - started))
    return statistics.median(rates), len(errors)


def _write_synthetic_book(path: Path, texts: Sequence[str], sections: int) -> Path:
    """Writes a Markdown book of `sections` real node texts; a line of its own in each keeps equal texts apart."""
    picked = np.random.default_rng(1).integers(0, len(texts), sections)
    parts = [f"## Part {i}\n\n{texts[index]}\n\nNote {i}." for i, index in enumerate(picked)]
    path.write_text("# Synthetic\n\n" + "\n\n".join(parts), encoding="utf-8")
    return path


def bench_startup(rounds: int = 3) -> dict[str, Any]:
    """Median seconds to `/healthz` and `/readyz` on a home with the bundled book, and seconds to remove that book."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        with _server(home) as (address, _):
            wait_ready(f"{address}/readyz", time.perf_counter())  # the first start adds the sample book
        health, ready = [], []
        for _ in range(rounds):
            with _server(home) as (address, started):
                health.append(wait_ready(f"{address}/healthz", started))
                ready.append(wait_ready(f"{address}/readyz", started))
        with _server(home) as (address, started):
            wait_ready(f"{address}/readyz", started)
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


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _server(home: Path) -> Iterator[tuple[str, float]]:
    port = free_port()
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


def wait_ready(address: str, started: float, most_s: float = TIMEOUT_S) -> float:
    """Seconds from `started` until the address answers 200."""
    while time.perf_counter() - started < most_s:
        try:
            if httpx.get(address, timeout=5).status_code == 200:
                return time.perf_counter() - started
        except httpx.HTTPError:
            pass
        time.sleep(0.02)
    raise TimeoutError(f"{address} did not answer 200 within {most_s} s")


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the result as JSON."""
    benches = {"answers": bench_answers, "startup": bench_startup}
    parser = argparse.ArgumentParser(prog="python -m tools.bench_serving", description="Measure serving.")
    parser.add_argument("bench", choices=benches)
    parser.add_argument("--rounds", type=int, help="rounds; medians are printed")
    given = parser.parse_args(arguments)
    result = benches[given.bench]() if given.rounds is None else benches[given.bench](given.rounds)
    sys.stdout.write(json.dumps(result, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
