"""Keys and values of one answer, in memory taken once: room for prompt and answer, never the model's full context.

The library's own growing cache copies everything it holds for every new token; this one writes in place. It serves
models whose layers all keep every token (`Capabilities.kv_crop`); cutting it back is setting a length, and a part of
it can be copied out for other prompts that begin alike. It is no subclass of the library's cache, so that importing
this module loads nothing; it has the methods that decoder models call on a cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Segment:
    """Keys and values of consecutive tokens.

    Attributes:
        keys, values: one tensor a layer, (1, kv_heads, tokens, width).
        tokens: how many tokens; nbytes: bytes held.
    """

    keys: tuple[Any, ...]
    values: tuple[Any, ...]
    tokens: int
    nbytes: int

    def part(self, start: int, stop: int) -> Segment:
        """A copy of tokens `start` to `stop`, in storage of its own (a view would keep the whole alive)."""
        return segment_of(
            tuple(layer[:, :, start:stop].clone() for layer in self.keys),
            tuple(layer[:, :, start:stop].clone() for layer in self.values),
        )


def segment_of(keys: tuple[Any, ...], values: tuple[Any, ...]) -> Segment:
    """A segment that owns the given tensors."""
    nbytes = sum(tensor.numel() * tensor.element_size() for tensor in (*keys, *values))
    return Segment(keys, values, keys[0].shape[2] if keys else 0, nbytes)


class SlabCache:
    """A cache of fixed capacity for one sequence.

    Args:
        num_layers: decoder layers of the model.
        capacity_tokens: prompt and answer together; writing beyond raises `ValueError` (admission promised the size).
    """

    is_compileable = False  # read by the mask code: shapes change from step to step

    def __init__(self, num_layers: int, capacity_tokens: int) -> None:
        self.capacity_tokens = capacity_tokens
        self._keys: list[Any] = [None] * num_layers
        self._values: list[Any] = [None] * num_layers
        self._lengths = [0] * num_layers

    def update(self, key: Any, value: Any, layer_idx: int, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Appends (1, kv_heads, new, width) to a layer and returns all it holds, as views."""
        if self._keys[layer_idx] is None:
            self._keys[layer_idx] = key.new_empty(*key.shape[:2], self.capacity_tokens, key.shape[3])
            self._values[layer_idx] = value.new_empty(*value.shape[:2], self.capacity_tokens, value.shape[3])
        start = self._lengths[layer_idx]
        stop = start + key.shape[2]
        if stop > self.capacity_tokens:
            raise ValueError(f"the cache holds {self.capacity_tokens} tokens, {stop} were written")
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys[:, :, start:stop] = key
        values[:, :, start:stop] = value
        self._lengths[layer_idx] = stop
        return keys[:, :, :stop], values[:, :, :stop]

    @property
    def nbytes(self) -> int:
        """Bytes taken, room not yet written included."""
        return sum(tensor.nbytes for tensor in (*self._keys, *self._values) if tensor is not None)

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
        if not 0 <= tokens <= self._lengths[0]:
            raise ValueError(f"cannot cut a cache of {self._lengths[0]} tokens to {tokens}")
        self._lengths = [tokens] * len(self._lengths)

    def append(self, segment: Segment, tokens: int) -> None:
        """Copies the first `tokens` tokens of a segment behind what is held."""
        for layer, (key, value) in enumerate(zip(segment.keys, segment.values, strict=True)):
            self.update(key[:, :, :tokens], value[:, :, :tokens], layer)

    def copy_out(self, start: int, stop: int) -> Segment:
        """A copy of tokens `start` to `stop` for the prefix cache."""
        return segment_of(
            tuple(layer[:, :, start:stop].clone() for layer in self._keys),
            tuple(layer[:, :, start:stop].clone() for layer in self._values),
        )
