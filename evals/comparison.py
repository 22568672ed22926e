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
DECLARED_METRICS = ("accuracy", "key_facts_first_two", "key_fact_recall")
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
SLICES: Mapping[str, Callable[[BankQuestion], str]] = {
    "type": lambda question: question.type,
    "chapter": lambda question: f"{question.chapter:02}",
    "section": lambda question: "seen in tuning" if question.seen else "unseen",
    "passages": lambda question: "two" if question.needs_two_passages else "one",
    "identifier": lambda question: "identifier" if question.identifier else "no identifier",
    "difficulty": lambda question: str(question.difficulty),
}


STYLES = {"typo": "typo", "chatty": "chatty", "terse": "terse", "own_words": "own words"}


def kinds_of(question: BankQuestion) -> list[str]:
    """The kinds of question that one counts towards: what it asks, and how it is put; without a `kind`, its type."""
    kinds = [question.kind or question.type if question.answerable else question.kind or "unanswerable"]
    if question.answerable and question.style in STYLES:
        kinds.append(STYLES[question.style])
    if question.answerable and question.after:
        kinds.append("follow-up")
    return kinds


GROUPS: Mapping[str, Callable[[BankQuestion], list[str]]] = {
    "kind": kinds_of,
    "book": lambda question: [question.book] if question.book else [],
}
_KIND_ORDER = (
    *("define", "number", "fact", "yes_no", "why", "how", "compare", "list", "code", "short", "choice"),
    *(*STYLES.values(), "follow-up", "unanswerable", "off_topic"),
)


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
        if all(arm in table.arms and not np.isnan(table.scores(arm, metric)).all() for arm in FOUR_ARMS):
            base, tuned, rag, both = (table.scores(arm, metric) for arm in FOUR_ARMS)
            gain = treatment_minus_control(treatment_minus_control(base, tuned), treatment_minus_control(rag, both))
            interaction[metric] = bootstrap_mean(gain, table.clusters, seed)
    seeds = max(table.seeds.values(), default=1)
    return Result(arms, tuple(comparisons), interaction, seeds, _slices(rows, seed), _groups(rows, seed))


def _arm_scores(table: ScoreTable, arm: str, seed: int) -> ArmScores:
    metrics: dict[str, Interval] = {}
    scored: dict[str, int] = {}
    for name in table.metric_names(arm):
        scores = table.scores(arm, name)
        scored[name] = int((~np.isnan(scores)).any(axis=0).sum())
        metrics[name] = _mean(name, scores, table.clusters, seed)
    rows = [row for row in table.rows if row.record.arm == arm]
    asked = {row.question.id for row in rows}
    headline = (*DECLARED_METRICS, "abstention_recall")
    answered = {row.question.id for row in rows if any(row.metrics.get(name) is not None for name in headline)}
    return ArmScores(len(answered), len(asked - answered), metrics, scored)


def _mean(metric: str, scores: Scores, clusters: Sequence[str], seed: int, draws: int = BOOTSTRAP_DRAWS) -> Interval:
    if metric not in _SHARES:
        return bootstrap_mean(scores, clusters, seed, draws)
    known = scores[~np.isnan(scores)]
    return wilson_interval(int(known.sum()), len(known))


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
    """`{slice: {value: {arm: interval}}}` of the first declared metric that was scored."""
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


def _groups(rows: Sequence[Row], seed: int) -> dict[str, dict[str, dict[str, ArmScores]]]:
    """Open answers by kind of question and by book; a group of one value says nothing and is left out."""
    opened = [row for row in rows if row.record.mode == "open" and not row.record.error]
    groups: dict[str, dict[str, dict[str, ArmScores]]] = {}
    for name, values_of in GROUPS.items():
        by_value: dict[str, list[Row]] = {}
        for row in opened:
            for value in values_of(row.question):
                by_value.setdefault(value, []).append(row)
        if len(by_value) > 1:
            groups[name] = {value: _answer_scores(by_value[value], seed) for value in sorted(by_value, key=_kind_order)}
    return groups


def _kind_order(kind: str) -> tuple[int, str]:
    return (_KIND_ORDER.index(kind) if kind in _KIND_ORDER else len(_KIND_ORDER), kind)


def _answer_scores(rows: Sequence[Row], seed: int) -> dict[str, ArmScores]:
    table = ScoreTable(rows)
    scores: dict[str, ArmScores] = {}
    for arm in table.arms:
        found = {name: table.scores(arm, name) for name in ANSWER_METRICS}
        scored = {name: int((~np.isnan(values)).any(axis=0).sum()) for name, values in found.items()}
        metrics = {
            name: _mean(name, values, table.clusters, seed, draws=2000)
            for name, values in found.items()
            if scored[name]
        }
        asked = {row.question.id for row in rows if row.record.arm == arm}
        scores[arm] = ArmScores(len(asked), 0, metrics, {name: scored[name] for name in metrics})
    return scores


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
    found = []
    for arm in dict.fromkeys(row.record.arm for row in after):
        for metric in table.metric_names(arm):
            left, right = table.scores(f"{arm} before", metric), table.scores(arm, metric)
            differences = treatment_minus_control(left, right)
            both = ~np.isnan(differences)
            if not both.any():
                continue
            interval = bootstrap_mean(differences, table.clusters, seed)
            was, now = (float(np.broadcast_to(scores, both.shape)[both].mean()) for scores in (left, right))
            n = int(both.any(axis=0).sum())
            found.append(RunDifference(arm, metric, n, was, now, interval.value, interval.low, interval.high))
    return found


def verdict_sentence(result: Result) -> str:
    """Answers 'retrieve or tune?' in one or two sentences, with intervals."""
    metric = "accuracy" if any(c.metric == "accuracy" for c in result.comparisons) else "key_facts_first_two"
    by_pair = {(c.control, c.treatment): c for c in result.comparisons if c.metric == metric}
    own = {pair: f"{pair[1]} over retrieving" for pair in by_pair if pair[0] == "rag" and "@" in pair[1]}
    for labels in ({**_STEPS, **own}, _CONTROLS):
        phrases = [f"{label}: {_points(by_pair[pair])}" for pair, label in labels.items() if pair in by_pair]
        if phrases:
            break
    else:
        return _answers_sentence(result)
    name = "accuracy" if metric == "accuracy" else "key facts in the first two sentences"
    tuned = any("tun" in phrase for phrase in phrases)
    caution = " One tuning seed: another tuning run may differ." if tuned and result.seeds == 1 else ""
    return f"In {name}, {'; '.join(phrases)}.{caution}"


def _answers_sentence(result: Result) -> str:
    """How a single arm answers, where no two were compared."""
    for arm, scores in result.arms.items():
        if "key_fact_recall" in scores.metrics:
            first, whole = (scores.metrics[name] for name in ("key_facts_first_two", "key_fact_recall"))
            words = f", in {scores.metrics['answer_words'].value:.0f} words" if "answer_words" in scores.metrics else ""
            return (
                f"{arm}: key facts in the first two sentences {_share(first)}, in the whole answer {_share(whole)}"
                f"{words}, over {scores.scored['key_fact_recall']} questions."
            )
    return "No declared pair of arms was run, so there is nothing to compare."


def _share(interval: Interval) -> str:
    return f"{100 * interval.value:.1f} % [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


def _points(comparison: Comparison) -> str:
    low, high = 100 * comparison.low, 100 * comparison.high
    return f"{100 * comparison.difference:+.1f} points [{low:.1f}, {high:.1f}], {comparison.verdict}"
