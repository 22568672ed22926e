"""Decoding: token ids in, logits and tokens out; with sampling and the scoring of options.

Before a step the cache holds exactly the tokens before those that are fed. `torch.inference_mode` belongs to a thread
and a generator may be resumed on another one, so it is never held across a `yield`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rag.generators.local.cache import SlabCache
from rag.generators.prompts import CHOICE_LETTERS
from rag.models.memory import prefill_chunk_tokens

_LIKELIEST = 1024  # tokens that sampling looks at first


def new_cache(model: Any, capacity_tokens: int, *, cuttable: bool) -> Any:
    """A slab for models that keep every token, else the library's own cache for the model's layers."""
    if cuttable:
        return SlabCache(model.config.get_text_config(decoder=True).num_hidden_layers, capacity_tokens)
    from transformers import DynamicCache

    return DynamicCache(config=model.config)


def prefill(model: Any, prompt: Sequence[int], cache: Any, *, chunk_tokens: int | None = None) -> Any:
    """Feeds the rest of the prompt that the cache does not hold; gives the logits after its last token, (1, vocab)."""
    *_, logits = prefill_pieces(model, prompt[cache.get_seq_length() :], cache, chunk_tokens=chunk_tokens)
    return logits


def prefill_pieces(model: Any, tokens: Sequence[int], cache: Any, *, chunk_tokens: int | None = None) -> Iterator[Any]:
    """Feeds tokens piece by piece, so that activations stay small and others get their turn: logits after each.

    Args:
        chunk_tokens: read at once; None takes as many as is good on the model's device.
    """
    chunk_tokens = chunk_tokens or prefill_chunk_tokens(model.device.type)
    for start in range(0, len(tokens), chunk_tokens):
        yield step(model, tokens[start : start + chunk_tokens], cache)


def step(model: Any, tokens: Sequence[int], cache: Any, *, keep: int = 1) -> Any:
    """Feeds tokens behind one cache; logits of the last `keep` of them, (keep, vocab), in the model's own dtype."""
    import torch

    with torch.inference_mode():
        ids = torch.tensor([list(tokens)], device=model.device)
        return model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=keep).logits[0]


def static_step(model: Any, ids: Any, lengths: Any, keys: Sequence[Any], values: Sequence[Any]) -> Any:
    """Feeds a new token to each of several rows, whatever their lengths; one graph without a look at the data.

    Args:
        ids: (rows, 1); lengths: (rows,), the tokens that each row holds.
        keys, values: a tensor for each layer, (rows, kv_heads, held at most, width); the new ones are written behind
            the held ones, and whatever lies behind those is masked.

    Returns:
        Logits (rows, 1, vocab).
    """
    import torch

    places = lengths[:, None]
    unseen = torch.arange(keys[0].shape[2], device=ids.device) > places[:, :, None]
    mask = torch.zeros(unseen.shape, dtype=keys[0].dtype, device=ids.device).masked_fill(unseen, float("-inf"))
    cache = _Written(keys, values, places)
    return model(
        input_ids=ids, position_ids=places, attention_mask=mask[:, None], past_key_values=cache, use_cache=True
    ).logits


class _Written:
    """A cache for one static step: writes at given places, and shows all that it could hold."""

    is_compileable = False

    def __init__(self, keys: Sequence[Any], values: Sequence[Any], places: Any) -> None:
        import torch

        self._keys, self._values = keys, values
        self._places = torch.arange(places.shape[0], device=places.device)[:, None], places

    def update(self, key: Any, value: Any, layer_idx: int, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Writes (rows, kv_heads, 1, width) and returns all that the layer's tensors hold."""
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys.transpose(1, 2).index_put_(self._places, key.transpose(1, 2))  # `scatter_` goes through all that is held
        values.transpose(1, 2).index_put_(self._places, value.transpose(1, 2))
        return keys, values


class Sampler:
    """Picks tokens from logits: greedily, or by temperature and nucleus with a seed.

    Args:
        temperature: 0 takes the most likely token; above, logits are divided by it.
        top_p: the smallest set of tokens whose probabilities reach this sum is kept (1 keeps all).
        top_k: the so many likeliest tokens are kept, 0 keeps all.
        seed: None takes one from the system's randomness.
    """

    def __init__(self, temperature: float = 0.0, top_p: float = 1.0, seed: int | None = None, top_k: int = 0) -> None:
        self._top_k = top_k
        self._temperature = temperature
        self._top_p = top_p
        self._random: Any = None
        if temperature > 0:
            import torch

            self._random = torch.Generator()
            if seed is None:
                self._random.seed()
            else:
                self._random.manual_seed(seed & 0x7FFF_FFFF_FFFF_FFFF)

    def pick(self, logits: Any) -> int:
        """One token by its logits, (vocab,). Only the likeliest leave the device, unless the draw falls outside."""
        import torch

        if self._random is None:
            return int(logits.argmax())
        if 0 < self._top_k < len(logits):
            logits = logits.masked_fill(logits < logits.topk(self._top_k).values[-1], float("-inf"))
        probabilities = torch.softmax(logits.float() / self._temperature, dim=-1)
        point = torch.rand((), generator=self._random)
        for count in (min(_LIKELIEST, len(probabilities)), len(probabilities)):
            ordered, tokens = (each.cpu() for each in probabilities.topk(count))
            cumulative = ordered.cumsum(0)
            # the most likely token always stays, and of all tokens rounding makes no part
            kept = max(int((cumulative - ordered < self._top_p).sum()), 1)
            whole = cumulative[-1] if count == len(probabilities) else torch.tensor(1.0)
            mass = cumulative[kept - 1] if self._top_p < 1 else whole
            if count == len(probabilities) or (mass >= self._top_p and point * mass < cumulative[-1]):
                break
        place = int(torch.searchsorted(cumulative[:kept], point * mass, right=True))
        return int(tokens[min(place, kept - 1)])


def log_probability(model: Any, logits: Any, tokens: Sequence[int], cache: Any) -> float:
    """log P(tokens | prompt): the sum over the tokens (lm-evaluation-harness `acc`).

    Args:
        logits: (1, vocab) after the prompt.
        cache: holds the prompt and has room for the tokens; afterwards it holds the prompt again where it can be cut.
    """
    import torch

    held = cache.get_seq_length()
    with torch.inference_mode():
        rows = logits[-1:].float().log_softmax(-1)
        if len(tokens) > 1:
            behind = step(model, tokens[:-1], cache, keep=len(tokens) - 1)
            rows = torch.cat([rows, behind.float().log_softmax(-1)])
        total = rows.gather(1, torch.tensor(tokens, device=rows.device)[:, None]).sum()
    if isinstance(cache, SlabCache):
        cache.cut(held)
    return float(total)


def letter_log_probabilities(logits: Any, tokenizer: Any, count: int) -> tuple[float, ...]:
    """log P of each option's letter as the answer's first token, with and without a space before it, the larger."""
    row = logits[-1].float().log_softmax(-1)
    spelled = [[tokenizer.encode(text, add_special_tokens=False)[-1] for text in (letter, f" {letter}")]
               for letter in CHOICE_LETTERS[:count]]  # fmt: skip
    return tuple(max(float(row[token]) for token in tokens) for tokens in spelled)
