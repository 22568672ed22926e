"""Several rankings made into one."""

from __future__ import annotations

from collections.abc import Sequence

from indexes.types import Hit, StoredNode

RRF_CONSTANT = 10.0
"""The k of reciprocal rank fusion (Cormack, Clarke and Büttcher, SIGIR 2009, who use 60). A small one lets the first
few of each ranking count for more; measured in `docs/decisions-retrieval.md`."""


def reciprocal_rank_fusion(
    rankings: Sequence[Sequence[Hit]], weights: Sequence[float] | None = None, constant: float = RRF_CONSTANT
) -> list[Hit]:
    """Nodes by the weighted sum of `1 / (constant + rank)` over the rankings that hold them, ranks from 1.

    Ties keep the order of the first ranking that holds the node. Scores are at most `sum(weights) / (constant + 1)`.
    """
    weights = [1.0] * len(rankings) if weights is None else weights
    if len(weights) != len(rankings):
        raise ValueError(f"{len(weights)} weights for {len(rankings)} rankings")
    scores: dict[str, float] = {}
    nodes: dict[str, StoredNode] = {}
    for ranking, weight in zip(rankings, weights, strict=True):
        for rank, hit in enumerate(ranking, 1):
            nodes.setdefault(hit.node.node_id, hit.node)
            scores[hit.node.node_id] = scores.get(hit.node.node_id, 0.0) + weight / (constant + rank)
    return [Hit(nodes[node_id], scores[node_id]) for node_id in sorted(scores, key=lambda key: -scores[key])]
