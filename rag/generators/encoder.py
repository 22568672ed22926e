"""Answers choice questions with the embedded encoder, without a language model; deterministic.

Closed book, the option nearest to the question wins; with passages, the option that the passages mention where they are
about the question. A LoRA adapter of the encoder (`evals/encoder_tuning.py`) gives the tuned arms.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexes.disk import file_sha256
from indexes.embedder import load_embedder
from indexes.settings import IndexSettings
from indexes.words import TermWeights, is_chinese, terms_of
from rag.errors import AdapterMismatch
from rag.generators.protocol import ChoiceScores, GenerationRequest, adapter_of, arms_with
from rag.sentence_reader import Unit, units_of
from rag.types import RETRIEVING_ARMS, Arm, Usage
from rag.wording import translate_terms

RECORD_FILE = "encoder_adapter.json"
KEPT_FOLDER = Path("cache") / "encoder-adapters"
"""Where a home keeps what a comparison has tuned."""
CLOSED_BOOK_WEIGHT = 0.05
"""Weight of the similarity of option and question when there are passages; fitted, as the two below, on the choice
questions of the bank that are not for testing."""
DENSE_WEIGHT = 0.16
LEXICAL_WEIGHT = 1.0
READ_UNITS = 24
"""Sentences embedded per question: those that share most of its terms."""
LEAST_RELEVANCE = 0.2
"""Relevance of a sentence that shares no term with the question."""
NEIGHBOUR_SHARE = 0.7
"""Part of a sentence's relevance that the sentences beside it inherit."""
EMBEDDED_CHARACTERS = 240
"""Only the beginning of a longer sentence is embedded."""
CACHED_VECTORS = 20_000

Embed = Callable[[Sequence[str]], NDArray[np.float32]]
"""Texts to unit vectors, float32 `(len(texts), dim)`."""


class EncoderAnswerer:
    """Scores options; implements `ChoiceScorer`.

    Args:
        embed: the bare encoder.
        adapters: gives those there are, by name, each a function that loads the tuned encoder, which is called once.
    """

    def __init__(
        self, embed: Embed, model_name: str, adapters: Callable[[], Mapping[str, Callable[[], Embed]]] = dict
    ) -> None:
        self._embed = VectorMemory(embed)
        self._model_name = model_name
        self._adapters = adapters
        self._opened: dict[str, VectorMemory] = {}
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """`encoder`."""
        return "encoder"

    @property
    def model_name(self) -> str:
        """The encoder."""
        return self._model_name

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the tuned encoders."""
        return tuple(self._adapters())

    @property
    def arms(self) -> tuple[Arm, ...]:
        """All four with an adapter, else `base` and `rag`."""
        return arms_with(self.adapters)

    def score_choices(self, request: GenerationRequest, choices: tuple[str, ...]) -> ChoiceScores:
        """One score per option, higher is better; `extra` holds its parts.

        Raises:
            ArmUnavailable: a tuned arm without its adapter.
        """
        embed = self._encoder_for(request)
        question, options = request.question, list(choices)
        if is_chinese(question):
            question = translate_terms(question) or question
        options = [translate_terms(option) or option if is_chinese(option) else option for option in options]
        vectors = embed([question, *options])
        near = vectors[1:] @ vectors[0]
        usage = Usage(prompt_tokens=len(question.split()) + sum(len(option.split()) for option in options))
        if request.arm not in RETRIEVING_ARMS or not request.passages:
            return ChoiceScores(tuple(map(float, near)), usage)
        dense, lexical = self._against_passages(question, options, request, embed)
        total = CLOSED_BOOK_WEIGHT * near + DENSE_WEIGHT * dense + LEXICAL_WEIGHT * lexical
        return ChoiceScores(
            tuple(map(float, total)),
            usage,
            {"near": tuple(map(float, near)), "dense": tuple(map(float, dense)), "lexical": tuple(map(float, lexical))},
        )

    def _encoder_for(self, request: GenerationRequest) -> Embed:
        name = adapter_of(request, self.adapters)
        if name is None:
            return self._embed
        with self._lock:
            if name not in self._opened:
                self._opened[name] = VectorMemory(self._adapters()[name]())
            return self._opened[name]

    def _against_passages(
        self, question: str, options: Sequence[str], request: GenerationRequest, embed: Embed
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """For each option: its similarity to the passages, and its terms' share in sentences about the question."""
        units = [unit for unit in units_of(request.passages) if unit.kind != "heading"]
        if not units:
            return np.zeros(len(options)), np.zeros(len(options))
        weights = TermWeights([unit.pieces for unit in units])
        asked = terms_of(question).pieces
        relevance = np.array([weights.share(asked, unit.pieces) for unit in units])
        read = np.argsort(-relevance, kind="stable")[:READ_UNITS]
        vectors = embed(
            [f"{question} {option}" for option in options] + [units[i].text[:EMBEDDED_CHARACTERS] for i in read]
        )
        dense = (vectors[: len(options)] @ vectors[len(options) :].T).max(axis=1)
        said = [terms_of(option).pieces for option in options]
        # terms of the question, or of every option, do not distinguish the options
        idle = asked | frozenset.intersection(*said)
        near = LEAST_RELEVANCE + _spread(relevance / max(float(relevance.max()), 1e-9), units)
        lexical = [
            float((np.array([weights.share(pieces - idle, unit.pieces) for unit in units]) * near).max())
            for pieces in said
        ]
        return dense.astype(np.float64), np.array(lexical)


