"""Our settings in the words of transformers' Trainer."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

from rag.models.devices import choose_dtype
from rag.models.memory import estimate_from_config
from rag.tuning.placement import Placement
from rag.tuning.settings import TuneSettings

_SMALL_BASE_PARAMETERS = 5e9


def training_arguments(
    folder: Path, settings: TuneSettings, place: Placement, config: Any, num_rows: int, *, validates: bool
) -> Any:
    """The `transformers.TrainingArguments` of a run.

    Args:
        folder: for the checkpoints.
        config: the base model's.
        num_rows: encoded training rows; validates: there are validation rows.
    """
    from transformers import TrainingArguments

    updates = math.ceil(num_rows / (settings.batch_size * settings.accumulation * place.processes))
    steps = settings.max_steps or max(math.ceil(updates * settings.epochs), 1)
    every = settings.checkpoint_steps or max(steps // 4, 1)
    dtype = str(choose_dtype(settings.dtype, place.device, settings.quantization)).removeprefix("torch.")
    return TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=settings.batch_size,
        per_device_eval_batch_size=settings.batch_size,
        gradient_accumulation_steps=settings.accumulation,
        num_train_epochs=settings.epochs,
        max_steps=settings.max_steps or -1,
        learning_rate=settings.learning_rate or _usual_rate(config),
        lr_scheduler_type="cosine",
        warmup_steps=0.05,
        logging_steps=settings.log_steps or max(steps // 50, 1),
        save_steps=every,
        save_total_limit=2,
        eval_strategy="steps" if validates else "no",
        eval_steps=every,
        prediction_loss_only=True,
        bf16=dtype == "bfloat16",
        fp16=dtype == "float16",
        activation_checkpointing=settings.activation_checkpointing,
        activation_checkpointing_kwargs={"use_reentrant": False},
        use_cpu=place.kind == "cpu",
        dataloader_pin_memory=place.kind == "cuda",
        ddp_find_unused_parameters=False,
        remove_unused_columns=False,
        label_names=["labels"],
        include_num_input_tokens_seen="non_padding",
        report_to=["tensorboard"] if importlib.util.find_spec("tensorboard") else [],
        disable_tqdm=True,
        seed=settings.seed,
        data_seed=settings.seed,
    )


def _usual_rate(config: Any) -> float:
    """2e-4 for bases up to 5 billion parameters, 1e-4 above."""
    size = estimate_from_config(config, quantization="none", context_tokens=1).num_parameters
    return 2e-4 if size <= _SMALL_BASE_PARAMETERS else 1e-4
