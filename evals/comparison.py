"""The comparison: a table of arms with intervals, declared paired differences, and a verdict in words.

Every difference is paired over the questions that both arms were scored on. A binary metric with one tuning seed is
tested by exact McNemar, all else by flipping the signs of sections; Holm over the declared pairs of a metric.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from evals.metrics.abstention import abstention
from evals.questions import BankQuestion
from evals.scoring import Row
from evals.statistics import (
    Interval,
    Scores,
    bootstrap_mean,
    holm,
    mcnemar,
    paired_difference,
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
DECLARED_METRICS = ("accuracy", "key_fact_recall")
SMALLEST_EFFECT = 0.05
ALPHA = 0.05
_RULE_OF_THREE = 3.0 - 1e-9
"""When n pairs show no difference, up to 3 / n of all pairs may still differ (95 %); a bootstrap cannot see those, so
fewer than 3 / (smallest effect) pairs are never called the same."""
BINARY_METRICS = frozenset({"accuracy", "generated_accuracy"})


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
    """One arm: how many questions were scored and were not, and each metric's mean with its interval."""

    n: int
    unscored: int
    metrics: Mapping[str, Interval]
    scored: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One declared paired difference, treatment minus control.

    Attributes:
        n: pairs; b: control right and treatment wrong; c: the reverse (binary metrics of one seed only).
        p: of the test named; p_holm: adjusted over the declared pairs of this metric.
        verdict: `better`, `worse`, `same` (the interval lies within the smallest effect, and enough pairs were
            seen) or `cannot tell`.
    """

    control: str
    treatment: str
    metric: str
    n: int
    difference: float
    low: float
    high: float
    p: float
    p_holm: float
    test: str
    b: int | None
    c: int | None
    verdict: str


@dataclass(frozen=True, slots=True)
class Result:
    """All numbers of a run; `interaction` is (rag+tuned − rag) − (tuned − base) by metric."""

    arms: Mapping[str, ArmScores]
    comparisons: tuple[Comparison, ...]
    interaction: Mapping[str, Interval]
    seeds: int
    smallest_effect: float = SMALLEST_EFFECT
    slices: Mapping[str, Mapping[str, Mapping[str, Interval]]] = field(default_factory=dict)


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
        """Metrics that at least one record of the arm is scored on."""
        names = (n for row in self.rows if row.record.arm == arm for n, v in row.metrics.items() if v is not None)
        return list(dict.fromkeys(names))

    def scores(self, arm: str, metric: str) -> Scores:
        """The array of one arm and metric."""
        table = np.full((self.seeds.get(arm, 1), len(self.questions)), np.nan)
        for row in self.rows:
            value = row.metrics.get(metric)
            if row.record.arm == arm and value is not None:
                table[row.record.repetition, self._index[row.question.id]] = value
        return table


def compare(rows: Sequence[Row], *, seed: int = 0, smallest_effect: float = SMALLEST_EFFECT) -> Result:
    """All numbers of a run from its scored records."""
    table = ScoreTable(rows)
    arms = {arm: _arm_scores(table, arm, seed) for arm in table.arms}
    comparisons = [
        comparison
        for metric in DECLARED_METRICS
        for comparison in _compare_metric(table, metric, seed, smallest_effect)
    ]
    interaction: dict[str, Interval] = {}
    for metric in DECLARED_METRICS:
        if all(arm in table.arms and not np.isnan(table.scores(arm, metric)).all() for arm in FOUR_ARMS):
            base, tuned, rag, both = (table.scores(arm, metric) for arm in FOUR_ARMS)
            gain = treatment_minus_control(treatment_minus_control(base, tuned), treatment_minus_control(rag, both))
            interaction[metric] = bootstrap_mean(gain, table.clusters, seed)
    seeds = max(table.seeds.values(), default=1)
    return Result(arms, tuple(comparisons), interaction, seeds, smallest_effect, _slices(rows, seed))


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
    if opened:
        counts = abstention([row.record.refused for row in opened], [row.question.answerable for row in opened])
        for name, successes, total in (
            ("abstention_precision", counts.refused_unanswerable, counts.refused),
            ("abstention_recall", counts.refused_unanswerable, counts.unanswerable),
            ("false_refusals", counts.refused - counts.refused_unanswerable, counts.answerable),
        ):
            if total:
                metrics[name], scored[name] = wilson_interval(successes, total), total
    asked = {row.question.id for row in rows}
    headline = {row.question.id for row in rows if any(row.metrics.get(name) is not None for name in DECLARED_METRICS)}
    refusable = {row.question.id for row in opened if not row.question.answerable}
    return ArmScores(len(headline | refusable), len(asked - headline - refusable), metrics, scored)


def declared_pairs(arms: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The pairs of a run, known before it: the standing ones, each `ARM@ADAPTER` against its arm and against rag."""
    own = [(control, arm) for arm in arms if "@" in arm for control in (arm.partition("@")[0], "rag")]
    return (*DECLARED_PAIRS, *own)


