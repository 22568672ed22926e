"""Waiting in tests, as long as a busy machine may take."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 120.0
"""How long a test waits for what must come: a busy machine may be many times slower than an idle one."""


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Returns when `condition` holds; fails the test when it does not come to hold."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s} s in vain: {what}")
        time.sleep(0.01)
