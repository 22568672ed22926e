"""Intervals and tests, against worked numbers and public libraries."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from scipy import stats

from evals.statistics import (
    area_under_curve,
    bootstrap_mean,
    holm,
    mcnemar,
    mcnemar_power,
    sign_flip_p,
    smallest_detectable,
    treatment_minus_control,
    wilson_interval,
)


def test_wilsons_interval_by_hand() -> None:
    interval = wilson_interval(30, 30)
    assert (interval.low, interval.high) == pytest.approx((30 / (30 + 1.96**2), 1.0), abs=1e-5)


def test_mcnemar_by_hand() -> None:
    control = np.array([1, 1, 1, 0, 0, 0, 0, 0, 0, np.nan])
    treatment = np.array([1, 1, 0, 1, 1, 1, 1, 1, 0, 1.0])
    b, c, p = mcnemar(control, treatment)
    assert (b, c) == (1, 5)
    assert p == pytest.approx(2 * (1 + 6) / 2**6)
    assert mcnemar(np.ones(4), np.ones(4)) == (0, 0, 1.0)


def test_holm_by_hand_and_passing_over_nan() -> None:
    """Times 5, 4, 3, 2 and 1 from the smallest on, and never less than one before."""
    assert holm([0.01, 0.04, 0.03, 0.005, 0.9]) == pytest.approx([0.04, 0.09, 0.09, 0.025, 0.9])
    assert holm([0.01, math.nan, 0.04]) == pytest.approx([0.02, math.nan, 0.04], nan_ok=True)


def test_bootstrap_of_single_question_clusters_agrees_with_scipy() -> None:
    scores = np.random.default_rng(1).integers(0, 2, 200).astype(float)
    ours = bootstrap_mean(scores, [str(i) for i in range(200)], seed=3)
    theirs = stats.bootstrap((scores,), np.mean, n_resamples=10_000, method="percentile", rng=3).confidence_interval
    assert ours.value == scores.mean()
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.012)


def test_whole_clusters_are_drawn_so_dependence_widens_the_interval() -> None:
    scores = np.repeat(np.random.default_rng(0).integers(0, 2, 20).astype(float), 10)
    alone = bootstrap_mean(scores, [str(i) for i in range(200)])
    together = bootstrap_mean(scores, [str(i // 10) for i in range(200)])
    assert together.high - together.low > 2 * (alone.high - alone.low)


def test_unscored_questions_do_not_count_and_nothing_is_not_zero() -> None:
    scores = np.array([1.0, np.nan, 1.0, 0.0])
    several, one = bootstrap_mean(scores, list("abcd")), bootstrap_mean(scores, list("abaa"))
    assert several.value == one.value == pytest.approx(2 / 3)
    assert math.isnan(one.low) and math.isnan(one.high), "one cluster has no interval"
    assert 0.0 <= several.low < several.value < several.high <= 1.0
    assert math.isnan(bootstrap_mean(np.full(3, np.nan), list("abc")).value)
    assert math.isnan(wilson_interval(0, 0).value)


def test_differences_are_paired_by_question() -> None:
    paired = treatment_minus_control(np.array([0.0, 0.0, 1.0, np.nan]), np.array([1.0, 1.0, 0.0, 1.0]))
    assert paired.ravel().tolist() == pytest.approx([1, 1, -1, math.nan], nan_ok=True)


def test_several_seeds_widen_the_interval_when_they_disagree() -> None:
    rng = np.random.default_rng(0)
    control = np.zeros(100)
    agreeing = np.tile(rng.integers(0, 2, 100).astype(float), (3, 1))
    disagreeing = agreeing.copy()
    disagreeing[0], disagreeing[2] = 1.0, 0.0
    clusters = [str(i) for i in range(100)]
    narrow = bootstrap_mean(treatment_minus_control(control, agreeing), clusters)
    wide = bootstrap_mean(treatment_minus_control(control, disagreeing), clusters)
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)


def test_sign_flips_agree_with_scipy_permutation() -> None:
    differences = np.random.default_rng(5).normal(0.3, 1, 60)
    ours = sign_flip_p(differences, [str(i) for i in range(60)])
    permuted = stats.permutation_test((differences,), np.mean, permutation_type="samples", n_resamples=10_000, rng=1)
    assert ours == pytest.approx(permuted.pvalue, abs=0.02)


def test_power_agrees_with_simulation_and_with_certainty() -> None:
    rng = np.random.default_rng(0)
    n, difference, discordant, runs = 120, 0.15, 0.35, 2000
    p_of = cache(lambda b, c: stats.binomtest(b, b + c, 0.5).pvalue)
    found, shares = 0, [(discordant + difference) / 2, (discordant - difference) / 2, 1 - discordant]
    for _ in range(runs):
        draws = rng.choice([1, -1, 0], n, p=shares)
        c, b = int((draws == 1).sum()), int((draws == -1).sum())
        found += bool(b + c) and p_of(b, c) <= 0.05
    assert mcnemar_power(n, difference, discordant) == pytest.approx(found / runs, abs=0.03)
    assert mcnemar_power(5, 1.0, 1.0) == 0.0
    assert mcnemar_power(6, 1.0, 1.0) == pytest.approx(1.0)


def test_more_questions_settle_smaller_differences() -> None:
    assert smallest_detectable(300) < smallest_detectable(120) < smallest_detectable(30)


def test_the_area_under_the_curve_counts_ties_a_half() -> None:
    assert area_under_curve(np.array([0.9, 0.5, 0.5]), np.array([True, True, False])) == pytest.approx(0.75)
