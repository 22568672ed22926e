"""What a model's architecture allows, read from its config before any weights.

Full attention caches a key and a value for every token and layer, so its KV cache can be cut and shared.
Sliding-window and recurrent (hybrid) layers discard state as they go: for those the generator keeps the library's own
cache for one answer, without prefix reuse.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from indexes.messages import msg
from rag.errors import ModelCannotLoad

Attention = Literal["full", "sliding", "hybrid"]

_WINDOWED = ("sliding_attention", "chunked_attention")
_OWN_CACHE = ("minimax",)
"""Model types whose code refuses every cache but its own."""
_UNSTATED_CONTEXT_TOKENS = 2048  # models without position limit in their config (ALiBi) were trained at about this


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Shapes and limits of a causal language model.

    Attributes:
        attention: `full`, `sliding` (some layers see a window shorter than the context), `hybrid` (some are recurrent).
        context_tokens: longest prompt and answer together.
        num_layers, num_full_layers, num_sliding_layers: all layers, and those that have a KV cache.
        kv_heads: key and value heads; key_dim, value_dim: their widths.
        window_tokens: width of the sliding window, None without one.
        rescaled_after_tokens: a longer prompt turns the keys of all its tokens otherwise (LongRoPE), so it is read in
            one pass; None where no prompt does.
    """

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
    rescaled_after_tokens: int | None = None

    @property
    def keeps_every_token(self) -> bool:
        """The cache can be cut back and shared: prefixes are reused."""
        return self.attention == "full"

    def kv_bytes(self, tokens: int, dtype_bytes: int = 2) -> int:
        """Bytes of the KV cache of `tokens` tokens: layers × heads × (key + value width) × bytes each."""
        per_layer_token = self.kv_heads * (self.key_dim + self.value_dim) * dtype_bytes
        windowed = min(tokens, self.window_tokens) if self.window_tokens else tokens
        return per_layer_token * (self.num_full_layers * tokens + self.num_sliding_layers * windowed)


def read_capabilities(config: Any, *, context_cap_tokens: int | None = None) -> Capabilities:
    """Reads a transformers config object (its text part, for models that also see images).

    Args:
        config: a `transformers.PreTrainedConfig`.
        context_cap_tokens: a lower limit set by the user.

    Raises:
        ModelCannotLoad: the config lacks what every attention model states.
    """
    try:
        return _read(config, context_cap_tokens)
    except (AttributeError, TypeError, ValueError) as error:
        raise ModelCannotLoad(
            msg("The architecture {} cannot be run here: {}", getattr(config, "model_type", ""), error),
            hint="Serve it with an engine that supports it and use --generator remote.",
        ) from error


def _read(config: Any, context_cap_tokens: int | None) -> Capabilities:
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    if getattr(text, "model_type", "") in _OWN_CACHE:
        raise ValueError("it keeps its state in a cache of its own")
    num_layers = int(text.num_hidden_layers)
    heads = int(text.num_attention_heads)
    hidden = int(text.hidden_size)
    context = int(getattr(text, "max_position_embeddings", None) or _UNSTATED_CONTEXT_TOKENS)
    context = min(context, context_cap_tokens) if context_cap_tokens else context
    window = _window(text)
    types = list(getattr(text, "layer_types", None) or _guessed_layer_types(text, num_layers))
    if window is not None and window >= context:  # a window that nothing can leave is full attention
        window, types = None, ["full_attention" if kind in _WINDOWED else kind for kind in types]
    attention: Attention = "full"
    if any(kind not in (*_WINDOWED, "full_attention") for kind in types) or _is_recurrent(text):
        attention = "hybrid"
    elif any(kind in _WINDOWED for kind in types):
        attention = "sliding"
    keeping = types[
        : len(types) - (getattr(text, "num_kv_shared_layers", None) or 0)
    ]  # the last ones read earlier ones'
    num_full = sum(kind == "full_attention" for kind in keeping)
    num_sliding = sum(kind in _WINDOWED for kind in keeping)
    key_dim, value_dim, kv_heads = _kv_shape(text, heads, hidden)
    return Capabilities(
        attention=attention,
        context_tokens=context,
        num_layers=num_layers,
        num_full_layers=num_full,
        num_sliding_layers=num_sliding,
        kv_heads=kv_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        window_tokens=window if num_sliding else None,
        vocab_size=int(text.vocab_size),
        hidden_size=hidden,
        intermediate_size=_intermediate_size(text, hidden),
        attention_heads=heads,
        rescaled_after_tokens=_rescaled_after(text),
    )


def _guessed_layer_types(text: Any, num_layers: int) -> list[str]:
    """Layer kinds for configs that do not list them."""
    sliding = _window(text) is not None and getattr(text, "use_sliding_window", True)
    return ["sliding_attention" if sliding else "full_attention"] * num_layers


def _window(text: Any) -> int | None:
    return getattr(text, "sliding_window", None) or getattr(text, "attention_chunk_size", None)


def _rescaled_after(text: Any) -> int | None:
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") != "longrope":
        return None
    return int(rope.get("original_max_position_embeddings") or text.max_position_embeddings)


def _is_recurrent(text: Any) -> bool:
    """State-space and linear-attention models that name their state's size instead of their layers."""
    return any(getattr(text, name, None) for name in ("ssm_state_size", "mamba_d_state", "state_size", "rwkv_version"))


def _intermediate_size(text: Any, hidden: int) -> int:
    """Width of the widest MLP: Gemma 3n lists one per layer."""
    found = getattr(text, "intermediate_size", None) or 4 * hidden
    return max(found) if isinstance(found, list | tuple) else int(found)


def _kv_shape(text: Any, heads: int, hidden: int) -> tuple[int, int, int]:
    """(key width, value width, heads) of what the cache keeps."""
    if getattr(text, "kv_lora_rank", None):  # latent attention caches the latent as key, the turned part as value
        return int(text.kv_lora_rank), int(text.qk_rope_head_dim), 1
    head_dim = int(getattr(text, "head_dim", None) or hidden // heads)
    kv_heads = getattr(text, "num_key_value_heads", None) or (1 if getattr(text, "multi_query", False) else heads)
    return head_dim, head_dim, int(kv_heads)
