"""Trains a LoRA adapter: QLoRA over an NF4 base or plain LoRA, on one device or under `accelerate launch`.

Settings follow QLoRA (Dettmers et al. 2023): NF4 with double quantization, bfloat16 products, adapters on all linear
layers, checkpointed activations. Norms and embeddings stay as they are (casting them to float32 would double the cache
that serving needs). The optimizer's loop is transformers' Trainer; what is ours: the labels (`encoding`), the folder
that survives interruption (`run_folder`), and the record that ties the adapter to its base.
"""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from indexes.errors import Cancelled, StorageFull
from rag.errors import DoesNotFitInMemory
from rag.generators.model_thread import out_of_memory
from rag.models.adapter_folder import AdapterRecord
from rag.models.capabilities import read_capabilities
from rag.models.devices import peak_memory_bytes
from rag.models.fingerprint import base_fingerprint
from rag.models.loading import LoadedModel, load_model, load_tokenizer
from rag.models.memory import load_config
from rag.tuning.arguments import training_arguments
from rag.tuning.dataset import split_rows
from rag.tuning.disk import disk_full
from rag.tuning.encoding import EncodedRow, answer_loss, collate, encode_rows
from rag.tuning.placement import Placement, place_process
from rag.tuning.rows import TrainingRow, rows_sha256
from rag.tuning.run_folder import RunFolder
from rag.tuning.settings import TuneProgress, TuneReport, TuneSettings


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

    settings = settings or TuneSettings()
    settings.check()
    started = time.monotonic()
    rows = list(rows) if settings.passages else [replace(row, passages=()) for row in rows]
    split = split_rows(rows, settings.validation_share, settings.seed)
    data_sha256 = rows_sha256(rows)
    tokenizer, config = load_tokenizer(model), load_config(model)
    longest = min(settings.max_tokens, read_capabilities(config).context_tokens)
    train = encode_rows(tokenizer, split.train, longest, train_on_prompt=settings.train_on_prompt)
    validation = encode_rows(tokenizer, split.validation, longest)
    place = place_process(settings.device)
    folder = RunFolder(out)
    if place.main:
        folder.open({"model": model, "data_sha256": data_sha256, "settings": settings.as_record()}, resume=resume)
    place.wait()
    checkpoint = folder.newest_checkpoint()
    arguments = training_arguments(
        folder.checkpoints, settings, place, config, len(train.rows), validates=bool(validation.rows)
    )
    loaded = load_for_training(model, settings, place)
    fingerprint = base_fingerprint(loaded.model)
    peft_model = add_lora(loaded, settings)
    watcher = training_callback(folder, progress, cancelled)
    trainer = _trainer(peft_model, tokenizer, arguments, train.rows, validation.rows, watcher)
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        if watcher.stopped:
            raise Cancelled(f"Training was stopped at step {trainer.state.global_step}; nothing learnt is lost.")
        eval_loss = trainer.evaluate()["eval_loss"] if validation.rows else None
        report = TuneReport(
            adapter=str(out),
            steps=trainer.state.global_step,
            train_loss=mean_loss(trainer.state.log_history),
            eval_loss=eval_loss,
            tokens_per_s=watcher.tokens_per_s,
            peak_memory_bytes=peak_memory_bytes(place.device),
            seconds=time.monotonic() - started,
            train_rows=len(train.rows),
            validation_rows=len(validation.rows),
            split_by=split.by,
            shortened_rows=train.shortened + validation.shortened,
            dropped_rows=train.dropped + validation.dropped,
        )
        trainer.save_model(str(out))
        if place.main:
            (out / "training_args.bin").unlink(missing_ok=True)  # a pickle that nothing reads
            folder.write_curve(trainer.state.log_history)
            record = _record(
                loaded, fingerprint, data_sha256, len(rows), any(r.passages for r in rows), settings, report
            )
            record.write(out)
    except Exception as error:
        if disk_full(error):
            if place.main:
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


def load_for_training(model: str, settings: TuneSettings, place: Placement) -> LoadedModel:
    """The frozen base, ready for adapters to be trained on it."""
    loaded = load_model(
        model,
        quantization=settings.quantization,
        device=place.device,
        dtype=settings.dtype,
        for_training=True,
        sharded=place.sharded,
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


def _trainer(
    peft_model: Any,
    tokenizer: Any,
    arguments: Any,
    train: list[EncodedRow],
    validation: list[EncodedRow],
    watcher: Any,
) -> Any:
    from transformers import Trainer
    from transformers.trainer_callback import PrinterCallback

    trainer = Trainer(
        model=peft_model,
        args=arguments,
        train_dataset=train,
        eval_dataset=validation or None,
        data_collator=partial(collate, pad_token=_pad_token(tokenizer)),
        compute_loss_func=answer_loss,
        processing_class=tokenizer,
        callbacks=[watcher],
    )
    trainer.remove_callback(PrinterCallback)  # prints to stdout, where the command's JSON belongs
    return trainer


def mean_loss(history: Sequence[Mapping[str, Any]]) -> float:
    """Mean loss over all logged steps; the Trainer's own figure forgets those before a resumed run's checkpoint."""
    total, before = 0.0, 0
    for entry in history:
        if "loss" in entry:  # the mean since the entry before
            total += float(entry["loss"]) * (int(entry["step"]) - before)
            before = int(entry["step"])
    return total / before if before else 0.0


def _pad_token(tokenizer: Any) -> int:
    return int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id)


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
