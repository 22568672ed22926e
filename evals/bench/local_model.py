"""What the generator's benchmarks run on: random models, caches and attentions to compare, and a peak-memory meter.

Random weights run as fast as real ones and need no download; a step's time does not depend on what its cache holds.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from rag.generators.local.cache import Segment, SlabCache, segment_of
from rag.models.fast_paths import register_attention
from rag.models.loading import LoadedModel

CacheKind = Literal["dynamic", "slab"]
Attention = Literal["stock", "grouped"]
_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")

SHAPES: dict[str, dict[str, Any]] = {
    "0.6b": {
        "vocab_size": 151_936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True,
    },
    "4b": {
        "vocab_size": 151_936, "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True,
    },
    "8b": {
        "vocab_size": 151_936, "hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 36,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": False,
    },
    "tiny": {
        "vocab_size": 4096, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": True,
    },
}  # fmt: skip
"""The shapes of Qwen3-0.6B, 4B and 8B, and a small one for tests."""


def random_model(folder: Path, shape: str, device: str = "cpu") -> Path:
    """Writes a model folder with random bfloat16 weights, drawn on `device`; its tokenizer is a placeholder."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    config = AutoConfig.for_model("qwen3", max_position_embeddings=40_960, eos_token_id=0, **SHAPES[shape])
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({"<end>": 0}, unk_token="<end>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>")
    tokenizer.chat_template = "{{ messages[0].content }}"
    tokenizer.save_pretrained(folder)
    return folder


def random_segment(loaded: LoadedModel, tokens: int) -> Segment:
    """A random KV cache of `tokens` tokens, in the model\'s shape."""
    import torch

    shape = loaded.capabilities
    dtype = getattr(torch, loaded.dtype)

    def draw(width: int) -> Any:
        return torch.randn(1, shape.kv_heads, tokens, width, dtype=dtype, device=loaded.model.device)

    keys = tuple(draw(shape.key_dim) for _ in range(shape.num_layers))
    values = tuple(draw(shape.value_dim) for _ in range(shape.num_layers))
    return segment_of(keys, values)


def random_prompt(loaded: LoadedModel, tokens: int) -> list[int]:
    """Random tokens, the same every time."""
    rng = random.Random(0)
    return [rng.randrange(1, loaded.capabilities.vocab_size) for _ in range(tokens)]


def make_cache(loaded: LoadedModel, kind: CacheKind, capacity_tokens: int, held: Segment | None = None) -> Any:
    """A cache that starts with `held`; `dynamic` is transformers' own, which grows by copying."""
    if kind == "slab":
        slab = SlabCache(loaded.capabilities.num_layers, capacity_tokens)
        if held is not None:
            slab.append(held, held.tokens)
        return slab
    from transformers import DynamicCache

    cache = DynamicCache(config=loaded.model.config)
    if held is not None:
        for layer, (key, value) in enumerate(zip(held.keys, held.values, strict=True)):
            cache.update(key, value, layer)
    return cache


def cache_bytes(cache: Any) -> int:
    """Bytes of a KV cache, allocated room included."""
    if isinstance(cache, SlabCache):
        return cache.nbytes
    tensors = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def use_attention(loaded: LoadedModel, attention: Attention) -> None:
    """Switches between torch's attention and ours; cheap enough for every step."""
    loaded.model.config._attn_implementation = register_attention() if attention == "grouped" else "sdpa"


def times_of(tokens: Iterator[int]) -> tuple[float, float, float]:
    """Seconds to the first token, seconds from it to the second, and tokens per second after the first."""
    started = time.perf_counter()
    at = [time.perf_counter() for _ in tokens]
    return at[0] - started, at[1] - at[0], (len(at) - 1) / (at[-1] - at[0])


class PeakMemory:
    """Measures peak memory from its creation on: the allocator's peak on CUDA, the resident set's on Linux."""

    def __init__(self, device: str) -> None:
        self._cuda: Any = None
        self._before: int | None = None
        gc.collect()
        if device.startswith("cuda"):
            import torch

            self._cuda = torch.cuda
            torch.cuda.reset_peak_memory_stats(device)
            self._before = int(torch.cuda.memory_allocated(device))
            return
        try:
            _CLEAR.write_text("5")  # resets VmHWM to the current size
            self._before = _field_bytes("VmRSS")
        except OSError:
            self._before = None

    def extra_bytes(self) -> int | None:
        """Peak bytes above the start; None where the system does not report it."""
        if self._before is None:
            return None
        peak = int(self._cuda.max_memory_allocated()) if self._cuda else _field_bytes("VmHWM")
        return None if peak is None else max(peak - self._before, 0)


def _field_bytes(name: str) -> int | None:
    """A field of the process's status in bytes; the file counts in KiB."""
    for line in _STATUS.read_text("ascii", "replace").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None
