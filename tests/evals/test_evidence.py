"""Laws of fitting the evidence calibration."""

from __future__ import annotations

import random

import numpy as np
import pytest

from evals.bench.evidence import (
    FALSE_REFUSALS,
    Case,
    asked_threshold,
    fit,
    scores_of_unseen_books,
    table_lines,
    thresholds,
)
from evals.statistics import area_under_curve


def make_cases(num_cases: int = 400) -> list[Case]:
    """Questions of three books whose signal `cosine` tells the answerable ones apart; `noise` tells nothing."""
    draw = random.Random(7)
    cases = []
    for i in range(num_cases):
        answerable, off_topic = i % 4 != 0, i % 8 == 0
        cosine = draw.gauss(0.7 if answerable else 0.2 if off_topic else 0.5, 0.1)
        kind = "define" if answerable else "off_topic" if off_topic else "unanswerable"
        cases.append(Case(f"book {i % 3}", kind, answerable, {"cosine": cosine, "noise": draw.random()}))
    return cases


def test_the_informative_signal_gets_the_weight() -> None:
    found = fit(make_cases(), ["cosine", "noise"])
    assert found.weights["cosine"] > 5 * abs(found.weights["noise"])


def test_signals_can_be_left_out_of_the_score_that_they_took_part_in_fitting() -> None:
    cases = make_cases()
    scores = scores_of_unseen_books(cases, ["cosine", "noise"], {"cosine": 0.0})
    assert np.ptp(scores) < np.ptp(scores_of_unseen_books(cases, ["cosine", "noise"])) / 4


def test_the_area_under_the_curve_counts_ties_a_half() -> None:
    answerable = np.array([True, True, False])
    assert area_under_curve(np.array([0.9, 0.5, 0.5]), answerable) == pytest.approx(0.75)


def test_thresholds_refuse_the_promised_shares() -> None:
    cases = make_cases()
    scores = scores_of_unseen_books(cases, ["cosine", "noise"])
    least, strong = thresholds(cases, scores)
    asked = asked_threshold(cases, scores)
    answerable = np.array([case.answerable for case in cases])
    near = np.array([case.kind == "unanswerable" for case in cases])
    off_topic = np.array([case.kind == "off_topic" for case in cases])
    assert (scores[answerable] < least).mean() <= FALSE_REFUSALS + 0.001
    assert (scores[answerable] < asked).mean() <= 0.01
    assert (scores[near] < strong).mean() >= 0.85
    assert (scores[off_topic] < least).mean() >= 0.95
    lines = list(table_lines(cases, scores, least, strong, scores < asked))
    assert lines[1].split()[:2] == ["answerable", "300"]
