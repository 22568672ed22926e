"""Trains a LoRA adapter: QLoRA over an NF4 base or plain LoRA, on one device or under `accelerate launch`.

Settings follow QLoRA (Dettmers et al. 2023): NF4 with double quantization, bfloat16 products, adapters on all linear
layers, checkpointed activations. Norms and embeddings stay as they are (casting them to float32 would double the cache
that serving needs). The optimizer's loop is transformers' Trainer; what is ours: the labels (`encoding`), the folder
that survives interruption (`run_folder`), and the record that ties the adapter to its base.
"""

from __future__ import annotations

import errno
import importlib.metadata
import importlib.util
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from indexes.errors import Cancelled, InvalidInput, StorageFull
from rag.errors import DoesNotFitInMemory
from rag.generators.model_thread import out_of_memory
from rag.models.adapter_folder import AdapterRecord
from rag.models.devices import peak_memory_bytes
from rag.models.fingerprint import base_fingerprint
from rag.models.loading import LoadedModel, load_model
from rag.tuning.dataset import split_rows
from rag.tuning.encoding import EncodedRow, answer_loss, collate, encode_rows
from rag.tuning.rows import TrainingRow, rows_sha256
from rag.tuning.run_folder import RunFolder
from rag.tuning.settings import TuneProgress, TuneReport, TuneSettings

_SMALL_BASE_PARAMETERS = 5e9


