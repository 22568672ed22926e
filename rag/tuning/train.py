"""Trains a LoRA adapter: QLoRA over an NF4 base or plain LoRA, on one device or under `accelerate launch`.

Settings follow QLoRA (Dettmers et al. 2023): NF4 with double quantization, bfloat16 products, adapters on all linear
layers, checkpointed activations. Rows of similar length share a batch. Norms and embeddings keep their format (float32
would double the cache that serving needs). The optimizer's loop is transformers' Trainer; ours are the labels (only
the answer is learnt, behind exactly the prompt that serving will use: `examples`), the folder that survives
interruption (`run_folder`), and the record that ties the adapter to its base.
"""

from __future__ import annotations

import importlib.metadata
import logging
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

from indexes.disk import disk_error
from indexes.errors import Cancelled, CoalesceError, InvalidInput, first_line
from rag.errors import DoesNotFitInMemory, ModelCannotLoad
from rag.models.adapters import AdapterRecord, base_fingerprint
from rag.models.devices import RANDOM_NUMBERS, choose_device, is_out_of_memory, peak_memory_bytes, reset_peak_memory
from rag.models.folder import load_config
from rag.models.loading import LoadedModel, load_model, load_tokenizer
from rag.models.memory import lora_kinds
from rag.tuning.data import TrainingRow, rows_sha256, split_rows
from rag.tuning.examples import EncodedRow, answer_loss, collate, pad_token, row_encoder
from rag.tuning.run_folder import RunFolder
from rag.tuning.settings import Placement, TuneProgress, TuneReport, TuneSettings, place_process, training_arguments

Example: TypeAlias = tuple[EncodedRow, ...]
"""Rows that stay together in a batch: one, or two answers to the same prompt."""


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """What an adapter learns, and what its record and report say of it.

    Attributes:
        loss: mean over the examples of a batch, by (model, batch); None takes `answer_loss`.
        constant_rate: keep the learning rate; else it rises and falls (cosine, 5 % warm-up).
        data_sha256, num_rows, with_passages: of the rows, for the record, with `notes` among its settings.
        split_by, shortened, dropped: of the rows, for the report.
    """

    train: list[Example]
    validation: list[Example]
    data_sha256: str
    num_rows: int
    with_passages: bool
    split_by: str
    shortened: int
    dropped: int
    loss: Callable[[Any, dict[str, Any]], Any] | None = None
    constant_rate: bool = False
    notes: dict[str, Any] = field(default_factory=dict)


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
    """Trains an adapter on questions and answers into `out` (minutes to hours).

    Args:
        model, resume, progress, cancelled: as in `train_adapter`.

    Raises:
        MalformedTrainingData: no rows, an empty split, or all rows too long; others as `train_adapter`.
    """
    settings = settings or TuneSettings()
    settings.check()
    rows = list(rows) if settings.passages else [replace(row, passages=()) for row in rows]
    split = split_rows(rows, settings.validation_share, settings.seed)
    encode = row_encoder(load_tokenizer(model), load_config(model), settings, cancelled)
    train, validation = encode(split.train, train_on_prompt=settings.train_on_prompt), encode(split.validation)
    training_set = TrainingSet(
        train=[(row,) for row in train.rows],
        validation=[(row,) for row in validation.rows],
        data_sha256=rows_sha256(rows),
        num_rows=len(rows),
        with_passages=any(row.passages for row in rows),
        split_by=split.by,
        shortened=train.shortened + validation.shortened,
        dropped=train.dropped + validation.dropped,
    )
    return train_adapter(model, training_set, out, settings, resume=resume, progress=progress, cancelled=cancelled)


