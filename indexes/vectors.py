"""FAISS: unit vectors under integer ids, searched by inner product. The only file that names faiss.

It checks what FAISS does not: wrong dimensions (a bare AssertionError there), vectors that are no numbers (ids of -1),
fewer vectors than asked for (padding with -1), and files that are cut short (a C++ trace).

Two kinds of index, chosen by size: exact (`flat`) up to `FLAT_LIMIT`, above it inverted lists (`ivf`) with half-size
vectors, whose number of lists searched is measured when it is built, so that it finds what the exact one would.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np

from indexes.errors import IndexCorrupt, InvalidInput
from indexes.text_encoder import Matrix

FLAT_LIMIT = 200_000
"""Above this many vectors an exact search takes tens of milliseconds on two cores."""
RECALL_AIM = 0.98
"""Recall@10 of `ivf` against `flat`, on the probes by which it is tuned."""
SEARCHED_AT_LEAST = 32
"""Lists searched whatever the probes say: they are easier than questions. At a million vectors, eight lists found 0.99
of the probes' neighbours and 0.93 of the questions'; 32 found all, in half a millisecond."""
PROBE_NOISE = 1.5
TRAINING_VECTORS_A_LIST = 50
TUNING_PROBES = 300


class VectorIndex:
    """Search over unit vectors. Threads may share it: searches and changes take turns."""

    def __init__(self, dimension: int, *, use_gpu: bool = False, index: Any = None) -> None:
        import faiss

        self.dimension = dimension
        self._faiss: Any = faiss
        self._index: Any = index if index is not None else faiss.IndexIDMap2(faiss.IndexFlatIP(dimension))
        self._lock = threading.RLock()
        self._use_gpu = use_gpu and self.kind == "flat" and faiss.get_num_gpus() > 0
        self._on_gpu: Any = None

    @property
    def device(self) -> str:
        """Where searches run: `cuda` or `cpu`."""
        return "cuda" if self._use_gpu else "cpu"

    @property
    def kind(self) -> str:
        """`flat` (exact) or `ivf`."""
        return "ivf" if isinstance(self._index, self._faiss.IndexIVF) else "flat"

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def add(self, ids: np.ndarray, vectors: Matrix) -> None:
        """Add vectors, shape (n, dimension), under new ids, shape (n,)."""
        checked = self._checked(vectors)
        if len(ids) != len(checked):
            raise InvalidInput(f"{len(ids)} ids were given for {len(checked)} vectors.")
        with self._lock:
            self._index.add_with_ids(checked, np.ascontiguousarray(ids, dtype=np.int64))
            self._on_gpu = None

    def remove_range(self, first: int, last: int) -> int:
        """Remove the ids from `first` to `last`, both included; how many there were."""
        return self._remove(self._faiss.IDSelectorRange(first, last + 1))

    def remove(self, ids: np.ndarray) -> int:
        """Remove these ids; how many there were."""
        return self._remove(self._faiss.IDSelectorBatch(np.ascontiguousarray(ids, dtype=np.int64)))

    def search(self, query: np.ndarray, top_k: int, allowed: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The ids, int64, and inner products, float32, of the best vectors, best first; at most `top_k`.

        Args:
            query: one vector, shape (dimension,).
            allowed: ids that may be found; None allows all. The search among them is exact.

        Raises:
            InvalidInput: a query of another dimension, or one that is no number.
        """
        row = self._checked(np.asarray(query).reshape(1, -1))
        with self._lock:
            count = min(top_k, len(self), len(allowed) if allowed is not None else top_k)
            if count < 1:
                return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32)
            if allowed is None:
                scores, ids = self._fastest().search(row, count)
            else:
                # GPU indexes take no selectors, so filtered searches stay on the CPU.
                scores, ids = self._index.search(row, count, params=self._only(allowed))
        found = ids[0] >= 0
        return ids[0][found], scores[0][found]

    def save(self, path: Path) -> None:
        """Write the index to a file, in place of what was there, at once."""
        draft = path.with_name(path.name + ".tmp")
        with self._lock:
            self._faiss.write_index(self._index, str(draft))
        draft.replace(path)

    def _remove(self, selector: Any) -> int:
        with self._lock:
            self._on_gpu = None
            return int(self._index.remove_ids(selector))

    def _only(self, allowed: np.ndarray) -> Any:
        """Search parameters that let these ids pass; among few of them every list is searched."""
        bits = np.zeros(int(allowed.max()) + 1, dtype=np.uint8)
        bits[allowed] = 1
        selector = self._faiss.IDSelectorBitmap(np.packbits(bits, bitorder="little"))
        if self.kind == "ivf":
            return self._faiss.SearchParametersIVF(sel=selector, nprobe=self._index.nlist)
        return self._faiss.SearchParameters(sel=selector)

    def _fastest(self) -> Any:
        if not self._use_gpu:
            return self._index
        if self._on_gpu is None:
            self._on_gpu = self._faiss.index_cpu_to_gpu(self._faiss.StandardGpuResources(), 0, self._index)
        return self._on_gpu

    def _checked(self, vectors: np.ndarray) -> Matrix:
        checked = np.ascontiguousarray(vectors, dtype=np.float32)
        if checked.ndim != 2 or checked.shape[1] != self.dimension:
            raise InvalidInput(
                f"Vectors of shape {checked.shape} were given to an index of dimension {self.dimension}."
            )
        if not np.isfinite(checked).all():
            raise InvalidInput("A vector holds values that are no numbers.")
        return checked


