"""How long work will still take: from its own speed, stage by stage, and silent while it cannot be known."""

from __future__ import annotations

import io
import re
import time

from api.console import Console
from api.jobs import TimeLeft, as_clock


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_time_left_follows_the_speed_of_the_stage():
    clock = Clock()
    left = TimeLeft(clock)
    assert left.seconds_left("reading", 0, 10) is None
    clock.now += 4
    assert left.seconds_left("reading", 2, 10) == 16  # two seconds a step, eight steps to go
    assert left.seconds_left("embedding", 0, 100) is None, "another stage has another speed"
    clock.now += 1
    assert left.seconds_left("embedding", 50, 100) is None, "too early to estimate"
    clock.now += 9
    assert left.seconds_left("embedding", 100, 100) == 0


def test_a_stage_that_begins_again_is_estimated_again():
    clock = Clock()
    left = TimeLeft(clock)
    left.seconds_left("book: reading", 0, 5)
    clock.now += 100
    assert left.seconds_left("book: reading", 5, 5) == 0
    assert left.seconds_left("book: reading", 0, 5) is None
    clock.now += 3
    assert left.seconds_left("book: reading", 1, 5) == 12


def test_seconds_read_as_a_clock():
    assert [as_clock(seconds) for seconds in (0.4, 59.6, 75, 3600, 7325)] == [
        "0:00",
        "1:00",
        "1:15",
        "1:00:00",
        "2:02:05",
    ]


def test_a_bar_on_a_terminal_says_how_long_it_will_take():
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    console = Console(err=terminal)
    for done in range(6):
        console.step("embedding", done, 10)
        time.sleep(0.05)
    console.say("half way")
    drawn = re.sub(r"\x1b\[[\d;]*m", "", terminal.getvalue())
    assert "embedding" in drawn
    assert re.search(r"5/10 0:00:0\d", drawn)
    assert drawn.endswith("half way\n")
