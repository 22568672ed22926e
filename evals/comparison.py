"""Compares arms: means with intervals, declared paired differences with tests, and a verdict in words.

Differences are paired over the questions that both arms were scored on. Accuracy with one tuning seed is tested by
exact McNemar, everything else by flipping the signs of sections; Holm adjusts over the declared pairs of a metric.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from evals.questions import BankQuestion
from evals.scoring import Row
from evals.statistics import (
    Interval,
    Scores,
    bootstrap_mean,
    holm,
    mcnemar,
    sign_flip_p,
    treatment_minus_control,
    wilson_interval,
)

FOUR_ARMS = ("base", "tuned", "rag", "rag+tuned")
DECLARED_PAIRS = (
    ("base", "tuned"),
    ("base", "rag"),
    ("tuned", "rag"),
    ("rag", "rag+tuned"),
    ("tuned", "rag+tuned"),
    ("rag", "oracle"),
    ("random", "rag"),
)
_STEPS = {
    ("base", "rag"): "retrieving over the bare model",
    ("base", "tuned"): "tuning over the bare model",
    ("tuned", "rag"): "retrieving rather than tuning",
    ("rag", "rag+tuned"): "tuning on top of retrieving",
}
_CONTROLS = {
    ("rag", "oracle"): "perfect passages over retrieved ones",
    ("random", "rag"): "retrieved passages over random ones",
}
DECLARED_METRICS = ("accuracy", "key_fact_recall")
SMALLEST_EFFECT = 0.05
ALPHA = 0.05
_FEWEST_PAIRS = 60
"""Fewest pairs that can be called the same. When n pairs show no difference, up to 3 / n of all pairs may still differ
(rule of three, 95 %), which a bootstrap cannot see; 3 / n is at most `SMALLEST_EFFECT` from 60 pairs on."""
SLICES: Mapping[str, Callable[[BankQuestion], str]] = {
    "type": lambda question: question.type,
    "chapter": lambda question: f"{question.chapter:02}",
    "section": lambda question: "seen in tuning" if question.seen else "unseen",
    "passages": lambda question: "two" if question.needs_two_passages else "one",
    "identifier": lambda question: "identifier" if question.identifier else "no identifier",
    "difficulty": lambda question: str(question.difficulty),
}


@dataclass(frozen=True, slots=True)
class ArmScores:
    """One arm's metrics.

    Attributes:
        n: questions scored; unscored: questions asked without a score.
        metrics: each metric's mean with its interval; scored: questions that each was scored on.
    """

    n: int
    unscored: int
    metrics: Mapping[str, Interval]
    scored: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One declared paired difference, treatment minus control.

    Attributes:
        n: pairs; b: control right and treatment wrong; c: the reverse (exact McNemar only).
        p: of `test`; p_holm: adjusted over the declared pairs of this metric.
        verdict: `better`, `worse`, `same` (the interval is within `SMALLEST_EFFECT` and there are enough pairs), or
            `cannot tell`.
    """

    control: str
    treatment: str
    metric: str
    n: int
    difference: float
    low: float
    high: float
    p: float
    test: str
    b: int | None = None
    c: int | None = None
    p_holm: float = math.nan
    verdict: str = "cannot tell"


@dataclass(frozen=True, slots=True)
class Result:
    """All numbers of a run; `interaction` is (rag+tuned − rag) − (tuned − base) by metric."""

    arms: Mapping[str, ArmScores]
    comparisons: tuple[Comparison, ...]
    interaction: Mapping[str, Interval]
    seeds: int
    slices: Mapping[str, Mapping[str, Mapping[str, Interval]]]


