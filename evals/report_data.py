"""The report as plain values: what `report.json` holds and the other forms are made of."""

from __future__ import annotations

import hashlib
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from evals.comparison import Result, verdict_sentence
from evals.leakage import LeakageReport
from evals.questions import BankQuestion
from evals.report_metrics import WITHOUT_MEANING
from evals.scoring import Row, fact_flow
from evals.statistics import smallest_detectable

FLIP_EXAMPLES = 12


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What was run, for others to run it again: command, settings, hashes, costs.

    Attributes:
        costs: seconds of what was done once: `index_s`, `tuning_s` of each seed.
        not_run: arms or modes that could not be run, with the reason.
    """

    created_at: str
    command: str
    generator: str
    model: str
    embedder: str
    seed: int
    seeds: int
    top_k: int
    hashes: Mapping[str, str]
    costs: Mapping[str, float]
    not_run: Mapping[str, str] = field(default_factory=dict)
    floors: Mapping[str, float] = field(default_factory=dict)


def report_data(
    facts: RunFacts,
    result: Result,
    rows: Sequence[Row],
    leakage: LeakageReport | None,
    judge: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """All numbers of a run. `verdict` is None when the leakage check has not run or found a leak.

    `judge` is what `evals.judge.judged` says of a judge, None where none was asked.
    """
    told = leakage is not None and leakage.clean
    questions = {row.question.id: row.question for row in rows}
    return {
        "arms": {
            arm: {
                "n": scores.n,
                "unscored": scores.unscored,
                "metrics": {
                    name: {
                        "value": _number(i.value),
                        "low": _number(i.low),
                        "high": _number(i.high),
                        "n": scores.scored[name],
                    }
                    for name, i in scores.metrics.items()
                    if name not in WITHOUT_MEANING.get(facts.generator, frozenset())
                },
            }
            for arm, scores in result.arms.items()
        },
        "comparisons": [{key: _number(value) for key, value in asdict(c).items()} for c in result.comparisons],
        "interaction": {name: {k: _number(v) for k, v in asdict(i).items()} for name, i in result.interaction.items()},
        "leakage": leakage.to_json() if leakage is not None else {"checked": False, "clean": False},
        "verdict": verdict_sentence(result) if told else None,
        "verdict_withheld": None if told else _why_withheld(leakage),
        "power": power_note(list(questions.values())),
        "slices": {
            name: {
                value: {arm: {k: _number(v) for k, v in asdict(i).items()} for arm, i in arms.items()}
                for value, arms in values.items()
            }
            for name, values in result.slices.items()
        },
        "fact_flow": {
            arm: fact_flow([row for row in rows if row.record.arm == arm])
            for arm in result.arms
            if any(row.record.arm == arm and row.record.mode == "open" and row.record.passages for row in rows)
        },
        "flips": flips(rows),
        "judge": judge,
        "smallest_effect": result.smallest_effect,
        "seeds": result.seeds,
        "run": asdict(facts),
        "machine": machine(),
    }


def flips(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """For the pairs that matter, the questions on which two arms differ, a few with their options and picks."""
    picks = {
        (row.record.arm, row.question.id): row
        for row in rows
        if row.record.mode == "choice" and row.record.repetition == 0 and not row.record.error
    }
    tables = []
    for control, treatment in (("base", "rag"), ("base", "tuned"), ("rag", "rag+tuned"), ("tuned", "rag")):
        shared = [q for arm, q in picks if arm == control and (treatment, q) in picks]
        if not shared:
            continue
        table: dict[str, Any] = {"control": control, "treatment": treatment, "counts": {}, "gained": [], "lost": []}
        counts = {"both right": 0, "gained": 0, "lost": 0, "both wrong": 0}
        for question_id in shared:
            left, right = picks[control, question_id], picks[treatment, question_id]
            was, now = bool(left.metrics.get("accuracy")), bool(right.metrics.get("accuracy"))
            name = ("both right" if now else "lost") if was else ("gained" if now else "both wrong")
            counts[name] += 1
            if name in ("gained", "lost") and len(table[name]) < FLIP_EXAMPLES:
                table[name].append(_flip(left, right))
        tables.append({**table, "counts": counts})
    return tables


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
    """What this many choice questions can settle, before anything is run."""
    n = sum(bool(question.choices) for question in questions)
    return {
        "n": n,
        "smallest_detectable": _number(smallest_detectable(n)) if n else None,
        "discordant": 0.3,
        "power": 0.8,
    }


def question_hash(questions: Sequence[BankQuestion]) -> str:
    """SHA-256 over the questions in order, every field."""
    return hashlib.sha256("\n".join(repr(asdict(question)) for question in questions).encode()).hexdigest()


def file_hash(paths: Sequence[Path]) -> str:
    """SHA-256 over the contents of files in the order given."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def machine() -> dict[str, Any]:
    """Processor, cores, Python and the versions that numbers depend on."""
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
        f"{first.check}). Take them out, tune again, run again."
    )


def _number(value: Any) -> Any:
    """JSON has no NaN: unscored is null."""
    if isinstance(value, float):
        return None if math.isnan(value) else round(value, 6)
    return value
