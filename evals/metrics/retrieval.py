"""Whether retrieval found the gold: recall@k, all-parts recall, MRR and nDCG@k for one question.

A passage is relevant to a part of a question when it holds one of the part's evidence texts (white space levelled), or,
where it holds none, when it is of that gold section (`file#heading`). Parts are the facts that all are needed;
gold entries with one part are alternatives. All take the parts found by each rank.

    recall@k           parts found in the first k / parts
    all-parts recall   1 when every part is found in the first k
    MRR                1 / rank of the first relevant passage, 0 when there is none
    nDCG@k             sum over ranks of [rank brings a part not found before] / log2(rank + 1), over the ideal
                       order's (one new part a rank); Järvelin & Kekäläinen 2002, with gains given once a part, so that
                       two passages on one fact do not count twice

Edge cases: no gold -> None.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set


def recall_at_k(found: Sequence[Set[int]], parts: Set[int], k: int) -> float | None:
    """Share of `parts` found in the first `k` passages.

    Args:
        found: the parts that each passage holds, best first.
        parts: the parts that are needed.
    """
    if not parts:
        return None
    return len(_found(found, k) & parts) / len(parts)


def all_parts_recall_at_k(found: Sequence[Set[int]], parts: Set[int], k: int) -> float | None:
    """1.0 when every part is found in the first `k` passages, else 0.0."""
    if not parts:
        return None
    return float(parts <= _found(found, k))


def reciprocal_rank(found: Sequence[Set[int]], parts: Set[int]) -> float | None:
    """1 / rank of the first passage that holds a needed part; 0.0 when none does."""
    if not parts:
        return None
    for rank, held in enumerate(found, start=1):
        if held & parts:
            return 1 / rank
    return 0.0


def ndcg_at_k(found: Sequence[Set[int]], parts: Set[int], k: int) -> float | None:
    """Discounted gain of the order over the best possible, 0.0 to 1.0."""
    if not parts:
        return None
    gain, known = 0.0, set[int]()
    for rank, held in enumerate(found[:k], start=1):
        if (held & parts) - known:
            gain += 1 / math.log2(rank + 1)
            known |= held & parts
    ideal = sum(1 / math.log2(rank + 1) for rank in range(1, min(len(parts), k) + 1))
    return gain / ideal


def _found(found: Sequence[Set[int]], k: int) -> set[int]:
    return set().union(*found[:k]) if found else set()
