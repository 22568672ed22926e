"""The report of a comparison: its numbers (`report.json`) and its pages (`report.md`, `report.html`)."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from evals.comparison import ANSWER_METRICS, SMALLEST_EFFECT, ArmScores, Result, RunDifference, verdict_sentence
from evals.plots import CalibrationBin, ForestRow, ScatterPoint, calibration_plot, forest_plot, scatter_plot
from evals.question_checks import LeakageReport
from evals.questions import BankQuestion
from evals.run import RunSpec
from evals.scoring import FACT_FLOWS, Row, calibration_data, fact_flow
from evals.statistics import smallest_detectable
from indexes.errors import NotFound

FLIP_EXAMPLES = 12
FLIP_PAIRS = (("base", "rag"), ("base", "tuned"), ("rag", "rag+tuned"), ("tuned", "rag"))


@dataclass(frozen=True, slots=True)
class MetricNote:
    """A metric of the report.

    Attributes:
        name: its key in `report.json`.
        unit: `share` (printed in percent with its interval), `seconds` (printed in ms), `bytes` (MiB) or `number`.
    """

    name: str
    label: str
    meaning: str
    unit: str = "share"


METRIC_GROUPS: tuple[tuple[str, tuple[MetricNote, ...]], ...] = (
    (
        "Choice questions",
        (
            MetricNote(
                "accuracy", "accuracy (choice)", "Right options of all asked; four options, so guessing gets 25 %."
            ),
            MetricNote(
                "accuracy_pmi",
                "accuracy, by PMI",
                "The same by how much question and passages raise an option's likelihood.",
            ),
            MetricNote(
                "accuracy_by_letter", "accuracy, by letter", "The same by the likelihood of an option's letter."
            ),
            MetricNote(
                "accuracy_sum_logprob", "accuracy, by sum", "The same without dividing an option's score by its length."
            ),
            MetricNote(
                "generated_accuracy", "accuracy, option named in words", "Right options among answers in words."
            ),
            MetricNote("unparsed", "no option named", "Answers in words that name no option."),
        ),
    ),
    (
        "Open questions",
        (
            MetricNote(
                "key_facts_first_two",
                "key facts in the first two sentences",
                "Share of a right answer's facts that its first two sentences state.",
            ),
            MetricNote("key_fact_recall", "key facts in the whole answer", "Share that the whole answer states."),
            MetricNote(
                "judge_score",
                "judge's grade (open)",
                "Another language model's grade: correct 1, partial 0.5, wrong 0.",
            ),
            MetricNote(
                "answer_words",
                "words per answer",
                "How long answers are, without listings: long ones state more facts by chance.",
                unit="number",
            ),
            MetricNote(
                "unsupported_terms", "unsupported numbers and names", "Numbers and identifiers found in no passage."
            ),
        ),
    ),
    (
        "Citations",
        (
            MetricNote("citation_recall", "citation recall", "Sentences that their citations support."),
            MetricNote("citation_precision", "citation precision", "Citations that support their sentence."),
            MetricNote("gold_citation_recall", "citation recall, gold", "Needed evidence that a quote covers."),
            MetricNote("gold_citation_precision", "citation precision, gold", "Quotes from needed evidence."),
        ),
    ),
    (
        "Refusals",
        (
            MetricNote("abstention_recall", "refusal recall", "Share of the unanswerable questions that were refused."),
            MetricNote("abstention_precision", "refusal precision", "Share of refusals of unanswerable questions."),
            MetricNote("false_refusals", "false refusal rate", "Share of the answerable questions that were refused."),
            MetricNote(
                "marked_weak", "answerable, marked weak", "Share of the answerable questions answered with a warning."
            ),
            MetricNote(
                "unanswerable_caught",
                "unanswerable, refused or weak",
                "Share of the questions that the book does not answer that were refused or answered with a warning.",
            ),
            MetricNote(
                "off_topic_refused",
                "off-topic, refused",
                "Share of the questions about other things that were refused.",
            ),
        ),
    ),
    (
        "Retrieval",
        (
            MetricNote("recall_at_5", "gold section in top 5", "Needed sections among the first five passages."),
            MetricNote(
                "evidence_recall_at_5", "gold evidence in top 5", "Needed sentences among the first five passages."
            ),
            MetricNote(
                "all_parts_recall_at_5", "both passages in top 5", "Of questions that need two passages, both found."
            ),
            MetricNote("mrr", "MRR", "One over the rank of the first passage that helps: 100 % is always first."),
            MetricNote("ndcg_at_5", "nDCG@5", "How close the order is to the best one."),
            MetricNote(
                "passages_left_out",
                "passages left out",
                "Passages per question that were found, but did not fit the model's context.",
                unit="number",
            ),
        ),
    ),
    (
        "Cost",
        (
            MetricNote("prompt_tokens", "prompt tokens", "Tokens read before the first is written.", unit="number"),
            MetricNote("tokens_per_s", "tokens per second", "While an answer is written.", unit="number"),
            MetricNote("ttft_s", "time to first text, ms", "From the question on.", unit="seconds"),
            MetricNote("retrieve_s", "retrieval, ms", "Of that, finding the passages.", unit="seconds"),
            MetricNote("total_s", "time per question, ms", "Over all questions asked of the arm.", unit="seconds"),
            MetricNote("peak_memory_bytes", "peak memory, MiB", "Most memory used while the arm ran.", unit="bytes"),
        ),
    ),
)
_NOTES = {note.name: note for _, notes in METRIC_GROUPS for note in notes}
ARM_NOTES = {
    "base": "the model alone, without the book",
    "tuned": "the model after LoRA tuning on questions about the book, without the book",
    "rag": "the model with the passages that retrieval finds",
    "rag+tuned": "the tuned model with those passages",
    "oracle": "the model with the passages that hold the answer: the most that retrieval could gain",
    "random": "the model with passages drawn at random: the gain from any text at all",
    "oracle+tuned": "the tuned model with the passages that hold the answer",
}
WITHOUT_MEANING = {"extractive": frozenset({"prompt_tokens", "tokens_per_s"})}
"""Metrics left out for a generator: one that quotes whole sentences reads no prompt and writes no tokens."""


def arm_note(arm: str) -> str:
    """An arm in words; `ARM@ADAPTER` also names its adapter."""
    kind, _, adapter = arm.partition("@")
    note = ARM_NOTES.get(kind, "")
    if not adapter:
        return note
    return f"{note}; its adapter is {adapter!r}" if adapter != "passages" else f"{note}; tuned on passages too"


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a run used, so that others can repeat it: models, hashes, costs.

    Attributes:
        seeds: tuning runs compared, 1 without tuned arms.
        costs: seconds of one-time work: `index_s`, `tuning_s` over all seeds.
        not_run: arms or modes that could not run, with the reason.
        floors: share of choice questions that each shortcut gets right.
        thresholds: least evidence score of an answer, and of strong evidence.
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


def report_data(
    spec: RunSpec,
    facts: RunFacts,
    result: Result,
    rows: Sequence[Row],
    leakage: LeakageReport | None,
    judge: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """All numbers of a run, as `report.json` holds them.

    Args:
        leakage: None when the check has not run; `verdict` is None unless the check is clean.
        judge: what `evals.judge.run_judge` gives for the report; None without a judge.
    """
    trusted = leakage is not None and leakage.clean
    left_out = WITHOUT_MEANING.get(facts.generator, frozenset())
    data = {
        "arms": {arm: _arm_data(scores, left_out) for arm, scores in result.arms.items()},
        "comparisons": [asdict(comparison) for comparison in result.comparisons],
        "interaction": {name: asdict(interval) for name, interval in result.interaction.items()},
        "leakage": leakage.to_json() if leakage is not None else {"checked": False, "clean": False},
        "verdict": verdict_sentence(result) if trusted else None,
        "verdict_withheld": None if trusted else _why_withheld(leakage),
        "power": power_note(list({row.question.id: row.question for row in rows}.values())),
        "slices": {
            name: {
                value: {arm: asdict(interval) for arm, interval in by_arm.items()} for value, by_arm in values.items()
            }
            for name, values in result.slices.items()
        },
        "groups": {
            name: {
                value: {arm: _arm_data(scores, left_out) for arm, scores in by_arm.items()}
                for value, by_arm in values.items()
            }
            for name, values in result.groups.items()
        },
        "calibration": calibration_data(rows, facts.thresholds),
        "fact_flow": {
            arm: fact_flow([row for row in rows if row.record.arm == arm])
            for arm in result.arms
            if any(row.record.arm == arm and row.record.mode == "open" and row.record.passages for row in rows)
        },
        "flips": [table for pair in FLIP_PAIRS if (table := _flips(rows, *pair))],
        "judge": judge,
        "smallest_effect": SMALLEST_EFFECT,
        "seeds": result.seeds,
        "run": {"command": spec.command, "seed": spec.seed, "top_k": spec.top_k, **asdict(facts)},
        "machine": machine(),
    }
    return dict(_plain(data))


def _arm_data(scores: ArmScores, left_out: Set[str]) -> dict[str, Any]:
    metrics = {
        name: {**asdict(interval), "n": scores.scored[name]}
        for name, interval in scores.metrics.items()
        if name not in left_out
    }
    return {"n": scores.n, "unscored": scores.unscored, "metrics": metrics}


def against_data(folder: Path, differences: Sequence[RunDifference]) -> dict[str, Any]:
    """The paired differences from an earlier run, as `report.json` holds them."""
    return {"against": _plain({"run": folder.name, "differences": [asdict(one) for one in differences]})}


def _flips(rows: Sequence[Row], control: str, treatment: str) -> dict[str, Any] | None:
    """How many choice questions changed sides between two arms, with examples; None where they share no question."""
    picks = {
        (row.record.arm, row.question.id): row
        for row in rows
        if row.record.mode == "choice" and row.record.repetition == 0 and not row.record.error
    }
    pairs = [
        (left, picks[treatment, question])
        for (arm, question), left in picks.items()
        if arm == control and (treatment, question) in picks
    ]
    if not pairs:
        return None
    sides: dict[str, list[tuple[Row, Row]]] = {"both right": [], "gained": [], "lost": [], "both wrong": []}
    for left, right in pairs:
        was, now = bool(left.metrics.get("accuracy")), bool(right.metrics.get("accuracy"))
        sides[("both right" if now else "lost") if was else ("gained" if now else "both wrong")].append((left, right))
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
    return {
        "n": n,
        "smallest_detectable": _plain(smallest_detectable(n)) if n else None,
        "discordant": 0.3,
        "power": 0.8,
    }


def question_hash(questions: Sequence[BankQuestion]) -> str:
    """SHA-256 over every field of the questions, in order."""
    return hashlib.sha256("\n".join(repr(asdict(question)) for question in questions).encode()).hexdigest()


def file_hash(paths: Sequence[Path]) -> str:
    """SHA-256 over the contents of the files, in order."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def machine() -> dict[str, Any]:
    """System, cores, and the versions that numbers depend on."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
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
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return None if math.isnan(value) else round(value, 6)
    return value


def write_report(folder: Path, data: Mapping[str, Any]) -> None:
    """Writes the three forms of a report into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.md").write_text(render(data, "report.md.j2"), encoding="utf-8")
    (folder / "report.html").write_text(render(data, "report.html.j2"), encoding="utf-8")
    # The JSON comes last: a folder that has it is complete.
    (folder / "report.json").write_text(json.dumps(data, ensure_ascii=False, indent=1), encoding="utf-8")


