"""The report of a comparison: its numbers (`report.json`) and its pages (`report.md`, `report.html`)."""

from __future__ import annotations

import hashlib
import json
import math
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from evals.comparison import (
    ANSWER_METRICS,
    SMALLEST_EFFECT,
    STEPS,
    ArmScores,
    Result,
    RunDifference,
    in_brackets,
    verdict_sentence,
)
from evals.plots import SHARES, Dot, arms_plot, points_plot, rows_plot
from evals.question_checks import LeakageReport
from evals.questions import BankQuestion
from evals.run import RunSpec
from evals.scoring import FACT_FLOWS, Row, calibration_data, fact_flow
from evals.statistics import smallest_detectable
from indexes.cores import usable_cores
from indexes.errors import NotFound

TEMPLATES = Path(__file__).parent / "templates"
PICTURE = "arms.svg"
FLIP_EXAMPLES = 12
MODES = ("choice", "open")
ARM_NOTES = {
    "base": "the model alone, without the book",
    "tuned": "the model after LoRA tuning on questions about the book, without the book",
    "rag": "the model with the passages that retrieval finds",
    "rag+tuned": "the tuned model with those passages",
    "quotes": "the books' own sentences, without the language model",
    "oracle": "the model with the passages that hold the answer: the most that retrieval could gain",
    "random": "the model with passages drawn at random: the gain from any text at all",
    "oracle+tuned": "the tuned model with the passages that hold the answer",
}
WITHOUT_MEANING = ("prompt_tokens", "tokens_per_s", "citation_recall", "citation_precision", "unsupported_terms")
"""Metrics left out of answers that quote: they read no prompt and write no tokens, and hold a passage's own sentences
with its number, so that their citations are right by construction."""
GUESSES = "No language model: an embedding model, which holds no facts and guesses without passages, chose the options."
"""Stands before the verdict of the quick comparison."""
SUMMARY = (
    "accuracy", "accuracy_by_likelihood", "accuracy_by_letter", "key_facts_first_two", "key_fact_recall",
    "reader_score", "abstention_recall", "false_refusals", "ttft_s", "tokens_per_s", "peak_memory_bytes",
)  # fmt: skip
"""What the first table tells of each arm."""
PLOTTED = ("accuracy", "key_fact_recall", "reader_score", "abstention_recall")
"""What the picture of the arms shows of it."""
CHOSEN_BY = {
    "letter": "Options were chosen by the probability of their letter, averaged over the orders of the options.",
    "likelihood": "Options were chosen by the likelihood of their text per byte: the model is too small for letters.",
    "similarity": "Options were chosen by similarity, to the question and to sentences of the passages.",
}
_SCALES = {"share": 100, "seconds": 1000, "bytes": 2**-20, "number": 1}
"""What a value is printed times, by its metric's unit: percent, ms, MiB, as it is."""


@dataclass(frozen=True, slots=True)
class MetricNote:
    """A metric of the report, as `templates/metrics.tsv` has it; `unit` is `share`, `seconds`, `bytes` or `number`."""

    group: str
    name: str
    unit: str
    label: str
    meaning: str


@cache
def metric_notes() -> dict[str, MetricNote]:
    """The metrics in the order of the report, by their key in `report.json`."""
    lines = (TEMPLATES / "metrics.tsv").read_text(encoding="utf-8").splitlines()
    return {note.name: note for note in (MetricNote(*line.split("\t")) for line in lines)}


