"""The threads that run the encoder: a batch a core, instead of every batch cut over all cores.

A batch that is cut over cores makes each wait for the slowest after every layer. On an idle machine that costs little;
on a shared one it took three times as long (`docs/decisions.md`). One batch on one core also gives the same numbers on
machines with any number of cores.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache

MOST_WORKERS = 16
"""Beyond these the interpreter's lock is what batches wait for."""


class EncodeWorkers(ThreadPoolExecutor):
    """Runs batches in the order they are handed in.

    Who encodes a book hands in `count` batches at a time, so a question waits for one batch and no more.
    """

    def __init__(self, count: int, threads_each: int | None = None) -> None:
        """Starts `count` threads that give torch `threads_each` cores each; None leaves torch as it is."""
        self.count = count
        if threads_each is None:
            super().__init__(count, "encoder")
            return
        import torch

        before = torch.get_num_threads()
        super().__init__(count, "encoder", initializer=torch.set_num_threads, initargs=(threads_each,))
        together = threading.Barrier(count)
        list(self.map(lambda _: together.wait(), range(count)))
        # What a thread sets for itself is also what later threads begin with: a language model's must get all cores.
        torch.set_num_threads(before)


@cache
def encode_workers(device: str) -> EncodeWorkers:
    """The process's workers for `cpu` or `cuda`."""
    if device != "cpu":
        return EncodeWorkers(1)
    import torch

    cores = torch.get_num_threads()
    count = min(cores, MOST_WORKERS)
    return EncodeWorkers(count, cores // count)
