"""Keys and values of prompt beginnings, kept for prompts that begin alike: a tree over token ids.

Each node holds a run of tokens and their keys and values; a path from the root spells a prompt that was read before.
Trees are apart by what the numbers depend on (base model, adapter and its weights, quantization, number format), so
that no answer ever reads another adapter's keys. Bounded in bytes; the leaf that was used longest ago goes first.
One thread uses it (the model's). The idea is that of SGLang's radix tree, here over whole runs of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rag.generators.cache import Segment


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
    """Finds and keeps the longest known beginning of a prompt.

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
        """Adds what the tree does not hold of `tokens`.

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
        """Cuts a node in two so that its first `at` tokens stand alone; returns the first half."""
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
    """How many tokens of `run` stand at `place` in `tokens`."""
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
