"""A book that takes too much, or that ends its reader, costs itself and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import strangers
from waiting import wait_until

from indexes.errors import Cancelled, CoalesceError, TooLarge, UnreadableBook
from indexes.reading_process import Limits, ReadingProcesses
from indexes.settings import IndexSettings

pytestmark = pytest.mark.integration
LIMITS = Limits(memory_bytes=160 * 2**20, cpu_s=60, wall_s=60)


@pytest.fixture(scope="module")
def reading() -> Iterator[ReadingProcesses]:
    made = ReadingProcesses(IndexSettings(Path("unused")))
    yield made
    made.close()


@pytest.mark.parametrize(
    ("task", "limits", "error", "says"),
    [
        (strangers.fill_memory, LIMITS, TooLarge, ("167,772,160 bytes", "reading_memory_bytes")),
        (strangers.ask_for_all_memory, LIMITS, TooLarge, ("167,772,160 bytes", "reading_memory_bytes")),
        (strangers.compute, replace(LIMITS, cpu_s=0.5), TooLarge, ("0.5 seconds", "reading_cpu_s")),
        (strangers.wait, replace(LIMITS, wall_s=0.5), TooLarge, ("0.5 seconds", "reading_wall_s")),
        (strangers.leave, LIMITS, UnreadableBook, ("exit status 3",)),
        (strangers.crash, LIMITS, UnreadableBook, ("Segmentation fault",)),
    ],
)
def test_a_task_that_takes_too_much_or_dies_is_an_error_that_says_why_and_the_next_one_runs(
    reading: ReadingProcesses,
    task: Callable[..., Any],
    limits: Limits,
    error: type[CoalesceError],
    says: tuple[str, ...],
) -> None:
    with pytest.raises(error) as raised:
        reading.run(task, "a.pdf", limits)
    assert all(word in f"{raised.value.message} {raised.value.hint}" for word in ("'a.pdf'", *says))
    assert reading.run(strangers.read_well, "b.pdf") > 0


def test_a_process_serves_one_task_after_another_and_tells_its_progress(reading: ReadingProcesses) -> None:
    seen: list[tuple[int, int]] = []
    first = reading.run(strangers.read_well, "a.pdf", progress=lambda *step: seen.append(step))
    assert (reading.run(strangers.read_well, "b.pdf"), seen) == (first, [(1, 2), (2, 2)])
    assert first != os.getpid()


def test_a_reader_that_makes_much_is_hardly_stopped_by_pythons_collector(reading: ReadingProcesses) -> None:
    assert reading.run(strangers.make_much, "large.md") <= 20  # 157 as Python has it


def test_what_no_reader_foresaw_is_logged_here_and_refuses_the_book(
    reading: ReadingProcesses, unforeseen_errors: list[Exception]
) -> None:
    with pytest.raises(UnreadableBook, match="ZeroDivisionError"):
        reading.run(strangers.raise_something, "a.pdf")
    assert len(unforeseen_errors) == 1


def test_a_cancel_ends_the_process_at_once_whatever_it_does(reading: ReadingProcesses) -> None:
    child = psutil.Process(reading.run(strangers.read_well, "a.pdf"))
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()
    started = time.monotonic()
    with pytest.raises(Cancelled):
        reading.run(strangers.compute, "a.pdf", cancelled=stop.is_set)
    assert time.monotonic() - started < 1.2
    wait_until(lambda: not child.is_running(), "it is gone", 1)


PARENT = """
import strangers
from pathlib import Path
from indexes.reading_process import ReadingProcesses
from indexes.settings import IndexSettings

reading = ReadingProcesses(IndexSettings(Path("unused")))
print(reading.run(strangers.read_well, "a"), flush=True)
reading.run(strangers.compute, "a")
"""


def test_the_process_goes_with_a_parent_that_is_killed_while_it_computes() -> None:
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | path) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        wait_until(lambda: child.cpu_percent(0.1) > 10, "it computes")
        parent.send_signal(signal.SIGKILL)
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "it is gone", 5)


def test_closing_ends_the_processes_and_what_they_read() -> None:
    other = ReadingProcesses(IndexSettings(Path("unused")))
    errors: list[BaseException] = []

    def read() -> None:
        try:
            other.run(strangers.wait, "a.pdf")
        except CoalesceError as error:
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    wait_until(lambda: bool(other._busy), "it reads")
    other.close()
    thread.join(5)
    assert [type(error) for error in errors] == [Cancelled]