def build_inverted(ids: np.ndarray, vectors: Matrix, *, seed: int = 1) -> VectorIndex:
    """An `ivf` index of these vectors, shape (n, dimension), that searches as many lists as `RECALL_AIM` takes.

    The probes are stored vectors with `PROBE_NOISE` times as much noise: about as far from their neighbours as a
    question is from the passages that answer it (a cosine of 0.55). A vector probed as it stands would be found in
    its own list and prove nothing.
    """
    import faiss

    count, dimension = vectors.shape
    lists = max(16, min(int(4 * count**0.5), count // 40))
    rng = np.random.default_rng(seed)
    sample = vectors[np.sort(rng.choice(count, min(count, lists * TRAINING_VECTORS_A_LIST), replace=False))]
    quantizer = faiss.IndexFlatIP(dimension)
    half = faiss.ScalarQuantizer.QT_fp16
    index: Any = faiss.IndexIVFScalarQuantizer(quantizer, dimension, lists, half, faiss.METRIC_INNER_PRODUCT)
    index.cp.niter = 10
    index.train(sample)
    index.add_with_ids(vectors, np.ascontiguousarray(ids, dtype=np.int64))
    noise = rng.standard_normal((TUNING_PROBES, dimension)).astype(np.float32)
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    probes = np.ascontiguousarray(vectors[rng.choice(count, TUNING_PROBES)] + PROBE_NOISE * noise)
    top_k = min(10, count)
    _, rows = faiss.knn(probes, vectors, top_k, metric=faiss.METRIC_INNER_PRODUCT)
    exact = ids[rows]
    index.nprobe = min(lists, SEARCHED_AT_LEAST)
    while index.nprobe < lists:
        _, found = index.search(probes, top_k)
        recall = np.mean([np.isin(one, other).mean() for one, other in zip(exact, found, strict=True)])
        if recall >= RECALL_AIM:
            break
        index.nprobe = min(lists, index.nprobe * 2)
    return VectorIndex(dimension, index=index)


def load_index(path: Path, dimension: int, *, use_gpu: bool = False) -> VectorIndex:
    """Read an index from a file. Raises IndexCorrupt when it is cut short, of another kind or another dimension."""
    import faiss

    try:
        index = faiss.read_index(str(path))
    except RuntimeError as error:
        raise IndexCorrupt(
            f"The vector file '{path}' cannot be read.", hint="it is rebuilt from the catalog"
        ) from error
    if not isinstance(index, (faiss.IndexIDMap2, faiss.IndexIVF)) or index.d != dimension:
        raise IndexCorrupt(f"The vector file '{path}' is of another kind.", hint="it is rebuilt from the catalog")
    return VectorIndex(dimension, use_gpu=use_gpu, index=index)
