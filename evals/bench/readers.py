"""Benchmarks of a real local model as it is served: beside transformers' `generate`, beside a busy thread, to a class.

Prompts are those of questions about the bundled book with the passages that they find, for transformers as for us, and
both write greedily. A server that runs already is asked over HTTP, whatever its generator.
"""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import httpx

from evals.bench.local_model import use_attention
from evals.bench.timing import paired_ratio, rounds_of
from evals.questions import load_bank
from indexes.library import open_library
from indexes.sample import SAMPLE_PATH
from indexes.settings import IndexSettings
from rag.assemble import build_engine
from rag.generators.local.generator import LocalGenerator
from rag.generators.protocol import GenerationDone, GenerationRequest, TextPiece
from rag.settings import GeneratorSettings, RagSettings
from rag.types import Question

DECODED_TOKENS = 64
"""Tokens of the answers that are compared with `generate`; long enough for guesses to be found, where there are any."""


def bench_readers(
    path: str,
    quantization: str = "none",
    rounds: int = 8,
    clients: int = 30,
    answer_tokens: int = 300,
    dtype: str = "auto",
) -> dict[str, Any]:
    """Ratios of decoding and first token to `generate`'s, of `clients` readers to one, and beside a busy thread.

    Args:
        path: the model's folder.
        clients: readers at once, each with a question of their own, of at most `answer_tokens` tokens.
        dtype: as the setting of that name.
    """
    with tempfile.TemporaryDirectory() as folder:
        library = open_library(IndexSettings(home=Path(folder)))
        library.load()
        library.add(SAMPLE_PATH)
        model = GeneratorSettings(
            kind="local", model=path, quantization=quantization, dtype=dtype, max_tokens=answer_tokens
        )
        engine = build_engine(RagSettings(home=Path(folder), generator=model), library)
        engine.load()
        generator: Any = engine.generator
        questions = [question.question for question in load_bank(split="tune")]
        asked = [
            GenerationRequest(text, "rag", tuple(engine.search(text)), max_tokens=DECODED_TOKENS)
            for text in questions[: rounds + 1]
        ]
        found = _beside_generate(generator, asked) | _beside_others(generator, asked[0], rounds)

        def ask(text: str) -> int:
            return engine.ask(Question(text), keep=False).usage.completion_tokens

        class_s = _class(ask, questions[-clients - rounds :], clients)
        loaded = generator.loaded
        engine.close()
        library.close()
    return {
        "bench": "readers",
        "model": loaded.name,
        "dtype": loaded.dtype,
        "quantization": quantization,
        "rounds": rounds,
        **found,
        **class_s,
    }


def bench_server(address: str, clients: int = 30, answer_tokens: int = 300, alone: int = 3) -> dict[str, Any]:
    """Seconds of `clients` questions at once to `/v1/ask` of a running server, and before of the first by themselves.

    The server holds the bundled book and keeps no answers (`COALESCE_ANSWER_CACHE=0`).

    Returns:
        besides the seconds: how many were answered, which statuses and `Retry-After` the others got, how many heard
        their place in line and the farthest place, and how many of the `alone` got the very text that they got alone.
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
        "heard_their_place": sum(bool(reply["places"]) for reply in together),
        "farthest_place": max((max(reply["places"], default=0) for reply in together), default=0),
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
    """The answer with its question and tokens, or the status of a refusal; and the places in line that it was given."""
    body = {"question": text, "arm": "rag", "max_tokens": answer_tokens, "stream": True}
    found: dict[str, Any] = {"places": []}
    with client.stream("POST", "/v1/ask", json=body) as reply:
        if not reply.is_success:
            return found | {"status": reply.status_code, "retry_after": reply.headers.get("Retry-After")}
        event = ""
        for line in reply.iter_lines():
            name, _, value = line.partition(": ")
            if name == "event":
                event = value
            elif name == "data" and event == "waiting":
                found["places"].append(json.loads(value)["before"])
            elif name == "data" and event == "error":
                error = json.loads(value)["error"]
                found |= {"status": error["type"], "retry_after": error.get("retry_after_s")}
            elif name == "data" and event == "done":
                answer = json.loads(value)
                found |= {name: answer[name] for name in ("answer", "question")}
                found["tokens"] = answer["usage"]["completion_tokens"]
    return found


def _beside_generate(generator: LocalGenerator, asked: Sequence[GenerationRequest]) -> dict[str, Any]:
    """Tokens per second after the first, and seconds to it, of the same prompts in turn; the first prompt warms up."""
    times: dict[str, list[float]] = {}
    for request in asked:
        short = replace(request, max_tokens=1)
        generator.prompt_of(request)  # chooses the excerpts, as the judge of the evidence has done when one is asked
        whole_s, speed = _answer(generator, request)
        kept_s, _ = _answer(generator, short)
        plain_first_s, plain_speed = _generate(generator, request)
        kept_first_cpu_s, _ = _answer(generator, short, time.process_time)
        plain_first_cpu_s, _ = _generate(generator, short, time.process_time)
        for name, value in (
            ("generate", 1 / plain_speed), ("ours", 1 / speed),
            ("generate_first", plain_first_s), ("first", whole_s), ("kept_first", kept_s),
            ("generate_first_cpu", plain_first_cpu_s), ("kept_first_cpu", kept_first_cpu_s),
        ):  # fmt: skip
            times.setdefault(name, []).append(value)
    measured = {name: values[1:] for name, values in times.items()}
    return {
        "tokens_per_s": {name: round(1 / statistics.median(measured[name]), 1) for name in ("generate", "ours")},
        "first_token_s": {name: round(statistics.median(measured[name]), 3) for name in measured if "first" in name},
        "decode_over_generate": asdict(paired_ratio(measured["generate"], measured["ours"])),
        "kept_prefix_sooner_than_generate": asdict(paired_ratio(measured["generate_first"], measured["kept_first"])),
        "kept_prefix_in_less_processor_time": asdict(
            paired_ratio(measured["generate_first_cpu"], measured["kept_first_cpu"])
        ),
        "kept_prefix_sooner": asdict(paired_ratio(measured["first"], measured["kept_first"])),
    }


def _answer(
    generator: LocalGenerator, request: GenerationRequest, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, float]:
    """Seconds to the first text by `clock`, and tokens per second after it.

    Args:
        clock: `time.process_time` says the same on a busy machine, where torch has one thread.
    """
    started = clock()
    first_s = 0.0
    for piece in generator.stream(request):
        if isinstance(piece, TextPiece | GenerationDone) and not first_s:
            first_s = clock() - started
        if isinstance(piece, GenerationDone):
            return first_s, max(piece.tokens_per_s, 1e-9)
    raise ValueError("a generator ends with its figures")


class _Clock:
    """transformers calls it as a streamer: once with the prompt, then with every token."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.at: list[float] = []

    def put(self, _: Any) -> None:
        """Notes the time."""
        self.at.append(self._clock())

    def end(self) -> None:
        """Nothing is left to do."""


