"""Runs a command that ends when its starter does: `python watchdog.py COMMAND …` ends it when standard input closes.

The kernel closes a killed starter's pipe, so nothing is left behind however the starter ends. The command leads a
session of its own, and its children go with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading

GRACE_S = 10.0
KILLED = 128
"""The exit status, less the signal's number, where a signal ended the command; as in a shell."""


def main() -> int:
    """The command's exit status."""
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True)

    def end_with_starter() -> None:
        while os.read(0, 4096):  # not sys.stdin: a thread that waits in it crashes the interpreter's end
            pass
        _signal(child.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(GRACE_S)
        _signal(child.pid, signal.SIGKILL)

    threading.Thread(target=end_with_starter, daemon=True).start()
    status = child.wait()
    _signal(child.pid, signal.SIGKILL)  # what a crash left of its children
    return status if status >= 0 else KILLED - status


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(main())
