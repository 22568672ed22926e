"""An answer in work, token by token: its text, its reasoning, where it ends, how fast it comes."""

from __future__ import annotations

import time

from rag.generators.protocol import GenerationRequest
from rag.generators.stream_text import AnswerText, ReasoningBlock, RepetitionGuard, TextStream
from rag.types import Finish


class Writing:
    """An answer in work.

    Attributes:
        tokens: all that follow the prompt; reasoning_tokens: those of reasoning.
        ended: a stop token or a stop string came, or the text goes in circles; finish: `length` but for the first two.
        circling: the reasoning goes in circles; announced: the reader knows of it.
    """

    def __init__(self, text: TextStream, request: GenerationRequest, block: ReasoningBlock | None) -> None:
        self.tokens: list[int] = []
        self.reasoning_tokens = 0
        self.finish: Finish = "length"
        self.ended = self.circling = self.announced = False
        self.answer = AnswerText(request.stop, block)
        self._text = text
        self._guard = RepetitionGuard()
        self._first_at = self._last_at = 0.0

    @property
    def tokens_per_s(self) -> float:
        """Speed after the first token; 0.0 with fewer than two."""
        seconds = self._last_at - self._first_at
        return (len(self.tokens) - 1) / seconds if seconds > 0 else 0.0

    def add(self, token: int, *, ends: bool) -> str:
        """The text that can be shown once `token` is written; `ends` for a stop token."""
        self._last_at = time.perf_counter()
        self._first_at = self._first_at or self._last_at
        thought = self.answer.thinking is not None
        self.tokens.append(token)
        piece = "" if ends else self.answer.push(self._text.push(token))
        thinks = self.answer.thinking is not None
        self.reasoning_tokens = len(self.tokens) if thinks else self.reasoning_tokens + thought
        if ends or self.answer.stopped:
            self.finish, self.ended = "stop", True
            return self._guard.finish() + piece
        if thought != thinks:
            held, self._guard = self._guard.finish(), RepetitionGuard()
            return held + piece
        piece = self._guard.push(token, piece)
        if self._guard.circling:
            self.circling, self.ended = thinks, not thinks
        return piece

    def close(self, block: ReasoningBlock, tokens: list[int]) -> None:
        """Ends the reasoning with the tokens that say so."""
        self._text.flush()
        self._guard, self.circling = RepetitionGuard(), False
        self.tokens += tokens
        self.reasoning_tokens += len(tokens)
        self.answer.push(block.close)

    def rest(self) -> str:
        """The text held back at the end; none of what goes in circles."""
        if self._guard.circling:
            return ""
        return self._guard.finish() + self.answer.push(self._text.finish()) + self.answer.finish()
