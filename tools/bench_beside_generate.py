"""The local generator beside transformers' `generate`, and beside a busy thread and a busy process.

    python -m tools.bench_beside_generate --model smollm2-135m [--quantization none] [--rounds 8]

Prompts are those of questions about the bundled book with the passages that they find, for transformers as for us, and
both write greedily. The model is found in the home, and computes in `COALESCE_DTYPE`.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from api.settings import load_settings
from evals.bench.clients import engine_of
from evals.bench.local_model import use_way
from evals.bench.timing import paired_ratio, rounds_of
from evals.questions import load_bank
from rag.generators.local.generator import LocalGenerator
from rag.generators.protocol import GenerationDone, GenerationRequest, TextPiece
from rag.models.home import find_model

DECODED_TOKENS = 64
"""Tokens of the answers that are compared with `generate`."""


def bench_beside_generate(path: str, quantization: str, rounds: int, dtype: str) -> dict[str, Any]:
    """Ratios of decoding and first token to `generate`'s, and of decoding beside a busy thread."""
    with (
        tempfile.TemporaryDirectory() as folder,
        engine_of(path, Path(folder), quantization, dtype, DECODED_TOKENS) as (engine, _),
    ):
        generator: Any = engine.generator
        asked = [
            GenerationRequest(one.question, "rag", tuple(engine.search(one.question)), max_tokens=DECODED_TOKENS)
            for one in load_bank(split="tune")[: rounds + 1]
        ]
        return _beside_generate(generator, asked) | _beside_others(generator, asked[0], rounds)


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
    started = clock()
    with torch.inference_mode(), use_way(loaded, "library"):
        loaded.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=request.max_tokens,
            do_sample=False,
            streamer=noted,
            pad_token_id=0,
        )
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the result as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench_beside_generate", description="Beside `generate`.")
    parser.add_argument("--model", required=True, help="folder or name of the model")
    parser.add_argument("--quantization", default="none", help="format of its weights (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=8, help="rounds; medians are printed (default: %(default)s)")
    given = parser.parse_args(arguments)
    settings = load_settings({})
    path = find_model(given.model, settings.home)
    result = bench_beside_generate(path, given.quantization, given.rounds, settings.dtype)
    sys.stdout.write(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
