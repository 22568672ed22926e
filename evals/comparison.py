"""Compares arms: means with intervals, declared paired differences with tests, and a verdict in words.

Differences are paired over the questions that both arms were scored on. Accuracy with one tuning seed is tested by
exact McNemar, everything else by flipping the signs of sections; Holm adjusts over the declared pairs of a metric.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from evals.questions import BankQuestion
from evals.scoring import Row
from evals.statistics import (
    BOOTSTRAP_DRAWS,
    Interval,
    Scores,
    bootstrap_mean,
    holm,
    mcnemar,
    sign_flip_p,
    treatment_minus_control,
    wilson_interval,
)
from rag.types import ARMS

STEPS = {
    ("base", "rag"): "retrieving over the bare model",
    ("base", "tuned"): "tuning over the bare model",
    ("tuned", "rag"): "retrieving rather than tuning",
    ("rag", "rag+tuned"): "tuning on top of retrieving",
}
"""What each step between two arms is, control first."""
_CONTROLS = {
    ("rag", "oracle"): "perfect passages over retrieved ones",
    ("random", "rag"): "retrieved passages over random ones",
}
DECLARED_PAIRS = (
    ("base", "tuned"),
    ("base", "rag"),
    ("tuned", "rag"),
    ("rag", "rag+tuned"),
    ("tuned", "rag+tuned"),
    ("quotes", "rag"),
    ("quotes", "rag+tuned"),
    *_CONTROLS,
)
DECLARED_METRICS = ("accuracy", "key_facts_first_two", "key_fact_recall", "reader_score")
ANSWER_METRICS = (
    "key_facts_first_two",
    "key_fact_recall",
    "answer_words",
    "false_refusals",
    "marked_weak",
    "unanswerable_caught",
    "off_topic_refused",
)
"""What the tables by kind of question and by book show of open answers."""
_SHARES = (*ANSWER_METRICS[3:], "abstention_recall", "abstention_precision")
"""Metrics of 0 or 1 that may be 0 or 1 throughout, where a bootstrap would see no doubt: Wilson's interval."""
SMALLEST_EFFECT = 0.05
ALPHA = 0.05
_FEWEST_PAIRS = 60
"""Fewest pairs that can be called the same. When n pairs show no difference, up to 3 / n of all pairs may still differ
(rule of three, 95 %), which a bootstrap cannot see; 3 / n is at most `SMALLEST_EFFECT` from 60 pairs on."""
_Properties: TypeAlias = Mapping[str, Callable[[BankQuestion], list[str]]]
"""Properties of a question by name; it may have several values of one."""
_FEWER_DRAWS = 2000
"""Bootstrap draws for the many intervals of slices and groups."""
_STYLES = {"typo": "typo", "chatty": "chatty", "terse": "terse", "own_words": "own words"}
_KINDS = (
    *("define", "number", "fact", "yes_no", "why", "how", "compare", "list", "code", "short", "choice"),
    *(*_STYLES.values(), "follow-up", "unanswerable", "off_topic"),
)
"""In the order of the report."""


def _kinds_of(question: BankQuestion) -> list[str]:
    """The kinds of question that one counts towards: what it asks, and how it is put; without a `kind`, its type."""
    if not question.answerable:
        return [question.kind or "unanswerable"]
    style = [_STYLES[question.style]] if question.style in _STYLES else []
    return [question.kind or question.type, *style, *(["follow-up"] if question.after else [])]


_SLICES: _Properties = {
    "type": lambda question: [question.type],
    "chapter": lambda question: [f"{question.chapter:02}"],
    "section": lambda question: ["seen in tuning" if question.seen else "unseen"],
    "passages": lambda question: ["two" if question.needs_two_passages else "one"],
    "identifier": lambda question: ["identifier" if question.identifier else "no identifier"],
    "difficulty": lambda question: [str(question.difficulty)],
}
_GROUPS: _Properties = {
    "kind": _kinds_of,
    "book": lambda question: [question.book] if question.book else [],
}


