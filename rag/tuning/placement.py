"""Where a training process runs: alone, as one of several with a copy each, or as one that holds a shard.

Under `accelerate launch` every process runs the same `coalesce tune`; the launcher has told each its number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rag.models.devices import choose_device


@dataclass(frozen=True, slots=True)
class Placement:
    """One process of a run.

    Attributes:
        device: where its weights are loaded.
        sharded: FSDP or ZeRO-3 places the weights.
        processes: of the run; main: this one writes files and reports.
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
        """Waits until all processes are here."""
        _state(self.kind).wait_for_everyone()


def place_process(device: str) -> Placement:
    """This process's place; joins the others of the run when there are any.

    Raises:
        ModelCannotLoad: the device is not there.
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
