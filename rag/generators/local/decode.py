"""Decoding, with sampling, prompt lookup and the scoring of options: token ids in, token ids out.

Before a step the cache holds exactly the tokens before those that are fed. `torch.inference_mode` belongs to a thread
and a generator may be resumed on another one, so it is never held across a `yield`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from rag.generators.local.cache import SlabCache
from rag.generators.prompts import CHOICE_LETTERS
from rag.models.memory import prefill_chunk_tokens

MOST_TRACED = 16
"""New tokens of a traced step: so many take one way through `grouped_attention`."""
_LIKELIEST = 1024  # tokens that sampling looks at first
_LONGEST_NGRAM = 4
_SHORTEST_NGRAM = 2


def new_cache(model: Any, capacity_tokens: int, *, cuttable: bool) -> Any:
    """A slab for models that keep every token, else the library's own cache for the model's layers."""
    if cuttable:
        return SlabCache(model.config.get_text_config(decoder=True).num_hidden_layers, capacity_tokens)
    from transformers import DynamicCache

    return DynamicCache(config=model.config)


def prefill(model: Any, prompt: Sequence[int], cache: Any, *, chunk_tokens: int | None = None) -> Any:
    """Feeds the rest of the prompt that the cache does not hold; gives the logits after its last token, (1, vocab)."""
    *_, logits = prefill_pieces(model, prompt, cache, chunk_tokens=chunk_tokens)
    return logits


def prefill_pieces(model: Any, prompt: Sequence[int], cache: Any, *, chunk_tokens: int | None = None) -> Iterator[Any]:
    """As `prefill`, piece by piece, so that activations stay small and others get their turn: logits after each.

    Args:
        chunk_tokens: read at once; None takes as many as is good on the model's device.
    """
    chunk_tokens = chunk_tokens or prefill_chunk_tokens(model.device.type)
    done = cache.get_seq_length()
    if not 0 <= done < len(prompt):
        raise ValueError(f"a cache of {done} tokens cannot precede a prompt of {len(prompt)}")
    for start in range(done, len(prompt), chunk_tokens):
        yield step(model, prompt[start : start + chunk_tokens], cache, keep=1)


def step(model: Any, tokens: Sequence[int], cache: Any, *, keep: int) -> Any:
    """Feeds tokens behind one cache; logits of the last `keep` of them, (keep, vocab), in the model's own dtype."""
    import torch

    with torch.inference_mode():
        ids = torch.tensor([list(tokens)], device=model.device)
        return model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=keep).logits[0]


def static_step(model: Any, ids: Any, lengths: Any, keys: Sequence[Any], values: Sequence[Any]) -> Any:
    """Feeds new tokens to several rows, whatever their lengths; traces as one graph.

    Args:
        ids: (rows, new); lengths: (rows,), the tokens that each row holds.
        keys, values: a tensor for each layer, (rows, kv_heads, bucket, width); the new ones are written behind the
            held ones, and whatever lies behind those is masked.

    Returns:
        Logits (rows, new, vocab).
    """
    import torch

    places = lengths[:, None] + torch.arange(ids.shape[1], device=ids.device)
    unseen = torch.arange(keys[0].shape[2], device=ids.device) > places[:, :, None]
    mask = torch.zeros(unseen.shape, dtype=keys[0].dtype, device=ids.device).masked_fill(unseen, float("-inf"))
    cache = _Written(keys, values, places)
    return model(
        input_ids=ids, position_ids=places, attention_mask=mask[:, None], past_key_values=cache, use_cache=True
    ).logits


