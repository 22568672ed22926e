"""A local model that may only quote: the text is the extractive answer's, the model scores the options of choices.

A model's own likelihood of the question behind a sentence chose no better sentences than the default reader
(docs/decisions.md), so the model does not read for an answer.
"""

from __future__ import annotations

from indexes.messages import msg
from rag.errors import ArmUnavailable
from rag.generators.extractive import ExtractiveGenerator
from rag.generators.local.generator import LocalGenerator
from rag.generators.openvino import LoadedIR, OpenVINOGenerator
from rag.generators.protocol import ChoiceScores, GenerationRequest
from rag.models.loading import LoadedModel
from rag.sentence_reader import SentenceReader


class QuotingGenerator(ExtractiveGenerator):
    """Arm `rag` alone: without passages there is nothing to quote, and an adapter would change nothing.

    Args:
        model: scores the options of choice questions.
        reader: chooses the sentences.
    """

    def __init__(self, model: LocalGenerator | OpenVINOGenerator, reader: SentenceReader) -> None:
        super().__init__(reader, model.model_name)
        self._model = model

    @property
    def name(self) -> str:
        """`local`."""
        return self._model.name

    @property
    def loaded(self) -> LoadedModel | LoadedIR:
        """The model in memory, for reports."""
        return self._model.loaded

    def check(self, request: GenerationRequest) -> None:
        """Refuses, before retrieval, a request that can never run.

        Raises:
            ArmUnavailable: any arm but `rag`.
        """
        if request.arm != "rag":
            raise ArmUnavailable(
                msg("arm {} cannot run where a model only quotes", repr(request.arm)),
                hint="Ask with arm rag, or start with --answers free.",
            )

    def score_choices(self, request: GenerationRequest, choices: tuple[str, ...]) -> ChoiceScores:
        """As the model: quoting makes no difference there."""
        return self._model.score_choices(request, choices)

    def close(self) -> None:
        """Frees the model."""
        self._model.close()
