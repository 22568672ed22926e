"""Draws the arms of reports of `coalesce eval` as a picture: `python -m tools.arms_plot OUT.svg REPORT.json…`.

A panel for each metric that was scored, a row for each arm with its 95 % interval. `NAME=REPORT.json` renames the one
arm of a report.
"""

from __future__ import annotations

import argparse
import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SHOWN = {
    "accuracy": "right options, by likelihood",
    "accuracy_pmi": "right options, by PMI",
    "key_fact_recall": "key facts in open answers",
}
LEFT, RIGHT, WIDTH, ROW = 230, 590, 760, 34
STYLE = (
    "<style>text{font:13px system-ui,sans-serif;fill:#57606a}.label{text-anchor:end}.tick{text-anchor:middle}"
    ".head{font-weight:600;fill:#24292f}.grid{stroke:#8884}.whisker{stroke:#2563eb;stroke-width:2}.dot{fill:#2563eb}"
    "@media(prefers-color-scheme:dark){text{fill:#9aa4af}.head{fill:#e6edf3}}</style>"
)


def draw(reports: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """The picture of some reports, each with a name in place of its arms' names, empty to keep them."""
    panels: dict[str, dict[str, Mapping[str, Any]]] = {head: {} for head in SHOWN.values()}
    for name, report in reports:
        for arm, row in report["arms"].items():
            for metric, value in row["metrics"].items():
                if metric in SHOWN and value["value"] is not None:
                    panels[SHOWN[metric]][name or arm] = value
    height = ROW * sum(1 + len(rows) for rows in panels.values() if rows) + 52
    parts: list[str] = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(f'<line x1="{_x(share)}" y1="8" x2="{_x(share)}" y2="{height - 36}" class="grid"/>')
        parts.append(f'<text x="{_x(share)}" y="{height - 18}" class="tick">{share:.0%}</text>')
    y = 8 - ROW // 2
    for head, rows in panels.items():
        if rows:
            y += ROW
            parts.append(f'<text x="{LEFT}" y="{y + 5}" class="head">{head}</text>')
        for label, value in rows.items():
            y += ROW
            parts.append(f'<text x="{LEFT - 12}" y="{y + 5}" class="label">{html.escape(label)}</text>')
            if value["low"] is not None:
                ends = f'x1="{_x(value["low"])}" x2="{_x(value["high"])}"'
                parts.append(f'<line {ends} y1="{y}" y2="{y}" class="whisker"/>')
            parts.append(f'<circle cx="{_x(value["value"])}" cy="{y}" r="5" class="dot"/>')
            parts.append(f'<text x="{RIGHT + 12}" y="{y + 5}">{value["value"]:.1%}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
    return f'{head} aria-label="Arms with 95 % intervals">{STYLE}{"".join(parts)}</svg>\n'


def _x(share: float) -> str:
    return f"{LEFT + share * (RIGHT - LEFT):.1f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes the picture."""
    parser = argparse.ArgumentParser(description="Draws the arms of reports of `coalesce eval`.")
    parser.add_argument("out", type=Path)
    parser.add_argument("reports", nargs="+", metavar="[NAME=]REPORT.json")
    given = parser.parse_args(arguments)
    named = (report.rpartition("=") for report in given.reports)
    found = [(name, json.loads(Path(file).read_text("utf-8"))) for name, _, file in named]
    given.out.write_text(draw(found), "utf-8")


if __name__ == "__main__":
    main()
