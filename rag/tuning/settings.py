"""A training run's settings, progress, report and place, and its settings as the Trainer's arguments."""

from __future__ import annotations

import importlib.util
import math
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from indexes.errors import InvalidInput
from rag.models.devices import choose_device, choose_dtype
from rag.models.memory import estimate_memory

_SMALL_BASE_PARAMETERS = 5e9


@dataclass(frozen=True, slots=True)
class TuneSettings:
    """Settings of one training run.

    Attributes:
        quantization: of the frozen base: `nf4` is QLoRA, `none` plain LoRA; `auto` is nf4 on a GPU and none elsewhere.
        rank, alpha, dropout: of LoRA.
        target_modules: layers to adapt: names with commas (`q_proj,v_proj`) or one regular expression over whole
            names; None takes every linear layer but the output embedding and a mixture's experts.
        rslora: scale by alpha / √rank instead of alpha / rank (Kalajdzievski 2023).
        dora: also learn the size of each weight column (Liu et al. 2024).
        neftune: noise on the embeddings of training rows, 5 in the paper (Jain et al. 2023); 0 adds none.
        learning_rate: None takes 2e-4 for bases up to 5 billion parameters, 1e-4 above; cosine, 5 % warm-up.
        batch_size × accumulation: rows per update; max_tokens: longest row.
        epochs: passes over the rows; max_steps: stop after as many, 0 for no limit.
        validation_share: of the rows, split off by section (0: none). With validation, the adapter of the lowest
            validation loss is kept.
        patience: stop after as many validations without a lower loss; 0 never does.
        passages: show the rows' passages in the prompt (False trains closed book from the same rows).
        train_on_prompt: learn the prompt too.
        activation_checkpointing: compute activations again in the backward pass instead of keeping them.
        checkpoint_steps: steps between validations and checkpoints, log_steps between losses; None takes an eighth
            and a fiftieth of the run.
    """

    quantization: str = "auto"
    rank: int = 16
    alpha: int = 32
    dropout: float = 0.05
    target_modules: str | None = None
    rslora: bool = False
    dora: bool = False
    neftune: float = 0.0
    learning_rate: float | None = None
    batch_size: int = 2
    accumulation: int = 4
    max_tokens: int = 2048
    epochs: float = 3.0
    max_steps: int = 0
    validation_share: float = 0.1
    patience: int = 3
    passages: bool = True
    train_on_prompt: bool = False
    activation_checkpointing: bool = True
    checkpoint_steps: int | None = None
    log_steps: int | None = None
    seed: int = 0
    device: str = "auto"
    dtype: str = "auto"

    def check(self) -> None:
        """Raises `InvalidInput` for values that no run can have."""
        wrong = {
            "rank": self.rank < 1,
            "batch_size": self.batch_size < 1,
            "accumulation": self.accumulation < 1,
            "epochs": self.epochs <= 0,
            "max_steps": self.max_steps < 0,
            "max_tokens": self.max_tokens < 8,
            "dropout": not 0 <= self.dropout < 1,
            "validation_share": not 0 <= self.validation_share < 1,
            "patience": self.patience < 0,
            "neftune": self.neftune < 0,
        }
        for name, bad in wrong.items():
            if bad:
                raise InvalidInput(f"{name} cannot be {getattr(self, name)}.", hint="See `coalesce tune --help`.")
        if self.quantization not in ("auto", "nf4", "none"):
            raise InvalidInput(
                f"Adapters are trained over nf4 or none, not {self.quantization}.", hint="Use --quantization nf4."
            )
        self.lora_targets()

    def lora_targets(self) -> str | list[str] | None:
        """What peft's `target_modules` takes: names or a regular expression; None where all layers are meant.

        Raises:
            InvalidInput: a regular expression that cannot be read.
        """
        wanted = self.target_modules
        if wanted is None:
            return None
        if re.fullmatch(r"[\w.]+(\s*,\s*[\w.]+)*", wanted):
            return [name.strip() for name in wanted.split(",")]
        try:
            re.compile(wanted)
        except re.error as error:
            raise InvalidInput(
                f"target_modules cannot be {wanted!r}: {error}.",
                hint="Name layers with commas (q_proj,v_proj), or write a regular expression.",
            ) from error
        return wanted

    def over(self, device: str) -> TuneSettings:
        """The settings with `auto` quantization decided for a device.

        4-bit weights save memory where it is scarce; a CPU unpacks them slowly (docs/decisions.md has the speeds).
        """
        if self.quantization != "auto":
            return self
        return replace(self, quantization="nf4" if device == "cuda" else "none")

    def as_record(self) -> dict[str, Any]:
        """For the adapter's record."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class TuneProgress:
    """Progress of a run. `eval_loss` is the latest one, None before the first."""

    step: int
    total_steps: int
    loss: float | None
    eval_loss: float | None
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class TuneReport:
    """The result of a run.

    Attributes:
        adapter: the adapter's folder.
        steps: taken; best_step: the one that the adapter is from.
        train_loss: mean over the run's steps; eval_loss: of the adapter, None without validation rows.
        tokens_per_s: training speed without padding; evaluation and saving are not counted.
        peak_memory_bytes: of the device (CUDA), of the process on a CPU; seconds: the whole run.
        train_rows, validation_rows, split_by, shortened_rows, dropped_rows: how the data was used.
    """

    adapter: str
    steps: int
    train_loss: float
    eval_loss: float | None
    tokens_per_s: float
    peak_memory_bytes: int
    seconds: float
    train_rows: int = 0
    validation_rows: int = 0
    split_by: str = "row"
    shortened_rows: int = 0
    dropped_rows: int = 0
    best_step: int = 0


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one process of a run trains: alone, with a copy of the model, or with a shard of it.

    Under `accelerate launch` every process runs the same `coalesce tune`, and the launcher gives each its number.

    Attributes:
        device: where its weights are loaded.
        sharded: FSDP or ZeRO-3 places the weights.
        processes: how many the run has; main: this process writes files and reports.
    """

    device: str
    sharded: bool
    processes: int
    main: bool

    @property
    def kind(self) -> str:
        """`cpu`, `cuda` or `mps`."""
        return self.device.partition(":")[0]

    def wait(self) -> None:
        """Waits for all processes of the run."""
        _state(self.kind).wait_for_everyone()


def place_process(device: str) -> Placement:
    """The place of this process; joins the other processes of the run, if any.

    Raises:
        ModelCannotLoad: this machine does not have the device.
    """
    from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
    from transformers.integrations.fsdp import is_fsdp_enabled

    kind = choose_device(device)
    state = _state(kind)
    if state.num_processes > 1 and kind == "cuda":
        kind = f"cuda:{state.local_process_index}"
    sharded = bool(is_fsdp_enabled() or is_deepspeed_zero3_enabled())
    return Placement(kind, sharded, int(state.num_processes), bool(state.is_main_process))


def _state(kind: str) -> Any:
    from accelerate import PartialState

    return PartialState(cpu=kind == "cpu")


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
    every = settings.checkpoint_steps or max(steps // 8, 1)
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
        load_best_model_at_end=validates,
        metric_for_best_model="eval_loss" if validates else None,
        greater_is_better=False if validates else None,
        neftune_noise_alpha=settings.neftune or None,
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
    size = estimate_memory(config, context_tokens=1).num_parameters
    return 2e-4 if size <= _SMALL_BASE_PARAMETERS else 1e-4