def tune(
    model: str,
    rows: Sequence[TrainingRow],
    out: Path,
    settings: TuneSettings | None = None,
    *,
    resume: bool = False,
    progress: Callable[[TuneProgress], None] = lambda _: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> TuneReport:
    """Trains an adapter into `out` (minutes to hours).

    Args:
        model: folder or hub name of the base.
        resume: go on from the newest complete checkpoint in `out`.
        progress: called after every step; cancelled: polled after every step, a checkpoint is written before leaving.

    Raises:
        ModelCannotLoad, DoesNotFitInMemory: the base.
        MalformedTrainingData: no rows, an empty split, or all rows too long.
        Conflict: `out` holds another run.
        Cancelled: `cancelled` became true; go on with `resume`.
        StorageFull: the disk filled; the last complete checkpoint is kept.
    """
    from rag.tuning.callbacks import training_callback

    settings = _checked(settings or TuneSettings())
    started = time.monotonic()
    rows = list(rows) if settings.passages else [replace(row, passages=()) for row in rows]
    split = split_rows(rows, settings.validation_share, settings.seed)
    data_sha256 = rows_sha256(rows)
    folder = RunFolder(out)
    checkpoint = folder.open(
        {"model": model, "data_sha256": data_sha256, "settings": settings.as_record()}, resume=resume
    )
    loaded = load_for_training(model, settings)
    train = encode_rows(
        loaded.tokenizer, split.train, _longest(settings, loaded), train_on_prompt=settings.train_on_prompt
    )
    validation = encode_rows(loaded.tokenizer, split.validation, _longest(settings, loaded))
    fingerprint = base_fingerprint(loaded.model)
    peft_model = add_lora(loaded, settings)
    watcher = training_callback(folder, progress, cancelled)
    trainer = _trainer(peft_model, loaded, train.rows, validation.rows, folder, settings, watcher)
    try:
        result = trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        if watcher.stopped:
            raise Cancelled(f"Training was stopped at step {trainer.state.global_step}; nothing learnt is lost.")
        eval_loss = trainer.evaluate()["eval_loss"] if validation.rows else None
        report = TuneReport(
            adapter=str(out),
            steps=trainer.state.global_step,
            train_loss=float(result.training_loss),
            eval_loss=eval_loss,
            tokens_per_s=watcher.tokens_per_s,
            peak_memory_bytes=peak_memory_bytes(loaded.device),
            seconds=time.monotonic() - started,
            train_rows=len(train.rows),
            validation_rows=len(validation.rows),
            split_by=split.by,
            shortened_rows=train.shortened + validation.shortened,
            dropped_rows=train.dropped + validation.dropped,
        )
        trainer.save_model(str(out))
        if trainer.is_world_process_zero():
            (out / "training_args.bin").unlink(missing_ok=True)  # a pickle that nothing reads
            folder.write_curve(trainer.state.log_history)
            record = _record(
                loaded, fingerprint, data_sha256, len(rows), any(r.passages for r in rows), settings, report
            )
            record.write(out)
    except Exception as error:
        if disk_full(error):
            folder.drop_incomplete()
            raise StorageFull(
                f"The disk with {out} is full; the last complete checkpoint is kept.",
                hint="Free some space and go on with --resume.",
            ) from error
        if out_of_memory(error):
            raise DoesNotFitInMemory(
                f"Training ran out of memory: {error}",
                hint="Lower --batch-size or --max-length, use --quantization nf4; `coalesce memory --train` estimates.",
            ) from error
        raise
    return report


def load_for_training(model: str, settings: TuneSettings) -> LoadedModel:
    """The frozen base, ready for adapters to be trained on it."""
    loaded = load_model(
        model, quantization=settings.quantization, device=settings.device, dtype=settings.dtype, for_training=True
    )
    loaded.model.config.use_cache = False
    loaded.model.requires_grad_(False)
    keep_gradients_right(loaded.model)
    return loaded


def keep_gradients_right(model: Any) -> None:
    """Stops bitsandbytes from repacking 4-bit weights on CPUs with AVX512-BF16.

    It repacks them at the first pass in evaluation mode, and the packed layers have no gradient of their own: after
    one validation pass LoRA gradients are silently wrong (mean cosine 0.51 on a Qwen3 shape) or training stops with an
    error. Serving keeps the packed, faster form.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def add_lora(loaded: LoadedModel, settings: TuneSettings) -> Any:
    """The base with a fresh adapter on every linear layer but the output embedding; float32, seeded."""
    import torch
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(settings.seed)
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
        bias="none",
    )
    return get_peft_model(loaded.model, config)


def disk_full(error: BaseException | None) -> bool:
    """True when an error, or what caused it, says that the disk is full or a quota is reached."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        text = str(error)
        if "No space left on device" in text or "os error 28" in text or "unexpected pos" in text:
            return True
        error = error.__cause__ or error.__context__
    return False


def _trainer(
    peft_model: Any,
    loaded: LoadedModel,
    train: list[EncodedRow],
    validation: list[EncodedRow],
    folder: RunFolder,
    settings: TuneSettings,
    watcher: Any,
) -> Any:
    from accelerate import PartialState
    from transformers import Trainer, TrainingArguments
    from transformers.trainer_callback import PrinterCallback

    processes = PartialState().num_processes
    per_epoch = math.ceil(len(train) / (settings.batch_size * settings.accumulation * processes))
    steps = settings.max_steps or max(math.ceil(per_epoch * settings.epochs), 1)
    every = settings.checkpoint_steps or max(steps // 4, 1)
    rate = settings.learning_rate or (2e-4 if loaded.model.num_parameters() <= _SMALL_BASE_PARAMETERS else 1e-4)
    arguments = TrainingArguments(
        output_dir=str(folder.checkpoints),
        per_device_train_batch_size=settings.batch_size,
        per_device_eval_batch_size=settings.batch_size,
        gradient_accumulation_steps=settings.accumulation,
        num_train_epochs=settings.epochs,
        max_steps=settings.max_steps or -1,
        learning_rate=rate,
        lr_scheduler_type="cosine",
        warmup_steps=0.05,
        logging_steps=settings.log_steps or max(steps // 50, 1),
        save_steps=every,
        save_total_limit=2,
        eval_strategy="steps" if validation else "no",
        eval_steps=every,
        prediction_loss_only=True,
        bf16=loaded.dtype == "bfloat16",
        fp16=loaded.dtype == "float16",
        activation_checkpointing=settings.activation_checkpointing,
        activation_checkpointing_kwargs={"use_reentrant": False},
        use_cpu=loaded.device == "cpu",
        dataloader_pin_memory=loaded.device.startswith("cuda"),
        remove_unused_columns=False,
        label_names=["labels"],
        include_num_input_tokens_seen="non_padding",
        report_to=["tensorboard"] if importlib.util.find_spec("tensorboard") else [],
        disable_tqdm=True,
        seed=settings.seed,
        data_seed=settings.seed,
    )
    trainer = Trainer(
        model=peft_model,
        args=arguments,
        train_dataset=train,
        eval_dataset=validation or None,
        data_collator=partial(collate, pad_token=_pad_token(loaded.tokenizer)),
        compute_loss_func=answer_loss,
        processing_class=loaded.tokenizer,
        callbacks=[watcher],
    )
    trainer.remove_callback(PrinterCallback)  # prints to stdout, where the command's JSON belongs
    return trainer


def _pad_token(tokenizer: Any) -> int:
    return int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id)


def _longest(settings: TuneSettings, loaded: LoadedModel) -> int:
    return min(settings.max_tokens, loaded.capabilities.context_tokens)


def _checked(settings: TuneSettings) -> TuneSettings:
    """Raises `InvalidInput` for numbers that no run can have."""
    wrong = {
        "rank": settings.rank < 1,
        "batch_size": settings.batch_size < 1,
        "accumulation": settings.accumulation < 1,
        "epochs": settings.epochs <= 0,
        "max_steps": settings.max_steps < 0,
        "max_tokens": settings.max_tokens < 8,
        "dropout": not 0 <= settings.dropout < 1,
        "validation_share": not 0 <= settings.validation_share < 1,
    }
    for name, bad in wrong.items():
        if bad:
            raise InvalidInput(f"{name} cannot be {getattr(settings, name)}.", hint="See `coalesce tune --help`.")
    if settings.quantization == "int8":
        raise InvalidInput("Adapters are trained over nf4 or none, not int8.", hint="Use --quantization nf4.")
    return settings


def _record(
    loaded: LoadedModel,
    fingerprint: str,
    data_sha256: str,
    num_rows: int,
    with_passages: bool,
    settings: TuneSettings,
    report: TuneReport,
) -> AdapterRecord:
    return AdapterRecord(
        base_model=loaded.name,
        base_fingerprint=fingerprint,
        quantization=loaded.quantization,
        data_sha256=data_sha256,
        num_rows=num_rows,
        with_passages=with_passages,
        settings=settings.as_record(),
        metrics={
            "steps": report.steps,
            "train_loss": report.train_loss,
            "eval_loss": report.eval_loss,
            "tokens_per_s": report.tokens_per_s,
            "peak_memory_bytes": report.peak_memory_bytes,
            "seconds": report.seconds,
        },
        versions={name: importlib.metadata.version(name) for name in ("torch", "transformers", "peft")},
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
