"""KV caches: one answer's, and those kept of earlier prompts for prompts that begin alike.

The answer's cache has a fixed size, as a step that is captured on a GPU needs; a processor runs the same code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class SlabCache:
    """A cache of fixed capacity for one sequence, of models whose layers keep every token.

    It has the methods that decoder models call on a cache but does not inherit from the library's, so that importing
    this module loads nothing.

    Args:
        num_layers: decoder layers of the model.
        capacity_tokens: prompt and answer together; writing beyond raises `ValueError` (admission promised the size).

    Attributes:
        keys, values: a tensor for each layer, (1, kv_heads, capacity, width); None until the first write. In a batch
            they are rows of its tensors.
    """

    is_compileable = False  # read by the mask code: shapes change from step to step

    def __init__(self, num_layers: int, capacity_tokens: int) -> None:
        self.capacity_tokens = capacity_tokens
        self.keys: list[Any] = [None] * num_layers
        self.values: list[Any] = [None] * num_layers
        self._lengths = [0] * num_layers

    def update(self, key: Any, value: Any, layer_idx: int, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Appends (1, kv_heads, new, width) to a layer and returns all it holds, as views."""
        if self.keys[layer_idx] is None:
            # zeros, since a step of several rows masks what is not written, and a masked NaN stays one
            self.keys[layer_idx] = key.new_zeros(*key.shape[:2], self.capacity_tokens, key.shape[3])
            self.values[layer_idx] = value.new_zeros(*value.shape[:2], self.capacity_tokens, value.shape[3])
        start = self._lengths[layer_idx]
        stop = start + key.shape[2]
        if stop > self.capacity_tokens:
            raise ValueError(f"the cache holds {self.capacity_tokens} tokens, {stop} were written")
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        keys[:, :, start:stop] = key
        values[:, :, start:stop] = value
        self._lengths[layer_idx] = stop
        return keys[:, :, :stop], values[:, :, :stop]

    def wrote_one(self) -> None:
        """Counts a token whose keys and values were written into the tensors from outside."""
        self._lengths = [length + 1 for length in self._lengths]

    def lie_in(self, layer: int, keys: Any, values: Any) -> None:
        """Goes on in other tensors, which hold what this layer holds."""
        self.keys[layer], self.values[layer] = keys, values
        self.capacity_tokens = keys.shape[2]

    def move_to(self, keys: Sequence[Any], values: Sequence[Any], row: int) -> None:
        """Copies what is held into a row of larger tensors, layer by layer, and goes on there."""
        for layer, held in enumerate(self._lengths):
            places = keys[layer][row : row + 1], values[layer][row : row + 1]
            for place, mine in zip(places, (self.keys[layer], self.values[layer]), strict=True):
                place[:, :, :held] = mine[:, :, :held]
            self.lie_in(layer, *places)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens held by a layer."""
        return self._lengths[layer_idx]

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Position of the next token."""
        return self._lengths[layer_idx]

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """(keys that attention will see, offset of the first) once `query_length` tokens are written."""
        return self._lengths[layer_idx] + query_length, 0

    def cut(self, tokens: int) -> None:
        """Forgets everything after the first `tokens` tokens."""
        self._lengths = [min(tokens, length) for length in self._lengths]

    def begin_with(self, kept: Kept, tokens: int) -> None:
        """Copies the first `tokens` tokens of what was kept."""
        for layer, (key, value) in enumerate(zip(kept.keys, kept.values, strict=True)):
            self.update(key[:, :, :tokens], value[:, :, :tokens], layer)


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """Tokens that were read or written with an adapter, and their keys and values: a tensor for each layer."""

    adapter: str | None
    tokens: tuple[int, ...]
    keys: tuple[Any, ...]
    values: tuple[Any, ...]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values))


class PrefixCache:
    """Keys and values of earlier prompts, an LRU cache of few entries. Only the model's thread uses it.

    Args:
        capacity_bytes: most bytes kept; 0 keeps nothing.
        most_entries: most prompts kept.
    """

    def __init__(self, capacity_bytes: int, most_entries: int = 16) -> None:
        self.capacity_bytes = capacity_bytes
        self._most_entries = most_entries
        self._entries: list[Kept] = []  # the one used longest ago first

    @property
    def held_bytes(self) -> int:
        """Bytes of all entries."""
        return sum(entry.nbytes for entry in self._entries)

    def find(self, adapter: str | None, tokens: Sequence[int]) -> tuple[Kept | None, int]:
        """The entry of this adapter that begins most like `tokens`, and how many tokens are alike."""
        found, most = None, 0
        for entry in self._entries:
            if entry.adapter == adapter and (alike := _common(entry.tokens, tokens)) > most:
                found, most = entry, alike
        if found is not None:
            self._entries.remove(found)
            self._entries.append(found)
        return found, most

    def keep(self, adapter: str | None, tokens: Sequence[int], cache: SlabCache) -> None:
        """Copies what the cache holds of `tokens`, in place of the entries that these go on from."""
        found, alike = self.find(adapter, tokens)
        if self.capacity_bytes <= 0 or (found is not None and alike == len(tokens)):
            return
        self._entries = [
            entry
            for entry in self._entries
            if entry.adapter != adapter or _common(entry.tokens, tokens) < len(entry.tokens)
        ]
        keys, values = (
            tuple(each[:, :, : len(tokens)].clone() for each in held) for held in (cache.keys, cache.values)
        )
        self._entries.append(Kept(adapter, tuple(tokens), keys, values))
        self.shrink_to(self.capacity_bytes)

    def shrink_to(self, most_bytes: int) -> None:
        """Drops the entries that were used longest ago until few enough are left, with at most `most_bytes`."""
        while self._entries and (len(self._entries) > self._most_entries or self.held_bytes > most_bytes):
            del self._entries[0]

    def clear(self) -> None:
        """Drops everything."""
        self._entries.clear()


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens both begin with."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(first), len(second)))
