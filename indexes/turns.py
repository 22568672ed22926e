"""Turns at something that only one thread may use at a time, some before others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """A lock with two queues. A plain lock would let the thread that embeds a book take it again and again, batch
    after batch, while a question waits.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken = False
        self._first_waiting = 0

    @contextmanager
    def taken(self, *, first: bool) -> Iterator[None]:
        """Hold the turn; those who ask with `first` go before all who do not."""
        with self._changed:
            self._first_waiting += first
            try:
                self._changed.wait_for(lambda: not self._taken and (first or not self._first_waiting))
                self._taken = True
            finally:
                self._first_waiting -= first
        try:
            yield
        finally:
            with self._changed:
                self._taken = False
                self._changed.notify_all()
