"""How long a stage of work will still take, judged by how fast it went so far."""

from __future__ import annotations

import time
from collections.abc import Callable

SOON_S = 2.0
"""Nothing is said before: the first steps of a stage load models and tell little."""


class TimeLeft:
    """Follows one piece of work through its stages; each stage is judged by itself.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stage = ""
        self._began_at_s = 0.0
        self._began_with = 0
        self._last = 0

    def told(self, stage: str, done: int, total: int) -> float | None:
        """Seconds that the stage will still take; None while that cannot be known."""
        now = self._clock()
        if stage != self._stage or done < self._last:
            self._stage, self._began_at_s, self._began_with = stage, now, done
        self._last = done
        steps = done - self._began_with
        if steps < 1 or now - self._began_at_s < SOON_S:
            return None
        return (now - self._began_at_s) / steps * max(total - done, 0)


def as_clock(seconds: float) -> str:
    """`m:ss`, or `h:mm:ss` from an hour on."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
