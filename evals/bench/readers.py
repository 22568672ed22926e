"""Benchmarks of a real local model as it is served: beside transformers' `generate`, beside a busy thread, to a class.

Prompts are those of questions about the bundled book with the passages that they find, for transformers as for us, and
both write greedily.
"""

from __future__ import annotations

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
    path: str, quantization: str = "none", rounds: int = 8, clients: int = 30, answer_tokens: int = 300
) -> dict[str, Any]:
    """Ratios of decoding and first token to `generate`'s, of `clients` readers to one, and beside a busy thread.

    Args:
        path: the model's folder.
        clients: readers at once, each with a question of their own, of at most `answer_tokens` tokens.
    """
    with tempfile.TemporaryDirectory() as folder:
        library = open_library(IndexSettings(home=Path(folder)))
        library.load()
        library.add(SAMPLE_PATH)
        model = GeneratorSettings(kind="local", model=path, quantization=quantization, max_tokens=answer_tokens)
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


def _beside_generate(generator: LocalGenerator, asked: Sequence[GenerationRequest]) -> dict[str, Any]:
    """Tokens per second after the first, and seconds to it, of the same prompts in turn; the first prompt warms up."""
    times: dict[str, list[float]] = {}
    for request in asked:
        short = replace(request, max_tokens=1)
        generator.prompt_of(request)  # chooses the excerpts, as the judge of the evidence has done when one is asked
        whole_s, speed = _answer(generator, request)
        kept_s, _ = _answer(generator, short)
        plain_first_s, plain_speed = _generate(generator, request)
        for name, value in (
            ("generate", 1 / plain_speed), ("ours", 1 / speed),
            ("generate_first", plain_first_s), ("first", whole_s), ("kept_first", kept_s),
        ):  # fmt: skip
            times.setdefault(name, []).append(value)
    measured = {name: values[1:] for name, values in times.items()}
    return {
        "tokens_per_s": {name: round(1 / statistics.median(measured[name]), 1) for name in ("generate", "ours")},
        "first_token_s": {
            name: round(statistics.median(measured[name]), 3) for name in ("generate_first", "first", "kept_first")
        },
        "decode_over_generate": asdict(paired_ratio(measured["generate"], measured["ours"])),
        "kept_prefix_sooner_than_generate": asdict(paired_ratio(measured["generate_first"], measured["kept_first"])),
        "kept_prefix_sooner": asdict(paired_ratio(measured["first"], measured["kept_first"])),
    }


def _answer(generator: LocalGenerator, request: GenerationRequest) -> tuple[float, float]:
    """Seconds to the first text, and tokens per second after it."""
    started = time.perf_counter()
    first_s = 0.0
    for piece in generator.stream(request):
        if isinstance(piece, TextPiece | GenerationDone) and not first_s:
            first_s = time.perf_counter() - started
        if isinstance(piece, GenerationDone):
            return first_s, max(piece.tokens_per_s, 1e-9)
    raise ValueError("a generator ends with its figures")


class _Clock:
    """transformers calls it as a streamer: once with the prompt, then with every token."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def put(self, _: Any) -> None:
        """Notes the time."""
        self.at.append(time.perf_counter())

    def end(self) -> None:
        """Nothing is left to do."""


def _generate(generator: LocalGenerator, request: GenerationRequest) -> tuple[float, float]:
    """As `_answer`, by `generate` with stock attention."""
    import torch

    loaded = generator.loaded
    ids = torch.tensor([generator.prompt_of(request)], device=loaded.model.device)
    clock = _Clock()
    use_attention(loaded, "stock")
    started = time.perf_counter()
    try:
        with torch.inference_mode():
            loaded.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=DECODED_TOKENS,
                do_sample=False,
                streamer=clock,
                pad_token_id=0,
            )
    finally:
        use_attention(loaded, "grouped")
    tokens = clock.at[1:]
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
