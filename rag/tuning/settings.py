"""What a training run may be told, and what it reports."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from indexes.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class TuneSettings:
    """Settings of one training run.

    Attributes:
        quantization: of the frozen base: `nf4` is QLoRA, `none` plain LoRA.
        rank, alpha, dropout: of LoRA, on all linear layers.
        learning_rate: None takes 2e-4 for bases up to 5 billion parameters, 1e-4 above; cosine, 5 % warm-up.
        batch_size × accumulation: rows an update; max_tokens: longest row.
        epochs: passes over the rows; max_steps: ends earlier, 0 does not.
        validation_share: of the rows, split off by section (0: none).
        passages: show the rows' passages in the prompt (False trains closed book from the same rows).
        train_on_prompt: learn the prompt too.
        checkpoint_steps, log_steps: None takes a quarter and a fiftieth of the run.
    """

    quantization: str = "nf4"
    rank: int = 16
    alpha: int = 32
    dropout: float = 0.05
    learning_rate: float | None = None
    batch_size: int = 2
    accumulation: int = 4
    max_tokens: int = 2048
    epochs: float = 3.0
    max_steps: int = 0
    validation_share: float = 0.1
    passages: bool = True
    train_on_prompt: bool = False
    activation_checkpointing: bool = True
    checkpoint_steps: int | None = None
    log_steps: int | None = None
    seed: int = 0
    device: str = "auto"
    dtype: str = "auto"

    def check(self) -> None:
        """Raises `InvalidInput` for numbers that no run can have."""
        wrong = {
            "rank": self.rank < 1,
            "batch_size": self.batch_size < 1,
            "accumulation": self.accumulation < 1,
            "epochs": self.epochs <= 0,
            "max_steps": self.max_steps < 0,
            "max_tokens": self.max_tokens < 8,
            "dropout": not 0 <= self.dropout < 1,
            "validation_share": not 0 <= self.validation_share < 1,
        }
        for name, bad in wrong.items():
            if bad:
                raise InvalidInput(f"{name} cannot be {getattr(self, name)}.", hint="See `coalesce tune --help`.")
        if self.quantization not in ("nf4", "none"):
            raise InvalidInput(
                f"Adapters are trained over nf4 or none, not {self.quantization}.", hint="Use --quantization nf4."
            )

    def as_record(self) -> dict[str, Any]:
        """For the adapter's record."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class TuneProgress:
    """Where a run stands: for a progress bar. `eval_loss` is the newest, None before the first."""

    step: int
    total_steps: int
    loss: float | None
    eval_loss: float | None
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class TuneReport:
    """What a run made.

    Attributes:
        adapter: the adapter's folder.
        train_loss: mean over the run's steps; eval_loss: at the end, None without validation rows.
        tokens_per_s: tokens read a second while training, padding not counted, evaluation and saving left out.
        peak_memory_bytes: of the device (CUDA), of the process on a CPU; seconds: the whole run.
        train_rows, validation_rows, split_by, shortened_rows, dropped_rows: what became of the data.
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
