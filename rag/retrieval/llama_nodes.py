"""Our hits as llama-index's, at the seams where other people's parts plug in."""

from __future__ import annotations

from llama_index.core.schema import NodeWithScore

from indexes.text_nodes import to_text_node
from indexes.types import Hit


def to_llama(hit: Hit) -> NodeWithScore:
    """A hit as llama-index has it."""
    return NodeWithScore(node=to_text_node(hit.node), score=hit.score)
