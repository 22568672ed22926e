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
    """A value with the bounds of its interval; NaN where nothing was scored."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class McNemar:
    """Discordant pairs and the exact two-sided p value.

    Attributes:
        b: control right, treatment wrong.
        c: control wrong, treatment right.
    """

    b: int
    c: int
    p: float


def wilson_interval(successes: int, n: int, confidence: float = CONFIDENCE) -> Interval:
    """Wilson's score interval of `successes` in `n`; NaN for n = 0."""
    if n == 0:
        return Interval(math.nan, math.nan, math.nan)
    from scipy.stats import norm

    z = float(norm.ppf(0.5 + confidence / 2))
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return Interval(share, max(0.0, centre - half), min(1.0, centre + half))


def mcnemar(control: Scores, treatment: Scores) -> McNemar:
    """Exact McNemar test of two arrays of 0 and 1. Without discordant pairs p is 1."""
    from scipy.stats import binomtest

    both = _scored(control, treatment)
    b = int(np.sum((control[both] > 0.5) & (treatment[both] <= 0.5)))
    c = int(np.sum((control[both] <= 0.5) & (treatment[both] > 0.5)))
    return McNemar(b, c, float(binomtest(b, b + c, 0.5).pvalue) if b + c else 1.0)


def bootstrap_mean(scores: Scores, clusters: Sequence[str], seed: int = 0, draws: int = BOOTSTRAP_DRAWS) -> Interval:
    """Mean with a percentile interval from resampling whole clusters.

    Args:
        scores: `(num_questions,)`, or `(num_seeds, num_questions)` to resample seeds as well.
        clusters: the section of each question.
    """
    table = np.atleast_2d(scores)
    keep = ~np.isnan(table).all(axis=0)
    if not keep.any():
        return Interval(math.nan, math.nan, math.nan)
    table = table[:, keep]
    _, index = np.unique(np.asarray(clusters, dtype=object)[keep].astype(str), return_inverse=True)
    num_clusters = int(index.max()) + 1
    scored = ~np.isnan(table)
    filled = np.where(scored, table, 0.0)
    sums = np.stack([np.bincount(index, row, num_clusters) for row in filled])  # (num_seeds, num_clusters)
    counts = np.stack([np.bincount(index, row.astype(float), num_clusters) for row in scored])
    generator = np.random.default_rng(seed)
    drawn_clusters = generator.multinomial(num_clusters, np.full(num_clusters, 1 / num_clusters), size=draws)
    drawn_seeds = generator.multinomial(len(table), np.full(len(table), 1 / len(table)), size=draws)
    totals = np.einsum("ds,sc,dc->d", drawn_seeds.astype(float), sums, drawn_clusters.astype(float), optimize=True)
    sizes = np.einsum("ds,sc,dc->d", drawn_seeds.astype(float), counts, drawn_clusters.astype(float), optimize=True)
    means = totals[sizes > 0] / sizes[sizes > 0]
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(float(filled.sum() / scored.sum()), float(low), float(high))


def treatment_minus_control(control: Scores, treatment: Scores) -> Scores:
    """Paired differences, `(num_seeds, num_questions)`; NaN where either is unscored.

    Either may be `(num_questions,)` or `(num_seeds, num_questions)`; a single seed is compared with every seed of the
    other.
    """
    control, treatment = np.atleast_2d(control), np.atleast_2d(treatment)
    num_seeds = max(len(control), len(treatment))
    return np.broadcast_to(treatment, (num_seeds, treatment.shape[1])) - np.broadcast_to(
        control, (num_seeds, control.shape[1])
    )


def sign_flip_p(differences: Scores, clusters: Sequence[str], seed: int = 0, draws: int = BOOTSTRAP_DRAWS) -> float:
    """Two-sided permutation p of a mean difference, flipping the signs of whole clusters at random.

    The observed signs count as one of the draws (Phipson & Smyth 2010), so p is never 0.
    """
    table = np.atleast_2d(differences)
    keep = ~np.isnan(table).all(axis=0)
    if not keep.any():
        return math.nan
    _, index = np.unique(np.asarray(clusters, dtype=object)[keep].astype(str), return_inverse=True)
    sums = np.bincount(index, np.nanmean(table[:, keep], axis=0))
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
        if difference <= discordant and mcnemar_power(n, difference, discordant) >= power:
            return difference
        if difference > discordant and mcnemar_power(n, difference, difference) >= power:
            return difference
    return math.nan


def _scored(control: Scores, treatment: Scores) -> NDArray[np.bool_]:
    return ~(np.isnan(control) | np.isnan(treatment))


def area_under_curve(scores: Scores, positive: NDArray[np.bool_]) -> float:
    """Share of pairs in which the positive one scores higher, ties half; NaN without a pair.

    0.5 is chance (Hanley & McNeil 1982).
    """
    above, below = scores[positive], scores[~positive]
    if not len(above) or not len(below):
        return math.nan
    differences = above[:, None] - below[None, :]
    return float(((differences > 0) + 0.5 * (differences == 0)).mean())