@dataclass(frozen=True, slots=True)
class ArmScores:
    """One arm's metrics.

    Attributes:
        n: questions scored; unscored: questions asked without a score.
        metrics: each metric's mean with its interval.
    """

    n: int
    unscored: int
    metrics: Mapping[str, Interval]


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
    """All numbers of a run.

    Attributes:
        interaction: (rag+tuned − rag) − (tuned − base) by metric.
        groups: open answers by kind of question and by book, `{group: {value: {arm: scores}}}`.
    """

    arms: Mapping[str, ArmScores]
    comparisons: tuple[Comparison, ...]
    interaction: Mapping[str, Interval]
    seeds: int
    slices: Mapping[str, Mapping[str, Mapping[str, Interval]]]
    groups: Mapping[str, Mapping[str, Mapping[str, ArmScores]]]


class ScoreTable:
    """Scores by arm and metric as arrays aligned by question, `(num_seeds, num_questions)`, NaN for unscored."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.questions = sorted({row.question.id for row in rows})
        self._index = {question_id: number for number, question_id in enumerate(self.questions)}
        cluster = {row.question.id: row.question.cluster for row in rows}
        self.clusters = [cluster[question_id] for question_id in self.questions]
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
        four = [table.scores(arm, metric) for arm in ARMS]
        if not any(np.isnan(scores).all() for scores in four):
            base, tuned, rag, both = four
            gain = treatment_minus_control(treatment_minus_control(base, tuned), treatment_minus_control(rag, both))
            interaction[metric] = bootstrap_mean(gain, table.clusters, seed)
    seeds = max(table.seeds.values(), default=1)
    return Result(arms, tuple(comparisons), interaction, seeds, _slices(rows, seed), _groups(rows, seed))


def _arm_scores(table: ScoreTable, arm: str, seed: int) -> ArmScores:
    rows = [row for row in table.rows if row.record.arm == arm]
    asked = {row.question.id for row in rows}
    headline = (*DECLARED_METRICS, "abstention_recall")
    answered = {row.question.id for row in rows if any(row.metrics.get(name) is not None for name in headline)}
    metrics = _means(table, arm, table.metric_names(arm), seed)
    return ArmScores(len(answered), len(asked - answered), metrics)


def _means(
    table: ScoreTable, arm: str, names: Sequence[str], seed: int, draws: int = BOOTSTRAP_DRAWS
) -> dict[str, Interval]:
    """Of the named metrics that the arm was scored on: the mean."""
    metrics: dict[str, Interval] = {}
    for name in names:
        scores = table.scores(arm, name)
        known = scores[~np.isnan(scores)]
        if len(known) and name in _SHARES:
            n = int((~np.isnan(scores)).any(axis=0).sum())
            metrics[name] = replace(wilson_interval(int(known.sum()), len(known)), n=n)
        elif len(known):
            metrics[name] = bootstrap_mean(scores, table.clusters, seed, draws)
    return metrics


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
    interval = bootstrap_mean(differences, table.clusters, seed)
    if not interval.n:
        return None
    found = (control, treatment, metric, interval.n, interval.value, interval.low, interval.high)
    if metric == "accuracy" and len(left) == len(right) == 1:
        b, c, p = mcnemar(left[0], right[0])
        return Comparison(*found, p, "exact McNemar", b, c)
    return Comparison(*found, sign_flip_p(differences, table.clusters, seed), "sign flips by section")


def _verdict(comparison: Comparison, p_holm: float) -> str:
    if p_holm < ALPHA and comparison.low > 0:
        return "better"
    if p_holm < ALPHA and comparison.high < 0:
        return "worse"
    if max(-comparison.low, comparison.high) <= SMALLEST_EFFECT and comparison.n >= _FEWEST_PAIRS:
        return "same"
    return "cannot tell"


def _parts(rows: Sequence[Row], values_of: Callable[[BankQuestion], list[str]]) -> dict[str, ScoreTable]:
    """The rows by a property of their question."""
    parts: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        for value in values_of(row.question):
            parts[value].append(row)
    return {value: ScoreTable(part) for value, part in parts.items()}


def _slices(rows: Sequence[Row], seed: int) -> dict[str, dict[str, dict[str, Interval]]]:
    """`{slice: {value: {arm: interval}}}` of the first declared metric that was scored."""
    metric = next((name for name in DECLARED_METRICS if any(row.metrics.get(name) is not None for row in rows)), None)
    if metric is None:
        return {}
    return {
        name: {
            value: {
                arm: bootstrap_mean(part.scores(arm, metric), part.clusters, seed, _FEWER_DRAWS)
                for arm in part.arms
                if not np.isnan(part.scores(arm, metric)).all()
            }
            for value, part in sorted(_parts(rows, values_of).items())
        }
        for name, values_of in _SLICES.items()
    }


def _groups(rows: Sequence[Row], seed: int) -> dict[str, dict[str, dict[str, ArmScores]]]:
    """Open answers by kind of question and by book; a group of one value says nothing and is left out."""
    opened = [row for row in rows if row.record.mode == "open" and not row.record.error]
    groups = {name: _parts(opened, values_of) for name, values_of in _GROUPS.items()}
    return {
        name: {
            value: {
                arm: ArmScores(
                    len({row.question.id for row in part.rows if row.record.arm == arm}),
                    0,
                    _means(part, arm, ANSWER_METRICS, seed, _FEWER_DRAWS),
                )
                for arm in part.arms
            }
            for value, part in sorted(parts.items(), key=lambda part: _kind_order(part[0]))
        }
        for name, parts in groups.items()
        if len(parts) > 1
    }


def _kind_order(kind: str) -> tuple[int, str]:
    return (_KINDS.index(kind) if kind in _KINDS else len(_KINDS), kind)


@dataclass(frozen=True, slots=True)
class RunDifference:
    """One metric of one arm in this run against an earlier one, over the `n` questions that both scored."""

    arm: str
    metric: str
    n: int
    before: float
    after: float
    difference: float
    low: float
    high: float


def compare_runs(before: Sequence[Row], after: Sequence[Row], *, seed: int = 0) -> list[RunDifference]:
    """Paired differences of every metric that both runs scored, with bootstrap intervals over sections."""
    earlier = [replace(row, record=replace(row.record, arm=f"{row.record.arm} before")) for row in before]
    table = ScoreTable([*earlier, *after])
    listed = []
    for arm in dict.fromkeys(row.record.arm for row in after):
        for metric in table.metric_names(arm):
            left, right = table.scores(f"{arm} before", metric), table.scores(arm, metric)
            differences = treatment_minus_control(left, right)
            both = ~np.isnan(differences)
            if both.any():
                found = bootstrap_mean(differences, table.clusters, seed)
                was, now = (float(np.broadcast_to(scores, both.shape)[both].mean()) for scores in (left, right))
                listed.append(RunDifference(arm, metric, found.n, was, now, found.value, found.low, found.high))
    return listed


def verdict_sentence(result: Result) -> str:
    """Answers 'retrieve or tune?' in one or two sentences, with intervals."""
    metric = "accuracy" if any(c.metric == "accuracy" for c in result.comparisons) else "key_facts_first_two"
    by_pair = {(c.control, c.treatment): c for c in result.comparisons if c.metric == metric}
    own = {pair: f"{pair[1]} over retrieving" for pair in by_pair if pair[0] == "rag" and "@" in pair[1]}
    for labels in ({**STEPS, **own}, _CONTROLS):
        if shown := {label: by_pair[pair] for pair, label in labels.items() if pair in by_pair}:
            break
    else:
        return _answers_sentence(result)
    phrases = [
        f"{label}: {100 * c.difference:+.1f} points{in_brackets(100 * c.low, 100 * c.high)}, {c.verdict}"
        for label, c in shown.items()
    ]
    name = "accuracy" if metric == "accuracy" else "key facts in the first two sentences"
    tuned = any("tun" in label for label in shown)
    caution = " One tuning seed: another tuning run may differ." if tuned and result.seeds == 1 else ""
    return f"In {name}, {'; '.join(phrases)}.{caution}"


def _answers_sentence(result: Result) -> str:
    """How a single arm answers, where no two were compared."""
    for arm, scores in result.arms.items():
        if "key_fact_recall" in scores.metrics:
            whole = scores.metrics["key_fact_recall"]
            shares = [
                f"{100 * x.value:.1f} %{in_brackets(100 * x.low, 100 * x.high)}"
                for x in (scores.metrics["key_facts_first_two"], whole)
            ]
            words = f", in {scores.metrics['answer_words'].value:.0f} words" if "answer_words" in scores.metrics else ""
            return (
                f"{arm}: key facts in the first two sentences {shares[0]}, in the whole answer {shares[1]}"
                f"{words}, over {whole.n} questions."
            )
    return "No declared pair of arms was run, so there is nothing to compare."


def in_brackets(low: float | None, high: float | None, form: str = ".1f") -> str:
    """The bounds of an interval behind a value; empty where there is none."""
    if low is None or high is None or math.isnan(low):
        return ""
    return f" [{low:{form}}, {high:{form}}]"
