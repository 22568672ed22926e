"""KV caches: one answer's, and the prefixes kept from earlier prompts (a tree over token ids).

The answer's cache writes in place into memory allocated once; transformers' own copies all it holds for each token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Segment:
    """Keys and values of consecutive tokens.

    Attributes:
        keys, values: one tensor per layer, (1, kv_heads, tokens, width).
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

    It serves models whose layers keep every token; cutting it back sets a length. It has the methods that decoder
    models call on a cache but does not inherit from the library's, so that importing this module loads nothing.

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

    def wrote(self, tokens: int) -> None:
        """Counts tokens whose keys and values were written into the tensors from outside."""
        self._lengths = [length + tokens for length in self._lengths]

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

    @property
    def nbytes(self) -> int:
        """Bytes allocated, including room that is not written yet."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values) if tensor is not None)

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
            tuple(layer[:, :, start:stop].clone() for layer in self.keys),
            tuple(layer[:, :, start:stop].clone() for layer in self.values),
        )


@dataclass(frozen=True, slots=True)
class CacheKey:
    """What keys and values depend on besides the tokens."""

    base: str
    adapter: str | None
    quantization: str
    dtype: str


@dataclass(slots=True)
class _Node:
    tokens: list[int]
    segment: Segment | None
    parent: _Node | None
    used: int = 0
    children: dict[int, _Node] = field(default_factory=dict)


class PrefixCache:
    """Keys and values of earlier prompts, for prompts that begin alike.

    A tree over token ids: each node holds a run of tokens with their keys and values, and a path from the root spells a
    prompt (the idea of SGLang's radix tree). There is one tree per `CacheKey`, so that an answer never reads another
    adapter's keys. Bounded in bytes: the least recently used leaf goes first. Only the model's thread uses it.

    Args:
        capacity_bytes: most bytes kept; 0 keeps nothing.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.held_bytes = 0
        self._roots: dict[CacheKey, _Node] = {}
        self._clock = 0

    def find(self, key: CacheKey, tokens: Sequence[int]) -> list[tuple[Segment, int]]:
        """Segments that spell the longest known beginning of `tokens`: (segment, how many of its tokens match)."""
        found: list[tuple[Segment, int]] = []
        node = self._roots.get(key)
        place = 0
        while node is not None and place < len(tokens):
            child = node.children.get(tokens[place])
            if child is None or child.segment is None:
                break
            alike = _common(child.tokens, tokens, place)
            self._touch(child)
            found.append((child.segment, alike))
            place += alike
            node = child if alike == len(child.tokens) else None
        return found

    def keep(self, key: CacheKey, tokens: Sequence[int], copy_out: Callable[[int, int], Segment]) -> None:
        """Adds the part of `tokens` that the tree does not hold.

        Args:
            copy_out: gives keys and values of tokens `start` to `stop`.
        """
        node = self._roots.setdefault(key, _Node([], None, None))
        place = 0
        while place < len(tokens):
            child = node.children.get(tokens[place])
            if child is None:
                break
            alike = _common(child.tokens, tokens, place)
            place += alike
            if alike < len(child.tokens):
                child = self._split(child, alike)
            self._touch(child)
            node = child
        if place < len(tokens) and self.capacity_bytes > 0:
            segment = copy_out(place, len(tokens))
            leaf = _Node(list(tokens[place:]), segment, node)
            node.children[leaf.tokens[0]] = leaf
            self.held_bytes += segment.nbytes
            self._touch(leaf)
        self.shrink_to(self.capacity_bytes)

    def shrink_to(self, most_bytes: int) -> None:
        """Drops the leaves that were used longest ago until at most `most_bytes` are held."""
        while self.held_bytes > max(most_bytes, 0):
            leaves = [node for root in self._roots.values() for node in _leaves(root)]
            if not leaves:
                return
            self._drop(min(leaves, key=lambda node: node.used))

    def clear(self) -> None:
        """Drops everything."""
        self._roots.clear()
        self.held_bytes = 0

    def _split(self, node: _Node, at: int) -> _Node:
        """Cuts a node after its first `at` tokens; returns the first half."""
        parent, segment = node.parent, node.segment
        if parent is None or segment is None:
            raise ValueError("the root cannot be split")
        first = _Node(node.tokens[:at], segment.part(0, at), parent, node.used)
        node.tokens, node.segment, node.parent = node.tokens[at:], segment.part(at, segment.tokens), first
        first.children[node.tokens[0]] = node
        parent.children[first.tokens[0]] = first
        return first

    def _drop(self, node: _Node) -> None:
        if node.parent is not None and node.segment is not None:
            del node.parent.children[node.tokens[0]]
            self.held_bytes -= node.segment.nbytes

    def _touch(self, node: _Node) -> None:
        self._clock += 1
        node.used = self._clock


def _common(run: Sequence[int], tokens: Sequence[int], place: int) -> int:
    """How many tokens from the start of `run` match `tokens` from `place` on."""
    most = min(len(run), len(tokens) - place)
    return next((index for index in range(most) if run[index] != tokens[place + index]), most)


def _leaves(root: _Node) -> list[_Node]:
    found, waiting = [], list(root.children.values())
    while waiting:
        node = waiting.pop()
        if node.children:
            waiting.extend(node.children.values())
        else:
            found.append(node)
    return found
