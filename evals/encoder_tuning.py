"""Tunes a LoRA adapter for the encoder that answers choice questions, on questions with their options and answers.

The loss is cross-entropy over cosines: a question's right text against its wrong options and every other question's
right text in the batch (InfoNCE, van den Oord et al. 2018, with hard negatives). Runs on CPU in a minute or two and
gives the same adapter for the same data, settings and seed.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from indexes.disk import disk_errors, file_sha256, make_folder
from indexes.errors import InvalidInput
from rag.generators.encoder import RECORD_FILE


@dataclass(frozen=True, slots=True)
class ChoiceExample:
    """One wording of a question to learn from.

    Attributes:
        right: the right option or the reference answer.
        wrong: wrong options, may be empty.
    """

    question: str
    right: str
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EncoderTuning:
    """Settings of a training run; `scale` multiplies cosines before the softmax.

    Only the upper half of the layers is tuned: nothing is carried back through the lower half, which saves a third of
    the time.
    """

    rank: int = 16
    alpha: int = 32
    dropout: float = 0.05
    epochs: int = 2
    batch_size: int = 16
    learning_rate: float = 3e-4
    scale: float = 20.0
    max_steps: int | None = None
    seed: int = 0


def data_hash(examples: Sequence[ChoiceExample]) -> str:
    """SHA-256 over the examples in order."""
    return hashlib.sha256(json.dumps([asdict(example) for example in examples]).encode()).hexdigest()


def tune_encoder(
    examples: Sequence[ChoiceExample],
    base: Path,
    out: Path,
    settings: EncoderTuning | None = None,
    *,
    progress: Callable[[int, int, float], None] = lambda *_: None,
) -> None:
    """Trains an adapter of the sentence-transformers model in `base` and writes it to `out`.

    Args:
        progress: called with step, number of steps and the step's loss; what it raises stops the run, and nothing is
            written.

    Raises:
        InvalidInput: there are no examples.
    """
    settings = settings or EncoderTuning()
    if not examples:
        raise InvalidInput("There are no examples to tune the encoder on.", hint="Give tune questions with answers.")
    import torch
    from peft import LoraConfig, get_peft_model

    started = time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model = _load(base)
        config = LoraConfig(
            r=settings.rank,
            lora_alpha=settings.alpha,
            lora_dropout=settings.dropout,
            target_modules=["query", "key", "value", "dense"],
            layers_to_transform=list(range(len(model[0].model.encoder.layer) // 2, len(model[0].model.encoder.layer))),
        )
        model[0].model = get_peft_model(model[0].model, config)
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        optimizer = torch.optim.AdamW(weights, lr=settings.learning_rate, weight_decay=0.01)
        batches = _batches(examples, settings)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=settings.learning_rate, total_steps=len(batches), pct_start=0.1
        )
        losses: list[float] = []
        model.train()
        for batch in batches:
            optimizer.zero_grad(set_to_none=True)
            loss = _loss(model, batch, settings.scale)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            schedule.step()
            losses.append(float(loss.detach()))
            progress(len(losses), len(batches), losses[-1])
    make_folder(out)
    with disk_errors(out):
        model[0].model.save_pretrained(str(out))
    record = {
        "base": file_sha256(base / "model.safetensors"),
        "data_sha256": data_hash(examples),
        "examples": len(examples),
        "settings": asdict(settings),
        "steps": len(losses),
        "train_loss": float(np.mean(losses[-max(1, len(losses) // 5) :])),
        "seconds": round(time.perf_counter() - started, 2),
    }
    # written last: a folder with a record is complete
    (out / RECORD_FILE).write_text(json.dumps(record, indent=1), encoding="utf-8")


def _load(base: Path) -> Any:
    import logging

    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # see indexes/embedder.py
    from sentence_transformers import SentenceTransformer

    # float32: the model is small, and sums must not depend on the CPU's own rounding
    return SentenceTransformer(str(base), device="cpu", model_kwargs={"dtype": "float32"}, trust_remote_code=False)


def _batches(examples: Sequence[ChoiceExample], settings: EncoderTuning) -> list[list[ChoiceExample]]:
    """Shuffled batches of every epoch, no right text twice in one: it would count as another's wrong one."""
    generator = np.random.default_rng(settings.seed)
    batches: list[list[ChoiceExample]] = []
    for _ in range(settings.epochs):
        waiting = [examples[index] for index in generator.permutation(len(examples))]
        while waiting:
            batch: list[ChoiceExample] = []
            later: list[ChoiceExample] = []
            rights: set[str] = set()
            for example in waiting:
                if len(batch) < settings.batch_size and example.right not in rights:
                    batch.append(example)
                    rights.add(example.right)
                else:
                    later.append(example)
            batches.append(batch)
            waiting = later
    return batches[: settings.max_steps]


def _loss(model: Any, batch: Sequence[ChoiceExample], scale: float) -> Any:
    import torch

    rights = [example.right for example in batch]
    wrongs = [(row, text) for row, example in enumerate(batch) for text in example.wrong]
    size = len(batch)
    # encoded apart, since questions are longer than options and padding would be computed
    questions = _forward(model, [example.question for example in batch])
    options = _forward(model, [*rights, *(text for _, text in wrongs)])
    right, wrong = options[:size], options[size:]
    in_batch = scale * questions @ right.T  # (size, size): the diagonal is right
    own_wrong = scale * questions @ wrong.T  # (size, num_wrong): only a question's own options count
    owner = torch.tensor([row for row, _ in wrongs], dtype=torch.long)
    foreign = owner.unsqueeze(0) != torch.arange(size).unsqueeze(1)
    logits = torch.cat([in_batch, own_wrong.masked_fill(foreign, float("-inf"))], dim=1)
    return torch.nn.functional.cross_entropy(logits, torch.arange(size))


def _forward(model: Any, texts: Sequence[str]) -> Any:
    import torch

    features = model(model.preprocess(list(texts)))
    return torch.nn.functional.normalize(features["sentence_embedding"], dim=-1)