def arm_note(arm: str) -> str:
    """An arm in words; `ARM@ADAPTER` also names its adapter."""
    kind, _, adapter = arm.partition("@")
    note = ARM_NOTES.get(kind, "")
    return f"{note}; its adapter is {adapter!r}" if adapter else note


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a run used, so that others can repeat it: models, hashes, costs.

    Attributes:
        seeds: tuning runs compared, 1 without tuned arms.
        costs: seconds of one-time work: `index`, `tuning` over all seeds, `tuning NAME` by an adapter's own record.
        not_run: arms or modes that could not run, with the reason.
        floors: share of choice questions that each shortcut gets right.
        thresholds: least evidence score of an answer, and of strong evidence.
        picked_by: choice questions by what chose their option, as in `Record`.
        quantization: what a model in this process was held in.
    """

    created_at: str
    generator: str
    model: str
    embedder: str
    seeds: int
    hashes: Mapping[str, str]
    costs: Mapping[str, float]
    not_run: Mapping[str, str] = field(default_factory=dict)
    floors: Mapping[str, float] = field(default_factory=dict)
    thresholds: Mapping[str, float] = field(default_factory=dict)
    picked_by: Mapping[str, int] = field(default_factory=dict)
    quantization: str | None = None


def report_data(
    spec: RunSpec,
    facts: RunFacts,
    result: Result,
    rows: Sequence[Row],
    leakage: LeakageReport | None,
    judge: Mapping[str, Any] | None = None,
    readers: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """All numbers of a run, as `report.json` holds them.

    Args:
        leakage: None when the check has not run; `verdict` is None unless the check is clean.
        judge: what `evals.judge.run_judge` gives for the report; None without a judge.
        readers: how far two readers agree, as `evals.judge.agreement` gives it; None without two.
    """
    trusted = leakage is not None and leakage.clean

    def left_out(arm: str) -> Sequence[str]:
        if arm == "quotes":
            return (*WITHOUT_MEANING, "peak_memory_bytes")  # that of the language model, which is loaded and not asked
        return WITHOUT_MEANING if facts.generator == "extractive" else ()

    def arm_data(arms: Mapping[str, ArmScores]) -> dict[str, Any]:
        return {
            arm: {
                "n": scores.n,
                "unscored": scores.unscored,
                "metrics": {name: one for name, one in scores.metrics.items() if name not in left_out(arm)},
            }
            for arm, scores in arms.items()
        }

    read = {row.record.arm for row in rows if row.record.mode == "open" and row.record.passages}
    data = {
        "arms": arm_data(result.arms),
        "comparisons": result.comparisons,
        "interaction": result.interaction,
        "leakage": leakage.to_json() if leakage is not None else {"checked": False, "clean": False},
        "verdict": _headline(result, facts) if trusted else None,
        "verdict_withheld": None if trusted else _why_withheld(leakage),
        "asked": _asked(rows),
        "power": power_note(list({row.question.id: row.question for row in rows}.values())),
        "slices": result.slices,
        "groups": {
            name: {value: arm_data(by_arm) for value, by_arm in values.items()}
            for name, values in result.groups.items()
        },
        "calibration": calibration_data(rows, facts.thresholds),
        "fact_flow": {
            arm: fact_flow([row for row in rows if row.record.arm == arm]) for arm in result.arms if arm in read
        },
        "flips": [table for pair in STEPS if (table := _flips(rows, *pair))],
        "judge": judge,
        "readers": readers,
        "smallest_effect": SMALLEST_EFFECT,
        "seeds": result.seeds,
        "run": {"command": spec.command, "seed": spec.seed, "top_k": spec.top_k, **asdict(facts)},
        "machine": machine(),
    }
    return dict(_plain(data))


def _headline(result: Result, facts: RunFacts) -> str:
    """The verdict, behind what would mislead who reads nothing else."""
    if "similarity" in facts.picked_by and any(each.metric == "accuracy" for each in result.comparisons):
        return f"{GUESSES} {verdict_sentence(result)}"
    return verdict_sentence(result)


def limits(data: Mapping[str, Any]) -> list[str]:
    """What a run cannot show, in sentences."""
    run, arms, smallest = data["run"], data["arms"], data["power"]["smallest_detectable"]
    scored = {name for arm in arms.values() for name in arm["metrics"]}
    said = []
    if "similarity" in run.get("picked_by", {}):
        said.append(GUESSES)
    elif run["generator"] != "extractive":
        said.append(f"It is one model, {run['model']}: a larger one knows more without the book, and reads better.")
    if _questions_of(run["command"]).startswith("bank:"):
        said.append(
            "The questions were written for the book that comes with Coalesce: other readers ask in other words."
        )
    if smallest:
        said.append(f"A difference below {100 * smallest:.1f} points would probably be missed.")
    if any("tun" in arm for arm in arms):
        said.append("An adapter shows what its training rows and settings gain, not what tuning can gain.")
    if "key_fact_recall" in scored and "reader_score" not in scored:
        said.append(
            "Key facts are matched as words, nobody read the answers: right ones may lack them, wrong ones hold them."
        )
    if "ttft_s" in scored:
        said.append("Times are from this machine and include the load of everything else that ran on it.")
    return said


def _summary(data: Mapping[str, Any]) -> list[list[str]]:
    """The first table: a row for each arm with what was scored, under its heads."""
    arms = data["arms"]
    shown = [name for name in SUMMARY if any(name in arm["metrics"] for arm in arms.values())]
    rows = [["arm", *(metric_notes()[name].label for name in shown)]]
    for arm, scores in arms.items():
        cells = []
        for name in shown:
            found = scores["metrics"].get(name)
            counted = f", n {found['n']}" if found and metric_notes()[name].unit == "share" else ""
            cells.append(cell(metric_notes()[name].unit, found) + counted)
        rows.append([arm, *cells])
    return rows


def _asked(rows: Sequence[Row]) -> dict[str, int]:
    """How many questions, and how many of them in which way: every `n` of a table is one of these or less."""
    by_mode = {mode: {row.question.id: row.question for row in rows if row.record.mode == mode} for mode in MODES}
    return {
        "questions": len(by_mode["choice"] | by_mode["open"]),
        **{mode: len(asked) for mode, asked in by_mode.items()},
        "unanswerable": sum(not question.answerable for question in by_mode["open"].values()),
    }


def against_data(folder: Path, differences: Sequence[RunDifference]) -> dict[str, Any]:
    """The paired differences from an earlier run, as `report.json` holds them."""
    return {"against": _plain({"run": folder.name, "differences": differences})}


def _flips(rows: Sequence[Row], control: str, treatment: str) -> dict[str, Any] | None:
    """How many choice questions changed sides between two arms, with examples; None where they share no question."""
    picks: dict[str, dict[str, Row]] = {control: {}, treatment: {}}
    for row in rows:
        if row.record.arm in picks and row.record.mode == "choice" and not (row.record.repetition or row.record.error):
            picks[row.record.arm][row.question.id] = row
    pairs = [(left, picks[treatment][key]) for key, left in picks[control].items() if key in picks[treatment]]
    if not pairs:
        return None
    names = {(1, 1): "both right", (0, 1): "gained", (1, 0): "lost", (0, 0): "both wrong"}
    sides: dict[str, list[tuple[Row, Row]]] = {name: [] for name in names.values()}
    for left, right in pairs:
        sides[names[bool(left.metrics["accuracy"]), bool(right.metrics["accuracy"])]].append((left, right))
    return {
        "control": control,
        "treatment": treatment,
        "counts": {side: len(listed) for side, listed in sides.items()},
        **{side: [_flip(*pair) for pair in sides[side][:FLIP_EXAMPLES]] for side in ("gained", "lost")},
    }


def _flip(left: Row, right: Row) -> dict[str, Any]:
    question = left.question
    picked = [question.choices[row.record.picked] if row.record.picked is not None else None for row in (left, right)]
    return {
        "id": question.id,
        "question": question.question,
        "right": question.choices[question.answer_index or 0],
        "control_picked": picked[0],
        "treatment_picked": picked[1],
    }


def power_note(questions: Sequence[BankQuestion]) -> dict[str, Any]:
    """The smallest difference in accuracy that this many choice questions can detect."""
    n = sum(bool(question.choices) for question in questions)
    smallest = _plain(smallest_detectable(n)) if n else None
    return {"n": n, "smallest_detectable": smallest, "discordant": 0.3, "power": 0.8}


def question_hash(questions: Sequence[BankQuestion]) -> str:
    """SHA-256 over every field of the questions, in order."""
    return hashlib.sha256("\n".join(repr(asdict(question)) for question in questions).encode()).hexdigest()


def file_hash(paths: Sequence[Path]) -> str:
    """SHA-256 over the contents of the files, in order."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def machine() -> dict[str, Any]:
    """System, cores, and the versions that numbers depend on."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": usable_cores(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("coalesce-rag", "torch", "sentence-transformers", "transformers")},
    }


def _why_withheld(leakage: LeakageReport | None) -> str:
    if leakage is None:
        return "No verdict: leakage between tuning data and test questions was not checked."
    first = leakage.leaks[0]
    return (
        f"No verdict: {len(leakage.leaks)} test questions overlap the tuning data (first: {first.question_id}, "
        f"{first.check}). Remove them from it, tune again, run again."
    )


def _plain(value: Any) -> Any:
    """Values for JSON: floats rounded to six digits, NaN (unscored) as null."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return None if math.isnan(value) else round(value, 6)
    return value


