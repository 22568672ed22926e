"""Grouped-query attention that does not repeat keys and values, as a transformers attention function.

Models with fewer key heads than query heads (Qwen, Llama 3, Mistral) let several query heads share one key head. For
the few new tokens of a decoding step the query heads of a group are laid side by side as rows over their one key
head, so the cache is read once and never copied: for 4,000 cached bfloat16 tokens of 16 query and 8 key heads on two
CPU cores one layer took 1.1 ms instead of 7.3 ms (torch's own `enable_gqa`) or 10 ms (repeated heads). Prompts keep
torch's path, which is as fast there.
"""

from __future__ import annotations

from typing import Any

ATTENTION_NAME = "coalesce_gqa"
_PACKED_ROWS = 16  # more new tokens than this go torch's way: the mask copied per group costs more than it saves


def register_attention() -> str:
    """Makes the attention known to transformers (idempotent) and returns its name for `attn_implementation`."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(ATTENTION_NAME, grouped_attention)
    AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
    return ATTENTION_NAME


def grouped_attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Any, None]:
    """Attention with the signature that transformers calls.

    Args:
        query: (batch, query_heads, new, dim); key, value: (batch, key_heads, cached + new, dim).
        attention_mask: boolean (batch, 1, new, cached + new), or None for one new token or an empty cache.

    Returns:
        (batch, new, query_heads, dim) and None (no attention weights).
    """
    import torch

    batch, query_heads, new, _ = query.shape
    key_heads, width = key.shape[1], value.shape[-1]
    groups = query_heads // key_heads
    unmasked_prompt = attention_mask is None and new > 1
    if groups == 1 or new > _PACKED_ROWS or unmasked_prompt:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        attended, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **kwargs
        )
        return attended, None
    packed = query.reshape(batch, key_heads, groups * new, query.shape[-1])
    if attention_mask is not None:
        attention_mask = attention_mask.expand(-1, -1, new, -1).repeat(1, 1, groups, 1)
    attended = torch.nn.functional.scaled_dot_product_attention(
        packed, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling
    )
    return attended.reshape(batch, query_heads, new, width).transpose(1, 2).contiguous(), None
