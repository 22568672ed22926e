"""The folder of one training run: what it was started with, its checkpoints, its loss curve.

    OUT/adapter_config.json, adapter_model.safetensors, coalesce_adapter.json   the adapter, once finished
    OUT/run.json                                                               what the run was started with
    OUT/checkpoints/checkpoint-N/                                              state to resume from
    OUT/loss.jsonl, loss.svg                                                   the loss curve

A checkpoint counts only when its last file is there, so a disk that fills up or a power cut loses no earlier one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indexes.errors import Conflict
from rag.models.adapter_folder import WEIGHTS_FILE
from rag.tuning.disk import make_folder

_COMPLETE = "complete"
_RUN_FILE = "run.json"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths of a training run."""

    path: Path

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    def open(self, started_with: Mapping[str, Any], *, resume: bool) -> None:
        """Prepares the folder; only the main process of a run does.

        Raises:
            Conflict: a run is there and `resume` was not asked for, or it was started with something else.
            InvalidInput: the folder cannot be made.
        """
        before = self._started_with()
        begun = before is not None or (self.path / WEIGHTS_FILE).exists()
        if begun and not resume:
            raise Conflict(
                f"{self.path} holds a training run already.", hint="Continue it with --resume, or choose another --out."
            )
        if before is not None:
            changed = sorted(key for key in started_with if before.get(key) != started_with[key])
            if changed:
                raise Conflict(
                    f"The run in {self.path} was started with another {', '.join(changed)}.",
                    hint="Resume with the same data and settings, or choose another --out.",
                )
        make_folder(self.checkpoints)
        self.drop_incomplete()
        (self.path / _RUN_FILE).write_text(json.dumps(started_with, indent=2, ensure_ascii=False) + "\n", "utf-8")

    def newest_checkpoint(self) -> Path | None:
        """The checkpoint to resume from, None to start at the beginning."""
        complete = [f for f in self.checkpoints.glob("checkpoint-*") if (f / _COMPLETE).is_file()]
        return max(complete, key=lambda folder: int(folder.name.rpartition("-")[2]), default=None)

    def mark_complete(self, step: int) -> None:
        """Says that all files of a checkpoint are written."""
        (self.checkpoints / f"checkpoint-{step}" / _COMPLETE).touch()

    def drop_incomplete(self) -> None:
        """Removes what a broken run left half written."""
        for folder in self.checkpoints.glob("checkpoint-*"):
            if not (folder / _COMPLETE).is_file():
                shutil.rmtree(folder, ignore_errors=True)

    def write_curve(self, history: Sequence[Mapping[str, Any]]) -> None:
        """Writes the loss curve as lines of JSON and as a picture."""
        from rag.tuning.loss_curve import draw_curve, points_of

        points = points_of(history)
        lines = "".join(json.dumps(point) + "\n" for point in points)
        (self.path / "loss.jsonl").write_text(lines, "utf-8")
        (self.path / "loss.svg").write_text(draw_curve(points), "utf-8")

    def _started_with(self) -> dict[str, Any] | None:
        try:
            content = json.loads((self.path / _RUN_FILE).read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return content if isinstance(content, dict) else None
