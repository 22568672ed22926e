"""The loss curve as a picture that needs no plotting library: SVG, training in one colour, validation in another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

_WIDTH, _HEIGHT = 720, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 20, 40, 50
_SERIES = (("loss", "training", "#2563eb"), ("eval_loss", "validation", "#d97706"))
_TICKS = 5


def points_of(history: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """The entries of a trainer's log that hold a loss: step, epoch, and `loss`, `eval_loss`, `learning_rate`."""
    wanted = ("step", "epoch", "loss", "eval_loss", "learning_rate", "grad_norm")
    found = [entry for entry in history if "loss" in entry or "eval_loss" in entry]
    return [{key: float(entry[key]) for key in wanted if key in entry} for entry in found]


def draw_curve(points: Sequence[Mapping[str, float]]) -> str:
    """An SVG document; losses that are no numbers are left out."""
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
