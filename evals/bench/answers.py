"""Extractive answers on a library of 1,000 nodes: one beside a search, and what sixteen clients at once get.

The library is the bundled book and pages drawn from it again, so that questions are answered among many like passages.
Every question is new to the process, as a reader's would be; `again_ms` is one that was answered before.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from itertools import cycle
from pathlib import Path
from typing import Any

from evals.bench.synthetic import write_synthetic_book
from evals.bench.timing import side_by_side
from evals.questions import load_bank
from indexes.library import open_library
from indexes.sample import SAMPLE_PATH
from indexes.settings import IndexSettings
from rag.assemble import build_engine
from rag.settings import GeneratorSettings, RagSettings
from rag.types import Question


def bench_answers(nodes: int = 1000, rounds: int = 40, clients: int = 16) -> dict[str, Any]:
    """Median milliseconds of an answer and of a search; answers a second of one client and of `clients`."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        library = open_library(IndexSettings(home=home))
        library.load()
        texts = [node.text for node in library.nodes_of(library.add(SAMPLE_PATH).document.document_id)]
        if len(texts) < nodes:
            library.add(write_synthetic_book(home / "again.md", texts, nodes - len(texts), seed=1))
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
        one = _throughput(engine, questions, 1, rounds)
        many = _throughput(engine, questions, clients, max(2, rounds // 8))
        count = sum(document.nodes for document in library.documents())
        engine.close()
        library.close()
    return {
        "bench": "answers",
        "nodes": count,
        "ms": {name: round(1000 * value, 1) for name, value in seconds.items()},
        "answers_per_s": {"1": round(one[0], 1), str(clients): round(many[0], 1)},
        "many_over_one": round(many[0] / one[0], 2),
        "errors": one[1] + many[1],
    }


def _throughput(engine: Any, questions: list[str], clients: int, each: int) -> tuple[float, int]:
    """Answers a second, median of three tries, and how many failed."""
    rates: list[float] = []
    errors: list[BaseException] = []

    def client(first: int) -> None:
        for number in range(each):
            try:
                engine.ask(Question(questions[(first + number) % len(questions)]), keep=False)
            except Exception as error:  # noqa: BLE001  counted, whatever it is
                errors.append(error)

    for _ in range(3):
        threads = [threading.Thread(target=client, args=(7 * number,)) for number in range(clients)]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rates.append(clients * each / (time.perf_counter() - started))
    return statistics.median(rates), len(errors)