def traced_step(model: Any, keys: Sequence[Any], values: Sequence[Any]) -> Any | None:
    """`static_step` of at most `MOST_TRACED` new tokens as one call into torch, with the adapter that is active now.

    A step makes some 1,800 calls from Python; in each of them another thread that computes may take the interpreter.
    The trace is made with one step and compared over others, where a model whose Python code chooses its way by the
    data would differ.

    Args:
        keys, values: a tensor for each layer, whose shapes count.

    Returns:
        None where the trace does not give the same.
    """
    import torch

    def inputs(new: int, *lengths: int) -> tuple[Any, ...]:
        draw = torch.Generator().manual_seed(new)
        vocab = model.config.get_text_config(decoder=True).vocab_size
        ids = torch.randint(vocab, (len(lengths), new), generator=draw)

        def empty(like: Any) -> Any:
            return like.new_zeros(len(lengths), like.shape[1], 128 * (2 + len(lengths)), like.shape[3])

        return ids, torch.tensor(lengths), [empty(each) for each in keys], [empty(each) for each in values]

    def run(*tensors: Any) -> Any:
        return static_step(model, *tensors)

    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that shapes are read from tensors; and TorchScript is deprecated
        try:
            traced = torch.jit.trace(run, inputs(2, 100), check_trace=False)  # type: ignore[no-untyped-call]
            others = inputs(1, 0, 57, 300), inputs(MOST_TRACED, 211)
            return traced if all(torch.equal(traced(*each), run(*each)) for each in others) else None
        except Exception:  # noqa: BLE001 - a model that cannot be traced is run as it is
            return None


