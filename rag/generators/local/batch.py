"""Rows of several answers in one decoding step, and the memory of their KV cache.

A step has a static shape: so many rows, so many new tokens in each, and a bucket of keys that all of them are masked
over. Each row has its own length. Rows of one step share an adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rag.generators.local.cache import SlabCache
from rag.generators.local.decode import MOST_TRACED, Decoding, Sampler, prefill, static_step, step, traced_step
from rag.generators.local.recorder import GraphMemory, Recorder
from rag.models.fast_paths import ATTENTION_NAME

MOST_ROWS = 16
"""Answers decoded together: on two cores a step of 16 rows took 2 to 3 times that of one, a step of 32 five times."""
_LEAST_BUCKET = 256


def can_share_steps(model: Any) -> bool:
    """Whether rows can be decoded together: positions are taken as given, whatever else the step holds.

    The caller knows whether the model's layers keep every token.
    """
    rope = getattr(model.config.get_text_config(decoder=True), "rope_parameters", None) or {}
    kinds = [each for each in rope.values() if isinstance(each, dict)] or [rope]
    fixed = all(each.get("rope_type") not in ("dynamic", "longrope") for each in kinds)
    return bool(rope) and fixed and model.config._attn_implementation == ATTENTION_NAME


def bucket_of(tokens: int, capacity_tokens: int) -> int:
    """How many keys a step looks at: 256, 384, 512, 768, 1,024 … that hold `tokens`, the capacity at most."""
    size = _LEAST_BUCKET
    while size < tokens:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return min(size, capacity_tokens)


class Batch:
    """Rows that are decoded together; their caches lie in one tensor for each layer, (rows, kv_heads, capacity, width).

    Args:
        model: a transformers decoder that `can_share_steps`.
        trace: makes a step from the shapes of keys and values, as `traced_step`.
        recorder: records steps where a GPU computes them.
    """

    def __init__(
        self,
        model: Any,
        trace: Callable[[list[Any], list[Any]], Any | None] = lambda *_: None,
        recorder: Recorder | None = None,
    ) -> None:
        self._model = model
        self._trace = trace
        self._recorder = recorder
        self._caches: list[SlabCache] = []
        self._keys: list[Any] = []
        self._values: list[Any] = []
        self._seen: tuple[list[Any], list[Any]] | None = None
        self._seen_width = 0

    def __len__(self) -> int:
        return len(self._caches)

    def step(self, rows: Sequence[Decoding], guess_tokens: int = 0) -> list[Any]:
        """Feeds every row what it has; gives the logits of each, (fed tokens, vocab).

        Args:
            guess_tokens: longest guess of prompt lookup. A row by itself guesses; in a step of several rows, guesses
                would cost as much as the answers of others.
        """
        for row in rows:
            if not any(row.cache is cache for cache in self._caches):
                self._add(row.cache)
        alone = len(self._caches) == 1
        fed = [row.feed(guess_tokens if alone else 0) for row in rows]
        if alone:
            return list(self._run(fed))
        replies: list[Any] = [None] * len(rows)
        together: dict[int, int] = {}  # place in the batch -> place in `rows`
        for number, (row, tokens) in enumerate(zip(rows, fed, strict=True)):
            if len(tokens) > 1:
                replies[number] = step(self._model, tokens, row.cache, keep=1)
            else:
                place = next(place for place, cache in enumerate(self._caches) if cache is row.cache)
                together[place] = number
        if together:
            ids = [fed[together[place]] if place in together else None for place in range(len(self._caches))]
            found = self._run(ids)
            for place, number in together.items():
                replies[number] = found[place]
        return replies

    def remove(self, cache: SlabCache) -> None:
        """Frees a row; what it held must have been copied before."""
        import torch

        place = next((place for place, each in enumerate(self._caches) if each is cache), None)
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
        self._seen = None

    def _run(self, ids: Sequence[list[int] | None]) -> Any:
        """One static step of all rows; a row without tokens is computed for nothing and stays as it was."""
        import torch

        new = max(len(tokens) for tokens in ids if tokens)
        lengths = [cache.get_seq_length() for cache in self._caches]
        capacity = self._keys[0].shape[2]
        # a recorded step is of one width, and a GPU reads what is masked in no time
        width = capacity if self._recorder is not None else bucket_of(max(lengths) + new, capacity)
        keys, values = self._looked_at(width)
        device = self._model.device
        fed = torch.tensor([tokens or [0] * new for tokens in ids], device=device)
        held = torch.tensor(lengths, device=device)
        recorded = self._recorder.step(fed, held, keys, values) if self._recorder is not None else None
        if recorded is not None:
            logits = recorded(fed, held)
        else:
            traced = self._trace(keys, values) if new <= MOST_TRACED else None
            with torch.inference_mode():
                logits = (traced or partial(static_step, self._model))(fed, held, keys, values)
        for cache, tokens in zip(self._caches, ids, strict=True):
            cache.wrote(len(tokens or ()))
        return logits

    def _looked_at(self, width: int) -> tuple[list[Any], list[Any]]:
        """The part of the tensors that a step reads and writes; the same views until rows or bucket change."""
        if self._seen is None or self._seen_width != width:
            rows = len(self._caches)
            keys = [slab[:rows, :, :width] for slab in self._keys]
            self._seen = keys, [slab[:rows, :, :width] for slab in self._values]
            self._seen_width = width
        return self._seen

    def _forget_recorded(self) -> None:
        if self._recorder is not None:
            self._recorder.clear()

    def _add(self, cache: SlabCache) -> None:
        import torch

        rows = len(self._caches)
        self._seen = None
        with torch.inference_mode():
            if not rows:  # it brings its own memory
                self._keys, self._values = list(cache.keys), list(cache.values)
                self._caches.append(cache)
                return
            if rows == self._keys[0].shape[0] or cache.capacity_tokens > self._keys[0].shape[2]:
                self._make_room(rows + 1, max(cache.capacity_tokens, self._keys[0].shape[2]))
            self._caches.append(cache)
            cache.move_to(self._keys, self._values, rows)

    def _make_room(self, rows: int, capacity_tokens: int) -> None:
        """Other tensors with room for all rows that are held, layer by layer, so that only one layer is held twice."""
        self._forget_recorded()
        held = len(self._caches)
        for layer in range(len(self._keys)):
            for slabs in (self._keys, self._values):
                old = slabs[layer]
                slabs[layer] = old.new_zeros(rows, old.shape[1], capacity_tokens, old.shape[3])
                slabs[layer][:held, :, : old.shape[2]] = old[:held]
            for place, cache in enumerate(self._caches):
                cache.lie_in(layer, self._keys[layer][place : place + 1], self._values[layer][place : place + 1])


def decode(
    model: Any,
    prompt: Sequence[int],
    cache: Any,
    *,
    max_new_tokens: int,
    stop_tokens: frozenset[int] = frozenset(),
    sampler: Sampler | None = None,
    lookup_tokens: int = 0,
) -> Iterator[int]:
    """The tokens of one answer by itself, until a stop token (yielded too) or `max_new_tokens`.

    Args:
        prompt: the whole prompt, also the part that the cache holds.
    """
    shares = isinstance(cache, SlabCache) and can_share_steps(model)
    batches = Batches(0, lambda _: 0, MOST_ROWS if shares else 1)
    logits = prefill(model, prompt, cache)
    row = Decoding(prompt, cache, sampler or Sampler(), lookup_tokens)
    row.room_tokens = max_new_tokens
    while True:
        written = row.take(logits)[: row.room_tokens]
        row.room_tokens -= len(written)
        for token in written:
            yield token
            if token in stop_tokens:
                return
        if not row.room_tokens:
            return
        row.wrote(written)
        (logits,) = batches.step(model, "", [row], lookup_tokens)


@dataclass(slots=True)
class _Taken:
    """Rows of one adapter now, and the most rows and the largest capacity since there was none: its memory."""

    rows: int = 0
    most_rows: int = 0
    capacity_tokens: int = 0


@dataclass(slots=True)
class Batches:
    """One batch for each adapter that answers now, all within one budget of memory.

    Attributes:
        budget_bytes: for the KV cache; kv_bytes: what so many tokens need of it.
        most_rows: of all batches together; 1 where rows cannot be decoded together.
        traces: whether steps are traced, which takes a second once for each adapter.
        records: whether steps are recorded as CUDA graphs.
    """

    budget_bytes: int
    kv_bytes: Callable[[int], int]
    most_rows: int = MOST_ROWS
    traces: bool = False
    records: bool = False
    _graphs: GraphMemory = field(default_factory=GraphMemory)
    _traced: dict[str, Any] = field(default_factory=dict)
    _taken: dict[str, _Taken] = field(default_factory=dict)
    _batches: dict[str, Batch] = field(default_factory=dict)

    @property
    def held_bytes(self) -> int:
        """Bytes promised to the rows that are taken."""
        return sum(self._bytes(each) for each in list(self._taken.values()))

    def take(self, group: str, capacity_tokens: int) -> bool:
        """Takes a row of the group, if there is room. A row that is alone always has some: admission ensures it."""
        if sum(each.rows for each in self._taken.values()) >= self.most_rows:
            return False
        now = self._taken.get(group, _Taken())
        larger = _Taken(now.rows + 1, max(now.most_rows, now.rows + 1), max(now.capacity_tokens, capacity_tokens))
        if self._taken and self.held_bytes - self._bytes(now) + self._bytes(larger) > self.budget_bytes:
            return False
        self._taken[group] = larger
        return True

    def leave(self, group: str, cache: Any = None) -> None:
        """Gives a row back, with the cache that lay in it."""
        if group in self._batches and isinstance(cache, SlabCache):
            self._batches[group].remove(cache)
        self._taken[group].rows -= 1
        if not self._taken[group].rows:
            del self._taken[group]
            self._batches.pop(group, None)

    def step(self, model: Any, group: str, rows: Sequence[Decoding], guess_tokens: int) -> list[Any]:
        """A step of rows of one group: their logits."""
        if self.most_rows == 1:
            return [step(model, row.feed(guess_tokens), row.cache, keep=row.keep) for row in rows]
        if group not in self._batches:
            trace = partial(self._trace, model, group) if self.traces else lambda *_: None
            self._batches[group] = Batch(model, trace, Recorder(model, self._graphs) if self.records else None)
        return self._batches[group].step(rows, guess_tokens)

    def _trace(self, model: Any, group: str, keys: list[Any], values: list[Any]) -> Any | None:
        if group not in self._traced:
            self._traced[group] = traced_step(model, keys, values)
        return self._traced[group]

    def _bytes(self, taken: _Taken) -> int:
        return taken.most_rows * self.kv_bytes(taken.capacity_tokens)
