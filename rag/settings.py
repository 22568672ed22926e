"""Settings of this floor, made by `api/settings.py`; nothing here reads the environment."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from rag.types import Answers

GeneratorName: TypeAlias = Literal["auto", "extractive", "local", "remote", "vllm", "encoder", "llama_index"]
QuantizationName: TypeAlias = Literal["none", "int8", "nf4"]
GENERATORS: tuple[str, ...] = get_args(GeneratorName)
LANGUAGE_MODELS = ("local", "remote", "vllm", "llama_index")
"""Generators that run a language model."""
LOADED_GENERATORS = ("local", "vllm", "llama_index")
"""Those of them whose model takes long to load."""
QUANTIZATIONS: tuple[str, ...] = get_args(QuantizationName)


def addresses_of(text: str) -> list[str]:
    """The addresses of one engine or of several, which have commas between them; never empty."""
    return re.split(r"\s*,\s*(?=[a-z]+://)", text.strip())


def shown_address(text: str) -> str:
    """Engines' addresses without the names and passwords that they may hold, for messages and replies."""
    parts = (url.rpartition("://") for url in addresses_of(text))
    return ",".join(f"{scheme}{slashes}{rest.rpartition('@')[2]}" for scheme, slashes, rest in parts)


@dataclass(frozen=True, slots=True)
class RetrievalSettings:
    """How passages are found and fitted.

    Attributes:
        candidates: nodes taken from each retriever before fusion.
        passage_budget_tokens: most tokens of passages in one prompt, by the model's tokenizer where it counts, else
            estimated.
        reranker: path or hub name of a cross-encoder; None reranks nothing.
        refusal_threshold: least evidence score to answer at all; None takes the calibrated one.
    """

    candidates: int = 50
    passage_budget_tokens: int = 2000
    reranker: str | None = None
    refusal_threshold: float | None = None


@dataclass(frozen=True, slots=True)
class GeneratorSettings:
    """Which generator writes and what it runs.

    Attributes:
        kind: one of `GENERATORS`; `auto` is `local` where a model is named, else `extractive`.
        model: folder, .gguf file, fetched model's or hub name (local, vllm), model name (remote),
            `llama_index:MODULE:NAME?…` (llama_index).
        quantization: one of `QUANTIZATIONS`, or `auto` (by the model's size), for `local`.
        answers: what a language model's answers are made of.
        adapters: LoRA adapters by name: a folder (local, vllm) or the engine's model name (remote).
        vllm: the command that serves with vLLM, to which model, port and adapters are added.
        base_url: the remote engine's `/v1` address, or those of several that serve the same, with commas between them.
        home: keeps models that were fetched or converted; None knows folders and hub names only.
        context_tokens: cap on the context; None takes the model's own.
        max_tokens, reasoning_tokens: longest answer, and the longest reasoning before it.
        kv_budget_bytes: bytes for KV caches of running answers and cached prefixes; None derives it from free memory.
        answer_cache: answers of a language model that are kept for the same request; a measurement keeps none.
        max_queue: answers that may wait, None as many as come; queue_timeout_s: how long one may wait; what would
            wait longer is refused as busy.
    """

    kind: str = "auto"
    model: str | None = None
    quantization: str = "auto"
    answers: Answers = "both"
    adapters: dict[str, str] = field(default_factory=dict)
    base_url: str | None = None
    vllm: str = "vllm serve"
    home: Path | None = None
    api_key: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    context_tokens: int | None = None
    max_tokens: int = 512
    reasoning_tokens: int = 4096
    kv_budget_bytes: int | None = None
    answer_cache: int = 0
    prefix_cache: bool = True
    max_queue: int | None = None
    queue_timeout_s: float = 600.0
    request_timeout_s: float = 120.0


@dataclass(frozen=True, slots=True)
class RagSettings:
    """Settings of this floor: the home or database for conversations, retrieval and generator."""

    home: Path
    database_url: str | None = field(default=None, repr=False)
    retrieval: RetrievalSettings = field(default_factory=RetrievalSettings)
    generator: GeneratorSettings = field(default_factory=GeneratorSettings)

    @property
    def conversations_place(self) -> Path | str:
        """The SQLite file of conversations, answers and feedback, or the database that keeps them."""
        return self.database_url or self.home / "conversations.sqlite3"
