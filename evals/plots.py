"""Plots as SVG text without scripts: differences with intervals, accuracy against speed, and a score's calibration.

Colours come from the page's CSS variables, so plots follow light and dark mode. `python -m evals.plots OUT REPORT…`
draws the arms of one or more `report.json` as a file of its own; `NAME=REPORT` renames the one arm of a report.
"""

from __future__ import annotations

import html
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_WIDTH = 760
_LABEL = 230
_NUMBERS = 170
_ROW = 34
_LABEL_WIDTH = 80
_LINE = 14


@dataclass(frozen=True, slots=True)
class ForestRow:
    """A difference with its interval, in points."""

    label: str
    value: float
    low: float
    high: float
    note: str


def forest_plot(rows: Sequence[ForestRow], smallest_effect: float) -> str:
    """Differences as dots with whiskers; the band around zero is the smallest effect that matters, in points."""
    if not rows:
        return ""
    reach = max(10.0, *(abs(bound) for row in rows for bound in (row.low, row.high) if not math.isnan(bound))) * 1.08
    left, right = _LABEL, _WIDTH - _NUMBERS
    height = _ROW * len(rows) + 52

    def x(value: float) -> float:
        return left + (value + reach) / (2 * reach) * (right - left)

    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" '
        'aria-label="Paired differences with 95 % intervals, in points">',
        f'<rect x="{x(-smallest_effect):.1f}" y="8" width="{x(smallest_effect) - x(-smallest_effect):.1f}" '
        f'height="{height - 44}" class="band"/>',
        f'<line x1="{x(0):.1f}" y1="8" x2="{x(0):.1f}" y2="{height - 36}" class="axis"/>',
    ]
    step = _tick_step(reach)
    tick = -math.floor(reach / step) * step
    while tick <= reach:
        parts.append(f'<text x="{x(tick):.1f}" y="{height - 18}" class="tick">{tick:+.0f}</text>')
        tick += step
    parts.append(f'<text x="{(left + right) / 2:.1f}" y="{height - 2}" class="tick">difference in points</text>')
    for number, row in enumerate(rows):
        y = 8 + _ROW * (number + 0.5)
        parts += [
            f'<text x="{left - 12}" y="{y + 5:.1f}" class="label">{html.escape(row.label)}</text>',
            f'<line x1="{x(row.low):.1f}" y1="{y:.1f}" x2="{x(row.high):.1f}" y2="{y:.1f}" class="whisker"/>',
            f'<circle cx="{x(row.value):.1f}" cy="{y:.1f}" r="5" class="dot"/>',
            f'<text x="{right + 12}" y="{y + 5:.1f}" class="note">{html.escape(row.note)}</text>',
        ]
    return "".join([*parts, "</svg>"])


@dataclass(frozen=True, slots=True)
class ScatterPoint:
    """An arm: questions per second (x) and accuracy with its interval (y)."""

    label: str
    x: float
    y: float
    low: float
    high: float


def scatter_plot(points: Sequence[ScatterPoint], x_title: str, y_title: str) -> str:
    """Shares with intervals (y) over a logarithmic axis (x)."""
    points = [point for point in points if point.x > 0 and not math.isnan(point.y)]
    if not points:
        return ""
    width, height, left, bottom = _WIDTH, 320, 64, 48
    low_x = math.floor(math.log10(min(point.x for point in points)) - 0.15)
    high_x = math.ceil(math.log10(max(point.x for point in points)) + 0.15)

    def x(value: float) -> float:
        return left + (math.log10(value) - low_x) / (high_x - low_x) * (width - left - 120)

    def y(value: float) -> float:
        return 14 + (1 - value) * (height - bottom - 14)

    parts = [f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(y_title)} over {x_title}">']
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts += [
            f'<line x1="{left}" y1="{y(share):.1f}" x2="{width - 20}" y2="{y(share):.1f}" class="grid"/>',
            f'<text x="{left - 10}" y="{y(share) + 4:.1f}" class="label">{share:.0%}</text>',
        ]
    for power in range(low_x, high_x + 1):
        parts.append(f'<text x="{x(10**power):.1f}" y="{height - 28}" class="tick">{10.0**power:g}</text>')
    parts.append(f'<text x="{width / 2:.0f}" y="{height - 8}" class="tick">{html.escape(x_title)}</text>')
    taken: list[tuple[float, float]] = []
    for point in points:
        at = _free_place(x(point.x) + 9, y(point.y), taken)
        taken.append(at)
        parts += [
            f'<line x1="{x(point.x):.1f}" y1="{y(point.low):.1f}" x2="{x(point.x):.1f}" y2="{y(point.high):.1f}" '
            'class="whisker"/>',
            f'<circle cx="{x(point.x):.1f}" cy="{y(point.y):.1f}" r="5" class="dot"/>',
            f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" class="note">{html.escape(point.label)}</text>',
        ]
    return "".join([*parts, "</svg>"])


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """Questions with similar evidence scores: their mean, how many, and the share answerable with its interval."""

    score: float
    n: int
    answerable: float
    low: float
    high: float


