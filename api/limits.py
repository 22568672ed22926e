"""How much the server takes on at once: answers in work, answers that wait, and questions a minute by client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from api.errors import RateLimited
from indexes.errors import Busy

MAX_CLIENTS_REMEMBERED = 10_000


class AnswerGate:
    """Counts answers in work and waiting.

    Args:
        capacity: most answers inside, at work or waiting; the next one is told to come back.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._inside = 0
        self._lock = threading.Lock()

    @property
    def inside(self) -> int:
        """Answers at work or waiting now."""
        return self._inside

    def enter(self) -> None:
        """Takes a place; `leave` gives it back.

        Raises:
            Busy: every place is taken.
        """
        with self._lock:
            if self._inside >= self._capacity:
                raise Busy(
                    f"{self._inside} answers are in work or waiting, as many as this server takes",
                    hint="try again in a moment, or raise COALESCE_MAX_WAITING_ASKS",
                )
            self._inside += 1

    def leave(self) -> None:
        """Gives a place back."""
        with self._lock:
            self._inside -= 1

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place for the length of a `with` block; raises as `enter` does."""
        self.enter()
        try:
            yield
        finally:
            self.leave()


class RateLimit:
    """Questions a minute for each client: a bucket that holds a minute's worth and fills steadily.

    Args:
        per_minute: questions a minute; 0 limits nothing.
        clock: seconds that only go forward.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, client: str) -> None:
        """Counts one question of `client`.

        Raises:
            RateLimited: its bucket is empty, with the seconds until the next drop.
        """
        if not self._per_minute:
            return
        rate_per_s = self._per_minute / 60
        with self._lock:
            now = self._clock()
            level, seen = self._buckets.pop(client, (float(self._per_minute), now))
            level = min(self._per_minute, level + (now - seen) * rate_per_s)
            allowed = level >= 1
            self._buckets[client] = (level - 1 if allowed else level, now)
            while len(self._buckets) > MAX_CLIENTS_REMEMBERED:
                self._buckets.pop(next(iter(self._buckets)))
        if not allowed:
            raise RateLimited(
                f"more than {self._per_minute} questions a minute",
                hint="wait as long as Retry-After says, or raise COALESCE_RATE_LIMIT_PER_MINUTE",
                retry_after_s=(1 - level) / rate_per_s,
            )
