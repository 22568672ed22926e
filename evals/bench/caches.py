"""The caches and attentions that are set side by side: the library's own and ours, each with each."""

from __future__ import annotations

from typing import Any, Literal

from rag.generators.cache import Segment, SlabCache
from rag.models.attention import register_attention
from rag.models.loading import LoadedModel

CacheKind = Literal["dynamic", "slab"]
Attention = Literal["stock", "grouped"]


def make_cache(loaded: LoadedModel, kind: CacheKind, capacity_tokens: int, held: Segment | None = None) -> Any:
    """A cache that holds `held`; `dynamic` is transformers' own, which grows by copying."""
    if kind == "slab":
        slab = SlabCache(loaded.capabilities.num_layers, capacity_tokens)
        if held is not None:
            slab.append(held, held.tokens)
        return slab
    from transformers import DynamicCache

    class Cuttable(DynamicCache):  # type: ignore[misc]  # the base class is untyped
        """With the one method that verifying guesses needs."""

        def cut(self, tokens: int) -> None:
            if (surplus := self.get_seq_length() - tokens) > 0:
                self.crop(-surplus)

    cache = Cuttable(config=loaded.model.config)
    if held is not None:
        for layer, (key, value) in enumerate(zip(held.keys, held.values, strict=True)):
            cache.update(key, value, layer)
    return cache


def cache_bytes(cache: Any) -> int:
    """Bytes of keys and values that a cache holds, room not yet written included."""
    if isinstance(cache, SlabCache):
        return cache.nbytes
    tensors = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def use_attention(loaded: LoadedModel, attention: Attention) -> None:
    """Switches between torch's attention and ours; cheap enough to do before every step."""
    loaded.model.config._attn_implementation = register_attention() if attention == "grouped" else "sdpa"
