"""A model of a real one's shape with random weights, and random keys and values for its caches.

Random weights change no speed and need no download; how long a step takes does not depend on what a cache holds.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from rag.generators.cache import Segment, segment_of
from rag.models.loading import LoadedModel

SHAPES: dict[str, dict[str, Any]] = {
    "0.6b": {
        "vocab_size": 151_936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True,
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
"""Qwen3-0.6B's and Qwen3-8B's shapes, and one that tests can afford."""


def random_model(folder: Path, shape: str) -> Path:
    """Writes a model folder with random bfloat16 weights and a tokenizer that is never used for text."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    config = AutoConfig.for_model("qwen3", max_position_embeddings=40_960, eos_token_id=0, **SHAPES[shape])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({"<end>": 0}, unk_token="<end>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>")
    tokenizer.chat_template = "{{ messages[0].content }}"
    tokenizer.save_pretrained(folder)
    return folder


def random_segment(loaded: LoadedModel, tokens: int) -> Segment:
    """Keys and values of `tokens` tokens, of the right shape and of no meaning."""
    import torch

    shape = loaded.capabilities
    dtype = getattr(torch, loaded.dtype)

    def draw(width: int) -> Any:
        return torch.randn(1, shape.kv_heads, tokens, width, dtype=dtype, device=loaded.model.device)

    keys = tuple(draw(shape.key_dim) for _ in range(shape.num_layers))
    values = tuple(draw(shape.value_dim) for _ in range(shape.num_layers))
    return segment_of(keys, values)


def random_prompt(loaded: LoadedModel, tokens: int) -> list[int]:
    """The same tokens every time."""
    draw = random.Random(0)
    return [draw.randrange(1, loaded.capabilities.vocab_size) for _ in range(tokens)]
