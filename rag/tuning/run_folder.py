"""The folder of one training run: its settings, its checkpoints, its loss curve.

    OUT/adapter_config.json, adapter_model.safetensors, coalesce_adapter.json   the adapter, once finished
    OUT/run.json                                                               model, data and settings of the run
    OUT/checkpoints/checkpoint-N/                                              state to resume from
    OUT/loss.jsonl, loss.svg                                                   the loss curve

A checkpoint counts only once it is marked complete, so that a full disk or a power cut never costs an earlier one.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indexes.disk import disk_errors, make_folder
from indexes.errors import Conflict
from indexes.jsonl import to_jsonl
from rag.models.adapters import WEIGHTS_FILE

_COMPLETE = "complete"
_RUN_FILE = "run.json"
_MAY_CHANGE = ("epochs", "max_steps", "patience")  # a run may be made longer
_WIDTH, _HEIGHT = 720, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 20, 40, 50
_SERIES = (("loss", "training", "#2563eb"), ("eval_loss", "validation", "#d97706"))
_TICKS = 5


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
            Conflict: it holds a run, and `resume` is false or the run was started with something else.
            InvalidInput: the folder cannot be made.
        """
        if not resume:
            self.require_free("Continue it with --resume, or choose another --out.")
        before = self._started_with()
        if before is not None:
            changed = list(_differences(before, started_with))
            if changed:
                raise Conflict(
                    f"The run in {self.path} was started with {'; '.join(changed)}.",
                    hint="Resume with what it was started with (its length may differ), or choose another --out.",
                )
        make_folder(self.checkpoints)
        self.drop_incomplete()
        if before != started_with:
            with disk_errors(self.path):
                text = json.dumps(started_with, indent=2, ensure_ascii=False)
                (self.path / _RUN_FILE).write_text(text + "\n", "utf-8")

    def require_free(self, hint: str = "Choose another --out.") -> None:
        """Raises Conflict where the folder holds a run or an adapter."""
        if self._started_with() is not None or (self.path / WEIGHTS_FILE).exists():
            raise Conflict(f"{self.path} already holds a training run.", hint=hint)

    def newest_checkpoint(self) -> Path | None:
        """The checkpoint to resume from, None to start at the beginning."""
        complete = [f for f in self.checkpoints.glob("checkpoint-*") if (f / _COMPLETE).is_file()]
        return max(complete, key=lambda folder: int(folder.name.rpartition("-")[2]), default=None)

    def mark_complete(self, step: int) -> None:
        """Marks a checkpoint whose files are all written."""
        (self.checkpoints / f"checkpoint-{step}" / _COMPLETE).touch()

    def drop_incomplete(self) -> None:
        """Removes checkpoints that an interrupted run left half written."""
        for folder in self.checkpoints.glob("checkpoint-*"):
            if not (folder / _COMPLETE).is_file():
                shutil.rmtree(folder, ignore_errors=True)

    def write_curve(self, history: Sequence[Mapping[str, Any]]) -> None:
        """Writes the loss curve as JSON Lines and as a picture."""
        points = points_of(history)
        (self.path / "loss.jsonl").write_text(to_jsonl(points), "utf-8")
        (self.path / "loss.svg").write_text(draw_curve(points), "utf-8")

    def _started_with(self) -> dict[str, Any] | None:
        try:
            content = json.loads((self.path / _RUN_FILE).read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return content if isinstance(content, dict) else None


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """What a run was started with that is something else now, in words."""
    if before.get("data_sha256") != now["data_sha256"]:
        yield "other training data"
    if before.get("model") != now["model"]:
        yield f"the model {before.get('model')}, not {now['model']}"
    old = before.get("settings") or {}
    for name, value in now["settings"].items():
        if name not in _MAY_CHANGE and old.get(name) != value:
            yield f"{name} {json.dumps(old.get(name))}, not {json.dumps(value)}"


def points_of(history: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """The entries of a trainer's log with a loss, reduced to step, epoch, losses, learning rate and gradient norm."""
    wanted = ("step", "epoch", "loss", "eval_loss", "learning_rate", "grad_norm")
    found = [entry for entry in history if "loss" in entry or "eval_loss" in entry]
    return [{key: float(entry[key]) for key in wanted if key in entry} for entry in found]


def draw_curve(points: Sequence[Mapping[str, float]]) -> str:
    """An SVG picture of training and validation loss, with a line at the lowest validation loss.

    Losses that are not finite are left out.
    """
    series = {key: [(p["step"], p[key]) for p in points if key in p and math.isfinite(p[key])] for key, _, _ in _SERIES}
    everything = [point for found in series.values() for point in found]
    if not everything:
        return _document(["<text x='40' y='60'>No loss was recorded.</text>"])
    last_step = max([1.0, *(step for step, _ in everything)])
    low, high = min(loss for _, loss in everything), max(loss for _, loss in everything)
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5

    def place(step: float, loss: float) -> tuple[float, float]:
        x = _LEFT + (_WIDTH - _LEFT - _RIGHT) * step / last_step
        return x, _TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - loss) / (high - low)

    parts = _axes(place, last_step, low, high)
    for number, (key, name, colour) in enumerate(_SERIES):
        if not series[key]:
            continue
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in series[key]))
        parts.append(f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='2'/>")
        parts += [
            f"<circle cx='{x:.1f}' cy='{y:.1f}' r='2.5' fill='{colour}'/>"
            for x, y in (place(*point) for point in series[key])
        ]
        x = _LEFT + 130 * number
        parts.append(f"<rect x='{x}' y='14' width='12' height='12' fill='{colour}'/>")
        parts.append(f"<text x='{x + 18}' y='25'>{name} {series[key][-1][1]:.3f}</text>")
    if series["eval_loss"]:
        best, _ = place(*min(series["eval_loss"], key=lambda point: point[1]))
        parts.append(
            f"<line x1='{best:.1f}' y1='{_TOP}' x2='{best:.1f}' y2='{_HEIGHT - _BOTTOM}' stroke='#d97706' "
            "stroke-dasharray='4 4'><title>lowest validation loss</title></line>"
        )
    return _document(parts)


def _axes(place: Any, last_step: float, low: float, high: float) -> list[str]:
    parts = []
    for tick in range(_TICKS):
        share = tick / (_TICKS - 1)
        loss = low + (high - low) * share
        _, y = place(0, loss)
        parts.append(f"<line x1='{_LEFT}' y1='{y:.1f}' x2='{_WIDTH - _RIGHT}' y2='{y:.1f}' stroke='#8884'/>")
        parts.append(f"<text x='{_LEFT - 8}' y='{y + 4:.1f}' text-anchor='end'>{loss:.2f}</text>")
        step = round(last_step * share)
        x, _ = place(step, low)
        parts.append(f"<text x='{x:.1f}' y='{_HEIGHT - _BOTTOM + 20}' text-anchor='middle'>{step}</text>")
    parts.append(f"<text x='{(_WIDTH + _LEFT) / 2}' y='{_HEIGHT - 10}' text-anchor='middle'>step</text>")
    return parts


def _document(parts: Sequence[str]) -> str:
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {_HEIGHT}' width='{_WIDTH}' "
        f"height='{_HEIGHT}' font-family='system-ui, sans-serif' font-size='12' role='img'>"
    )
    title = "<title>Training and validation loss by step</title>"
    style = "<style>text{fill:#444}@media(prefers-color-scheme:dark){text{fill:#ccc}}</style>"
    return "\n".join([head, title, style, *parts, "</svg>", ""])
