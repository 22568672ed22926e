"""Turns tokens into text as they come: whole characters only, special tokens and hidden reasoning left out."""

from __future__ import annotations

from typing import Any

_UNFINISHED = "\ufffd"
_OPEN, _CLOSE = "<think>", "</think>"


class TextStream:
    """Text of a growing token sequence.

    A character may take several tokens, and a token's text may depend on the one before it, so a short tail is
    decoded again with every token and given out once it is stable.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._settled = 0
        self._shown = 0

    def push(self, token: int) -> str:
        """The text that `token` completes; often a word, sometimes nothing yet."""
        self._tokens.append(token)
        before = self._decode(self._settled, self._shown)
        now = self._decode(self._settled, len(self._tokens))
        if now.endswith(_UNFINISHED) or len(now) <= len(before):
            return ""
        self._settled, self._shown = self._shown, len(self._tokens)
        return now[len(before) :]

    def finish(self) -> str:
        """What is left, without an unfinished character."""
        before = self._decode(self._settled, self._shown)
        now = self._decode(self._settled, len(self._tokens))
        return now[len(before) :].rstrip(_UNFINISHED)

    def _decode(self, start: int, stop: int) -> str:
        text: str = self._tokenizer.decode(self._tokens[start:stop], skip_special_tokens=True)
        return text


class ReasoningFilter:
    """Leaves out a leading `<think> … </think>` block of models that reason aloud.

    Args:
        inside: the prompt already opened the block.
    """

    def __init__(self, *, inside: bool = False) -> None:
        self._inside = inside
        self._decided = inside
        self._held = ""

    def push(self, text: str) -> str:
        """The part of `text` that belongs to the answer."""
        if self._decided and not self._inside:
            return text
        self._held += text
        if not self._decided:
            start = self._held.lstrip()
            if not start.startswith(_OPEN):
                if _OPEN.startswith(start):
                    return ""
                return self._release()
            self._decided = self._inside = True
        _, closed, after = self._held.partition(_CLOSE)
        if not closed:
            return ""
        self._held = after.lstrip()
        self._inside = False
        if not self._held:
            self._decided = True
            return ""
        return self._release()

    def finish(self) -> str:
        """What was held back because it might have been the block's beginning."""
        return "" if self._inside else self._release()

    def _release(self) -> str:
        self._decided, text, self._held = True, self._held, ""
        return text