def _spread(relevance: NDArray[np.float64], units: Sequence[Unit]) -> NDArray[np.float64]:
    """Relevance shared with neighbours: the answer often follows the sentence that names the subject."""
    spread = relevance.copy()
    for place in range(1, len(units)):
        if units[place].passage == units[place - 1].passage:
            spread[place] = max(spread[place], NEIGHBOUR_SHARE * relevance[place - 1])
            spread[place - 1] = max(spread[place - 1], NEIGHBOUR_SHARE * relevance[place])
    return spread


class VectorMemory:
    """An embedding function that keeps the vectors of the last `CACHED_VECTORS` texts. Threads may share it."""

    def __init__(self, embed: Embed) -> None:
        self._embed = embed
        self._vectors: OrderedDict[str, NDArray[np.float32]] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors `(len(texts), dim)`, from memory where they were asked before."""
        with self._lock:
            known = {text: self._vectors[text] for text in texts if text in self._vectors}
        missing = [text for text in dict.fromkeys(texts) if text not in known]
        if missing:
            fresh = dict(zip(missing, self._embed(missing), strict=True))
            known.update(fresh)
            with self._lock:
                self._vectors.update(fresh)
                while len(self._vectors) > CACHED_VECTORS:
                    self._vectors.popitem(last=False)
        return np.stack([known[text] for text in texts])


def open_encoder_adapter(base: Path, adapter: Path) -> Embed:
    """The tuned encoder as a function from texts to unit vectors, float32 `(num_texts, dim)`.

    Raises:
        AdapterMismatch: the folder holds no adapter, or one of another encoder.
    """
    record = read_record(adapter)
    if record["base"] != file_sha256(base / "model.safetensors"):
        raise AdapterMismatch(
            f"The encoder adapter in {adapter} was trained on another encoder.",
            hint="Train it again with `coalesce eval`.",
        )

    def adapt(model: Any) -> None:
        from peft import PeftModel

        model[0].model = PeftModel.from_pretrained(model[0].model, str(adapter)).merge_and_unload()

    # loaded as the bare encoder is, so that arms differ by the adapter alone
    return load_embedder(IndexSettings(home=adapter.parent, embedder=str(base)), adapt=adapt).encode_queries


def last_kept(home: Path) -> Path | None:
    """The adapter that a comparison in this home tuned last."""
    records = (home / KEPT_FOLDER).glob(f"*/{RECORD_FILE}")
    return max((record.parent for record in records), key=lambda folder: folder.stat().st_mtime, default=None)


def read_record(adapter: Path) -> dict[str, Any]:
    """The record of a complete adapter folder.

    Raises:
        AdapterMismatch: the folder holds none.
    """
    try:
        return dict(json.loads((adapter / RECORD_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        raise AdapterMismatch(
            f"{adapter} holds no adapter of the encoder: {RECORD_FILE} is missing or broken.",
            hint="`coalesce eval` trains one.",
        ) from None