def write_report(folder: Path, data: Mapping[str, Any]) -> None:
    """Writes the three forms of a report into `folder`, and a picture of its arms."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PICTURE).write_text(_arms_plot(data["arms"]) + "\n", encoding="utf-8")
    (folder / "report.md").write_text(render(data, "report.md.j2"), encoding="utf-8")
    (folder / "report.html").write_text(render(data, "report.html.j2"), encoding="utf-8")
    # The JSON comes last: a folder that has it is complete.
    (folder / "report.json").write_text(json.dumps(data, ensure_ascii=False, indent=1), encoding="utf-8")


def list_reports(folder: Path) -> list[dict[str, Any]]:
    """Summaries of the reports under a folder, newest first: arms, verdict, and the differences in accuracy."""
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
                    "questions": _questions_of(run["command"]),
                    "comparisons": [
                        {name: c[name] for name in ("control", "treatment", "difference", "low", "high", "verdict")}
                        for c in data["comparisons"]
                        if c["metric"] == "accuracy"
                    ],
                }
            )
        except (ValueError, KeyError, TypeError):
            continue  # another program's file
    return sorted(found, key=lambda report: report["created_at"], reverse=True)


def _questions_of(command: str) -> str:
    asked = re.search(r"--questions[ =](\S+)", command)
    return asked[1] if asked else "bank:test"


def read_report(folder: Path, report_id: str) -> dict[str, Any]:
    """One report as plain values.

    Raises:
        NotFound: no report has that id.
    """
    if report_id not in {report["id"] for report in list_reports(folder)}:
        raise NotFound(
            f"no report has the id {report_id!r}", hint="list them with GET /v1/reports, or run coalesce eval"
        )
    return dict(json.loads((folder / report_id / "report.json").read_text(encoding="utf-8")))


def report_page(folder: Path, report_id: str) -> str:
    """One report as a page: as it was written, or rendered now if only its numbers were kept.

    Raises:
        NotFound: no report has that id.
    """
    data = read_report(folder, report_id)
    written = folder / report_id / "report.html"
    return written.read_text(encoding="utf-8") if written.is_file() else render(data, "report.html.j2")


def render(data: Mapping[str, Any], template: str) -> str:
    """The report as Markdown or HTML, by the template's name."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=select_autoescape(["html.j2"]),
        undefined=StrictUndefined,
        trim_blocks=False,
    )
    arms = list(data["arms"])
    text = environment.get_template(template).render(
        **{"judge": None, "readers": None, "asked": None, "groups": {}, "calibration": None, "against": None, **data},
        forest=_forest(data),
        scatter=_speed_plot(data["arms"]),
        calibration_plots=_calibration_plots(data.get("calibration")),
        flows=FACT_FLOWS,
        again=_to_repeat(data),
        metric_groups=_groups(data["arms"]),
        summary=_summary(data),
        limits=limits(data),
        costs=_costs(data["run"]["costs"]),
        chosen_by=[CHOSEN_BY[name] for name in data["run"].get("picked_by", {})],
        answer_notes=[metric_notes()[name] for name in ANSWER_METRICS],
        notes=metric_notes(),
        difference_cell=_difference_cell,
        arm_note=arm_note,
        cell=cell,
        points=points,
        bounds=_bounds,
        p_value=_p_value,
        title="Retrieve or tune?" if len(arms) > 1 else f"How well does {arms[0]} answer?",
    )
    return _with_contents(text)