def _generate(
    generator: LocalGenerator, request: GenerationRequest, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, float]:
    """As `_answer`, by `generate` with stock attention."""
    import torch

    loaded = generator.loaded
    ids = torch.tensor([generator.prompt_of(request)], device=loaded.model.device)
    noted = _Clock(clock)
    use_attention(loaded, "stock")
    started = clock()
    try:
        with torch.inference_mode():
            loaded.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=request.max_tokens,
                do_sample=False,
                streamer=noted,
                pad_token_id=0,
            )
    finally:
        use_attention(loaded, "grouped")
    tokens = noted.at[1:]
    speed = (len(tokens) - 1) / (tokens[-1] - tokens[0]) if len(tokens) > 1 else 1e-9
    return tokens[0] - started, speed


def _beside_others(generator: LocalGenerator, request: GenerationRequest, rounds: int) -> dict[str, Any]:
    """Decoding on one core alone, beside a Python thread that computes, and beside a process that does."""
    import torch

    threads = torch.get_num_threads()
    generator.on_model_thread(lambda: torch.set_num_threads(1))
    request = replace(request, max_tokens=24)
    try:
        with _busy_thread() as thread, _busy_process() as process:

            def beside(set_busy: Callable[[bool], None]) -> Callable[[], None]:
                def decode() -> None:
                    set_busy(True)
                    _answer(generator, request)
                    set_busy(False)

                return decode

            seconds = rounds_of(
                {"alone": beside(lambda _: None), "thread": beside(thread), "process": beside(process)}, rounds
            )
    finally:
        generator.on_model_thread(lambda: torch.set_num_threads(threads))
    return {
        "speed_beside_a_busy_thread": asdict(paired_ratio(seconds["alone"], seconds["thread"])),
        "speed_beside_a_busy_process": asdict(paired_ratio(seconds["alone"], seconds["process"])),
        "thread_over_process": asdict(paired_ratio(seconds["process"], seconds["thread"])),
    }


@contextmanager
def _busy_thread() -> Any:
    go, ended = threading.Event(), threading.Event()

    def compute() -> None:
        while not ended.is_set():
            go.wait()
            sum(number * number for number in range(1000))

    threading.Thread(target=compute, daemon=True).start()
    yield lambda busy: go.set() if busy else go.clear()
    ended.set()
    go.set()


@contextmanager
def _busy_process() -> Any:
    spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    spinning.send_signal(signal.SIGSTOP)
    try:
        yield lambda busy: spinning.send_signal(signal.SIGCONT if busy else signal.SIGSTOP)
    finally:
        spinning.kill()
        spinning.wait()


def _class(ask: Callable[[str], int], questions: Sequence[str], clients: int) -> dict[str, Any]:
    """Seconds of `clients` questions at once, and of each of the other questions by itself."""
    started = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        written = list(pool.map(ask, questions[:clients]))
    together_s = time.perf_counter() - started
    alone: list[tuple[int, float]] = []
    for text in questions[clients:]:
        started = time.perf_counter()
        alone.append((ask(text), time.perf_counter() - started))
    one_s = statistics.mean(seconds for _, seconds in alone)
    return {
        "clients": clients,
        "answered": len(written),
        "class_s": round(together_s, 1),
        "one_s": round(one_s, 2),
        "class_over_one": round(together_s / one_s, 2),
        "tokens": {"class": statistics.mean(written), "one": statistics.mean(count for count, _ in alone)},
    }
