"""Streaming an answer: items from a worker thread, tokens to text, hidden reasoning, stop strings."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from indexes.errors import Cancelled

_POLL_S = 0.05
_UNFINISHED = "\ufffd"

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
    decoded again with every token and passed on once it is stable.

    Args:
        spoken: special tokens that are text all the same, by id: the marks of reasoning.
    """

    def __init__(self, tokenizer: Any, spoken: Mapping[int, str] | None = None) -> None:
        self._tokenizer = tokenizer
        self._spoken = spoken or {}
        self._tokens: list[int] = []
        self._settled = 0
        self._shown = 0

    def push(self, token: int) -> str:
        """The text that `token` completes; often a word, sometimes nothing yet."""
        if (mark := self._spoken.get(token)) is not None:
            return self.flush() + mark
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

    def flush(self) -> str:
        """The rest; the next token begins a text of its own."""
        rest = self.finish()
        self._tokens, self._settled, self._shown = [], 0, 0
        return rest

    def _decode(self, start: int, stop: int) -> str:
        text: str = self._tokenizer.decode(self._tokens[start:stop], skip_special_tokens=True)
        return text


@dataclass(frozen=True, slots=True)
class ReasoningBlock:
    """How a family of models marks its reasoning.

    Attributes:
        opening, closing: what stands before and after it.
        close: what is written for a model that must end its reasoning.
    """

    opening: str
    closing: str
    close: str


THINK = ReasoningBlock("<think>", "</think>", "\n</think>\n\n")
REASONING_BLOCKS = (
    THINK,  # DeepSeek R1, Qwen, and most others
    ReasoningBlock("[THINK]", "[/THINK]", "[/THINK]"),  # Magistral
    ReasoningBlock("<seed:think>", "</seed:think>", "</seed:think>"),  # Seed-OSS
    ReasoningBlock(  # harmony (gpt-oss): every channel but the final one
        "<|channel|>", "<|channel|>final<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"
    ),
)
REASONING_MARKS = ("<|message|>", *(mark for block in REASONING_BLOCKS for mark in (block.opening, block.closing)))
"""Marks that a tokenizer may hold as special tokens, which decoding leaves out."""


class AnswerText:
    """The part of a model's text that the reader sees: no leading reasoning, nothing from a stop string on.

    Args:
        inside: the block of reasoning that the prompt already opened.

    Attributes:
        shown: all text passed on so far.
    """

    def __init__(self, stop: Sequence[str], inside: ReasoningBlock | None = None) -> None:
        self._reasoning = ReasoningFilter(inside)
        self._stop = StopStrings(stop)
        self.shown = ""

    @property
    def stopped(self) -> bool:
        """A stop string was found; whatever the model still writes is dropped."""
        return self._stop.hit

    @property
    def thinking(self) -> ReasoningBlock | None:
        """The block of reasoning that is open now."""
        return self._reasoning.block if self._reasoning.inside else None

    @property
    def thought(self) -> bool:
        """A block of reasoning was found, open or closed."""
        return self._reasoning.block is not None

    @property
    def thought_unseen(self) -> bool:
        """Text of the answer was reasoning: it closed a block that the engine's prompt had opened."""
        return not self.thought and THINK.closing in self.shown

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
    """Leaves out the leading reasoning of models that think aloud, in any of `REASONING_BLOCKS`.

    Args:
        inside: the block that the prompt already opened.

    Attributes:
        block: the block that was found, None without any; inside: it is still open.
    """

    def __init__(self, inside: ReasoningBlock | None = None) -> None:
        self.block = inside
        self.inside = inside is not None
        self._answering = False
        self._held = ""

    def push(self, text: str) -> str:
        """The part of `text` that belongs to the answer."""
        if self._answering:
            return text
        self._held += text
        if not self.inside:
            start = self._held.lstrip()
            found = next((block for block in REASONING_BLOCKS if start.startswith(block.opening)), None)
            if found is None:
                undecided = any(block.opening.startswith(start) for block in REASONING_BLOCKS)
                return "" if undecided else self._release()
            self.block, self.inside = found, True
        closing = self.block.closing if self.block else ""
        _, closed, after = self._held.partition(closing)
        if not closed:
            self._held = self._held[1 - len(closing) :]
            return ""
        self.inside, self._held = False, ""
        return self.push(after)

    def finish(self) -> str:
        """The text held back because it might have begun a block."""
        return "" if self.inside else self._release()

    def _release(self) -> str:
        self._answering, text, self._held = True, self._held, ""
        return text.lstrip() if self.block else text


_LEAST_REPEATED = 200


class RepetitionGuard:
    """Ends text that goes in circles, and holds back what may be one until it differs.

    It does so once at least 200 tokens, and a whole round of whatever length, repeat what stands just before them:
    more than the alike lines of a listing or a table. What is shown ends before the repetition. Nothing else about an
    answer changes: a penalty on repeated tokens would change quotes and identifiers.

    Attributes:
        circling: the text goes in circles; no more of it is shown.
    """

    def __init__(self) -> None:
        self.circling = False
        self._numbers: dict[Hashable, int] = {}
        self._tokens = np.zeros(0, np.int32)
        self._alike = np.zeros(0, np.int32)  # for each distance, from 1: tokens at the end that equal those so far back
        self._count = 0
        self._held: deque[str] = deque()

    def push(self, token: Hashable, text: str = "") -> str:
        """The text that can be shown once `token` is written, which completes `text`."""
        count, self._count = self._count, self._count + 1
        if count == len(self._tokens):
            room = np.zeros(count + 256, np.int32)
            self._tokens, self._alike = np.append(self._tokens, room), np.append(self._alike, room)
        self._tokens[count] = number = self._numbers.setdefault(token, len(self._numbers))
        alike = self._alike[:count]
        alike += 1
        alike *= self._tokens[:count][::-1] == number
        repeated = int(alike.max(initial=0))
        if repeated >= _LEAST_REPEATED:
            self.circling |= bool((alike >= np.maximum(np.arange(1, count + 1), _LEAST_REPEATED)).any())
        self._held.append(text)
        return "".join(self._held.popleft() for _ in range(len(self._held) - repeated))

    def finish(self) -> str:
        """The text held back, unless it goes in circles."""
        held = "" if self.circling else "".join(self._held)
        self._held.clear()
        return held


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
