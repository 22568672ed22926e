"""What the library asks of an embedder. The bundled one is `indexes.embedder.Embedder`; tests bring a small one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float32]
"""Shape (n, dimension), rows of unit length."""
EncodeListener = Callable[[int, int], None]
"""Called with `(done, total)` texts."""
CancelCheck = Callable[[], bool]


class TextEncoder(Protocol):
    """Texts to unit vectors, and the tokens in which it counts."""

    @property
    def fingerprint(self) -> str:
        """Names the weights and how they are used: vectors of equal fingerprints may be compared."""

    @property
    def dimension(self) -> int:
        """Length of a vector."""

    @property
    def max_text_tokens(self) -> int:
        """Most tokens of a text that are read, special tokens left out."""

    def token_starts(self, texts: Sequence[str]) -> list[list[int]]:
        """For each text, the character offsets at which its tokens begin."""

    def encode(
        self,
        texts: Sequence[str],
        *,
        progress: EncodeListener | None = None,
        cancelled: CancelCheck | None = None,
    ) -> Matrix:
        """Vectors of passages, shape (len(texts), dimension). Raises `Cancelled` between batches when asked to."""

    def encode_queries(self, texts: Sequence[str]) -> Matrix:
        """Vectors of questions, shape (len(texts), dimension)."""
