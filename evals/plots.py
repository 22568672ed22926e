"""Plots as SVG text without scripts: values with their intervals in rows, or as points over an axis.

Colours come from the page's CSS variables, so plots follow light and dark mode.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_WIDTH, _LEFT, _RIGHT = 760, 230, 590
_ROW = 34
_LINE = 14
SHARES = {share: f"{share:.0%}" for share in (0.0, 0.25, 0.5, 0.75, 1.0)}
"""The marks of an axis of shares."""

_STYLE = (
    "<style>text{font:13px system-ui,sans-serif;fill:#57606a}.label{text-anchor:end}.tick{text-anchor:middle}"
    ".head{font-weight:600;fill:#24292f}.grid{stroke:#8884}.whisker{stroke:#2563eb;stroke-width:2}.dot{fill:#2563eb}"
    "@media(prefers-color-scheme:dark){text{fill:#9aa4af}.head{fill:#e6edf3}}</style>"
)


@dataclass(frozen=True, slots=True)
class Dot:
    """A value with its interval, NaN where there is none; `x` is its place in a plot of points."""

    label: str
    value: float
    low: float
    high: float
    note: str = ""
    x: float = 0.0


def rows_plot(dots: Sequence[Dot], ticks: Mapping[float, str], about: str, *, axis: str, band: float) -> str:
    """Values as dots with whiskers, a row each.

    Args:
        ticks: marks of the axis, which runs from the least to the greatest.
        about: what is shown, for who cannot see it.
        axis: what is under the ticks.
        band: half the width of a grey band around 0.
    """
    least, greatest = min(ticks), max(ticks)
    height = _ROW * len(dots) + 52

    def x(value: float) -> float:
        return _LEFT + (value - least) / (greatest - least) * (_RIGHT - _LEFT)

    parts = [f'<rect x="{x(-band):.1f}" y="8" width="{x(band) - x(-band):.1f}" height="{height - 44}" class="band"/>']
    for tick, name in ticks.items():
        parts += [_line(x(tick), 8, x(tick), height - 36, "grid"), _text(x(tick), height - 18, name, "tick")]
    parts.append(_text((_LEFT + _RIGHT) / 2, height - 2, axis, "tick"))
    for number, dot in enumerate(dots, 1):
        y = 8 + (number - 0.5) * _ROW
        parts += [_text(_LEFT - 12, y + 5, dot.label, "label"), _text(_RIGHT + 12, y + 5, dot.note, "note")]
        parts += _dot(x(dot.value), y, (x(dot.low), y, x(dot.high), y))
    return _svg(_WIDTH, height, about, parts)


def points_plot(
    dots: Sequence[Dot],
    ticks: Mapping[float, str],
    about: str,
    axis: str,
    *,
    width: int = _WIDTH,
    marks: Mapping[str, float] | None = None,
) -> str:
    """Shares with whiskers over an axis.

    Args:
        ticks, about, axis: as in `rows_plot`.
        marks: upright lines by name; with them the diagonal is drawn, on which a share equals its place.
    """
    height, left, right, top, bottom = 330, 60, width - 110, 26, 280
    least, greatest = min(ticks), max(ticks)

    def x(value: float) -> float:
        return left + (value - least) / (greatest - least) * (right - left)

    def y(share: float) -> float:
        return top + (1 - share) * (bottom - top)

    parts = []
    for share, name in SHARES.items():
        parts += [
            _line(left, y(share), right, y(share), "grid"),
            _text(left - 10, y(share) + 4, name, "label"),
        ]
    parts += [_text(x(tick), bottom + 22, name, "tick") for tick, name in ticks.items()]
    parts.append(_text((left + right) / 2, height - 8, axis, "tick"))
    for name, place in (marks or {}).items():
        parts += [_line(x(place), top, x(place), bottom, "axis"), _text(x(place), top - 8, name, "tick")]
    if marks:
        parts.append(_line(left, bottom, right, top, "axis"))
    longest = 8 * max((len(dot.label) for dot in dots), default=0)
    taken: list[tuple[float, float]] = []
    for dot in dots:
        parts += _dot(x(dot.x), y(dot.value), (x(dot.x), y(dot.low), x(dot.x), y(dot.high)))
        taken.append(_free_place(x(dot.x) + 9, y(dot.value), taken, longest))
        parts.append(_text(*taken[-1], dot.label, "note"))
    return _svg(width, height, about, parts)


def arms_plot(panels: Mapping[str, Sequence[Dot]]) -> str:
    """Shares with whiskers under the head of each panel, a row each: a picture that stands without a page."""
    rows = sum(1 + len(dots) for dots in panels.values())
    height, y = _ROW * rows + 52, 8 - _ROW / 2

    def x(share: float) -> float:
        return _LEFT + share * (_RIGHT - _LEFT)

    parts = [_STYLE]
    for share, name in SHARES.items():
        parts += [_line(x(share), 8, x(share), height - 36, "grid"), _text(x(share), height - 18, name, "tick")]
    for head, dots in panels.items():
        y += _ROW
        parts.append(_text(_LEFT, y + 5, head, "head"))
        for dot in dots:
            y += _ROW
            parts += [_text(_LEFT - 12, y + 5, dot.label, "label"), _text(_RIGHT + 12, y + 5, dot.note, "note")]
            parts += _dot(x(dot.value), y, (x(dot.low), y, x(dot.high), y))
    return _svg(_WIDTH, height, "Arms with 95 % intervals", parts)


def _dot(x: float, y: float, whisker: tuple[float, float, float, float]) -> list[str]:
    """Nothing for a value that was not scored."""
    if math.isnan(x) or math.isnan(y):
        return []
    line = [] if any(map(math.isnan, whisker)) else [_line(*whisker, "whisker")]
    return [*line, f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" class="dot"/>']


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{html.escape(text)}</text>' if text else ""


def _svg(width: int, height: float, about: str, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
    return f'{head} aria-label="{html.escape(about)}">{"".join(parts)}</svg>'


def _free_place(x: float, y: float, taken: Sequence[tuple[float, float]], width: float) -> tuple[float, float]:
    """A place for a label of this width beside its dot, below or above, clear of other labels."""
    places = [(x, y + shift) for shift in (18, -10, 34, -26, 50, -42)]

    def is_free(place: tuple[float, float]) -> bool:
        return all(abs(place[0] - other[0]) > width or abs(place[1] - other[1]) > _LINE for other in taken)

    return next(filter(is_free, places), places[0])
