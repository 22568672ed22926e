"""Search by vector: the seam (`NodeVectors`), and FAISS behind it, kept in step with the catalog.

The only file that imports faiss. It checks what FAISS does not: wrong dimensions (an AssertionError without a message),
NaN (ids of -1), fewer vectors than asked for (padding with -1), and truncated files (a C++ trace).

Two kinds of index, chosen by size: exact (`flat`) up to `FLAT_LIMIT`, above it inverted lists (`ivf`) of half-precision
vectors. How many lists a search reads is measured when the index is built, so that it finds what the exact one would.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from indexes.catalog import Catalog, RowRange
from indexes.disk import file_sha256, replaced_file
from indexes.embedder import Matrix
from indexes.errors import CoalesceError, IndexCorrupt, InvalidInput
from indexes.types import Filters

_logger = logging.getLogger(__name__)

FLAT_LIMIT = 200_000
"""With more vectors an exact search takes tens of milliseconds on two cores."""
LOOKED_AFTER_S = 60.0
"""How often it is looked whether a shared library lacks its graph: counting 50,000 nodes takes milliseconds."""
RECALL_AIM = 0.98
"""Recall@10 of `ivf` against `flat` on the probes."""
SEARCHED_AT_LEAST = 32
"""Lists searched whatever the probes say, because they are easier than questions. At a million vectors, eight lists
found 0.99 of the probes' neighbours and 0.93 of the questions'; 32 found all, in half a millisecond."""
PROBE_NOISE = 1.5
TUNING_PROBES = 300
TRAINING_VECTORS_PER_LIST = 50
GROWTH_LIMIT = 4
"""Inverted lists are rebuilt when the library has grown to this many times the size they were built for."""
SAVE_SHARE = 0.05
"""The index is saved when this share of it has changed since the last save: saving costs as much as the whole index,
rebuilding the difference from the catalog only as much as the difference."""
SAVE_AT_LEAST = 2_000
"""With fewer changed vectors nothing is saved: rebuilding them takes milliseconds."""
_GPU_WORKING_BYTES = 64 << 20


class NodeVectors(Protocol):
    """The vectors of all nodes, searched by rowid. They follow the catalog, which alone is authoritative."""

    @property
    def device(self) -> str:
        """Where searches run: `cpu` or `cuda` for FAISS, else `postgres` or `llama_index`."""

    def open(self) -> None:
        """Get ready to search, and take over what changed since the last time."""

    def sync(self) -> None:
        """Take over changes of the catalog; costs one row read when there are none."""

    def search(self, vector: np.ndarray, top_k: int, filters: Filters) -> tuple[np.ndarray, np.ndarray]:
        """Rowids, int64, and cosines, float32, of the nearest nodes that pass the filters, best first.

        Args:
            vector: unit length, shape (dimension,).
        """

    def save_if_worth(self) -> None:
        """Save what would take long to rebuild."""


class FaissVectors:
    """A FAISS index that follows the catalog, in a file with a note beside it (a `NodeVectors`).

    Args:
        path: the index file; the note, a `.json` beside it, says which nodes of which embedder the file holds.
        embedder: fingerprint of the embedder.
        use_gpu: search on the GPU where FAISS can.
    """

    def __init__(self, catalog: Catalog, path: Path, embedder: str, dimension: int, *, use_gpu: bool) -> None:
        self.index = VectorIndex(dimension, use_gpu=use_gpu)
        self._catalog = catalog
        self._path = path
        self._note_path = path.with_suffix(".json")
        self._embedder = embedder
        self._use_gpu = use_gpu
        self._lock = threading.Lock()
        self._generation = -1
        self._ranges: dict[str, RowRange] = {}
        self._num_unsaved = 0
        self._num_trained = 0

    @property
    def device(self) -> str:
        """Where FAISS searches: `cuda` or `cpu`."""
        return self.index.device

    def open(self) -> None:
        """Load the saved index if it fits, and bring it up to date."""
        with self._lock, contextlib.suppress(IndexCorrupt, OSError, ValueError, KeyError, TypeError):
            self._load()
        self.sync()
        self._choose_kind()

    def search(self, vector: np.ndarray, top_k: int, filters: Filters) -> tuple[np.ndarray, np.ndarray]:
        """As `NodeVectors.search`."""
        return self.index.search(vector, top_k, None if filters.empty else self._catalog.rowids(filters))

    def sync(self) -> None:
        """As `NodeVectors.sync`."""
        if self._catalog.generation() == self._generation:
            return
        with self._lock:
            generation, ranges = self._catalog.ranges()
            for document_id, span in self._ranges.items():
                if ranges.get(document_id) != span:
                    self._num_unsaved += self.index.remove_range(span.first, span.last)
            for document_id, span in ranges.items():
                if self._ranges.get(document_id) != span:
                    rowids, matrix = self._catalog.vectors_of(span, self.index.dimension)
                    self.index.add(rowids, matrix)
                    self._num_unsaved += len(rowids)
            self._ranges, self._generation = ranges, generation

    def save_if_worth(self) -> None:
        """Save the index if enough of it changed. A home that cannot be written only makes the next start slower."""
        with self._lock:
            if self._num_unsaved >= max(SAVE_AT_LEAST, SAVE_SHARE * len(self.index)):
                self._save()

    def _choose_kind(self) -> None:
        """Replace a large exact index, or lists built for a far smaller library, by new inverted lists.

        Only when opening: training takes up to minutes, and searches of a running library must not wait for it.
        """
        with self._lock:
            count = len(self.index)
            grown = self.index.kind == "ivf" and count > GROWTH_LIMIT * max(self._num_trained, 1)
            if count <= FLAT_LIMIT or not (self.index.kind == "flat" or grown):
                return
            parts = [self._catalog.vectors_of(span, self.index.dimension) for span in self._ranges.values()]
            rowids = np.concatenate([part[0] for part in parts])
            matrix = np.concatenate([part[1] for part in parts])
            del parts
            self.index = build_inverted(rowids, matrix)
            self._num_trained = count
            self._save()

    def _save(self) -> None:
        with contextlib.suppress(OSError, RuntimeError):
            # An index without its note is not read, so a crash between the two files does no harm.
            self._note_path.unlink(missing_ok=True)
            self.index.save(self._path)
            held = {"bytes": self._path.stat().st_size, "sha256": file_sha256(self._path)}
            write_note(self._note_path, self._ranges, embedder=self._embedder, trained=self._num_trained, **held)
            self._num_unsaved = 0

    def _load(self) -> None:
        note, ranges = read_note(self._note_path)
        if note["embedder"] != self._embedder or not is_as_noted(self._path, note):
            return
        index = load_index(self._path, self.index.dimension, use_gpu=self._use_gpu)
        if len(index) == sum(span.last - span.first + 1 for span in ranges.values()):
            self.index, self._ranges, self._num_trained = index, ranges, int(note["trained"])


class PostgresVectors:
    """The vectors of a catalog in PostgreSQL, which writes and searches them itself (a `NodeVectors`)."""

    device = "postgres"

    def __init__(self, catalog: Catalog, dimension: int) -> None:
        self._catalog = catalog
        self._dimension = dimension
        self._generation, self._again_at = -1, 0.0
        self._building: threading.Thread | None = None
        self._has_graph = False

    def open(self) -> None:
        """As `sync`."""
        self.sync()

    def sync(self) -> None:
        """Have the graph built of a library that has grown large. It takes minutes: searches are exact meanwhile.

        Whether it is lacking is looked at when books have changed and every `LOOKED_AFTER_S`: a build may break off,
        here or at another server.
        """
        if self._has_graph or (self._building is not None and self._building.is_alive()):
            return
        generation = self._catalog.generation()
        if generation != self._generation or time.monotonic() >= self._again_at:
            self._generation, self._again_at = generation, time.monotonic() + LOOKED_AFTER_S
            self._building = threading.Thread(target=self._build, name="graph", daemon=True)
            self._building.start()

    def _build(self) -> None:
        try:
            self._has_graph = self._catalog.build_graph(self._dimension)
        except CoalesceError as error:
            _logger.warning("The graph of vectors could not be built: %s", error)

    def search(self, vector: np.ndarray, top_k: int, filters: Filters) -> tuple[np.ndarray, np.ndarray]:
        """As `NodeVectors.search`."""
        return self._catalog.nearest(vector, top_k, filters)

    def save_if_worth(self) -> None:
        """Nothing to do: they are in the database."""


def read_note(path: Path) -> tuple[dict[str, Any], dict[str, RowRange]]:
    """A note and the ranges in it. Raises OSError, ValueError, KeyError or TypeError when it is missing or damaged."""
    note = json.loads(path.read_text(encoding="utf-8"))
    return note, {str(name): RowRange(int(first), int(last)) for name, (first, last) in note["ranges"].items()}


def is_as_noted(path: Path, note: Mapping[str, Any]) -> bool:
    """Whether an index file is the one that was saved with the note; earlier versions noted only its size."""
    if path.stat().st_size != note["bytes"]:
        return False
    return "sha256" not in note or note["sha256"] == file_sha256(path)


def write_note(path: Path, ranges: Mapping[str, RowRange], **fields: Any) -> None:
    """Note in a file which nodes of which books something holds."""
    with replaced_file(path) as draft:
        spans = {name: [span.first, span.last] for name, span in ranges.items()}
        draft.write_text(json.dumps({**fields, "ranges": spans}), encoding="utf-8")


class VectorIndex:
    """Unit vectors under integer ids, searched by inner product. Threads may share it: they take turns."""

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
        """Remove the ids from `first` to `last`, both included; returns how many were there."""
        with self._lock:
            self._on_gpu = None
            return int(self._index.remove_ids(self._faiss.IDSelectorRange(first, last + 1)))

    def search(self, query: np.ndarray, top_k: int, allowed: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """At most `top_k` ids, int64, with their inner products, float32, best first.

        Args:
            query: one vector, shape (dimension,).
            allowed: ids that may be found, searched exactly; None allows all.

        Raises:
            InvalidInput: the query has another dimension or holds NaN or infinity.
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
        """Write the index to a file, replacing it in one step. Raises RuntimeError when FAISS cannot write."""
        with self._lock, replaced_file(path) as draft:
            self._faiss.write_index(self._index, str(draft))

    def _only(self, allowed: np.ndarray) -> Any:
        """Search parameters that let only these ids pass; inverted lists are then all searched."""
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
            self._on_gpu = self._faiss.index_cpu_to_gpu(_gpu_resources(), 0, self._index)
        return self._on_gpu

    def _checked(self, vectors: np.ndarray) -> Matrix:
        checked = np.ascontiguousarray(vectors, dtype=np.float32)
        if checked.ndim != 2 or checked.shape[1] != self.dimension:
            raise InvalidInput(
                f"Vectors of shape {checked.shape} were given to an index of dimension {self.dimension}."
            )
        if not np.isfinite(checked).all():
            raise InvalidInput("A vector holds NaN or infinity.")
        return checked


@cache
def _gpu_resources() -> Any:
    """FAISS's memory on the GPU beside the vectors, one for the process: by itself it takes 1.5 GB."""
    import faiss

    resources = faiss.StandardGpuResources()
    resources.setTempMemory(_GPU_WORKING_BYTES)
    return resources


def build_inverted(ids: np.ndarray, vectors: Matrix) -> VectorIndex:
    """Build an `ivf` index of these vectors, shape (n, dimension), that searches as many lists as `RECALL_AIM` needs.

    The probes are stored vectors plus noise of `PROBE_NOISE` times their length: about as far from their neighbours as
    a question is from the passages that answer it (a cosine of 0.55). A stored vector itself would always be found in
    its own list and prove nothing.
    """
    import faiss

    count, dimension = vectors.shape
    lists = max(16, min(int(4 * count**0.5), count // 40))
    rng = np.random.default_rng(1)
    sample = vectors[np.sort(rng.choice(count, min(count, lists * TRAINING_VECTORS_PER_LIST), replace=False))]
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
    """Read an index from a file. Raises IndexCorrupt when it is truncated, or of another kind or dimension."""
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
