"""The decoding loop: token ids in, token ids out, over a cache that may hold the prompt's beginning already.

One loop serves greedy and sampled text, with and without guessed tokens. The rule that keeps caches right is kept
here and checked: before a step the cache holds exactly the tokens before those that are fed, and at least one token
of the prompt is always fed. The thread that iterates owns the model; nothing here may be resumed on another thread
(`torch.inference_mode` belongs to a thread), so it is not held across a `yield`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rag.generators.cache import SlabCache
from rag.generators.lookup import PromptLookup
from rag.generators.sampling import Sampler
from rag.models.memory import PREFILL_CHUNK_TOKENS


def new_cache(model: Any, capacity_tokens: int, *, cuttable: bool) -> Any:
    """A slab for models that keep every token, else the library's own cache for the model's layers."""
    if cuttable:
        return SlabCache(model.config.get_text_config(decoder=True).num_hidden_layers, capacity_tokens)
    from transformers import DynamicCache

    return DynamicCache(config=model.config)


def prefill(
    model: Any,
    prompt: Sequence[int],
    cache: Any,
    *,
    cancelled: Callable[[], bool] = lambda: False,
    chunk_tokens: int = PREFILL_CHUNK_TOKENS,
) -> Any:
    """Reads what the cache does not hold of the prompt; returns the logits after its last token, (1, vocab).

    The prompt is read in pieces, so that its activations stay small and a cancelled request stops early.

    Returns:
        None when it was cancelled.
    """
    import torch

    done = cache.get_seq_length()
    if not 0 <= done < len(prompt):
        raise ValueError(f"a cache of {done} tokens cannot precede a prompt of {len(prompt)}")
    logits = None
    while done < len(prompt):
        if cancelled():
            return None
        piece = list(prompt[done : done + chunk_tokens])
        with torch.inference_mode():
            logits = _step(model, piece, cache, keep=1)
        done += len(piece)
    return logits


def decode(
    model: Any,
    prompt: Sequence[int],
    cache: Any,
    *,
    max_new_tokens: int,
    stop_tokens: frozenset[int] = frozenset(),
    sampler: Sampler | None = None,
    lookup_tokens: int = 0,
    cancelled: Callable[[], bool] = lambda: False,
    chunk_tokens: int = PREFILL_CHUNK_TOKENS,
) -> Iterator[int]:
    """Yields tokens until a stop token (yielded too), `max_new_tokens`, or cancellation.

    Args:
        model: a transformers decoder.
        prompt: all of it, also the part that the cache holds.
        cache: as `new_cache` made it; may hold fewer tokens than the prompt, and must hold the same ones.
        lookup_tokens: longest guess of prompt lookup (0: none; needs a cache that can be cut).
    """
    import torch

    sampler = sampler or Sampler()
    lookup = PromptLookup(list(prompt) if lookup_tokens else [], lookup_tokens)
    logits = prefill(model, prompt, cache, cancelled=cancelled, chunk_tokens=chunk_tokens)
    if logits is None:
        return
    held = len(prompt)  # tokens that are final: the cache holds all of them but the last written one
    guess: list[int] = []
    written_tokens = 0
    while written_tokens < max_new_tokens and not cancelled():
        written = sampler.accept(logits, guess)[: max_new_tokens - written_tokens]
        lookup.accepted(len(written) - 1, len(guess))
        for place, token in enumerate(written):
            if place and cancelled():
                return
            yield token
            if token in stop_tokens:
                return
        written_tokens += len(written)
        if written_tokens >= max_new_tokens:
            return
        held += len(written)
        if guess:
            cache.cut(held - 1)  # takes back the guessed tokens that were not written
        lookup.extend(written)
        guess = lookup.guess(max_new_tokens - written_tokens - 1) if lookup_tokens else []
        with torch.inference_mode():
            logits = _step(model, [written[-1], *guess], cache, keep=len(guess) + 1)


def _step(model: Any, tokens: list[int], cache: Any, *, keep: int) -> Any:
    """Feeds tokens behind the cache; logits of the last `keep` of them, (keep, vocab), in the model's own dtype."""
    import torch

    ids = torch.tensor([tokens], device=model.device)
    output = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=keep)
    return output.logits[0]
