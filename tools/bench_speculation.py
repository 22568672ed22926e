"""What guessing tokens from the prompt gains and costs: `python -m tools.bench_speculation --shape 0.6b`.

A model of random weights repeats nothing, so the answer's text is fixed beforehand: a quote from the prompt (every
guess is right), or pairs of words from all over it (every guess is wrong). The model computes as usual; only the
sampled tokens are replaced. How often guesses are right on real answers is not measured here.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, get_args

from evals.bench.local_model import SHAPES, make_cache, random_model, random_prompt, random_segment
from evals.bench.timing import paired_ratio, rounds_of
from evals.statistics import Interval
from rag.generators.local.batch import decode
from rag.generators.local.cache import SlabCache
from rag.generators.local.decode import Sampler
from rag.models.devices import choose_device
from rag.models.loading import LoadedModel, load_model

GUESSED_TOKENS = 8
PROMPT_TOKENS = 512
ANSWER_TOKENS = 17

Speculation = Literal["off", "quoting", "misled"]


def bench_speculation(shape: str, rounds: int) -> dict[str, Any]:
    """Tokens per second and per step of each way to guess, and the cost of a step that verifies guesses, in NF4."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(random_model(Path(folder), shape, choose_device("auto")))
        loaded = load_model(path, quantization="nf4", dtype="bfloat16")
    speeds: dict[str, list[float]] = {way: [] for way in get_args(Speculation)}
    per_step: dict[str, float] = {}
    for turn in range(rounds + 1):  # the first warms up
        for way in get_args(Speculation):
            speed, per_step[way] = _answer(loaded, way)
            if turn:
                speeds[way].append(speed)
    return {
        "bench": "speculation",
        "shape": shape,
        "tokens_per_s": {way: round(statistics.median(values), 2) for way, values in speeds.items()},
        "tokens_per_step": {way: round(value, 2) for way, value in per_step.items()},
        "verify_step_over_one_token": asdict(_verify_ratio(loaded, rounds)),
    }


def _answer(loaded: LoadedModel, way: Speculation) -> tuple[float, float]:
    """Tokens per second after the first, and per step, of one answer."""
    prompt = random_prompt(loaded, PROMPT_TOKENS)
    sampler = ScriptedSampler(script_of(prompt, way, ANSWER_TOKENS))
    cache = make_cache(loaded, "slab", PROMPT_TOKENS + ANSWER_TOKENS)
    guessed = GUESSED_TOKENS if way != "off" else 0
    tokens = decode(loaded.model, prompt, cache, max_new_tokens=ANSWER_TOKENS, sampler=sampler, lookup_tokens=guessed)
    at = [time.perf_counter() for _ in tokens]
    return (len(at) - 1) / (at[-1] - at[0]), (len(at) - 1) / max(sampler.steps - 1, 1)


class ScriptedSampler(Sampler):
    """Samples as usual, then returns the tokens of a given text instead."""

    def __init__(self, script: list[int]) -> None:
        super().__init__()
        self._script = script
        self._place = 0
        self.steps = 0

    def accept(self, logits: Any, guess: list[int]) -> list[int]:
        """The script as far as the guess agrees with it, and one more token."""
        super().accept(logits, guess)
        self.steps += 1
        coming = self._script[self._place : self._place + len(guess) + 1]
        agreed = 0
        while agreed < len(guess) and agreed + 1 < len(coming) and coming[agreed] == guess[agreed]:
            agreed += 1
        self._place += agreed + 1
        return coming[: agreed + 1]


def script_of(prompt: list[int], speculation: Speculation, tokens: int) -> list[int]:
    """The answer's tokens: a quote, or pairs of the prompt's tokens that continue differently there."""
    if speculation != "misled":
        return prompt[len(prompt) // 4 :][:tokens]
    draw = random.Random(1)
    starts = [draw.randrange(len(prompt) - GUESSED_TOKENS) for _ in range(-(-tokens // 2))]
    return [token for start in starts for token in prompt[start : start + 2]][:tokens]


def _verify_ratio(loaded: LoadedModel, rounds: int) -> Interval:
    """Time of a step that verifies eight guesses over that of a step that writes one token."""
    import torch

    tokens = 1000
    cache = SlabCache(loaded.capabilities.num_layers, tokens + GUESSED_TOKENS + 2)
    cache.append(random_segment(loaded, tokens), tokens)

    def step(count: int) -> None:
        ids = torch.full((1, count), 7, device=loaded.model.device)
        with torch.inference_mode():
            output = loaded.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=count)
            int(output.logits[0, -1].argmax())
        cache.cut(tokens)

    seconds = rounds_of({"one": lambda: step(1), "verify": lambda: step(GUESSED_TOKENS + 1)}, rounds, warmup=2)
    return paired_ratio(seconds["verify"], seconds["one"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the result as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench_speculation", description="Measure prompt lookup.")
    parser.add_argument("--shape", choices=SHAPES, default="0.6b", help="model shape with random weights")
    parser.add_argument("--rounds", type=int, default=8, help="rounds; medians are printed")
    given = parser.parse_args(arguments)
    sys.stdout.write(json.dumps(bench_speculation(given.shape, given.rounds), indent=1) + "\n")


if __name__ == "__main__":
    main()
