"""Settings of training and of its data; a run's progress, report and place, and its settings for the Trainer."""

from __future__ import annotations

import importlib.util
import math
import re
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from indexes.errors import InvalidInput

_SMALL_BASE_PARAMETERS = 5e9


def option(
    default: Any, meaning: str, *, least: float | None = None, most: float | None = None, name: str | None = ""
) -> Any:
    """A dataclass field that is an option of the command line, too.

    Its metadata: `help`, `min` and `max` (both allowed values; None: no bound), and `option`, the option's name where
    it is not the field's own ("" where it is, None where the command line does not have it).
    """
    return field(default=default, metadata={"help": meaning, "min": least, "max": most, "option": name})


@dataclass(frozen=True, slots=True)
class TuneSettings:
    """Settings of one training run. Each field says what it means and which values it takes in its metadata."""

    quantization: Literal["auto", "none", "nf4"] = option(
        "auto", "nf4 is QLoRA: a 4-bit base. none is LoRA over 16 or 32 bits. auto: nf4 on a GPU, else none."
    )
    rank: int = option(16, "LoRA rank.", least=1, most=512)
    alpha: int | None = option(None, "LoRA alpha; by default twice the rank.", least=1)
    dropout: float = option(0.05, "LoRA dropout.", least=0, most=0.9)
    target_modules: str | None = option(
        None,
        "Layers to adapt: names with commas (q_proj,v_proj) or a regular expression over whole names. If not given, "
        "all linear ones but the output embedding and a mixture's experts.",
    )
    top_layers: int | None = option(
        None,
        "Adapt only this many of the last layers: the others then need no backward pass. All if not given.",
        least=1,
    )
    rslora: bool = option(False, "Scale by alpha / √rank: steadier at high ranks (Kalajdzievski 2023).")
    dora: bool = option(False, "Learn the weights' magnitudes too: slower, often better (Liu et al. 2024).")
    neftune: float = option(
        0.0, "Noise on the embeddings while training; 5 is usual, 0 adds none (Jain et al. 2023).", least=0
    )
    epochs: float = option(3.0, "Passes over all rows.", least=0.01)
    max_steps: int = option(0, "Stop after this many steps; 0 sets no limit.", least=0)
    learning_rate: float | None = option(
        None,
        "2e-4 up to 5B parameters, else 1e-4; 5e-5 for preferences.",
        least=1e-9,
    )
    batch_size: int = option(2, "Rows per pass and device.", least=1)
    accumulation: int = option(4, "Passes per update.", least=1)
    max_tokens: int = option(2048, "Longest row in tokens.", least=8, name="--max-length")
    validation_share: float = option(
        0.1,
        "Rows kept for validation, by section; the adapter of the lowest validation loss is kept. 0 keeps none.",
        least=0,
        most=0.9,
    )
    patience: int = option(3, "Stop after this many validations without a lower loss; 0 does not.", least=0)
    passages: bool = option(True, "Show the rows' passages in the prompt, or train closed book.")
    train_on_prompt: bool = option(False, "Learn the questions too.")
    activation_checkpointing: bool = option(
        True, "Compute activations twice instead of keeping them: slower, far less memory."
    )
    checkpoint_steps: int | None = option(
        None, "Steps between validations, each with a checkpoint; an eighth of the run if not given.", least=1
    )
    log_steps: int | None = option(None, "Steps between losses; a fiftieth of the run.", least=1, name=None)
    seed: int = option(0, "Seed of initialisation, order and dropout.", least=0)
    device: str = option("auto", "auto, cpu or cuda.")
    dtype: str = option("auto", "Format of the weights that are not quantized.", name=None)

    def check(self) -> None:
        """Raises `InvalidInput` for values that no run can have."""
        for each in fields(self):
            value, least, most = getattr(self, each.name), each.metadata["min"], each.metadata["max"]
            if value is not None and ((least is not None and value < least) or (most is not None and value > most)):
                raise InvalidInput(f"{each.name} cannot be {value}.", hint="See `coalesce tune --help`.")
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
        """The settings with what is left open (`auto` quantization, alpha) decided for a device.

        4-bit weights save memory where it is scarce; a CPU unpacks them slowly (docs/decisions.md has the speeds).
        """
        usual: Literal["nf4", "none"] = "nf4" if device == "cuda" else "none"
        return replace(
            self,
            quantization=usual if self.quantization == "auto" else self.quantization,
            alpha=2 * self.rank if self.alpha is None else self.alpha,
        )

    def as_record(self) -> dict[str, Any]:
        """For the adapter's record."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class SynthesisSettings:
    """Settings of training data; all but `shown_passages`, `wordings`, `limit` and
    `seed` are for questions that a model writes."""

    pairs: int = option(3, "Questions to ask for each passage.", least=1, most=10)
    shown_passages: int = option(
        0, "Passages shown in each row's prompt; 0 trains closed book.", least=0, most=10, name="--passages"
    )
    wordings: int | None = option(None, "Wordings of each question of the bank or a file; all if not given.", least=1)
    verify: bool = option(True, "Have the model answer each question from its passage.")
    limit: int | None = option(
        None, "At most this many questions; where a model writes them, this many passages of all books.", least=1
    )
    temperature: float = option(0.3, "Of sampling.", least=0, name=None)
    seed: int = option(0, "Seed of sampling.", least=0)


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
        warning: why the adapter is probably of no use; "" where nothing says so.
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
    warning: str = ""


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

    from rag.models.devices import choose_device

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
    folder: Path,
    settings: TuneSettings,
    place: Placement,
    config: Any,
    num_rows: int,
    *,
    validates: bool,
    constant_rate: bool,
    resumed: bool = False,
) -> Any:
    """The `transformers.TrainingArguments` of a run.

    Args:
        folder: for the checkpoints.
        config: the base model's.
        num_rows: encoded training rows; validates: there are validation rows.
        constant_rate: one learning rate throughout.
        resumed: the base was validated when the run began.
    """
    from transformers import TrainingArguments

    from rag.models.devices import choose_dtype

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
        lr_scheduler_type="constant" if constant_rate else "cosine",
        warmup_steps=0 if constant_rate else 0.05,
        logging_steps=settings.log_steps or max(steps // 50, 1),
        save_steps=every,
        save_total_limit=2,
        eval_strategy="steps" if validates else "no",
        eval_steps=every,
        eval_on_start=validates and not resumed,  # what the base reaches without the adapter
        load_best_model_at_end=validates,
        metric_for_best_model="eval_loss" if validates else None,
        greater_is_better=False if validates else None,
        neftune_noise_alpha=settings.neftune or None,
        prediction_loss_only=True,
        logging_first_step=True,  # what the base reaches without the adapter
        logging_nan_inf_filter=False,  # it would log a loss that is no number as one that is
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
    from rag.models.memory import estimate_memory

    size = estimate_memory(config, context_tokens=1).num_parameters
    return 2e-4 if size <= _SMALL_BASE_PARAMETERS else 1e-4
