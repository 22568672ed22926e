"""What the generator's benchmarks run on: random models, caches to compare, answers, and a peak-memory meter.

Random weights run as fast as real ones and need no download; a step's time does not depend on what its cache holds.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from rag.generators.local.batch import Batch, Row, can_share_steps
from rag.generators.local.cache import Kept, SlabCache
from rag.generators.local.decode import new_cache, prefill, step
from rag.models.loading import LoadedModel

Way = Literal["off", "library", "ours"]
"""How an answer is written: without a KV cache, with transformers' own and its attention, or as it is served."""
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


def random_held(loaded: LoadedModel, tokens: int) -> Kept:
    """A random KV cache of `tokens` tokens, in the model's shape."""
    import torch

    shape = loaded.capabilities
    dtype = getattr(torch, loaded.dtype)

    def draw(width: int) -> Any:
        return torch.randn(1, shape.kv_heads, tokens, width, dtype=dtype, device=loaded.model.device)

    keys = tuple(draw(shape.key_dim) for _ in range(shape.num_layers))
    return Kept(None, (7,) * tokens, keys, tuple(draw(shape.value_dim) for _ in range(shape.num_layers)))


def random_prompt(loaded: LoadedModel, tokens: int) -> list[int]:
    """Random tokens, the same every time."""
    rng = random.Random(0)
    return [rng.randrange(1, loaded.capabilities.vocab_size) for _ in range(tokens)]


def make_cache(loaded: LoadedModel, way: Way, capacity_tokens: int, held: Kept | None = None) -> Any:
    """A cache that starts with `held`; None where none is used."""
    if way == "off":
        return None
    ours = way == "ours" and loaded.capabilities.keeps_every_token
    cache = new_cache(loaded.model, capacity_tokens, cuttable=ours)
    for layer, (key, value) in enumerate(zip(held.keys, held.values, strict=True) if held is not None else ()):
        cache.update(key, value, layer)
    return cache


def cache_bytes(cache: Any) -> int:
    """Bytes of a KV cache, allocated room included."""
    if cache is None:
        return 0
    layers = zip(cache.keys, cache.values, strict=True) if isinstance(cache, SlabCache) else None
    pairs = layers or [(layer.keys, layer.values) for layer in cache.layers]
    return sum(tensor.untyped_storage().nbytes() for pair in pairs for tensor in pair)


@contextmanager
def use_way(loaded: LoadedModel, way: Way) -> Iterator[None]:
    """Computes with the attention that belongs to a way; cheap enough for every step."""
    config = loaded.model.config
    served = config._attn_implementation
    config._attn_implementation = "sdpa" if way == "library" else served
    try:
        yield
    finally:
        config._attn_implementation = served


def write(loaded: LoadedModel, prompt: Sequence[int], cache: Any, count: int) -> Iterator[int]:
    """Writes `count` greedy tokens behind a prompt; without a cache it reads everything again for each of them."""
    import torch

    model, written = loaded.model, list[int]()
    logits = prefill(model, prompt, cache) if cache is not None else None
    batch = Batch(model) if isinstance(cache, SlabCache) and can_share_steps(model) else None
    while True:
        if logits is None:
            with torch.inference_mode():
                ids = torch.tensor([[*prompt, *written]], device=model.device)
                logits = model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[0]
        written.append(int(logits[-1].argmax()))
        yield written[-1]
        if len(written) == count:
            return
        if cache is not None:
            logits = batch.step([Row(cache, written[-1])])[0] if batch else step(model, written[-1:], cache)
        else:
            logits = None


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
