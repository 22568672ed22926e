"""Adapters of the encoder for a comparison: trained on the tune split, one a seed, kept and used again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from evals.questions import BankQuestion
from rag.tuning.encoder import ChoiceExample, EncoderTuning, EncoderTuningResult, data_hash, read_record, tune_encoder

StepListener = Callable[[int, int, int, float], None]
"""Told the seed's number, step, number of steps and loss."""


def tuning_examples(questions: Sequence[BankQuestion], *, with_passages: bool = False) -> list[ChoiceExample]:
    """Every wording of every tune question, with its options, or its answer where it has none.

    Args:
        with_passages: also give the gold evidence, so that the adapter learns to read.
    """
    return [
        ChoiceExample(
            wording,
            question.choices[question.answer_index] if question.answer_index is not None else question.answer,
            tuple(choice for index, choice in enumerate(question.choices) if index != question.answer_index),
            " ".join(gold.evidence for gold in question.gold) if with_passages else "",
        )
        for question in questions
        if question.split == "tune" and question.answerable
        for wording in (question.question, *question.paraphrases)
    ]


def train_adapters(
    examples: Sequence[ChoiceExample],
    base: Path,
    folder: Path,
    settings: Sequence[EncoderTuning],
    progress: StepListener | None = None,
) -> dict[str, Path]:
    """An adapter for each settings object, by name; one that is there already for the same data is not trained again.

    Raises:
        InvalidInput: no example.
    """
    adapters: dict[str, Path] = {}
    for number, one in enumerate(settings):
        key = hashlib.sha256(json.dumps([data_hash(examples), asdict(one)]).encode()).hexdigest()[:16]
        path = folder / f"encoder-{key}"
        if not (path / "encoder_adapter.json").is_file():
            _train(examples, base, path, one, number, progress)
        adapters[f"encoder-seed-{one.seed}"] = path
    return adapters


def tuning_seconds(adapters: Sequence[Path]) -> float:
    """What training them took in all, whenever it was."""
    return sum(float(read_record(path).get("seconds", 0.0)) for path in adapters)


def _train(
    examples: Sequence[ChoiceExample],
    base: Path,
    path: Path,
    settings: EncoderTuning,
    number: int,
    progress: StepListener | None,
) -> EncoderTuningResult:
    def tell(step: int, steps: int, loss: float) -> None:
        if progress is not None:
            progress(number, step, steps, loss)

    return tune_encoder(examples, base, path, settings, progress=tell)
