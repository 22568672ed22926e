"""Remembers the vectors of texts seen before: the same sentences come up again and again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Embed = Callable[[Sequence[str]], NDArray[np.float32]]
"""Texts to unit vectors, float32 `(len(texts), dim)`."""

CACHED_VECTORS = 20_000
TOGETHER = 8
"""Texts of like length that are embedded at once: a batch costs as much as if all its texts were as long as the
longest, and a dozen sentences and one listing together took four times as long as apart."""


class VectorMemory:
    """An embedding function that remembers `CACHED_VECTORS` texts, the newest. Threads may share it."""

    def __init__(self, embed: Embed) -> None:
        self._embed = embed
        self._vectors: OrderedDict[str, NDArray[np.float32]] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors `(len(texts), dim)`, from memory where they were asked before."""
        with self._lock:
            known = {text: self._vectors[text] for text in texts if text in self._vectors}
        missing = [text for text in dict.fromkeys(texts) if text not in known]
        if missing:
            fresh: dict[str, NDArray[np.float32]] = {}
            by_length = sorted(missing, key=len)
            for first in range(0, len(by_length), TOGETHER):
                batch = by_length[first : first + TOGETHER]
                fresh.update(zip(batch, self._embed(batch), strict=True))
            known.update(fresh)
            with self._lock:
                self._vectors.update(fresh)
                while len(self._vectors) > CACHED_VECTORS:
                    self._vectors.popitem(last=False)
        return np.stack([known[text] for text in texts])
