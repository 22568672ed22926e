"""What this floor asks of a library: the part of `indexes.library.Library` that answering needs.

Stated as a Protocol so that tests can stand in a few lists for a library.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from indexes.types import Chapter, Document, Filters, Hit, StoredNode


class SearchableLibrary(Protocol):
    """Books that can be searched; scores are higher for better hits."""

    @property
    def generation(self) -> int:
        """Changes whenever what can be found changes."""
        ...

    def dense(self, query: str, top_k: int, filters: Filters | None = None) -> list[Hit]:
        """The `top_k` nodes whose vectors are nearest the query's; the score is the cosine."""
        ...

    def lexical(self, query: str, top_k: int, filters: Filters | None = None) -> list[Hit]:
        """The `top_k` nodes that match the query's terms best."""
        ...

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors, float32 `(len(texts), dim)`."""
        ...

    def around(self, node: StoredNode, before: int = 1, after: int = 1) -> list[StoredNode]:
        """`node` with up to `before` and `after` nodes around it in its book, in reading order."""
        ...

    def get_nodes(self, node_ids: Sequence[str]) -> list[StoredNode]:
        """The nodes with these ids, in the order asked."""
        ...

    def documents(self) -> Sequence[Document]:
        """All books."""
        ...

    def chapters(self, document_id: str) -> Sequence[Chapter]:
        """The chapters of a book in order."""
        ...