class ScoreTable:
    """Scores by arm and metric as arrays aligned by question, `(num_seeds, num_questions)`, NaN for unscored."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.questions = sorted({row.question.id for row in rows})
        self._index = {question_id: number for number, question_id in enumerate(self.questions)}
        section = {row.question.id: row.question.section or row.question.id for row in rows}
        self.clusters = [section[question_id] for question_id in self.questions]
        self.arms = list(dict.fromkeys(row.record.arm for row in rows))
        self.seeds = {arm: 1 + max(r.record.repetition for r in rows if r.record.arm == arm) for arm in self.arms}

    def metric_names(self, arm: str) -> list[str]:
        """Metrics that at least one record of the arm was scored on."""
        names = (n for row in self.rows if row.record.arm == arm for n, v in row.metrics.items() if v is not None)
        return list(dict.fromkeys(names))

    def scores(self, arm: str, metric: str) -> Scores:
        """Scores of one arm on one metric."""
        table = np.full((self.seeds.get(arm, 1), len(self.questions)), np.nan)
        for row in self.rows:
            value = row.metrics.get(metric)
            if row.record.arm == arm and value is not None:
                table[row.record.repetition, self._index[row.question.id]] = value
        return table


def compare(rows: Sequence[Row], *, seed: int = 0) -> Result:
    """All numbers of a run from its scored records; `seed` is the bootstrap's."""
    table = ScoreTable(rows)
    arms = {arm: _arm_scores(table, arm, seed) for arm in table.arms}
    comparisons = [comparison for metric in DECLARED_METRICS for comparison in _compare_metric(table, metric, seed)]
    interaction: dict[str, Interval] = {}
    for metric in DECLARED_METRICS:
        if all(arm in table.arms and not np.isnan(table.scores(arm, metric)).all() for arm in FOUR_ARMS):
            base, tuned, rag, both = (table.scores(arm, metric) for arm in FOUR_ARMS)
            gain = treatment_minus_control(treatment_minus_control(base, tuned), treatment_minus_control(rag, both))
            interaction[metric] = bootstrap_mean(gain, table.clusters, seed)
    seeds = max(table.seeds.values(), default=1)
    return Result(arms, tuple(comparisons), interaction, seeds, _slices(rows, seed))


def _arm_scores(table: ScoreTable, arm: str, seed: int) -> ArmScores:
    metrics: dict[str, Interval] = {}
    scored: dict[str, int] = {}
    for name in table.metric_names(arm):
        scores = table.scores(arm, name)
        scored[name] = int((~np.isnan(scores)).any(axis=0).sum())
        metrics[name] = bootstrap_mean(scores, table.clusters, seed)
    metrics.pop("refused", None)
    rows = [row for row in table.rows if row.record.arm == arm]
    opened = [row for row in rows if row.record.mode == "open" and not row.record.error]
    for name, (successes, total) in _refusal_counts(opened).items():
        if total:
            metrics[name], scored[name] = wilson_interval(successes, total), total
    asked = {row.question.id for row in rows}
    headline = {row.question.id for row in rows if any(row.metrics.get(name) is not None for name in DECLARED_METRICS)}
    refusable = {row.question.id for row in opened if not row.question.answerable}
    return ArmScores(len(headline | refusable), len(asked - headline - refusable), metrics, scored)


def _refusal_counts(rows: Sequence[Row]) -> dict[str, tuple[int, int]]:
    """Refusals that each refusal metric counts, and of how many questions."""
    refused = [row for row in rows if row.record.refused]
    right = sum(not row.question.answerable for row in refused)
    answerable = sum(row.question.answerable for row in rows)
    return {
        "abstention_precision": (right, len(refused)),
        "abstention_recall": (right, len(rows) - answerable),
        "false_refusals": (len(refused) - right, answerable),
    }


