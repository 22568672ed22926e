"""Our way of cutting books as a llama-index node parser."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.node_parser.interface import NodeParser
from llama_index.core.schema import BaseNode, MetadataMode, NodeRelationship, RelatedNodeInfo, TextNode
from pydantic import PrivateAttr

from indexes.chunking import TokenStarts, chunk_book
from indexes.readers.elements import chapters_in_file, title_of
from indexes.readers.markdown import parse_markdown
from indexes.types import Book


class BookNodeParser(NodeParser):
    """Cuts Markdown documents into nodes by structure, sized in the tokens of the embedder that will read them.

    Each node's metadata hold its `title`, `section` (heading path) and `chapter`; llama-index puts them before the
    text when it embeds, as the library does, so that `limit_tokens` leaves room for them.
    """

    limit_tokens: int = 240
    overlap_tokens: int = 0

    _token_starts: TokenStarts = PrivateAttr()

    def __init__(self, token_starts: TokenStarts, **fields: Any) -> None:
        super().__init__(**fields)
        self._token_starts = token_starts

    @classmethod
    def class_name(cls) -> str:
        """Name under which llama-index knows the class."""
        return "CoalesceBookNodeParser"

    def _parse_nodes(self, nodes: Sequence[BaseNode], show_progress: bool = False, **kwargs: Any) -> list[BaseNode]:
        return [part for node in nodes for part in self._parse(node)]

    def _parse(self, node: BaseNode) -> list[BaseNode]:
        parsed = parse_markdown(node.get_content(metadata_mode=MetadataMode.NONE))
        title, elements = title_of(parsed)
        title = title or str(node.metadata.get("title") or node.metadata.get("file_name") or node.node_id)
        book = Book(title, "markdown", chapters_in_file(elements, title))
        source = RelatedNodeInfo(node_id=node.node_id, metadata=node.metadata)
        return [
            TextNode(
                text=draft.text,
                metadata={
                    **node.metadata,
                    "title": title,
                    "section": " > ".join(draft.heading_path),
                    "chapter": draft.chapter,
                },
                relationships={NodeRelationship.SOURCE: source},
                excluded_embed_metadata_keys=[*node.metadata, "title", "chapter"],
            )
            for draft in chunk_book(book, self._token_starts, self.limit_tokens, self.overlap_tokens)
        ]
