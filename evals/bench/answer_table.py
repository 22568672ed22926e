"""Whole answers, one row a way to write them: precision × cache off or on × cache kind × speculation.

Random weights write nothing that repeats, so the text of an answer is given: a quote from the prompt, of which every
guess is right, or pairs of words from all over it, after which every guess is wrong. The model computes as ever; only
which token is taken is decided beforehand.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from evals.bench.caches import Attention, CacheKind, cache_bytes, make_cache, use_attention
from evals.bench.peak_memory import PeakMemory
from evals.bench.random_model import random_prompt
from rag.generators.decode import decode
from rag.generators.sampling import Sampler
from rag.models.loading import LoadedModel

GUESSED_TOKENS = 8
_UNCACHED_TOKENS = 3  # every one of them reads the whole prompt again

Speculation = Literal["off", "quoting", "misled"]


@dataclass(frozen=True, slots=True)
class Way:
    """One way to write an answer; `cache` None reads the whole text again for every token."""

    cache: CacheKind | None
    attention: Attention
    speculation: Speculation = "off"


WAYS = (
    Way(None, "grouped"),
    Way("dynamic", "stock"),
    Way("dynamic", "grouped"),
    Way("slab", "stock"),
    Way("slab", "grouped"),
    Way("dynamic", "stock", "quoting"),
    Way("slab", "grouped", "quoting"),
    Way("dynamic", "stock", "misled"),
    Way("slab", "grouped", "misled"),
)


@dataclass(slots=True)
class _Measured:
    """What the rounds of one row found."""

    first_s: list[float] = field(default_factory=list)
    second_s: list[float] = field(default_factory=list)
    tokens_per_s: list[float] = field(default_factory=list)
    tokens_per_step: float = 1.0
    kv_bytes: int = 0
    working_bytes: int | None = None


class ScriptedSampler(Sampler):
    """Takes the tokens of a given text, after the work that choosing them would be."""

    def __init__(self, script: list[int]) -> None:
        super().__init__()
        self._script = script
        self._place = 0
        self.steps = 0

    def accept(self, logits: Any, guess: list[int]) -> list[int]:
        """The script as far as the guess agrees, and one more token."""
        super().accept(logits, guess)
        self.steps += 1
        coming = self._script[self._place : self._place + len(guess) + 1]
        agreed = 0
        while agreed < len(guess) and agreed + 1 < len(coming) and coming[agreed] == guess[agreed]:
            agreed += 1
        self._place += agreed + 1
        return coming[: agreed + 1]


def answer_rows(
    models: Mapping[str, LoadedModel],
    weights_bytes: Mapping[str, int],
    rounds: int,
    prompt_tokens: int,
    answer_tokens: int,
) -> list[dict[str, Any]]:
    """The table; each round writes every row's answer once, in turn."""
    measured = {(precision, way): _Measured() for precision in models for way in WAYS}
    for loaded in models.values():  # reads the weights from the disk; some processors repack them at the first pass
        _answer(loaded, WAYS[-1], _Measured(), prompt_tokens, answer_tokens)
    for _ in range(rounds):
        for (precision, way), found in measured.items():
            _answer(models[precision], way, found, prompt_tokens, answer_tokens)
    for loaded in models.values():
        use_attention(loaded, "grouped")
    return [
        {
            "precision": precision,
            "kv_cache": way.cache or "off",
            "attention": way.attention,
            "speculation": way.speculation,
            "prompt_tokens": prompt_tokens,
            "weights_bytes": weights_bytes[precision],
            "kv_bytes": found.kv_bytes,
            "working_bytes": found.working_bytes,
            "ttft_s": round(statistics.median(found.first_s), 4),
            "second_token_ms": round(1000 * statistics.median(found.second_s), 2),
            "tokens_per_s": round(statistics.median(found.tokens_per_s), 2),
            "tokens_per_step": round(found.tokens_per_step, 2),
        }
        for (precision, way), found in measured.items()
    ]


def script_of(prompt: list[int], speculation: Speculation, tokens: int) -> list[int]:
    """The answer's text: a quote, or pairs of the prompt's words after which it goes on otherwise."""
    if speculation != "misled":
        return prompt[len(prompt) // 4 :][:tokens]
    draw = random.Random(1)
    starts = [draw.randrange(len(prompt) - GUESSED_TOKENS) for _ in range(-(-tokens // 2))]
    return [token for start in starts for token in prompt[start : start + 2]][:tokens]


def _answer(loaded: LoadedModel, way: Way, found: _Measured, prompt_tokens: int, answer_tokens: int) -> None:
    """Writes one answer and adds its times."""
    use_attention(loaded, way.attention)
    prompt = random_prompt(loaded, prompt_tokens)
    count = answer_tokens if way.cache else _UNCACHED_TOKENS
    sampler = ScriptedSampler(script_of(prompt, way.speculation, count))
    peak = PeakMemory(loaded.device)
    started = time.perf_counter()
    cache = make_cache(loaded, way.cache, prompt_tokens + count) if way.cache else None
    if cache is not None:
        guessed = GUESSED_TOKENS if way.speculation != "off" else 0
        tokens = decode(loaded.model, prompt, cache, max_new_tokens=count, sampler=sampler, lookup_tokens=guessed)
    else:
        tokens = _read_again(loaded, prompt, sampler, count)
    at = [time.perf_counter() for _ in tokens]
    found.first_s.append(at[0] - started)
    found.second_s.append(at[1] - at[0])
    found.tokens_per_s.append((len(at) - 1) / (at[-1] - at[0]))
    found.tokens_per_step = (len(at) - 1) / max(sampler.steps - 1, 1)
    found.kv_bytes = cache_bytes(cache) if cache is not None else 0
    extra = peak.extra_bytes()
    if extra is not None:
        found.working_bytes = max(found.working_bytes or 0, extra)


def _read_again(loaded: LoadedModel, prompt: list[int], sampler: Sampler, count: int) -> Iterator[int]:
    """An answer without any cache."""
    import torch

    held = list(prompt)
    for _ in range(count):
        ids = torch.tensor([held], device=loaded.model.device)
        with torch.inference_mode():
            logits = loaded.model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[0]
        held += sampler.accept(logits, [])
        yield held[-1]
