"""Our nodes as llama-index's and back, at the seams where other people's parts plug in."""

from __future__ import annotations

from llama_index.core.schema import NodeWithScore, TextNode

from indexes.types import Hit


def to_llama(hit: Hit) -> NodeWithScore:
    """A hit as llama-index has it; metadata carry what a reader needs to find the place."""
    node = hit.node
    metadata = {
        "document_id": node.document_id,
        "title": node.title,
        "section": " > ".join(node.heading_path),
        "chapter": node.chapter,
        "page_start": node.page_start,
        "page_end": node.page_end,
    }
    return NodeWithScore(
        node=TextNode(
            id_=node.node_id,
            text=node.text,
            metadata=metadata,
            excluded_embed_metadata_keys=list(metadata),
            excluded_llm_metadata_keys=["document_id", "chapter"],
        ),
        score=hit.score,
    )