def _with_contents(page: str) -> str:
    """A page with a line of links to its headings before the first of them; Markdown has none and stays as it is."""
    names = re.findall("<h2>(.*?)</h2>", page)
    for number, name in enumerate(names):
        page = page.replace(f"<h2>{name}</h2>", f'<h2 id="s{number}">{name}</h2>', 1)
    links = " · ".join(f'<a href="#s{number}">{name}</a>' for number, name in enumerate(names))
    return page.replace('<h2 id="s0">', f'<nav class="soft" aria-label="Contents">{links}</nav>\n<h2 id="s0">', 1)


def _dot(label: str, interval: Mapping[str, Any], scale: float = 1, **more: Any) -> Dot:
    """A value of `report.json` to be drawn; its name there is `value` or `difference`."""
    value = interval.get("value", interval.get("difference"))
    known = [math.nan if one is None else scale * one for one in (value, interval["low"], interval["high"])]
    return Dot(label, known[0], known[1], known[2], **more)


def _forest(data: Mapping[str, Any]) -> str:
    """The differences in accuracy as a plot; those in other metrics where accuracy was not compared."""
    shown = [c for c in data["comparisons"] if c["metric"] == "accuracy"] or data["comparisons"]
    if not shown:
        return ""
    dots = [
        _dot(f"{c['control']} → {c['treatment']}", c, 100, note=points(c["difference"]) + _bounds(c)) for c in shown
    ]
    reach = max(10.0, *(abs(end) for dot in dots for end in (dot.value, dot.low, dot.high) if not math.isnan(end)))
    step = next((step for step in (2, 5, 10, 20, 25) if reach / step <= 4), 50)
    last = math.ceil(reach / step) * step
    ticks = {float(tick): f"{tick:+.0f}" for tick in range(-last, last + 1, step)}
    about = "Paired differences with 95 % intervals, in points"
    return rows_plot(dots, ticks, about, axis="difference in points", band=100 * data["smallest_effect"])


