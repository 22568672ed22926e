"""What the commands print: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from api.time_left import TimeLeft, as_clock

BAR_CHARS = 24
REDRAW_S = 0.1


class Console:
    """Prints for one command.

    Args:
        json_output: one JSON document on stdout instead of words.
    """

    def __init__(self, *, json_output: bool = False, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.json_output = json_output
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._live = self._err.isatty()
        self._bar_open = False
        self._last_step = ""
        self._drawn_at = 0.0
        self._left = TimeLeft()

    def result(self, document: Any, lines: Iterable[str]) -> None:
        """The command's result: the document as JSON, or its lines for people."""
        self.clear()
        if self.json_output:
            print(json.dumps(document, ensure_ascii=False, indent=2), file=self._out, flush=True)
            return
        for line in lines:
            print(line, file=self._out)
        self._out.flush()

    def text(self, piece: str) -> None:
        """A piece of a result that is written as it comes."""
        print(piece, end="", file=self._out, flush=True)

    def say(self, line: str) -> None:
        """A line about what is being done."""
        self.clear()
        print(line, file=self._err, flush=True)

    def step(self, name: str, done: int = 0, total: int = 0) -> None:
        """A step of longer work: a bar on a terminal with the time left, elsewhere a line when the step changes."""
        if not self._live:
            if name != self._last_step:
                print(f"{name} ...", file=self._err, flush=True)
            self._last_step = name
            return
        left = self._left.told(name, done, total)
        now = time.monotonic()
        if name == self._last_step and done < total and now - self._drawn_at < REDRAW_S:
            return
        self._last_step, self._drawn_at = name, now
        bar = ""
        if total:
            filled = BAR_CHARS * min(done, total) // total
            bar = f" [{'#' * filled}{'.' * (BAR_CHARS - filled)}] {done}/{total}"
            bar += f" {as_clock(left)} left" if left is not None and done < total else ""
        print(f"\r\x1b[K{name}{bar}", end="", file=self._err, flush=True)
        self._bar_open = True

    def clear(self) -> None:
        """Takes an open bar away."""
        if self._bar_open:
            print("\r\x1b[K", end="", file=self._err, flush=True)
            self._bar_open = False


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines of aligned columns; the last column is not padded."""
    if not rows:
        return []
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    ]
