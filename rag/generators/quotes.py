"""Answers of a language model that may only quote: it reads instead of writing.

The model says how likely the question is behind each promising sentence with its heading (query likelihood: Ponte and
Croft 1998; with a language model, Sachan et al. 2022). This and the default reader's score count alike, and the answer
is made as the extractive one is: the book's own sentences, each cited, best first. A model that writes poor text can
read better than it writes (docs/decisions.md has the figures).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rag.errors import ArmUnavailable
from rag.generators.extractive import ExtractiveGenerator
from rag.generators.local.generator import LocalGenerator
from rag.generators.protocol import ChoiceScores, GenerationDone, GenerationRequest, TextPiece, adapter_of
from rag.models.loading import LoadedModel
from rag.query import Query
from rag.sentence_reader import READ_CHARACTERS, ScoredUnit, SentenceReader
from rag.types import Arm, Passage

READ_SENTENCES = 4
"""Sentences that the model reads, the default reader's best. More took longer and said no more (docs/decisions.md)."""
_QUESTION_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class LikelihoodReader:
    """Reorders the best sentences of another reader by how likely the question is behind each.

    Attributes:
        adapter: the model's; None for the bare model.
    """

    model: LocalGenerator
    first: SentenceReader
    adapter: str | None = None

    def read(self, query: Query, passages: Sequence[Passage]) -> list[ScoredUnit]:
        """As `SentenceReader.read`."""
        scored = self.first.read(query, passages)
        read = [item for item in scored if item.unit.kind != "code"][:READ_SENTENCES]
        if len(read) < 2:
            return scored
        contexts = [
            f"Passage: {' > '.join(item.unit.section[-2:])}: {' '.join(item.unit.text.split())[:READ_CHARACTERS]}\n"
            "Question:"
            for item in read
        ]
        likelihoods = self.model.log_likelihoods(contexts, f" {query.english[:_QUESTION_CHARACTERS]}", self.adapter)
        scores = together(np.array([item.score for item in read]), np.array(likelihoods))
        scored = [
            *(replace(item, score=float(score)) for item, score in zip(read, scores, strict=True)),
            *(item for item in scored if item not in read),
        ]
        return sorted(scored, key=lambda item: -item.score)


def together(scores: NDArray[np.float64], likelihoods: NDArray[np.float64]) -> NDArray[np.float64]:
    """Both readers' scores on the scale of the first: the mean of their standard scores, in log odds.

    Args:
        scores: 0 to 1, (n,); likelihoods: in nats, (n,).
    """
    bounded = np.clip(scores, 1e-6, 1 - 1e-6)
    odds = np.log(bounded / (1 - bounded))
    spread = odds.std()
    mixed = odds.mean() + spread * (_standard(odds) + _standard(likelihoods)) / 2
    mixed = 1 / (1 + np.exp(-mixed))
    return np.asarray(mixed, dtype=np.float64)


def _standard(values: NDArray[np.float64]) -> NDArray[np.float64]:
    spread = float(values.std())
    return (values - values.mean()) / spread if spread > 0 else np.zeros_like(values)


class QuotingGenerator:
    """A local model that quotes. Only arms with passages: `rag` and, with an adapter, `rag+tuned`.

    Args:
        model: reads, and scores the options of choice questions.
        first: chooses the sentences that the model reads.
    """

    def __init__(self, model: LocalGenerator, first: SentenceReader) -> None:
        self._model = model
        self._quoting = {
            adapter: ExtractiveGenerator(LikelihoodReader(model, first, adapter), model.model_name)
            for adapter in (None, *model.adapters)
        }

    @property
    def name(self) -> str:
        """`local`."""
        return self._model.name

    @property
    def model_name(self) -> str:
        """The model that reads."""
        return self._model.model_name

    @property
    def loaded(self) -> LoadedModel:
        """The model in memory, for reports."""
        return self._model.loaded

    @property
    def arms(self) -> tuple[Arm, ...]:
        """Those with passages."""
        return ("rag", "rag+tuned") if self.adapters else ("rag",)

    @property
    def adapters(self) -> tuple[str, ...]:
        """The model's."""
        return self._model.adapters

    def check(self, request: GenerationRequest) -> None:
        """Refuses, before retrieval, a request that can never run, or not now.

        Raises:
            ArmUnavailable: an arm without passages, or without its adapter.
            PromptTooLong, DoesNotFitInMemory, Busy: as the model.
        """
        if request.arm not in ("rag", "rag+tuned"):
            raise ArmUnavailable(
                f"arm {request.arm!r} has no passages to quote from",
                hint="Ask with arm rag, or start with --answers free.",
            )
        self._model.check(request)

    def stream(self, request: GenerationRequest) -> Iterator[TextPiece | GenerationDone]:
        """As `ExtractiveGenerator.stream`."""
        quoting = self._quoting[adapter_of(request, self.adapters)]
        yield from quoting.stream(replace(request, arm="rag"))

    def score_choices(self, request: GenerationRequest, choices: tuple[str, ...]) -> ChoiceScores:
        """As the model: quoting makes no difference there."""
        return self._model.score_choices(request, choices)

    def close(self) -> None:
        """Frees the model."""
        self._model.close()
