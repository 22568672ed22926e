"""Decoding steps recorded as CUDA graphs: a GPU computes a step sooner than Python can name its kernels one by one.

On one H100 a token of a 4-bit model of four billion weights took 34 to 59 ms step by step and 6 ms recorded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from indexes.errors import first_line
from rag.generators.local.decode import static_step
from rag.models.devices import RANDOM_NUMBERS, free_cached_memory, is_out_of_memory

_log = logging.getLogger(__name__)

Replay = Callable[[Any, Any], Any]
"""Token ids (rows, 1) and lengths (rows,) to logits (rows, 1, vocab)."""


@dataclass(slots=True)
class GraphMemory:
    """Working memory that the graphs of a generator share, since only one of them runs at a time.

    Attributes:
        pool: torch's name for it; last: the newest graph, kept because torch takes no pool again that has none.
        fails: whether this model's steps cannot be recorded.
    """

    pool: Any = None
    last: Any = None
    fails: bool = False


class Recorder:
    """Steps of one model over the same keys and values."""

    def __init__(self, model: Any, memory: GraphMemory) -> None:
        self._model = model
        self._memory = memory
        self._recorded: dict[int, Replay | None] = {}

    def clear(self) -> None:
        """Forgets all steps; to be called before keys and values move."""
        self._recorded.clear()

    def step(self, ids: Any, lengths: Any, keys: Sequence[Any], values: Sequence[Any]) -> Replay | None:
        """The recorded `static_step` of so many rows.

        Args:
            keys, values: a tensor for each layer, of at least so many rows.

        Returns:
            None for the first of its kind, which loads kernels and so cannot be recorded; while training draws random
            numbers; and for models that ask the device for a value in the middle of a step.
        """
        rows = len(ids)
        if self._memory.fails:
            return None
        if rows in self._recorded and self._recorded[rows] is None and RANDOM_NUMBERS.acquire(blocking=False):
            try:
                looked_at = [each[:rows] for each in keys], [each[:rows] for each in values]
                self._recorded[rows] = self._tried(lambda: self._record(ids.clone(), lengths.clone(), *looked_at))
            finally:
                RANDOM_NUMBERS.release()
        return self._recorded.setdefault(rows, None)

    def _tried(self, record: Callable[[], Replay]) -> Replay | None:
        """What is recorded; when memory is full once more, after what torch holds for later was given back."""
        for again in (True, False):
            try:
                return record()
            except RuntimeError as error:
                if again and is_out_of_memory(error):
                    free_cached_memory(self._model.device.type)
                    continue
                self._memory.fails = True
                _log.warning("steps are not recorded, and slower: %s", first_line(error))
                break
        return None

    def _record(self, ids: Any, lengths: Any, keys: Sequence[Any], values: Sequence[Any]) -> Replay:
        import torch

        memory = self._memory
        memory.pool = memory.pool or torch.cuda.graph_pool_handle()
        stream, graph = _recording_stream(ids.device), torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream(ids.device))
        with torch.inference_mode(), torch.cuda.stream(stream):
            graph.capture_begin(pool=memory.pool, capture_error_mode="thread_local")  # others may embed meanwhile
            try:
                logits = static_step(self._model, ids, lengths, keys, values)
            finally:
                graph.capture_end()
        memory.last = graph

        def replay(new_ids: Any, new_lengths: Any) -> Any:
            with torch.inference_mode():
                ids.copy_(new_ids)
                lengths.copy_(new_lengths)
                graph.replay()
                return logits.clone()

        return replay


@cache
def _recording_stream(device: Any) -> Any:
    """One for all recordings: torch keeps working memory for every stream that multiplies."""
    import torch

    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
