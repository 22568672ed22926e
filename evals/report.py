"""Writes a report folder: `report.json`, `report.md` and `report.html`, one page that works offline."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evals.plots import ForestRow, ScatterPoint, forest_plot, scatter_plot
from evals.scoring import FACT_FLOWS
from indexes.errors import NotFound

METRIC_LABELS = (
    ("accuracy", "accuracy (choice)"),
    ("accuracy_norm", "accuracy, per byte"),
    ("generated_accuracy", "accuracy, option named in words"),
    ("unparsed", "no option named"),
    ("key_fact_recall", "key-fact recall (open)"),
    ("judge_score", "judge's grade (open)"),
    ("answer_words", "words an answer"),
    ("exact_match", "exact match"),
    ("token_f1", "token F1"),
    ("chrf", "chrF"),
    ("citation_recall", "citation recall"),
    ("citation_precision", "citation precision"),
    ("gold_citation_recall", "citation recall, gold"),
    ("gold_citation_precision", "citation precision, gold"),
    ("unsupported_terms", "unsupported numbers and names"),
    ("abstention_recall", "unanswerable refused"),
    ("abstention_precision", "refusals that were right"),
    ("false_refusals", "answerable refused"),
    ("recall_at_5", "gold section in top 5"),
    ("evidence_recall_at_5", "gold evidence in top 5"),
    ("all_parts_recall_at_5", "both passages in top 5"),
    ("mrr", "MRR"),
    ("ndcg_at_5", "nDCG@5"),
    ("prompt_tokens", "prompt tokens"),
    ("tokens_per_s", "tokens a second"),
    ("ttft_s", "time to first text, ms"),
    ("retrieve_s", "retrieval, ms"),
    ("total_s", "time a question, ms"),
    ("peak_memory_bytes", "peak memory, MiB"),
)
_SHARES = frozenset(
    name
    for name, _ in METRIC_LABELS
    if name not in {"answer_words", "prompt_tokens", "tokens_per_s", "ttft_s", "retrieve_s", "total_s"}
) - {"peak_memory_bytes"}


def write_report(folder: Path, data: Mapping[str, Any]) -> None:
    """Writes the three forms of a report into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.md").write_text(render(data, "report.md.j2"), encoding="utf-8")
    (folder / "report.html").write_text(render(data, "report.html.j2"), encoding="utf-8")
    # The JSON comes last: a folder that has it is complete.
    (folder / "report.json").write_text(json.dumps(data, ensure_ascii=False, indent=1), encoding="utf-8")


def list_reports(folder: Path) -> list[dict[str, Any]]:
    """Reports under a folder, newest first: `{id, created_at, verdict, generator, model, arms}`."""
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
        **data,
        forest=forest,
        scatter=scatter_plot(_speeds(data["arms"]), "questions a second", "accuracy"),
        flows=FACT_FLOWS,
        again=again,
        metric_labels=METRIC_LABELS,
        metric_names={name for arm in data["arms"].values() for name in arm["metrics"]},
        cell=_cell,
        points=points,
        p_value=_p_value,
    )


def points(share: float | None) -> str:
    """A difference of shares as signed points with one decimal."""
    return "–" if share is None else f"{100 * share:+.1f}"


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
