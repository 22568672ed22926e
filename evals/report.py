"""Writes a report folder: `report.json`, `report.md` and `report.html`, one page that works offline."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evals.plots import ForestRow, ScatterPoint, forest_plot, scatter_plot
from evals.report_metrics import METRIC_GROUPS, METRIC_LABELS, MetricNote, arm_note
from evals.scoring import FACT_FLOWS
from indexes.errors import NotFound

_SHARES = frozenset(
    name
    for name, _ in METRIC_LABELS
    if name
    not in {"answer_words", "passages_left_out", "prompt_tokens", "tokens_per_s", "ttft_s", "retrieve_s", "total_s"}
) - {"peak_memory_bytes"}


def write_report(folder: Path, data: Mapping[str, Any]) -> None:
    """Writes the three forms of a report into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.md").write_text(render(data, "report.md.j2"), encoding="utf-8")
    (folder / "report.html").write_text(render(data, "report.html.j2"), encoding="utf-8")
    # The JSON comes last: a folder that has it is complete.
    (folder / "report.json").write_text(json.dumps(data, ensure_ascii=False, indent=1), encoding="utf-8")


def list_reports(folder: Path) -> list[dict[str, Any]]:
    """Reports under a folder, newest first: what each compared, and how far accuracy differed in each step."""
    found = []
    for path in folder.glob("*/report.json"):
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            run = data["run"]
            found.append(
                {
                    "id": path.parent.name,
                    "created_at": run["created_at"],
                    "verdict": data["verdict"] or data["verdict_withheld"],
                    "generator": run["generator"],
                    "model": run["model"],
                    "arms": list(data["arms"]),
                    "choice_questions": data["power"]["n"],
                    "comparisons": [
                        {name: c[name] for name in ("control", "treatment", "difference", "low", "high", "verdict")}
                        for c in data["comparisons"]
                        if c["metric"] == "accuracy"
                    ],
                }
            )
        except (ValueError, KeyError, TypeError):
            continue  # not a report of ours, or half written
    return sorted(found, key=lambda report: report["created_at"], reverse=True)


def read_report(folder: Path, report_id: str) -> dict[str, Any]:
    """One report as plain values.

    Raises:
        NotFound: there is none by that id.
    """
    if report_id not in {report["id"] for report in list_reports(folder)}:
        raise NotFound(f"there is no report {report_id!r}", hint="list them with GET /v1/reports, or run coalesce eval")
    return dict(json.loads((folder / report_id / "report.json").read_text(encoding="utf-8")))


def report_page(folder: Path, report_id: str) -> str:
    """One report as a page: as it was written, or made anew where only its numbers were kept.

    Raises:
        NotFound: there is none by that id.
    """
    data = read_report(folder, report_id)
    written = folder / report_id / "report.html"
    return written.read_text(encoding="utf-8") if written.is_file() else render(data, "report.html.j2")


def render(data: Mapping[str, Any], template: str) -> str:
    """One form of the report as text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=select_autoescape(["html.j2"]),
        undefined=StrictUndefined,
        trim_blocks=False,
    )
    accuracy = [c for c in data["comparisons"] if c["metric"] == "accuracy"] or data["comparisons"]
    forest = forest_plot(
        [
            ForestRow(
                f"{c['control']} → {c['treatment']}",
                100 * c["difference"],
                100 * c["low"],
                100 * c["high"],
                f"{points(c['difference'])} [{points(c['low'])}, {points(c['high'])}]",
            )
            for c in accuracy
        ],
        100 * data["smallest_effect"],
    )
    again = {
        "seed, seeds": f"{data['run']['seed']}, {data['run']['seeds']}",
        "embedder": data["run"]["embedder"],
        **{f"{name} sha256": value for name, value in data["run"]["hashes"].items()},
        **{name: f"{value:.1f} s" for name, value in data["run"]["costs"].items()},
        **{name: str(value) for name, value in data["machine"].items()},
    }
    return environment.get_template(template).render(
        **{"judge": None, **data},
        forest=forest,
        scatter=scatter_plot(_speeds(data["arms"]), "questions a second", "accuracy"),
        flows=FACT_FLOWS,
        again=again,
        metric_labels=METRIC_LABELS,
        metric_names={name for arm in data["arms"].values() for name in arm["metrics"]},
        metric_groups=_groups(data["arms"]),
        arm_note=arm_note,
        cell=_cell,
        points=points,
        p_value=_p_value,
    )


def points(share: float | None) -> str:
    """A difference of shares as signed points with one decimal."""
    return "–" if share is None else f"{100 * share:+.1f}"


def _groups(arms: Mapping[str, Any]) -> list[tuple[str, list[MetricNote]]]:
    """The groups of metrics that some arm has."""
    names = {name for arm in arms.values() for name, value in arm["metrics"].items() if value["value"] is not None}
    found = [(group, [note for note in notes if note.name in names]) for group, notes in METRIC_GROUPS]
    return [(group, notes) for group, notes in found if notes]


def _speeds(arms: Mapping[str, Any]) -> list[ScatterPoint]:
    found = []
    for name, arm in arms.items():
        accuracy, seconds = arm["metrics"].get("accuracy"), arm["metrics"].get("total_s")
        if accuracy and seconds and seconds["value"]:
            found.append(ScatterPoint(name, 1 / seconds["value"], accuracy["value"], accuracy["low"], accuracy["high"]))
    return found


def _cell(name: str, interval: Mapping[str, Any] | None) -> str:
    if interval is None or interval["value"] is None or math.isnan(interval["value"]):
        return "–"
    value, low, high = interval["value"], interval["low"], interval["high"]
    if name in _SHARES:
        return f"{100 * value:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"
    if name in ("ttft_s", "retrieve_s", "total_s"):
        return f"{1000 * value:.1f}"
    if name == "peak_memory_bytes":
        return f"{value / 2**20:.0f}"
    return f"{value:.1f}"


def _p_value(value: float | None) -> str:
    if value is None:
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"
