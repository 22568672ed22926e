"""Streaming an answer: items from a worker thread, tokens to text, hidden reasoning, stop strings."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from indexes.errors import Cancelled

_POLL_S = 0.05
_UNFINISHED = "\ufffd"
_OPEN, _CLOSE = "<think>", "</think>"

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class _End:
    """Marks the end of the items, and the error that ended them."""

    error: BaseException | None


class Relay(Generic[Item]):
    """Hands items from a worker thread to a consumer, which can give up while it waits."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[Item | _End] = queue.SimpleQueue()

    def put(self, item: Item) -> None:
        """Hands over an item; called by the worker."""
        self._items.put(item)

    def end(self, error: BaseException | None = None) -> None:
        """Ends the items; the consumer sees `error` raised."""
        self._items.put(_End(error))

    def items(self, cancelled: Callable[[], bool], while_waiting: Callable[[], None] = lambda: None) -> Iterator[Item]:
        """The items until the end.

        Args:
            cancelled: polled after every item and every 50 ms of waiting.
            while_waiting: called every 50 ms of waiting; it may raise.

        Raises:
            Cancelled: `cancelled` became true. An error of the worker is raised as it is.
        """
        while True:
            try:
                item = self._items.get(timeout=_POLL_S)
            except queue.Empty:
                if not cancelled():
                    while_waiting()
            else:
                if isinstance(item, _End):
                    if item.error is not None:
                        raise item.error
                    return
                yield item
            if cancelled():
                raise Cancelled("The answer was stopped.")


class TextStream:
    """Text of a growing token sequence, in whole characters and without special tokens.

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
        """The rest, without an unfinished character."""
        before = self._decode(self._settled, self._shown)
        now = self._decode(self._settled, len(self._tokens))
        return now[len(before) :].rstrip(_UNFINISHED)

    def _decode(self, start: int, stop: int) -> str:
        text: str = self._tokenizer.decode(self._tokens[start:stop], skip_special_tokens=True)
        return text


class AnswerText:
    """The part of a model's text that the reader sees: no leading reasoning, nothing from a stop string on.

    Attributes:
        shown: all text given out so far.
    """

    def __init__(self, stop: Sequence[str], *, inside_reasoning: bool = False) -> None:
        self._reasoning = ReasoningFilter(inside=inside_reasoning)
        self._stop = StopStrings(stop)
        self.shown = ""

    @property
    def stopped(self) -> bool:
        """A stop string was found; whatever the model still writes is dropped."""
        return self._stop.hit

    def push(self, text: str) -> str:
        """The text that can be shown once the model has written `text`; may be empty."""
        return self._show(self._stop.push(self._reasoning.push(text)))

    def finish(self) -> str:
        """The text held back at the end of the answer."""
        return self._show(self._stop.push(self._reasoning.finish()) + self._stop.finish())

    def _show(self, text: str) -> str:
        self.shown += text
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
        """The text held back because it might have begun the block."""
        return "" if self._inside else self._release()

    def _release(self) -> str:
        self._decided, text, self._held = True, self._held, ""
        return text


class StopStrings:
    """Gives text out as soon as it cannot be part of a stop string, which may come in several pieces.

    The answer ends where a stop string is complete for the first time; of several that end there the longest is cut.

    Args:
        strings: none of them empty; without any all text passes.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = tuple(strings)
        self._held = ""
        self.hit = False

    def push(self, text: str) -> str:
        """The part of `text`, and of what was held back, that certainly belongs to the answer."""
        if self.hit or not self._strings:
            return "" if self.hit else text
        self._held += text
        ends = [place + len(string) for string in self._strings if (place := self._held.find(string)) >= 0]
        if ends:
            self.hit = True
            answer, self._held = self._held[: min(ends)], ""
            return answer[: -max(len(string) for string in self._strings if answer.endswith(string))]
        keep = max(_overlap(self._held, string) for string in self._strings)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def finish(self) -> str:
        """The text held back because it might have begun a stop string."""
        shown, self._held = self._held, ""
        return shown


def _overlap(text: str, string: str) -> int:
    """Longest beginning of `string`, short of all of it, that `text` ends with."""
    return next((n for n in range(min(len(text), len(string) - 1), 0, -1) if text.endswith(string[:n])), 0)
