"""Prompt lookup: guesses the next tokens by finding the last ones earlier in prompt or answer.

An answer that quotes its passages repeats runs of the prompt; such a run is verified in one step instead of one step a
token (the idea: prompt lookup decoding, A. Saxena, 2023). The guess length follows what was accepted lately, so that
text which repeats nothing pays almost nothing. Knows nothing of models: token ids in, token ids out.
"""

from __future__ import annotations

_LONGEST_NGRAM = 4
_SHORTEST_NGRAM = 2


class PromptLookup:
    """Finds the most recent earlier occurrence of the last n tokens, longest n first.

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
        """Learns from a verified guess: full acceptance doubles the next guess, none halves it (never below 1)."""
        if guessed_tokens and accepted_tokens == guessed_tokens:
            self._allowed = min(self._most, max(2, 2 * self._allowed))
        elif guessed_tokens:
            self._allowed = max(1, min(self._allowed, 2 * accepted_tokens) if accepted_tokens else self._allowed // 2)