class _Written:
    """A cache for one static step: writes at given places, and shows the whole bucket."""

    is_compileable = False

    def __init__(self, keys: Sequence[Any], values: Sequence[Any], places: Any) -> None:
        import torch

        self._keys, self._values = keys, values
        self._places = torch.arange(places.shape[0], device=places.device)[:, None], places

    def update(self, key: Any, value: Any, layer_idx: int, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Writes (rows, kv_heads, new, width) and returns all that the layer's bucket holds."""
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys.transpose(1, 2).index_put_(self._places, key.transpose(1, 2))  # `scatter_` goes through the whole bucket
        values.transpose(1, 2).index_put_(self._places, value.transpose(1, 2))
        return keys, values


class Decoding:
    """One answer between steps: what the next one reads, and what its logits write.

    Args:
        tokens: the prompt.
        cache: as `new_cache` made it; holds the prompt, or all but its last token.
        lookup_tokens: longest guess of prompt lookup (0: none; needs a cache that can be cut).

    Attributes:
        room_tokens: how many tokens may still be written; a guess never exceeds it.
    """

    def __init__(self, tokens: Sequence[int], cache: Any, sampler: Sampler, lookup_tokens: int = 0) -> None:
        self.cache = cache
        self.room_tokens = 0
        self._tokens = list(tokens)
        self._held = cache.get_seq_length() if isinstance(cache, SlabCache) else len(tokens)
        self._sampler = sampler
        self._lookup = PromptLookup(self._tokens if lookup_tokens else [], lookup_tokens)
        self._guess: list[int] = []

    @property
    def keep(self) -> int:
        """How many of the step's last logits are needed."""
        return len(self._guess) + 1

    def feed(self, guess_tokens: int = 0) -> list[int]:
        """Tokens that the next step reads: those written last, and a guess of at most `guess_tokens`."""
        self._cut()  # a step that failed may have written
        most = min(guess_tokens, self.room_tokens - 1)
        self._guess = self._lookup.guess(most) if most > 0 else []
        return self._tokens[self._held :] + self._guess

    def take(self, logits: Any) -> list[int]:
        """The tokens that a step has written: its guess as far as it is right, and one more.

        Args:
            logits: (at least `keep`, vocab), of the prompt's last tokens or the step's.
        """
        written = self._sampler.accept(logits[-self.keep :], self._guess)
        self._lookup.accepted(len(written) - 1, len(self._guess))
        return written

    def wrote(self, tokens: Sequence[int]) -> None:
        """Says which of the written tokens are used."""
        fed = len(self._tokens) - self._held + len(self._guess)
        self._tokens += tokens
        self._held = min(self._held + fed, len(self._tokens) - 1)
        self._cut()  # takes back guessed tokens that were not written
        self._guess = []
        self._lookup.extend(list(tokens))

    def _cut(self) -> None:
        if hasattr(self.cache, "cut"):
            self.cache.cut(self._held)

    def force(self, tokens: Sequence[int]) -> None:
        """Adds tokens that the model did not write."""
        self._tokens += tokens
        self._lookup.extend(list(tokens))


class Sampler:
    """Picks tokens from logits: greedily, or by temperature and nucleus with a seed.

    One random number is drawn for each written token and none for a rejected guess, so the same seed gives the same
    text with and without prompt lookup.

    Args:
        temperature: 0 takes the most likely token; above, logits are divided by it.
        top_p: the smallest set of tokens whose probabilities reach this sum is kept (1 keeps all).
        seed: None takes one from the system's randomness.
    """

    def __init__(self, temperature: float = 0.0, top_p: float = 1.0, seed: int | None = None) -> None:
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

    def accept(self, logits: Any, guess: list[int]) -> list[int]:
        """Tokens to write: the guess up to the first token that differs from the one drawn, then the drawn one.

        Args:
            logits: (len(guess) + 1, vocab), row i the distribution after the first i guessed tokens.
        """
        if self._random is None:
            picks: list[int] = logits.argmax(dim=-1).tolist()
            agreed = 0
            while agreed < len(guess) and picks[agreed] == guess[agreed]:
                agreed += 1
            return picks[: agreed + 1]
        written: list[int] = []
        for row in range(len(guess) + 1):
            written.append(self._draw(logits[row]))
            if row < len(guess) and written[-1] != guess[row]:
                break
        return written

    def _draw(self, logits: Any) -> int:
        """One token. Only the likeliest are sorted, and leave the device, unless the draw falls outside them."""
        import torch

        probabilities = torch.softmax(logits.float() / self._temperature, dim=-1)
        point = torch.rand((), generator=self._random)
        for count in (_LIKELIEST, len(probabilities)):
            ordered, tokens = _likeliest(probabilities, count)
            cumulative = ordered.cumsum(0)
            complete = len(ordered) == len(probabilities)
            if self._top_p < 1:
                kept = int((cumulative - ordered < self._top_p).sum())  # the most likely token always stays
                mass = cumulative[kept - 1]
                inside = complete or bool(mass >= self._top_p)
            else:
                kept, mass = len(ordered), cumulative[-1] if complete else torch.tensor(1.0)
                inside = complete or bool(point * mass < cumulative[-1])
            if inside:
                break
        place = int(torch.searchsorted(cumulative[:kept], point * mass, right=True))
        return int(tokens[min(place, kept - 1)])


def _likeliest(probabilities: Any, count: int) -> tuple[Any, Any]:
    """The `count` largest probabilities and their tokens, on the CPU; equal ones in the order of their tokens."""
    tokens = probabilities.topk(count).indices.sort().values if count < len(probabilities) else None
    found = (probabilities if tokens is None else probabilities[tokens]).cpu()
    ordered, places = found.sort(descending=True, stable=True)
    return ordered, places if tokens is None else tokens.cpu()[places]


class PromptLookup:
    """Guesses the next tokens: those after the latest earlier occurrence of the last n tokens, longest n first.

    An answer that quotes its passages repeats runs of the prompt; a step verifies a whole run (prompt lookup decoding,
    A. Saxena, 2023). The guess grows and shrinks with what was accepted lately, so that text without repetition costs
    almost nothing.

    Args:
        tokens: the prompt.
        most_tokens: longest guess; 0 never guesses.
    """

    def __init__(self, tokens: list[int], most_tokens: int) -> None:
        self._tokens: list[int] = []
        self._most = most_tokens
        self._allowed = most_tokens
        # n-gram -> position after its last and last-but-one occurrence: the last one is the tail itself
        self._after: dict[tuple[int, ...], tuple[int, int]] = {}
        self.extend(tokens)

    def extend(self, tokens: list[int]) -> None:
        """Adds tokens that were written."""
        if not self._most:
            return
        for token in tokens:
            self._tokens.append(token)
            end = len(self._tokens)
            for n in range(_SHORTEST_NGRAM, min(_LONGEST_NGRAM, end) + 1):
                ngram = tuple(self._tokens[end - n : end])
                last, _ = self._after.get(ngram, (0, 0))
                self._after[ngram] = (end, last)

    def guess(self, room_tokens: int) -> list[int]:
        """Likely next tokens, at most `room_tokens` and what earlier acceptance allows; empty without a match."""
        most = min(self._allowed, room_tokens)
        if most <= 0:
            return []
        end = len(self._tokens)
        for n in range(min(_LONGEST_NGRAM, end), _SHORTEST_NGRAM - 1, -1):
            _, before = self._after[tuple(self._tokens[end - n : end])]
            if before:
                return self._tokens[before : before + most]
        return []

    def accepted(self, accepted_tokens: int, guessed_tokens: int) -> None:
        """Adapts to a verified guess: full acceptance doubles the next one, none halves it (never below 1)."""
        if guessed_tokens and accepted_tokens == guessed_tokens:
            self._allowed = min(self._most, max(2, 2 * self._allowed))
        elif guessed_tokens:
            self._allowed = max(1, min(self._allowed, 2 * accepted_tokens) if accepted_tokens else self._allowed // 2)


def option_log_probabilities(
    model: Any, logits: Any, options: Sequence[Sequence[int]], cache: Any, *, together: bool
) -> list[float]:
    """log P(option | prompt) of each option: the sum over its tokens (lm-evaluation-harness `acc`).

    Together, the options are read in one step behind the prompt, whose keys and values they share: each token sees the
    prompt and its own option, at the place it has behind the prompt.

    Args:
        logits: (1, vocab) after the prompt.
        cache: holds the prompt and has room for all options; afterwards it holds the prompt again where it can be cut.
        together: needs a cache that keeps every token, and a model that takes places as given (rotary embeddings).
            Otherwise one after the other, which needs a cache that can be cut.
    """
    import torch

    held = cache.get_seq_length()
    groups = [list(range(len(options)))] if together else [[number] for number in range(len(options))]
    totals = [0.0] * len(options)
    with torch.inference_mode():
        first = logits[-1].float().log_softmax(-1)
        for group in groups:
            fed = [token for number in group for token in options[number][:-1]]
            wanted = [token for number in group for token in options[number][1:]]
            owner = torch.tensor([number for number in group for _ in options[number][1:]], device=model.device)
            for number in group:
                totals[number] += float(first[options[number][0]])
            if not fed:
                continue
            placed: dict[str, Any] = {}
            if together:
                places = [place for number in group for place in range(held, held + len(options[number]) - 1)]
                own = (owner[:, None] == owner[None, :]).tril()
                unseen = ~torch.cat([own.new_ones(len(fed), held), own], dim=1)
                # numbers, not truth values: transformers' eager attention (gemma2) adds whatever mask it is given
                mask = torch.zeros(unseen.shape, dtype=cache.keys[0].dtype, device=model.device)
                placed["position_ids"] = torch.tensor([places], device=model.device)
                placed["attention_mask"] = mask.masked_fill(unseen, float("-inf"))[None, None]
            ids = torch.tensor([fed], device=model.device)
            output = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=len(fed), **placed)
            rows = output.logits[0].float().log_softmax(-1)
            found = rows.gather(1, torch.tensor(wanted, device=rows.device)[:, None])[:, 0]
            for number, value in zip(owner.tolist(), found.tolist(), strict=True):
                totals[number] += value
            if isinstance(cache, SlabCache):
                cache.cut(held)
    return totals


def has_rotary_positions(model: Any) -> bool:
    """Whether the model takes its tokens' places as they are given."""
    return bool(getattr(model.config.get_text_config(decoder=True), "rope_parameters", None))


def letter_log_probabilities(model: Any, tokenizer: Any, prompt: Sequence[int], cache: Any, count: int) -> list[float]:
    """log P of each option's letter as the answer's first token, with and without a space before it, the larger."""
    logits = prefill(model, prompt, cache)
    if logits is None:
        raise ValueError("a prompt without `cancelled` is read to its end")
    row = logits[-1].float().log_softmax(-1)
    scores = []
    for letter in CHOICE_LETTERS[:count]:
        tokens = {tokenizer.encode(text, add_special_tokens=False)[-1] for text in (letter, f" {letter}")}
        scores.append(max(float(row[token]) for token in tokens))
    return scores