def train_adapter(
    model: str,
    training_set: TrainingSet,
    out: Path,
    settings: TuneSettings,
    *,
    resume: bool = False,
    progress: Callable[[TuneProgress], None] = lambda _: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> TuneReport:
    """Trains an adapter into `out`.

    Args:
        model: folder or hub name of the base.
        resume: go on from the newest complete checkpoint in `out`.
        progress: called after every step.
        cancelled: polled after every step; then a checkpoint is written first.

    Raises:
        ModelCannotLoad, DoesNotFitInMemory: the base.
        InvalidInput: the loss became infinite or no number.
        Conflict: `out` holds another run.
        Cancelled: `cancelled` became true; go on with `resume`.
        StorageFull: the disk is full; the last complete checkpoint is kept.
    """
    started = time.monotonic()
    settings = settings.over(choose_device(settings.device))
    place = place_process(settings.device)
    folder = RunFolder(out)
    noted = settings.as_record() | training_set.notes
    if place.main:
        folder.open({"model": model, "data_sha256": training_set.data_sha256, "settings": noted}, resume=resume)
    place.wait()
    checkpoint = folder.newest_checkpoint()
    arguments = training_arguments(
        folder.checkpoints,
        settings,
        place,
        load_config(model),
        len(training_set.train),
        validates=bool(training_set.validation),
        constant_rate=training_set.constant_rate,
        resumed=checkpoint is not None,
    )
    reset_peak_memory(place.device)
    loaded = load_for_training(model, settings, place)
    fingerprint = base_fingerprint(loaded.model)  # before the adapter renames its layers
    watcher = _watcher(folder, settings.patience, progress, cancelled)
    trainer = _trainer(add_lora(loaded, settings), loaded.tokenizer, arguments, training_set, watcher)
    with _known_errors(folder, place), RANDOM_NUMBERS if place.kind == "cuda" else nullcontext():
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        history = trainer.state.log_history
        warning = _loss_warning(history, arguments.learning_rate)
        if watcher.stopped:
            raise Cancelled(f"Training was stopped at step {trainer.state.global_step}; nothing learnt is lost.")
        report = TuneReport(
            adapter=str(out),
            steps=trainer.state.global_step,
            train_loss=_mean_loss(history),
            eval_loss=trainer.state.best_metric,
            tokens_per_s=watcher.tokens_per_s,
            peak_memory_bytes=peak_memory_bytes(place.device),
            seconds=time.monotonic() - started,
            train_rows=len(training_set.train),
            validation_rows=len(training_set.validation),
            split_by=training_set.split_by,
            shortened_rows=training_set.shortened,
            dropped_rows=training_set.dropped,
            best_step=trainer.state.best_global_step or trainer.state.global_step,
            warning=warning,
        )
        trainer.save_model(str(out))
        if place.main:
            (out / "training_args.bin").unlink(missing_ok=True)  # a pickle that nothing reads
            folder.write_curve(history)
            AdapterRecord(
                base_model=loaded.name,
                base_fingerprint=fingerprint,
                quantization=loaded.quantization,
                data_sha256=training_set.data_sha256,
                num_rows=training_set.num_rows,
                with_passages=training_set.with_passages,
                settings=noted,
                metrics={name: value for name, value in asdict(report).items() if name in _MEASURED},
                versions={name: importlib.metadata.version(name) for name in ("torch", "transformers", "peft")},
                created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            ).write(out)
    return report


_MEASURED = ("steps", "best_step", "train_loss", "eval_loss", "tokens_per_s", "peak_memory_bytes", "seconds")


_LEAST_FALL = 0.01
"""Share of the loss that a run takes off at least if it has learnt anything."""


def _loss_warning(history: Sequence[Mapping[str, Any]], learning_rate: float) -> str:
    """What is wrong with a run whose loss did not fall; "" where it fell.

    The validation loss counts, from the base's to the lowest; without one the training loss, from the run's first half
    to its second.

    Raises:
        InvalidInput: a loss is infinite or no number.
    """
    training, validation = (
        [float(entry[name]) for entry in history if name in entry] for name in ("loss", "eval_loss")
    )
    if not all(map(math.isfinite, training + validation)):
        raise InvalidInput(
            "The loss is no longer a finite number, so nothing was learnt.",
            hint=f"Lower --learning-rate, which was {learning_rate:g}.",
        )
    if len(validation) > 1:
        which, losses = "validation", [validation[0], min(validation[1:])]
    else:  # batches are of rows of like length, so one says little
        middle = len(training) // 2
        which, losses = "training", [statistics.mean(half) for half in (training[:middle], training[middle:]) if half]
    if len(losses) < 2 or losses[-1] <= losses[0] * (1 - _LEAST_FALL):
        return ""
    went = f"The {which} loss went from {losses[0]:.3f} to {losses[-1]:.3f}"
    if losses[-1] > losses[0]:
        return f"{went}: training diverged. Lower --learning-rate, which was {learning_rate:g}."
    return f"{went}: nothing was learnt. Try another --learning-rate; it was {learning_rate:g}."


@contextmanager
def _known_errors(folder: RunFolder, place: Placement) -> Iterator[None]:
    """Turns a full disk and exhausted memory into our own errors."""
    try:
        yield
    except CoalesceError:
        raise
    except Exception as error:
        kept = "the last complete checkpoint is kept: go on with --resume"
        if (ours := disk_error(error, folder.path, kept=kept)) is not None:
            if place.main:
                folder.drop_incomplete()
            raise ours from error
        if is_out_of_memory(error):
            raise DoesNotFitInMemory(
                f"Training ran out of memory: {error}",
                hint="Lower --batch-size or --max-length, use --quantization nf4; `coalesce memory --train` estimates.",
            ) from error
        raise


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
    """The base with a fresh adapter; float32, seeded.

    Raises:
        InvalidInput: `target_modules` names no layer of this model.
        ModelCannotLoad: it has no layer that could be adapted.
    """
    import torch

    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # on import it advises installing a package
    from peft import LoraConfig, get_peft_model

    kinds = _without_experts(lora_kinds(loaded.model), loaded.model)
    if not kinds:
        raise ModelCannotLoad(
            f"{loaded.name} has no linear layers that could be adapted.",
            hint="Models of the GPT-2 kind cannot be tuned here; take a newer one.",
        )
    torch.manual_seed(settings.seed)
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=settings.lora_targets() or kinds,
        layers_to_transform=_top_layers(loaded, settings.top_layers),
        use_rslora=settings.rslora,
        use_dora=settings.dora,
        task_type="CAUSAL_LM",
        bias="none",
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by an old name
            return get_peft_model(loaded.model, config)
    except ValueError as error:
        if settings.target_modules is None:
            raise
        raise InvalidInput(
            f"{loaded.name} cannot be tuned at {settings.target_modules!r}: {first_line(error)}",
            hint=f"It has the layers {', '.join(kinds)}.",
        ) from error


def _top_layers(loaded: LoadedModel, count: int | None) -> list[int] | None:
    """Numbers of the last `count` layers; None for all."""
    layers = int(loaded.model.config.get_text_config().num_hidden_layers)
    return None if count is None else list(range(max(layers - count, 0), layers))


_OF_EXPERTS = frozenset({"gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"})


def _without_experts(kinds: list[str], model: Any) -> list[str]:
    """The kinds without those that peft takes for a mixture's experts; dense layers of these names go with them.

    transformers holds the experts as one block; peft's adapters on it take no dropout, and engines do not read them.
    """
    from peft import LoraConfig
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers

    probe = LoraConfig(target_modules=[*kinds, *_OF_EXPERTS])
    convert_peft_config_for_transformers(probe, model, None)
    return [kind for kind in kinds if kind in probe.target_modules]


def _trainer(peft_model: Any, tokenizer: Any, arguments: Any, training_set: TrainingSet, watcher: Any) -> Any:
    from transformers import Trainer
    from transformers.trainer_callback import PrinterCallback

    class LengthGroupedTrainer(Trainer):  # type: ignore[misc]  # the base class is untyped
        """A trainer whose batches hold rows of similar length, and whose loss may ask the model twice."""

        loss_is_scaled_for_ga = None if training_set.loss is None else False

        def _get_train_sampler(self, train_dataset: Any = None) -> LengthSampler:
            del train_dataset  # always `training_set.train`
            together = arguments.train_batch_size * arguments.gradient_accumulation_steps * arguments.world_size
            lengths = [max(len(row.input_ids) for row in example) for example in training_set.train]
            return LengthSampler(lengths, together, arguments.seed, lambda: int((self.state.epoch or 0) + 1e-6))

        def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            return (
                training_set.loss(model, inputs)
                if training_set.loss
                else super().compute_loss(model, inputs, *args, **kwargs)
            )

    fill = pad_token(tokenizer)
    trainer = LengthGroupedTrainer(
        model=peft_model,
        args=arguments,
        train_dataset=training_set.train,
        eval_dataset=training_set.validation or None,
        data_collator=lambda examples: collate([row for example in examples for row in example], fill),
        compute_loss_func=answer_loss if training_set.loss is None else None,
        processing_class=tokenizer,
        callbacks=[watcher],
    )
    trainer.remove_callback(PrinterCallback)  # prints to stdout, where the command's JSON belongs
    return trainer


class LengthSampler:
    """Puts rows of similar length next to each other, the longest of all first, in a new order for each epoch.

    transformers' own sampler draws from the global generator, so that an interrupted run would resume in another order.

    Args:
        lengths: of the rows; together: rows per update.
        epoch: gives the number of the epoch that begins.
    """

    def __init__(self, lengths: Sequence[int], together: int, seed: int, epoch: Callable[[], int]) -> None:
        self._lengths = lengths
        self._together = together
        self._seed = seed
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._lengths)

    def __iter__(self) -> Iterator[int]:
        import torch
        from transformers.trainer_pt_utils import get_length_grouped_indices

        rng = torch.Generator().manual_seed(1000 * self._seed + self._epoch())
        order: list[int] = get_length_grouped_indices(self._lengths, self._together, generator=rng)
        return iter(order)


