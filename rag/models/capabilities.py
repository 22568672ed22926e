"""What a model's architecture allows: read from its config, before any weights.

Full attention keeps one key and one value for every token and layer, so a cache can be cut, shared and looked up.
Sliding-window and recurrent (hybrid) layers throw state away as they go: with those the generator keeps the library's
own cache for one answer, and reuses and speculates nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Attention = Literal["full", "sliding", "hybrid"]

_UNSTATED_CONTEXT_TOKENS = 2048  # models without position limit in their config (ALiBi) were trained at about this


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a causal language model can do.

    Attributes:
        model_type: the architecture's name in transformers.
        attention: `full`, `sliding` (some layers see a window), `hybrid` (some layers are recurrent).
        context_tokens: longest prompt and answer together.
        num_layers, num_full_layers, num_sliding_layers: all layers, and those that keep keys and values.
        kv_heads: key and value heads; key_dim, value_dim: their widths.
        window_tokens: width of the sliding window, None without one.
        vocab_size, hidden_size, intermediate_size, attention_heads: shapes for the memory estimate.
        tied_embeddings: input and output embedding are one matrix.
    """

    model_type: str
    attention: Attention
    context_tokens: int
    num_layers: int
    num_full_layers: int
    num_sliding_layers: int
    kv_heads: int
    key_dim: int
    value_dim: int
    window_tokens: int | None
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    attention_heads: int
    tied_embeddings: bool

    @property
    def kv_crop(self) -> bool:
        """The cache can be cut back to an earlier length."""
        return self.attention == "full"

    @property
    def prefix_reuse(self) -> bool:
        """Keys and values of a prompt's beginning serve another prompt that begins alike."""
        return self.attention == "full"

    @property
    def prompt_lookup(self) -> bool:
        """Guessed tokens can be verified and taken back."""
        return self.attention == "full"

    @property
    def limits(self) -> str:
        """One sentence on what this architecture cannot do here; empty for full attention."""
        if self.attention == "full":
            return ""
        kind = "recurrent layers" if self.attention == "hybrid" else "sliding-window layers"
        return f"{self.model_type} has {kind}: prefix reuse and prompt lookup are off."

    def kv_bytes(self, tokens: int, dtype_bytes: int = 2) -> int:
        """Bytes of keys and values for `tokens` tokens: layers × heads × (key + value width) × bytes each."""
        per_layer_token = self.kv_heads * (self.key_dim + self.value_dim) * dtype_bytes
        windowed = min(tokens, self.window_tokens) if self.window_tokens else tokens
        return per_layer_token * (self.num_full_layers * tokens + self.num_sliding_layers * windowed)


def read_capabilities(config: Any, *, context_cap_tokens: int | None = None) -> Capabilities:
    """Reads a transformers config object (its text part, for models that also see images).

    Args:
        config: a `transformers.PreTrainedConfig`.
        context_cap_tokens: a lower limit set by the user.
    """
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    num_layers = int(text.num_hidden_layers)
    heads = int(text.num_attention_heads)
    hidden = int(text.hidden_size)
    types = list(getattr(text, "layer_types", None) or _guessed_layer_types(text, num_layers))
    num_full = sum(kind == "full_attention" for kind in types)
    num_sliding = sum(kind in ("sliding_attention", "chunked_attention") for kind in types)
    attention: Attention = "full"
    if num_full + num_sliding < len(types) or _is_recurrent(text):
        attention = "hybrid"
    elif num_sliding:
        attention = "sliding"
    key_dim, value_dim, kv_heads = _kv_shape(text, heads, hidden)
    context = int(getattr(text, "max_position_embeddings", None) or _UNSTATED_CONTEXT_TOKENS)
    return Capabilities(
        model_type=str(text.model_type),
        attention=attention,
        context_tokens=min(context, context_cap_tokens) if context_cap_tokens else context,
        num_layers=num_layers,
        num_full_layers=num_full,
        num_sliding_layers=num_sliding,
        kv_heads=kv_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        window_tokens=_window(text) if num_sliding else None,
        vocab_size=int(text.vocab_size),
        hidden_size=hidden,
        intermediate_size=int(getattr(text, "intermediate_size", None) or 4 * hidden),
        attention_heads=heads,
        tied_embeddings=bool(getattr(text, "tie_word_embeddings", False)),
    )


def _guessed_layer_types(text: Any, num_layers: int) -> list[str]:
    """Layer kinds for configs that do not list them."""
    sliding = _window(text) is not None and getattr(text, "use_sliding_window", True)
    return ["sliding_attention" if sliding else "full_attention"] * num_layers


def _window(text: Any) -> int | None:
    return getattr(text, "sliding_window", None) or getattr(text, "attention_chunk_size", None)


def _is_recurrent(text: Any) -> bool:
    """State-space and linear-attention models that name their state's size instead of their layers."""
    return any(getattr(text, name, None) for name in ("ssm_state_size", "mamba_d_state", "state_size", "rwkv_version"))


def _kv_shape(text: Any, heads: int, hidden: int) -> tuple[int, int, int]:
    """(key width, value width, heads) of what the cache keeps."""
    if getattr(text, "kv_lora_rank", None):  # latent attention: transformers caches the expanded keys and values
        return int(text.qk_nope_head_dim + text.qk_rope_head_dim), int(text.v_head_dim), heads
    head_dim = int(getattr(text, "head_dim", None) or hidden // heads)
    kv_heads = getattr(text, "num_key_value_heads", None) or (1 if getattr(text, "multi_query", False) else heads)
    return head_dim, head_dim, int(kv_heads)
