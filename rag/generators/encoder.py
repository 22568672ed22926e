"""Choice questions answered by the embedded encoder, without any language model.

Closed book, the option nearest the question is taken; with passages, the option that the passages speak of where they
speak of the question. A LoRA adapter of the encoder (`rag/tuning/encoder.py`) makes the tuned arms. Deterministic.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rag.errors import ArmUnavailable
from rag.generators.protocol import ChoiceScores, GenerationRequest
from rag.generators.sentence_scores import EMBEDDED_CHARACTERS, Unit, units_of
from rag.generators.vector_memory import Embed, VectorMemory
from rag.retrieval.glossary import translate_terms
from rag.retrieval.language import is_chinese
from rag.types import RETRIEVING_ARMS, TUNED_ARMS, Arm, Usage
from rag.wording import wording

CLOSED_BOOK_WEIGHT = 0.05
"""How much nearness of option and question counts beside what the passages say; fitted, as the two below, on the
choice questions of the bank that are not for testing."""
DENSE_WEIGHT = 0.16
LEXICAL_WEIGHT = 1.0
READ_UNITS = 24
"""Sentences that are embedded for one question, those that share most of its wording."""
LEAST_RELEVANCE = 0.2
"""What a sentence counts that shares nothing with the question."""
NEIGHBOUR_SHARE = 0.7


@dataclass(frozen=True, slots=True)
class EncoderAdapter:
    """A tuned encoder: `open` loads it and gives its embedding function; it is called once."""

    open: Callable[[], Embed]


class EncoderAnswerer:
    """Scores options; implements `ChoiceScorer`.

    Args:
        embed: the bare encoder.
        adapters: tuned encoders by name.
    """

    def __init__(self, embed: Embed, model_name: str, adapters: Mapping[str, EncoderAdapter] | None = None) -> None:
        self._embed = VectorMemory(embed)
        self._model_name = model_name
        self._adapters = dict(adapters or {})
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
        return tuple(self._adapters)

    @property
    def arms(self) -> tuple[Arm, ...]:
        """All four with an adapter, else `base` and `rag`."""
        return ("base", "tuned", "rag", "rag+tuned") if self._adapters else ("base", "rag")

    def score_choices(self, request: GenerationRequest, choices: tuple[str, ...]) -> ChoiceScores:
        """One score an option, higher is better; `extra` holds the parts it was made of.

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
        if request.arm not in TUNED_ARMS:
            return self._embed
        name = request.adapter or next(iter(self._adapters), None)
        if name is None or name not in self._adapters:
            what = f"adapter {name!r} is not loaded" if name else "no adapter of the encoder is loaded"
            raise ArmUnavailable(
                f"arm {request.arm!r}: {what}", hint="`coalesce eval` trains one, or give `--adapter NAME=FOLDER`"
            )
        with self._lock:
            if name not in self._opened:
                self._opened[name] = VectorMemory(self._adapters[name].open())
            return self._opened[name]

    def _against_passages(
        self, question: str, options: Sequence[str], request: GenerationRequest, embed: Embed
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """For each option: its nearness to what the passages say, and how much of its wording stands where they speak
        of the question."""
        units = [unit for unit in units_of(request.passages) if unit.span.kind != "heading"]
        if not units:
            return np.zeros(len(options)), np.zeros(len(options))
        weights = _Weights(Counter(piece for unit in units for piece in unit.words.pieces), len(units))
        asked = wording(question).pieces
        relevance = np.array([weights.share(asked, unit.words.pieces) for unit in units])
        read = np.argsort(-relevance, kind="stable")[:READ_UNITS]
        vectors = embed(
            [f"{question} {option}" for option in options] + [units[i].text[:EMBEDDED_CHARACTERS] for i in read]
        )
        dense = (vectors[: len(options)] @ vectors[len(options) :].T).max(axis=1)
        said = [wording(option).pieces for option in options]
        # What the question says, or every option, tells none of them from another.
        idle = asked | frozenset.intersection(*said)
        near = LEAST_RELEVANCE + _spread(relevance / max(float(relevance.max()), 1e-9), units)
        lexical = [
            float((np.array([weights.share(pieces - idle, unit.words.pieces) for unit in units]) * near).max())
            for pieces in said
        ]
        return dense.astype(np.float64), np.array(lexical)


def _spread(relevance: NDArray[np.float64], units: Sequence[Unit]) -> NDArray[np.float64]:
    """Relevance passed on to the sentences beside: the answer often follows what names the subject."""
    spread = relevance.copy()
    for place in range(1, len(units)):
        if units[place].passage == units[place - 1].passage:
            spread[place] = max(spread[place], NEIGHBOUR_SHARE * relevance[place - 1])
            spread[place - 1] = max(spread[place - 1], NEIGHBOUR_SHARE * relevance[place])
    return spread


class _Weights:
    """Inverse frequency of wording among the units read."""

    def __init__(self, frequency: Counter[str], num_units: int) -> None:
        self._frequency = frequency
        self._num_units = num_units

    def share(self, wanted: frozenset[str], held: frozenset[str]) -> float:
        """Weighted share of `wanted` that `held` holds, 0.0 when nothing is wanted."""
        total = sum(map(self._weight, wanted))
        return sum(map(self._weight, wanted & held)) / total if total else 0.0

    def _weight(self, piece: str) -> float:
        return math.log(1 + self._num_units / (0.5 + self._frequency[piece]))