def _arms_plot(arms: Mapping[str, Any]) -> str:
    panels: dict[str, list[Dot]] = {}
    for note in (metric_notes()[name] for name in PLOTTED):
        for arm, scores in arms.items():
            found = scores["metrics"].get(note.name)
            if found is not None and found["value"] is not None:
                panels.setdefault(note.label, []).append(_dot(arm, found, note=cell(note.unit, found)))
    return arms_plot(panels)


def _speed_plot(arms: Mapping[str, Any]) -> str:
    """Accuracy over questions per second, on a logarithmic axis."""
    dots = []
    for name, arm in arms.items():
        accuracy, seconds = arm["metrics"].get("accuracy"), arm["metrics"].get("total_s")
        if accuracy and seconds and seconds["value"]:
            dots.append(_dot(name, accuracy, x=-math.log10(seconds["value"])))
    if not dots:
        return ""
    places = [dot.x for dot in dots]
    powers = range(math.floor(min(places) - 0.15), math.ceil(max(places) + 0.15) + 1)
    ticks = {float(power): f"{10.0**power:g}" for power in powers}
    return points_plot(dots, ticks, "accuracy over questions per second", "questions per second")


def _calibration_plots(calibration: Mapping[str, Any] | None) -> list[tuple[str, Mapping[str, Any], str]]:
    """Share answerable over evidence score for each group: on the diagonal, the score is a probability."""
    about, ticks = "Share answerable over evidence score", {share: f"{share:g}" for share in SHARES}
    plots = []
    for name, group in (calibration or {"groups": {}})["groups"].items():
        dots = [_dot(str(one["n"]), one | {"value": one["answerable"]}, x=one["score"]) for one in group["bins"]]
        marks = (calibration or {})["thresholds"]
        plots.append((name, group, points_plot(dots, ticks, about, "evidence score", width=520, marks=marks)))
    return plots


def _difference_cell(difference: Mapping[str, Any]) -> str:
    """Before, after and the difference, in the metric's unit."""
    note = metric_notes().get(difference["metric"])
    scale = _SCALES[note.unit] if note is not None else 1
    before, after, value = (scale * difference[name] for name in ("before", "after", "difference"))
    return f"{before:.1f} → {after:.1f}: {value:+.1f}{_bounds(difference, scale)}"


def _to_repeat(data: Mapping[str, Any]) -> dict[str, str]:
    """What somebody needs to repeat the run, besides the command."""
    run = data["run"]
    return {
        "seed, seeds": f"{run['seed']}, {run['seeds']}",
        "embedder": run["embedder"],
        **{f"{name} sha256": value for name, value in run["hashes"].items()},
        **_costs(run["costs"]),
        **{name: str(value) for name, value in data["machine"].items()},
    }


def _costs(costs: Mapping[str, float]) -> dict[str, str]:
    """One-time work, from two minutes on in minutes."""
    return {name: f"{value / 60:.0f} minutes" if value >= 120 else f"{value:.1f} s" for name, value in costs.items()}


def points(share: float | None) -> str:
    """A difference of shares in points, signed, with one decimal."""
    return "–" if share is None else f"{100 * share:+.1f}"


def _bounds(interval: Mapping[str, Any], scale: float = 100, form: str = "+.1f") -> str:
    """The bounds of a difference, signed; empty where it has no interval."""
    low, high = (None if interval[end] is None else scale * interval[end] for end in ("low", "high"))
    return in_brackets(low, high, form)


def _groups(arms: Mapping[str, Any]) -> list[tuple[str, list[MetricNote]]]:
    """The metrics that at least one arm was scored on, by group."""
    names = {name for arm in arms.values() for name, value in arm["metrics"].items() if value["value"] is not None}
    found: dict[str, list[MetricNote]] = {}
    for note in metric_notes().values():
        if note.name in names:
            found.setdefault(note.group, []).append(note)
    return list(found.items())


def cell(unit: str, interval: Mapping[str, Any] | None) -> str:
    """A metric's value in its unit, a share with its interval."""
    if interval is None or interval["value"] is None:
        return "–"
    value = _SCALES[unit] * interval["value"]
    if unit != "share":
        return f"{value:.0f}" if unit == "bytes" else f"{value:.1f}"
    return f"{value:.1f} %{_bounds(interval, 100, '.1f')}"


def _p_value(value: float | None) -> str:
    if value is None:
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"
