"""An LRU cache of a language model's answers by request.

A request holds everything that the model reads: the question as it was searched, its passages, the conversation, the
adapter and the sampling. A change in any of these makes another request. The search runs every time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

from rag.generators.protocol import GenerationDone, GenerationRequest, Generator, Item, TextPiece


def with_answer_cache(generator: Generator, most: int) -> Generator:
    """The generator behind a cache of `most` answers; 0 caches none."""
    return cast(Generator, _AnswerCache(generator, most)) if most else generator


class _AnswerCache:
    def __init__(self, generator: Generator, most: int) -> None:
        self._generator = generator
        self._most = most
        self._answers: OrderedDict[GenerationRequest, tuple[Item, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)

    def stream(self, request: GenerationRequest) -> Iterator[Item]:
        """As `Generator.stream`; caches no answer that was sampled without a seed."""
        key = replace(request, cancelled=_never)
        with self._lock:
            kept = self._answers.get(key)
            if kept is not None:
                self._answers.move_to_end(key)
        if kept is not None:
            yield from kept
            return
        written: list[Item] = []
        pieces = self._generator.stream(request)
        try:
            for item in pieces:
                written.append(item)
                if isinstance(item, GenerationDone) and (request.temperature == 0 or request.seed is not None):
                    self._keep(key, item, written)
                yield item
        finally:
            close = getattr(pieces, "close", None)
            if close is not None:
                close()

    def _keep(self, key: GenerationRequest, done: GenerationDone, written: list[Item]) -> None:
        read = replace(done.usage, cached_prompt_tokens=done.usage.prompt_tokens)
        again = replace(done, usage=read, tokens_per_s=0.0)
        with self._lock:
            self._answers[key] = (*(item for item in written if isinstance(item, TextPiece)), again)
            while len(self._answers) > self._most:
                self._answers.popitem(last=False)


def _never() -> bool:
    return False