def _compare_metric(table: ScoreTable, metric: str, seed: int, smallest: float) -> list[Comparison]:
    found: list[Comparison] = []
    for control, treatment in declared_pairs(table.arms):
        if control not in table.arms or treatment not in table.arms:
            continue
        left, right = table.scores(control, metric), table.scores(treatment, metric)
        differences = treatment_minus_control(left, right)
        pairs = int((~np.isnan(differences)).any(axis=0).sum())
        if not pairs:
            continue
        interval = paired_difference(left, right, table.clusters, seed)
        exact = metric in BINARY_METRICS and len(left) == len(right) == 1
        counts = mcnemar(left[0], right[0]) if exact else None
        p = counts.p if counts else sign_flip_p(differences, table.clusters, seed)
        found.append(
            Comparison(
                control,
                treatment,
                metric,
                pairs,
                interval.value,
                interval.low,
                interval.high,
                p,
                math.nan,
                "exact McNemar" if counts else "sign flips by section",
                counts.b if counts else None,
                counts.c if counts else None,
                "",
            )
        )
    adjusted = holm([comparison.p for comparison in found])
    return [_with_verdict(comparison, p, smallest) for comparison, p in zip(found, adjusted, strict=True)]


def _with_verdict(comparison: Comparison, p_holm: float, smallest: float) -> Comparison:
    if p_holm < ALPHA and comparison.low > 0:
        verdict = "better"
    elif p_holm < ALPHA and comparison.high < 0:
        verdict = "worse"
    elif -smallest <= comparison.low and comparison.high <= smallest and comparison.n * smallest >= _RULE_OF_THREE:
        verdict = "same"
    else:
        verdict = "cannot tell"
    return replace(comparison, p_holm=p_holm, verdict=verdict)


def _slices(rows: Sequence[Row], seed: int) -> dict[str, dict[str, dict[str, Interval]]]:
    """Headline metric by slice: `{slice: {value: {arm: interval}}}`; accuracy where there is one, else key facts."""
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
    """The answer to 'retrieve or tune?' in one or two sentences, with intervals."""
    by_pair = {(c.control, c.treatment): c for c in result.comparisons if c.metric == "accuracy"}
    metric = "accuracy"
    if not by_pair:
        by_pair = {(c.control, c.treatment): c for c in result.comparisons if c.metric == "key_fact_recall"}
        metric = "key-fact recall"
    phrases = [
        f"{label}: {_points(by_pair[pair])}"
        for pair, label in (
            (("base", "rag"), "retrieving over the bare model"),
            (("base", "tuned"), "tuning over the bare model"),
            (("tuned", "rag"), "retrieving rather than tuning"),
            (("rag", "rag+tuned"), "tuning on top of retrieving"),
            *((pair, f"{pair[1]} over retrieving") for pair in by_pair if pair[0] == "rag" and "@" in pair[1]),
        )
        if pair in by_pair
    ] or [
        f"{label}: {_points(by_pair[pair])}"
        for pair, label in (
            (("rag", "oracle"), "perfect passages over retrieved ones"),
            (("random", "rag"), "retrieved passages over random ones"),
        )
        if pair in by_pair
    ]
    if not phrases:
        return "No declared pair of arms was run, so there is nothing to compare."
    seeds = " One tuning seed: says nothing of how another tuning run would do." if result.seeds == 1 else ""
    return f"In {metric}, {'; '.join(phrases)}.{seeds if any('tun' in phrase for phrase in phrases) else ''}"


def _points(comparison: Comparison) -> str:
    low, high = 100 * comparison.low, 100 * comparison.high
    return f"{100 * comparison.difference:+.1f} points [{low:.1f}, {high:.1f}], {comparison.verdict}"
