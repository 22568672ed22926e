"""Keeps the FAISS index in step with the catalog, across processes and restarts. The catalog is always right."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from pathlib import Path

import numpy as np

from indexes import vectors
from indexes.catalog import Catalog, RowRange
from indexes.errors import IndexCorrupt
from indexes.types import Filters
from indexes.vectors import VectorIndex, load_index

GROWTH_LIMIT = 4
"""Inverted lists are made anew when a library has grown to four times what they were made for."""

SAVE_SHARE = 0.05
"""An index is saved when this share of it has changed since it was last saved: writing it costs the whole library,
rebuilding the difference from the catalog costs the difference."""
SAVE_AT_LEAST = 2_000
"""Below this many changed vectors nothing is saved: rebuilding them takes milliseconds."""


class SyncedVectors:
    """A FAISS index that follows the catalog: each search first takes over what changed since the last one."""

    def __init__(self, catalog: Catalog, path: Path, embedder: str, dimension: int, *, use_gpu: bool) -> None:
        self._catalog = catalog
        self._path = path
        self._embedder = embedder
        self._lock = threading.Lock()
        self._unsaved = 0
        self._trained = 0
        self._generation = -1
        self._ranges: dict[str, RowRange] = {}
        self.index = VectorIndex(dimension, use_gpu=use_gpu)
        self._use_gpu = use_gpu

    def open(self) -> None:
        """Load the saved index, if there is one that fits, and bring it up to date."""
        with self._lock, contextlib.suppress(IndexCorrupt, OSError, ValueError, KeyError, TypeError):
            self._load()
        self.sync()
        self._choose_kind()

    @property
    def device(self) -> str:
        """Where FAISS searches: `cuda` or `cpu`."""
        return self.index.device

    def search(self, vector: np.ndarray, top_k: int, filters: Filters) -> tuple[np.ndarray, np.ndarray]:
        """As `NodeVectors.search`."""
        return self.index.search(vector, top_k, None if filters.empty else self._catalog.rowids(filters))

    def sync(self) -> None:
        """Take over what changed in the catalog since the last call; costs one row read when nothing did."""
        if self._catalog.generation() == self._generation:
            return
        with self._lock:
            generation, ranges = self._catalog.ranges()
            for document_id, span in self._ranges.items():
                if ranges.get(document_id) != span:
                    self._unsaved += self.index.remove_range(span.first, span.last)
            for document_id, span in ranges.items():
                if self._ranges.get(document_id) != span:
                    rowids, matrix = self._catalog.vectors_of(span, self.index.dimension)
                    self.index.add(rowids, matrix)
                    self._unsaved += len(rowids)
            self._ranges, self._generation = ranges, generation

    def _choose_kind(self) -> None:
        """Change a large exact index for inverted lists, and lists that were made for a far smaller library.

        Done on opening only: training takes up to minutes, and searches of a running library must not wait for it.
        """
        with self._lock:
            count = len(self.index)
            grown = self.index.kind == "ivf" and count > GROWTH_LIMIT * max(self._trained, 1)
            if count <= vectors.FLAT_LIMIT or not (self.index.kind == "flat" or grown):
                return
            parts = [self._catalog.vectors_of(span, self.index.dimension) for span in self._ranges.values()]
            rowids = np.concatenate([part[0] for part in parts])
            matrix = np.concatenate([part[1] for part in parts])
            del parts
            self.index = vectors.build_inverted(rowids, matrix)
            self._trained = count
            with contextlib.suppress(OSError, RuntimeError):
                self._save()

    def save_if_worth(self) -> None:
        """Save the index when enough of it changed. A home that cannot be written only costs the next start time."""
        with self._lock:
            if self._unsaved < max(SAVE_AT_LEAST, SAVE_SHARE * len(self.index)):
                return
            with contextlib.suppress(OSError, RuntimeError):
                self._save()

    @property
    def _note_path(self) -> Path:
        return self._path.with_suffix(".json")

    def _save(self) -> None:
        # Without its note an index is not read, so a crash between the two files leaves nothing half-true.
        self._note_path.unlink(missing_ok=True)
        self.index.save(self._path)
        note = {
            "embedder": self._embedder,
            "bytes": self._path.stat().st_size,
            "trained": self._trained,
            "ranges": {name: [span.first, span.last] for name, span in self._ranges.items()},
        }
        draft = self._note_path.with_name(f"{self._note_path.name}.{os.getpid()}.tmp")
        draft.write_text(json.dumps(note), encoding="utf-8")
        draft.replace(self._note_path)
        self._unsaved = 0

    def _load(self) -> None:
        note = json.loads(self._note_path.read_text(encoding="utf-8"))
        if note["embedder"] != self._embedder or note["bytes"] != self._path.stat().st_size:
            return
        ranges = {str(name): RowRange(int(first), int(last)) for name, (first, last) in note["ranges"].items()}
        index = load_index(self._path, self.index.dimension, use_gpu=self._use_gpu)
        if len(index) != sum(span.last - span.first + 1 for span in ranges.values()):
            return
        self.index, self._ranges, self._generation, self._trained = index, ranges, -1, int(note["trained"])
