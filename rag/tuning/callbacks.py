"""What happens between training steps: progress, stopping on request, the loss curve, marking checkpoints complete."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rag.tuning.run_folder import RunFolder
from rag.tuning.settings import TuneProgress


def training_callback(
    folder: RunFolder, progress: Callable[[TuneProgress], None], cancelled: Callable[[], bool]
) -> Any:
    """A `transformers.TrainerCallback` with the attributes `stopped` and `tokens_per_s`."""
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

        def on_step_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
            self._step_began = time.monotonic()
            self._tokens_before = int(state.num_input_tokens_seen)

        def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
            self._seconds += time.monotonic() - self._step_began
            self._tokens += int(state.num_input_tokens_seen) - self._tokens_before
            if state.is_world_process_zero:
                progress(
                    TuneProgress(state.global_step, state.max_steps, self._loss, self._eval_loss, self.tokens_per_s)
                )
            if cancelled():
                self.stopped = state.global_step < state.max_steps
                control.should_training_stop = control.should_save = True

        def on_log(self, _args: Any, _state: Any, _control: Any, logs: Any = None, **_: Any) -> None:
            self._loss = (logs or {}).get("loss", self._loss)
            self._eval_loss = (logs or {}).get("eval_loss", self._eval_loss)

        def on_save(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
            if state.is_world_process_zero:
                folder.mark_complete(state.global_step)
                folder.write_curve(state.log_history)

    return Watcher()
