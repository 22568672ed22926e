"""What commands print: results on stdout, progress and remarks on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress


class Console:
    """Prints for one command.

    Args:
        json_output: print one JSON document on stdout instead of words.
    """

    def __init__(self, *, json_output: bool = False, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.json_output = json_output
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._bar: Progress | None = None
        self._last_step = ""

    def result(self, document: Any, lines: Iterable[str]) -> None:
        """Prints the command's result: the document as JSON, or its lines for people."""
        self.clear()
        if self.json_output:
            print(json.dumps(document, ensure_ascii=False, indent=2), file=self._out, flush=True)
            return
        for line in lines:
            print(line, file=self._out)
        self._out.flush()

    def text(self, piece: str) -> None:
        """Prints a piece of a result that is still being written."""
        print(piece, end="", file=self._out, flush=True)

    def say(self, line: str) -> None:
        """Prints a remark."""
        self.clear()
        print(line, file=self._err, flush=True)

    def step(self, name: str, done: int = 0, total: int = 0) -> None:
        """Shows a step of longer work: a bar with the time left on a terminal, elsewhere a line per step."""
        if self._err.isatty():
            self._draw(name, done, total)
        elif name != self._last_step:
            print(f"{name} ...", file=self._err, flush=True)
        self._last_step = name

    def clear(self) -> None:
        """Removes the bar from the terminal."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _draw(self, name: str, done: int, total: int) -> None:
        if self._bar is None or name != self._last_step:
            self.clear()
            self._bar = _new_bar(self._err)
            self._bar.add_task(name, total=None)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=done, total=total or None)


def _new_bar(stream: TextIO) -> Progress:
    from rich.console import Console as Terminal
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Terminal(file=stream), transient=True)


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines of aligned columns, never wrapped: the lines may go through a pipe."""
    from rich.console import Console as Terminal
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return []
    grid = Table.grid(padding=(0, 2))
    for row in rows:
        grid.add_row(*(Text(cell, no_wrap=True) for cell in row))
    terminal = Terminal(width=10_000, file=sys.stderr)
    with terminal.capture() as captured:
        terminal.print(grid)
    return [line.rstrip() for line in captured.get().splitlines()]


def counted(number: int, noun: str) -> str:
    """A number with its noun, in the plural unless it is one: `1 book`, `2 books`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
