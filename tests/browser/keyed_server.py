"""A server with the page over fakes that asks for keys, in a process of its own; prints its address, ends with stdin.

NiceGUI keeps one application per process, and that of the other tests has no keys.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from api_fakes import running

from api.settings import load_settings

KEYS = {"api_keys": "teacher-key", "learner_keys": "alice=alices-key,bob=bobs-key"}


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as home,
        running(load_settings({"home": Path(home) / "home", **KEYS}), pages=True) as live,
    ):
        print(live.address, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
