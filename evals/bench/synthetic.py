"""Libraries of any size from a real one: real node texts, and their vectors with a little noise.

Random vectors would defeat every approximate index, and a real corpus of a million nodes is not at hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from indexes.text_encoder import CancelCheck, EncodeListener, Matrix, TextEncoder

NOISE = 0.02
"""Standard deviation of the noise in each coordinate before vectors are made unit length again."""


class NoisyEncoder:
    """Encodes queries for real and gives passages the vectors of real passages, in turn, with noise.

    Args:
        real: the encoder that queries go to.
        base: vectors of real passages, shape (num_passages, dimension).
    """

    def __init__(self, real: TextEncoder, base: Matrix, seed: int = 0) -> None:
        self._real = real
        self._base = base
        self._generator = np.random.default_rng(seed)

    @property
    def fingerprint(self) -> str:
        """That of the real encoder, so that its queries may be compared."""
        return self._real.fingerprint

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return self._real.dimension

    @property
    def max_text_tokens(self) -> int:
        """As the real encoder's."""
        return self._real.max_text_tokens

    def token_starts(self, texts: Sequence[str]) -> list[list[int]]:
        """As the real encoder's."""
        return self._real.token_starts(texts)

    def encode(
        self,
        texts: Sequence[str],
        *,
        progress: EncodeListener | None = None,  # noqa: ARG002  the protocol's; drawing vectors takes no time
        cancelled: CancelCheck | None = None,  # noqa: ARG002
    ) -> Matrix:
        """Vectors near real ones, shape (len(texts), dimension)."""
        return self.vectors(len(texts))

    def encode_queries(self, texts: Sequence[str]) -> Matrix:
        """Vectors of questions, by the real encoder."""
        return self._real.encode_queries(texts)

    def vectors(self, count: int) -> Matrix:
        """`count` noisy vectors of unit length, float32, shape (count, dimension)."""
        rows = self._base[self._generator.integers(0, len(self._base), count)]
        noise = self._generator.standard_normal(rows.shape, dtype=np.float32)
        noisy = rows + NOISE * noise
        return np.asarray(noisy / np.linalg.norm(noisy, axis=1, keepdims=True), dtype=np.float32)


def write_synthetic_book(path: Path, texts: Sequence[str], sections: int, seed: int) -> Path:
    """Writes a Markdown book of `sections` sections, each a real node's text drawn by `seed`; gives `path`.

    A line of its own keeps texts apart: a text that is known is not embedded again.
    """
    picked = np.random.default_rng(seed).integers(0, len(texts), sections)
    parts = [f"## Part {seed}.{i}\n\n{texts[index]}\n\nNote {seed}-{i}." for i, index in enumerate(picked)]
    path.write_text("# Synthetic\n\n" + "\n\n".join(parts), encoding="utf-8")
    return path
