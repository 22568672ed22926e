"""Intervals and tests for paired comparisons of systems over the same questions.

The unit is the question. Scores are NumPy arrays aligned by question, shape (num_questions,), with NaN for unscored;
a pair counts only where both are scored. Clusters are sections: questions on one section are not independent.

Sources: Wilson 1927 (interval of a share); McNemar 1947 (exact, binomial); Efron 1979 with whole clusters drawn
(Field & Welsh 2007); Holm 1979; Miller 2024, arXiv 2411.00640 (paired differences and clusters in evaluations).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Scores: TypeAlias = NDArray[np.float64]

CONFIDENCE = 0.95
BOOTSTRAP_DRAWS = 10_000


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with the bounds of its interval, NaN where there is none; `n` questions were scored."""

    value: float
    low: float
    high: float
    n: int


def wilson_interval(successes: int, n: int) -> Interval:
    """Wilson's score interval of `successes` in `n`; NaN for n = 0."""
    if n == 0:
        return Interval(math.nan, math.nan, math.nan, 0)
    from scipy.stats import binomtest

    bounds = binomtest(successes, n).proportion_ci(CONFIDENCE, method="wilson")
    return Interval(successes / n, float(bounds.low), float(bounds.high), n)


def mcnemar(control: Scores, treatment: Scores) -> tuple[int, int, float]:
    """Exact McNemar test of two arrays of 0 and 1.

    Returns:
        Questions that only the control has right, those that only the treatment has, and the two-sided p, 1 where
        there are none of either.
    """
    from scipy.stats import binomtest

    differences = treatment - control  # NaN, as 0, is neither
    b, c = int((differences < 0).sum()), int((differences > 0).sum())
    return b, c, float(binomtest(b, b + c).pvalue) if b + c else 1.0


def bootstrap_mean(scores: Scores, clusters: Sequence[str], seed: int = 0, draws: int = BOOTSTRAP_DRAWS) -> Interval:
    """Mean with a percentile interval from resampling whole clusters; of one cluster there is no interval.

    Args:
        scores: `(num_questions,)`, or `(num_seeds, num_questions)` to resample seeds as well.
        clusters: the section of each question.
    """
    table, index = _scored(scores, clusters)
    if not table.size:
        return Interval(math.nan, math.nan, math.nan, 0)
    (num_seeds, n), num_clusters = table.shape, int(index.max()) + 1
    scored = ~np.isnan(table)
    filled = np.where(scored, table, 0.0)
    mean = float(filled.sum() / scored.sum())
    if num_clusters == 1:
        return Interval(mean, math.nan, math.nan, n)
    sums = np.stack([np.bincount(index, row, num_clusters) for row in filled])  # (num_seeds, num_clusters)
    counts = np.stack([np.bincount(index, row.astype(float), num_clusters) for row in scored])
    generator = np.random.default_rng(seed)
    drawn_clusters, drawn_seeds = (
        generator.multinomial(number, np.full(number, 1 / number), size=draws).astype(float)
        for number in (num_clusters, num_seeds)
    )
    totals, sizes = (
        np.einsum("ds,sc,dc->d", drawn_seeds, held, drawn_clusters, optimize=True) for held in (sums, counts)
    )
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(totals[sizes > 0] / sizes[sizes > 0], [tail, 1 - tail])
    return Interval(mean, float(low), float(high), n)


def _scored(scores: Scores, clusters: Sequence[str]) -> tuple[Scores, NDArray[np.int_]]:
    """The scores of questions that any seed was scored on, and the number of each one's cluster, from 0."""
    table = np.atleast_2d(scores)
    keep = ~np.isnan(table).all(axis=0)
    return table[:, keep], np.unique(np.array(clusters, dtype=str)[keep], return_inverse=True)[1]


def treatment_minus_control(control: Scores, treatment: Scores) -> Scores:
    """Paired differences, `(num_seeds, num_questions)`; NaN where either is unscored.

    Either may be `(num_questions,)` or `(num_seeds, num_questions)`; a single seed is compared with every seed of the
    other.
    """
    differences: Scores = np.atleast_2d(treatment) - np.atleast_2d(control)
    return differences


def sign_flip_p(differences: Scores, clusters: Sequence[str], seed: int = 0, draws: int = BOOTSTRAP_DRAWS) -> float:
    """Two-sided permutation p of a mean difference, flipping the signs of whole clusters at random.

    The observed signs count as one of the draws (Phipson & Smyth 2010), so p is never 0.
    """
    table, index = _scored(differences, clusters)
    if not table.size:
        return math.nan
    sums = np.bincount(index, np.nanmean(table, axis=0))
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(draws, len(sums)))
    flipped = np.abs(signs @ sums)
    return float((np.sum(flipped >= abs(sums.sum()) - 1e-12) + 1) / (draws + 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p values, in the order given; NaN stays NaN and does not count."""
    known = [(p, index) for index, p in enumerate(p_values) if not math.isnan(p)]
    adjusted, highest = [math.nan] * len(p_values), 0.0
    for rank, (p, index) in enumerate(sorted(known)):
        highest = max(highest, min(1.0, (len(known) - rank) * p))
        adjusted[index] = highest
    return adjusted


def mcnemar_power(n: int, difference: float, discordant: float, alpha: float = 0.05) -> float:
    """Probability that an exact McNemar test at `alpha` detects a true difference.

    Args:
        n: questions.
        difference: treatment's share right minus control's, -1 to 1.
        discordant: share of questions on which the two disagree, at least `abs(difference)`.
    """
    from scipy.stats import binom

    if discordant < abs(difference) or n <= 0 or discordant <= 0:
        return 0.0
    better = (discordant + difference) / 2 / discordant
    sizes = np.arange(n + 1)
    weights = binom.pmf(sizes, n, discordant)
    # The largest k for which the two-sided exact test rejects: P(X <= k) <= alpha / 2 under a fair coin.
    largest = binom.ppf(alpha / 2, sizes, 0.5)
    largest = np.where(binom.cdf(largest, sizes, 0.5) <= alpha / 2, largest, largest - 1)
    tails = binom.cdf(largest, sizes, better) + binom.sf(sizes - largest - 1, sizes, better)
    return float(np.sum(weights * np.where(largest >= 0, tails, 0.0)))


def smallest_detectable(n: int, discordant: float = 0.3, power: float = 0.8) -> float:
    """Smallest difference that the exact McNemar test detects with this power, to 0.5 points; NaN if none."""
    for points in range(1, 201):
        difference = points / 200
        if mcnemar_power(n, difference, max(difference, discordant)) >= power:
            return difference
    return math.nan


def area_under_curve(scores: Scores, positive: NDArray[np.bool_]) -> float:
    """Share of pairs in which the positive one scores higher, ties half; NaN without a pair.

    0.5 is chance (Hanley & McNeil 1982).
    """
    above, below = scores[positive], scores[~positive]
    if not len(above) or not len(below):
        return math.nan
    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(above, below, method="asymptotic").statistic / (len(above) * len(below)))
