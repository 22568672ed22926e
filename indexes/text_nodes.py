"""A stored node as llama-index's, for its stores and retrievers; metadata hold what tells a reader the place."""

from __future__ import annotations

from collections.abc import Sequence

from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode

from indexes.types import StoredNode

NOT_FOR_A_MODEL = ("document_id", "chapter", "page_start", "page_end")


def to_text_node(node: StoredNode, vector: Sequence[float] | None = None) -> TextNode:
    """The node under its own id, its book as the source.

    Args:
        vector: its embedding, for a store's `add`.
    """
    metadata = {
        "document_id": node.document_id,
        "title": node.title,
        "section": " > ".join(node.heading_path),
        "chapter": node.chapter,
        "page_start": node.page_start,
        "page_end": node.page_end,
        "page_label": node.page_labels[0] if node.page_labels else None,
    }
    return TextNode(
        id_=node.node_id,
        text=node.text,
        embedding=list(vector) if vector is not None else None,
        metadata=metadata,
        excluded_embed_metadata_keys=list(metadata),
        excluded_llm_metadata_keys=list(NOT_FOR_A_MODEL),
        relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=node.document_id)},
    )