def declared_pairs(arms: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The pairs to compare, known before the run: `DECLARED_PAIRS`, and `ARM@ADAPTER` with its arm and with rag."""
    own = [(control, arm) for arm in arms if "@" in arm for control in (arm.partition("@")[0], "rag")]
    return (*DECLARED_PAIRS, *own)


def _compare_metric(table: ScoreTable, metric: str, seed: int) -> list[Comparison]:
    pairs = [pair for pair in declared_pairs(table.arms) if set(pair) <= set(table.arms)]
    compared = [_compare_pair(table, metric, control, treatment, seed) for control, treatment in pairs]
    found = [comparison for comparison in compared if comparison is not None]
    adjusted = holm([comparison.p for comparison in found])
    return [replace(c, p_holm=p, verdict=_verdict(c, p)) for c, p in zip(found, adjusted, strict=True)]


def _compare_pair(table: ScoreTable, metric: str, control: str, treatment: str, seed: int) -> Comparison | None:
    """One pair of arms, not yet adjusted; None where no question was scored in both."""
    left, right = table.scores(control, metric), table.scores(treatment, metric)
    differences = treatment_minus_control(left, right)
    n = int((~np.isnan(differences)).any(axis=0).sum())
    if not n:
        return None
    interval = bootstrap_mean(differences, table.clusters, seed)
    found = (control, treatment, metric, n, interval.value, interval.low, interval.high)
    if metric == "accuracy" and len(left) == len(right) == 1:
        counts = mcnemar(left[0], right[0])
        return Comparison(*found, counts.p, "exact McNemar", counts.b, counts.c)
    return Comparison(*found, sign_flip_p(differences, table.clusters, seed), "sign flips by section")


def _verdict(comparison: Comparison, p_holm: float) -> str:
    if p_holm < ALPHA and comparison.low > 0:
        return "better"
    if p_holm < ALPHA and comparison.high < 0:
        return "worse"
    if max(-comparison.low, comparison.high) <= SMALLEST_EFFECT and comparison.n >= _FEWEST_PAIRS:
        return "same"
    return "cannot tell"


def _slices(rows: Sequence[Row], seed: int) -> dict[str, dict[str, dict[str, Interval]]]:
    """`{slice: {value: {arm: interval}}}` of the accuracy, or of key-fact recall where no accuracy was scored."""
    metric = next((name for name in DECLARED_METRICS if any(row.metrics.get(name) is not None for row in rows)), None)
    if metric is None:
        return {}
    slices: dict[str, dict[str, dict[str, Interval]]] = {}
    for name, value_of in SLICES.items():
        values = sorted({value_of(row.question) for row in rows})
        slices[name] = {}
        for value in values:
            part = ScoreTable([row for row in rows if value_of(row.question) == value])
            slices[name][value] = {
                arm: bootstrap_mean(part.scores(arm, metric), part.clusters, seed, draws=2000)
                for arm in part.arms
                if not np.isnan(part.scores(arm, metric)).all()
            }
    return slices


def verdict_sentence(result: Result) -> str:
    """Answers 'retrieve or tune?' in one or two sentences, with intervals."""
    metric = "accuracy" if any(c.metric == "accuracy" for c in result.comparisons) else "key_fact_recall"
    by_pair = {(c.control, c.treatment): c for c in result.comparisons if c.metric == metric}
    own = {pair: f"{pair[1]} over retrieving" for pair in by_pair if pair[0] == "rag" and "@" in pair[1]}
    for labels in ({**_STEPS, **own}, _CONTROLS):
        phrases = [f"{label}: {_points(by_pair[pair])}" for pair, label in labels.items() if pair in by_pair]
        if phrases:
            break
    else:
        return "No declared pair of arms was run, so there is nothing to compare."
    name = "accuracy" if metric == "accuracy" else "key-fact recall"
    tuned = any("tun" in phrase for phrase in phrases)
    caution = " One tuning seed: another tuning run may differ." if tuned and result.seeds == 1 else ""
    return f"In {name}, {'; '.join(phrases)}.{caution}"


def _points(comparison: Comparison) -> str:
    low, high = 100 * comparison.low, 100 * comparison.high
    return f"{100 * comparison.difference:+.1f} points [{low:.1f}, {high:.1f}], {comparison.verdict}"
