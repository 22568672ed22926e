"""Picks the next token from logits: greedily, or by temperature and nucleus with a seed.

One uniform number is drawn for every token that is written and none for a guess that is rejected, so the same seed
gives the same text with and without prompt lookup.
"""

from __future__ import annotations

from typing import Any


class Sampler:
    """Draws tokens.

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
        """Tokens to write: the guess as far as each of its tokens is what would have been drawn, then one more.

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
        import torch

        probabilities = torch.softmax(logits.float().cpu() / self._temperature, dim=-1)
        ordered, tokens = probabilities.sort(descending=True, stable=True)
        cumulative = ordered.cumsum(0)
        kept = int((cumulative - ordered < self._top_p).sum())  # the most likely token always stays
        point = torch.rand((), generator=self._random) * cumulative[kept - 1]
        place = int(torch.searchsorted(cumulative[:kept], point, right=True))
        return int(tokens[min(place, kept - 1)])
