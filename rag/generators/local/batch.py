"""Rows of several answers in one decoding step, and the memory of their KV cache.

A step has a static shape: so many rows, and the keys of all of them masked to the longest. Each row has its own
length. Rows of one step share an adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rag.generators.local.cache import SlabCache
from rag.generators.local.decode import static_step, step
from rag.generators.local.recorder import GraphMemory, Recorder
from rag.models.fast_paths import ATTENTION_NAME

MOST_ROWS = 16
"""Answers decoded together: on two cores a step of 16 rows took 2 to 3 times that of one, a step of 32 five times."""


@dataclass(frozen=True, slots=True)
class Row:
    """What one answer reads in a step: the token written last, behind what its cache holds."""

    cache: Any
    token: int


def can_share_steps(model: Any) -> bool:
    """Whether rows can be decoded together: positions are taken as given, whatever else the step holds.

    The caller knows whether the model's layers keep every token.
    """
    rope = getattr(model.config.get_text_config(decoder=True), "rope_parameters", None) or {}
    kinds = [each for each in rope.values() if isinstance(each, dict)] or [rope]
    fixed = all(each.get("rope_type") not in ("dynamic", "longrope") for each in kinds)
    return bool(rope) and fixed and model.config._attn_implementation == ATTENTION_NAME


class Batch:
    """Rows that are decoded together; their caches lie in one tensor for each layer, (rows, kv_heads, capacity, width).

    Args:
        model: a transformers decoder that `can_share_steps`.
        recorder: records steps where a GPU computes them.
    """

    def __init__(self, model: Any, recorder: Recorder | None = None) -> None:
        self._model = model
        self._recorder = recorder
        self._caches: list[SlabCache] = []
        self._keys: list[Any] = []
        self._values: list[Any] = []

    def __len__(self) -> int:
        return len(self._caches)

    def step(self, rows: Sequence[Row]) -> list[Any]:
        """Feeds every row its token; gives the logits of each, (1, vocab). Rows that are not fed stay as they were."""
        import torch

        for row in rows:
            if self._place(row.cache) is None:
                self._add(row.cache)
        fed = {id(row.cache): row.token for row in rows}
        lengths = [cache.get_seq_length() for cache in self._caches]
        ids = torch.tensor([[fed.get(id(cache), 0)] for cache in self._caches], device=self._model.device)
        held = torch.tensor(lengths, device=self._model.device)
        recorded = self._recorder.step(ids, held, self._keys, self._values) if self._recorder is not None else None
        if recorded is not None:
            logits = recorded(ids, held)
        else:
            # a recorded step is of one width, and the step before it loads its kernels
            width = max(lengths) + 1 if self._recorder is None else self._keys[0].shape[2]
            looked_at = ([each[: len(self), :, :width] for each in slabs] for slabs in (self._keys, self._values))
            with torch.inference_mode():
                logits = static_step(self._model, ids, held, *looked_at)
        for row in rows:
            row.cache.wrote_one()
        return [logits[self._place(row.cache)] for row in rows]

    def remove(self, cache: SlabCache) -> None:
        """Frees a row; what it held must have been copied before."""
        import torch

        place = self._place(cache)
        if place is None:
            return
        last = self._caches.pop()
        if last is not cache:
            self._caches[place] = last
            with torch.inference_mode():
                last.move_to(self._keys, self._values, place)
        if not self._caches:
            self._forget_recorded()
            self._keys, self._values = [], []

    def _place(self, cache: SlabCache) -> int | None:
        return next((place for place, each in enumerate(self._caches) if each is cache), None)

    def _forget_recorded(self) -> None:
        if self._recorder is not None:
            self._recorder.clear()

    def _add(self, cache: SlabCache) -> None:
        import torch

        rows = len(self)
        with torch.inference_mode():
            if not rows:  # it brings its own memory
                self._keys, self._values = list(cache.keys), list(cache.values)
            else:
                if rows == self._keys[0].shape[0] or cache.capacity_tokens > self._keys[0].shape[2]:
                    self._make_room(rows + 1, max(cache.capacity_tokens, self._keys[0].shape[2]))
                cache.move_to(self._keys, self._values, rows)
            self._caches.append(cache)

    def _make_room(self, rows: int, capacity_tokens: int) -> None:
        """Other tensors with room for all rows that are held, layer by layer, so that only one layer is held twice."""
        self._forget_recorded()
        held = len(self)
        for layer in range(len(self._keys)):
            for slabs in (self._keys, self._values):
                old = slabs[layer]
                slabs[layer] = old.new_zeros(rows, old.shape[1], capacity_tokens, old.shape[3])
                slabs[layer][:held, :, : old.shape[2]] = old[:held]
            for place, cache in enumerate(self._caches):
                cache.lie_in(layer, self._keys[layer][place : place + 1], self._values[layer][place : place + 1])


@dataclass(slots=True)
class _Group:
    """Rows of one adapter, and the most rows and the largest capacity since there was none: its memory."""

    batch: Batch
    rows: int = 0
    most_rows: int = 0
    capacity_tokens: int = 0


class Batches:
    """One batch for each adapter that answers now, all within one budget of memory.

    Args:
        budget_bytes: for the KV cache; kv_bytes: what so many tokens need of it.
        most_rows: of all batches together; 1 where rows cannot be decoded together.
        records: whether steps are recorded as CUDA graphs.
    """

    def __init__(
        self, model: Any, budget_bytes: int, kv_bytes: Callable[[int], int], most_rows: int, *, records: bool
    ) -> None:
        self.most_rows = most_rows
        self._model = model
        self._budget_bytes = budget_bytes
        self._kv_bytes = kv_bytes
        self._graphs = GraphMemory() if records else None
        self._groups: dict[str, _Group] = {}

    @property
    def held_bytes(self) -> int:
        """Bytes promised to the rows that are taken."""
        return sum(each.most_rows * self._kv_bytes(each.capacity_tokens) for each in list(self._groups.values()))

    def take(self, name: str, capacity_tokens: int) -> bool:
        """Takes a row of a group, if there is room. A row that is alone always has some: admission ensures it."""
        if sum(each.rows for each in self._groups.values()) >= self.most_rows:
            return False
        group = self._groups.get(name)
        rows, most_rows, capacity = (group.rows, group.most_rows, group.capacity_tokens) if group else (0, 0, 0)
        larger = max(most_rows, rows + 1) * self._kv_bytes(max(capacity, capacity_tokens))
        others = self.held_bytes - most_rows * self._kv_bytes(capacity)
        if self._groups and others + larger > self._budget_bytes:
            return False
        if group is None:
            recorder = Recorder(self._model, self._graphs) if self._graphs is not None else None
            group = self._groups[name] = _Group(Batch(self._model, recorder))
        group.rows, group.most_rows = rows + 1, max(most_rows, rows + 1)
        group.capacity_tokens = max(capacity, capacity_tokens)
        return True

    def leave(self, name: str, cache: Any = None) -> None:
        """Gives a row back, with the cache that lay in it."""
        group = self._groups[name]
        if isinstance(cache, SlabCache):
            group.batch.remove(cache)
        group.rows -= 1
        if not group.rows:
            del self._groups[name]

    def step(self, name: str, rows: Sequence[Row]) -> list[Any]:
        """A step of rows of one group: their logits."""
        if self.most_rows == 1:
            return [step(self._model, [row.token], row.cache) for row in rows]
        return self._groups[name].batch.step(rows)