def _watcher(
    folder: RunFolder, patience: int, progress: Callable[[TuneProgress], None], cancelled: Callable[[], bool]
) -> Any:
    """A `transformers.TrainerCallback` for progress, stopping and checkpoints, with `stopped` and `tokens_per_s`."""
    from transformers import TrainerCallback

    class Watcher(TrainerCallback):  # type: ignore[misc]  # the base class is untyped
        """Watches one run."""

        def __init__(self) -> None:
            self.stopped = False
            self._tokens = 0
            self._seconds = 0.0
            self._step_began = 0.0
            self._tokens_before = 0
            self._loss: float | None = None
            self._eval_loss: float | None = None

        @property
        def tokens_per_s(self) -> float:
            return self._tokens / self._seconds if self._seconds > 0 else 0.0

        def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
            if state.is_world_process_zero:
                progress(TuneProgress(state.global_step, state.max_steps, None, None, 0.0))

        def on_step_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
            self._step_began = time.monotonic()
            self._tokens_before = int(state.num_input_tokens_seen)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self._seconds += time.monotonic() - self._step_began
            self._tokens += int(state.num_input_tokens_seen) - self._tokens_before
            if state.is_world_process_zero:
                progress(
                    TuneProgress(state.global_step, state.max_steps, self._loss, self._eval_loss, self.tokens_per_s)
                )
            if state.global_step >= state.max_steps:
                control.should_evaluate = args.eval_strategy != "no"  # the last step may be the best one
            if cancelled():
                self.stopped = state.global_step < state.max_steps
                control.should_training_stop = control.should_save = True

        def on_evaluate(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
            # from the log, which a resumed run has too; transformers' EarlyStoppingCallback would start counting again
            losses = [entry["eval_loss"] for entry in state.log_history if "eval_loss" in entry]
            if patience and len(losses) - 1 - losses.index(min(losses)) >= patience:
                control.should_training_stop = True

        def on_log(self, _args: Any, _state: Any, _control: Any, logs: Any = None, **_: Any) -> None:
            self._loss = (logs or {}).get("loss", self._loss)
            self._eval_loss = (logs or {}).get("eval_loss", self._eval_loss)

        def on_save(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
            if state.is_world_process_zero:
                folder.mark_complete(state.global_step)
                folder.write_curve(state.log_history)

    return Watcher()


def _mean_loss(history: Sequence[Mapping[str, Any]]) -> float:
    """Mean loss over all logged steps; the Trainer's own figure leaves out the steps before a resume."""
    total, before = 0.0, 0
    for entry in history:
        if "loss" in entry:  # the mean since the entry before
            total += float(entry["loss"]) * (int(entry["step"]) - before)
            before = int(entry["step"])
    return total / before if before else 0.0
