"""The seam between a library and what searches its vectors: FAISS beside the catalog, or an outside engine."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from indexes.types import Filters


class NodeVectors(Protocol):
    """Vectors of all nodes, found by rowid. They follow the catalog, which alone knows what is true."""

    @property
    def device(self) -> str:
        """What searches: `cpu` or `cuda` for FAISS, else the engine's name."""

    def open(self) -> None:
        """Make ready, and take over what changed since the last time."""

    def sync(self) -> None:
        """Take over what changed in the catalog; costs one row read when nothing did."""

    def search(self, vector: np.ndarray, top_k: int, filters: Filters) -> tuple[np.ndarray, np.ndarray]:
        """Rowids, int64, and cosines, float32, of the nearest nodes that pass the filters, best first.

        Args:
            vector: unit length, shape (dimension,).
        """

    def save_if_worth(self) -> None:
        """Keep on disk what would take long to make again."""