def calibration_plot(bins: Sequence[CalibrationBin], thresholds: Mapping[str, float]) -> str:
    """Share answerable over evidence score; the diagonal is a score that is a probability; thresholds stand upright."""
    width, height, left, bottom, top = 460, 340, 60, 52, 26

    def x(score: float) -> float:
        return left + score * (width - left - 30)

    def y(share: float) -> float:
        return top + (1 - share) * (height - bottom - top)

    parts = [f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="Share answerable over evidence score">']
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts += [
            f'<line x1="{left}" y1="{y(share):.1f}" x2="{x(1):.1f}" y2="{y(share):.1f}" class="grid"/>',
            f'<text x="{left - 10}" y="{y(share) + 4:.1f}" class="label">{share:.0%}</text>',
            f'<text x="{x(share):.1f}" y="{height - 30}" class="tick">{share:g}</text>',
        ]
    parts.append(f'<line x1="{x(0):.1f}" y1="{y(0):.1f}" x2="{x(1):.1f}" y2="{y(1):.1f}" class="axis"/>')
    parts.append(f'<text x="{x(0.5):.0f}" y="{height - 10}" class="tick">evidence score</text>')
    for name, score in thresholds.items():
        parts += [
            f'<line x1="{x(score):.1f}" y1="{top}" x2="{x(score):.1f}" y2="{y(0):.1f}" class="axis" '
            'stroke-dasharray="5 4"/>',
            f'<text x="{x(score):.1f}" y="{top - 8}" class="tick">{html.escape(name)}</text>',
        ]
    for one in bins:
        parts += [
            f'<line x1="{x(one.score):.1f}" y1="{y(one.low):.1f}" x2="{x(one.score):.1f}" y2="{y(one.high):.1f}" '
            'class="whisker"/>',
            f'<circle cx="{x(one.score):.1f}" cy="{y(one.answerable):.1f}" r="5" class="dot"/>',
            f'<text x="{x(one.score) + 8:.1f}" y="{y(one.answerable) - 6:.1f}" class="note">{one.n}</text>',
        ]
    return "".join([*parts, "</svg>"])


def _free_place(x: float, y: float, taken: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """A place for a label beside its dot, below or above, clear of other labels."""
    places = [(x, y + shift) for shift in (18, -10, 34, -26, 50, -42)]
    return next(
        (
            place
            for place in places
            if all(abs(place[0] - other[0]) > _LABEL_WIDTH or abs(place[1] - other[1]) > _LINE for other in taken)
        ),
        places[0],
    )


def _tick_step(reach: float) -> float:
    return next((step for step in (2.0, 5.0, 10.0, 20.0, 25.0) if reach / step <= 4), 50.0)


_SHOWN = {
    "accuracy": "right options, by likelihood",
    "accuracy_pmi": "right options, by PMI",
    "key_fact_recall": "key facts in open answers",
}
_ALONE = (
    "<style>text{font:13px system-ui,sans-serif;fill:#57606a}.label{text-anchor:end}.tick{text-anchor:middle}"
    ".head{font-weight:600;fill:#24292f}.grid{stroke:#8884}.whisker{stroke:#2563eb;stroke-width:2}.dot{fill:#2563eb}"
    "@media(prefers-color-scheme:dark){text{fill:#9aa4af}.head{fill:#e6edf3}}</style>"
)


def arms_plot(report: Mapping[str, Any], shown: Mapping[str, str] = _SHOWN) -> str:
    """The arms of a report (`report.json`): a panel for each metric, a share with its 95 % interval for each arm."""
    left, right = 110, _WIDTH - 100
    panels = {
        name: found
        for name in shown
        if (found := {arm: row["metrics"][name] for arm, row in report["arms"].items() if name in row["metrics"]})
    }
    height = sum(_ROW * (len(panel) + 1) for panel in panels.values()) + 30

    def x(share: float) -> float:
        return left + share * (right - left)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        'aria-label="Arms with 95 % intervals">',
        _ALONE,
    ]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts += [
            f'<line x1="{x(share):.1f}" y1="{_ROW}" x2="{x(share):.1f}" y2="{height - 24}" class="grid"/>',
            f'<text x="{x(share):.1f}" y="{height - 8}" class="tick">{share:.0%}</text>',
        ]
    y = _ROW / 2
    for name, panel in panels.items():
        parts.append(f'<text x="{left}" y="{y + 5:.1f}" class="head">{html.escape(shown[name])}</text>')
        for arm, value in panel.items():
            y += _ROW
            if value["value"] is None:
                continue
            parts += [
                f'<text x="{left - 12}" y="{y + 5:.1f}" class="label">{html.escape(arm)}</text>',
                f'<line x1="{x(value["low"]):.1f}" y1="{y:.1f}" x2="{x(value["high"]):.1f}" y2="{y:.1f}" '
                'class="whisker"/>',
                f'<circle cx="{x(value["value"]):.1f}" cy="{y:.1f}" r="5" class="dot"/>',
                f'<text x="{right + 14}" y="{y + 5:.1f}">{value["value"]:.1%}</text>',
            ]
        y += _ROW
    return "".join([*parts, "</svg>\n"])


def together(reports: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """The arms of several reports with what was measured of each; a name that is not empty replaces the arm's."""
    arms: dict[str, Any] = {}
    for name, report in reports:
        for arm, row in report["arms"].items():
            measured = {metric: value for metric, value in row["metrics"].items() if value["value"] is not None}
            arms.setdefault(name or arm, {"metrics": {}})["metrics"] |= measured
    return {"arms": arms}


def _named_report(argument: str) -> tuple[str, Mapping[str, Any]]:
    name, _, file = argument.rpartition("=")
    return name, json.loads(Path(file).read_text("utf-8"))


if __name__ == "__main__":
    drawn = arms_plot(together([_named_report(argument) for argument in sys.argv[2:]]))
    Path(sys.argv[1]).write_text(drawn, "utf-8")
