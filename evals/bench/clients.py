"""Benchmarks of concurrent clients: of a real local model as it is served, or of a server that runs already.

Prompts are those of questions about the bundled book with the passages that they find. A server is asked over HTTP,
whatever its generator.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from evals.questions import load_bank
from indexes.library import open_library
from indexes.sample import SAMPLE_PATH
from indexes.settings import IndexSettings
from rag.assemble import build_engine
from rag.engine import AnswerEngine
from rag.models.loading import LoadedModel
from rag.settings import GeneratorSettings, RagSettings
from rag.types import Question


def bench_clients(
    path: str,
    quantization: str = "none",
    alone: int = 8,
    clients: int = 30,
    answer_tokens: int = 300,
    dtype: str = "auto",
) -> dict[str, Any]:
    """Seconds of `clients` questions at once to a local model, and of `alone` others by themselves.

    Args:
        path: the model's folder.
        clients: each with a question of its own, of at most `answer_tokens` tokens.
        dtype: as the setting of that name.
    """
    questions = [question.question for question in load_bank(split="tune")][-clients - alone :]
    with (
        tempfile.TemporaryDirectory() as folder,
        engine_of(path, Path(folder), quantization, dtype, answer_tokens) as (
            engine,
            loaded,
        ),
    ):

        def ask(text: str) -> int:
            return engine.ask(Question(text), keep=False).usage.completion_tokens

        started = time.perf_counter()
        with ThreadPoolExecutor(clients) as pool:
            written = list(pool.map(ask, questions[:clients]))
        together_s = time.perf_counter() - started
        single: list[tuple[int, float]] = []
        for text in questions[clients:]:
            started = time.perf_counter()
            single.append((ask(text), time.perf_counter() - started))
    one_s = statistics.mean(seconds for _, seconds in single)
    return {
        "bench": "readers",
        "model": loaded.name,
        "dtype": loaded.dtype,
        "quantization": quantization,
        "clients": clients,
        "answered": len(written),
        "class_s": round(together_s, 1),
        "one_s": round(one_s, 2),
        "class_over_one": round(together_s / one_s, 2),
        "tokens": {"class": statistics.mean(written), "one": statistics.mean(count for count, _ in single)},
    }


@contextmanager
def engine_of(
    path: str, home: Path, quantization: str, dtype: str, answer_tokens: int
) -> Iterator[tuple[AnswerEngine, LoadedModel]]:
    """An engine over the bundled book that answers with a local model, and that model, loaded."""
    library = open_library(IndexSettings(home=home))
    library.load()
    library.add(SAMPLE_PATH)
    model = GeneratorSettings("local", model=path, quantization=quantization, dtype=dtype, max_tokens=answer_tokens)
    engine = build_engine(RagSettings(home=home, generator=model), library)
    try:
        engine.load()
        generator: Any = engine.generator
        yield engine, generator.loaded
    finally:
        engine.close()
        library.close()


def bench_server(address: str, clients: int = 30, answer_tokens: int = 300, alone: int = 3) -> dict[str, Any]:
    """Seconds of `clients` questions at once to `/v1/ask` of a running server, and before of the first by themselves.

    The server holds the bundled book and keeps no answers (`COALESCE_ANSWER_CACHE=0`).

    Returns:
        besides the seconds: how many were answered, which statuses and `Retry-After` the others got, how many saw
        their position in the queue and the last one seen, and how many of the `alone` got the same text as alone.
    """
    questions = [question.question for question in load_bank(split="tune")][:clients]
    with httpx.Client(base_url=address, timeout=None, trust_env=False) as client:
        _ask_server(client, "What is a warp?", 8)  # warms up

        def ask(text: str) -> dict[str, Any]:
            return _ask_server(client, text, answer_tokens)

        single = []
        for text in questions[:alone]:  # before the class, whose prompts an engine keeps
            started = time.perf_counter()
            single.append(ask(text) | {"seconds": time.perf_counter() - started})
        started = time.perf_counter()
        with ThreadPoolExecutor(clients) as pool:
            together = list(pool.map(ask, questions))
        class_s = time.perf_counter() - started
    answered = [reply for reply in together if "answer" in reply]
    refused = [reply for reply in together if "status" in reply]
    one_s = statistics.mean(reply["seconds"] for reply in single)
    return {
        "bench": "class",
        "clients": clients,
        "answered": len(answered),
        "with_their_question": sum(
            reply.get("question") == text for reply, text in zip(together, questions, strict=True)
        ),
        "refused_by_the_server": [(reply["status"], reply["retry_after"]) for reply in refused],
        "saw_queue_position": sum(bool(reply["positions"]) for reply in together),
        "last_queue_position": max((max(reply["positions"], default=0) for reply in together), default=0),
        "class_s": round(class_s, 1),
        "one_s": round(one_s, 2),
        "class_over_one": round(class_s / one_s, 2),
        "tokens": {
            "class": statistics.mean([reply["tokens"] for reply in answered] or [0]),
            "one": statistics.mean(reply["tokens"] for reply in single),
        },
        "same_as_alone": sum(a.get("answer") == b["answer"] for a, b in zip(together, single, strict=False)),
        "alone": alone,
    }


def _ask_server(client: httpx.Client, text: str, answer_tokens: int) -> dict[str, Any]:
    """The answer with its question and tokens, or the status of a refusal; and its positions in the queue."""
    body = {"question": text, "arm": "rag", "max_tokens": answer_tokens, "stream": True}
    found: dict[str, Any] = {"positions": []}
    with client.stream("POST", "/v1/ask", json=body) as reply:
        if not reply.is_success:
            return found | {"status": reply.status_code, "retry_after": reply.headers.get("Retry-After")}
        event = ""
        for line in reply.iter_lines():
            name, _, value = line.partition(": ")
            if name == "event":
                event = value
            elif name == "data" and event == "waiting":
                found["positions"].append(json.loads(value)["before"])
            elif name == "data" and event == "error":
                error = json.loads(value)["error"]
                found |= {"status": error["type"], "retry_after": error.get("retry_after_s")}
            elif name == "data" and event == "done":
                answer = json.loads(value)
                found |= {name: answer[name] for name in ("answer", "question")}
                found["tokens"] = answer["usage"]["completion_tokens"]
    return found
