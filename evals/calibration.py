"""How well the evidence score separates answerable questions: their share by score, and the area under the curve.

The area is the probability that an answerable question scores above one that is not, ties counted half (Hanley & McNeil
1982); 0.5 is chance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evals.scoring import Row
from evals.statistics import wilson_interval

BINS = 10


def calibration_data(rows: Sequence[Row], thresholds: Mapping[str, float]) -> dict[str, Any] | None:
    """Bins and area over all open questions, and by book where there are several; None where nothing was judged.

    Args:
        thresholds: least score of each step of evidence, to be shown.
    """
    by_question = {
        row.question.id: (row.question.book, row.record.evidence_score, row.question.answerable)
        for row in rows
        if row.record.mode == "open" and row.record.evidence_score is not None
    }
    judged = [(book, score, answerable) for book, score, answerable in by_question.values() if score is not None]
    if not judged:
        return None
    books = sorted({book for book, _, _ in judged if book})
    groups = {"all": judged} | (
        {book: [one for one in judged if one[0] == book] for book in books} if books[1:] else {}
    )
    return {
        "thresholds": dict(thresholds),
        "groups": {
            name: _reliability([score for _, score, _ in group], [answerable for _, _, answerable in group])
            for name, group in groups.items()
        },
    }


def _reliability(scores: Sequence[float], answerable: Sequence[bool]) -> dict[str, Any]:
    known, right = np.array(scores), np.array(answerable)
    bins = []
    numbers = np.minimum((known * BINS).astype(int), BINS - 1)
    for number in sorted(set(numbers.tolist())):
        held = numbers == number
        share = wilson_interval(int(right[held].sum()), int(held.sum()))
        bins.append(
            {
                "score": float(known[held].mean()),
                "n": int(held.sum()),
                "answerable": share.value,
                "low": share.low,
                "high": share.high,
            }
        )
    return {"n": len(known), "answerable": int(right.sum()), "area": area_under_curve(known, right), "bins": bins}


def area_under_curve(scores: np.ndarray, positive: np.ndarray) -> float:
    """Share of pairs in which the positive one scores higher, ties half; NaN without a pair."""
    above, below = scores[positive], scores[~positive]
    if not len(above) or not len(below):
        return math.nan
    differences = above[:, None] - below[None, :]
    return float(((differences > 0) + 0.5 * (differences == 0)).mean())