def _asked_from(command: str) -> str:
    """Where a run's questions came from, as its command line names it."""
    named = re.search(r"--questions[ =](\S+)", command)
    return named[1] if named else "bank:test"


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
                    "questions": _asked_from(run["command"]),
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
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=select_autoescape(["html.j2"]),
        undefined=StrictUndefined,
        trim_blocks=False,
    )
    arms = list(data["arms"])
    text = environment.get_template(template).render(
        **{"judge": None, "groups": {}, "calibration": None, "against": None, **data},
        forest=_forest(data),
        scatter=scatter_plot(_speeds(data["arms"]), "questions per second", "accuracy"),
        flows=FACT_FLOWS,
        again=_to_repeat(data),
        metric_groups=_groups(data["arms"]),
        calibration_plots=_calibration_plots(data.get("calibration")),
        answer_notes=[_NOTES[name] for name in ANSWER_METRICS],
        notes=_NOTES,
        difference_cell=_difference_cell,
        arm_note=arm_note,
        cell=_cell,
        points=points,
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


def _forest(data: Mapping[str, Any]) -> str:
    """The differences in accuracy as a plot; those in other metrics where accuracy was not compared."""
    shown = [c for c in data["comparisons"] if c["metric"] == "accuracy"] or data["comparisons"]
    rows = [
        ForestRow(
            f"{c['control']} → {c['treatment']}",
            100 * c["difference"],
            100 * c["low"],
            100 * c["high"],
            f"{points(c['difference'])} [{points(c['low'])}, {points(c['high'])}]",
        )
        for c in shown
    ]
    return forest_plot(rows, 100 * data["smallest_effect"])


def _calibration_plots(calibration: Mapping[str, Any] | None) -> list[tuple[str, Mapping[str, Any], str]]:
    if calibration is None:
        return []
    thresholds = calibration["thresholds"]
    return [
        (name, group, calibration_plot([CalibrationBin(**one) for one in group["bins"]], thresholds))
        for name, group in calibration["groups"].items()
    ]


def _difference_cell(difference: Mapping[str, Any]) -> str:
    """Before, after and the difference, in the metric's unit."""
    note = _NOTES.get(difference["metric"])
    scale = {"share": 100, "seconds": 1000, "bytes": 2**-20}.get(note.unit if note is not None else "", 1)
    before, after, value, low, high = (
        scale * difference[name] for name in ("before", "after", "difference", "low", "high")
    )
    return f"{before:.1f} → {after:.1f}: {value:+.1f} [{low:+.1f}, {high:+.1f}]"


def _to_repeat(data: Mapping[str, Any]) -> dict[str, str]:
    """What somebody needs to repeat the run, besides the command."""
    run = data["run"]
    return {
        "seed, seeds": f"{run['seed']}, {run['seeds']}",
        "embedder": run["embedder"],
        **{f"{name} sha256": value for name, value in run["hashes"].items()},
        **{name: f"{value:.1f} s" for name, value in run["costs"].items()},
        **{name: str(value) for name, value in data["machine"].items()},
    }


def points(share: float | None) -> str:
    """A difference of shares in points, signed, with one decimal."""
    return "–" if share is None else f"{100 * share:+.1f}"


def _groups(arms: Mapping[str, Any]) -> list[tuple[str, list[MetricNote]]]:
    """The metrics that at least one arm was scored on, by group."""
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


def _cell(unit: str, interval: Mapping[str, Any] | None) -> str:
    if interval is None or interval["value"] is None:
        return "–"
    value = interval["value"]
    if unit == "share":
        return f"{100 * value:.1f} % [{100 * interval['low']:.1f}, {100 * interval['high']:.1f}]"
    if unit == "bytes":
        return f"{value / 2**20:.0f}"
    return f"{1000 * value:.1f}" if unit == "seconds" else f"{value:.1f}"


def _p_value(value: float | None) -> str:
    if value is None:
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"
