"""Reads books, and draws their pages, in processes of their own: a file is a stranger's and may take its reader along.

A book that takes too much memory or time, or that crashes its reader, ends its process and nothing else. A process is
started when it is first needed, and read with again until something ended it. The parent watches: it sees what a
process uses, kills it at a limit or a cancel, and says why. The system's own limit on memory stands behind the watch
where there is one, for what grows faster than one looks.

The processes speak in pickles over their standard input and output. They have the rights of the user: this bounds what
a file costs, it does not jail it.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from indexes.errors import Busy, Cancelled, CoalesceError, TooLarge, UnreadableBook
from indexes.messages import msg
from indexes.readers import read_book
from indexes.readers.source import logger as readers_logger
from indexes.readers.source import unforeseen
from indexes.settings import IndexSettings
from indexes.types import Book, CancelCheck

LOOK_S = 0.05
"""Between two looks at what a process uses: one that fills a gigabyte a second is 50 MB beyond its limit."""
SPARE_SHARE = 0.5
"""By how much of the limit the system's own limit is higher: it counts memory that is reserved and never touched."""
GROWN_SHARE = 0.125
"""A process that holds more than this share of the limit after a book is not used again."""
OCR_TIMES = 10
"""How many times as long a book may take with `ocr`: recognising a page takes seconds."""
MADE_BETWEEN_COLLECTIONS = 10_000
"""Objects that are made between two runs of Python's collector. What readers make stays until the book is read, so
each run finds nothing: with Python's own 700, a table of 120,000 cells took 4.7 s and takes 3.3 (the processor's)."""
DRAWING_S = 30.0
"""The longest that drawing one page may take."""
DRAWING_TURN_S = 5.0
"""The longest that a page waits for others to be drawn: whoever waits holds a thread of the server."""

Listen = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one task may use; the times are seconds."""

    memory_bytes: int
    cpu_s: float
    wall_s: float


def read_by(path: Path, name: str | None, reader: str | None, ocr: bool, **listeners: Any) -> Book:
    """Read a book: by our readers, or by the llama-index reader that the settings name for its ending."""
    if reader is None:
        return read_book(path, name=name, ocr=ocr, **listeners)
    from indexes.llama_index import read_with

    return read_with(reader, path, name or path.name)


def draw_by(path: Path, page: int, quote: str, **_: Any) -> bytes:
    """Draw a page of a PDF; see `indexes.page_images`."""
    from indexes.page_images import draw_page

    return draw_page(path, page, quote)


class ReadingProcesses:
    """Reads with up to `reading_processes` processes at once, and draws pages with one more. Light to make.

    Threads may share it.
    """

    def __init__(self, settings: IndexSettings) -> None:
        self._settings = settings
        self._limits = Limits(settings.reading_memory_bytes, settings.reading_cpu_s, settings.reading_wall_s)
        self._reading = threading.Semaphore(max(1, settings.reading_processes))
        self._drawing = threading.Semaphore(1)
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()
        self._closed = False
        weakref.finalize(self, _end_all, self._idle)

    def read(
        self,
        path: Path,
        *,
        name: str | None = None,
        reader: str | None = None,
        progress: Listen | None = None,
        cancelled: CancelCheck | None = None,
    ) -> Book:
        """Read a book; see `read_book`.

        Args:
            name: the file's own name, if `path` is a temporary one.
            reader: the llama-index reader that reads it in place of ours.

        Raises:
            TooLarge: it took more memory or time than the settings allow.
            UnreadableBook: it ended its reader; and what `read_book` raises.
        """
        ocr = self._settings.ocr
        limits, shown = self._limits, name or path.name
        if ocr:
            limits = replace(limits, cpu_s=limits.cpu_s * OCR_TIMES, wall_s=limits.wall_s * OCR_TIMES)
        task = partial(read_by, path, name, reader, ocr)
        with _turn(self._reading, cancelled, shown):
            if self._inside:
                return task(progress=progress, cancelled=cancelled)
            book: Book = self.run(task, shown, limits, progress=progress, cancelled=cancelled)
            return book

    def draw(self, path: Path, page: int, quote: str = "") -> bytes:
        """A page of a PDF (from 1) as PNG, the quote marked on it.

        Raises:
            NotFound: the file has no such page, or cannot be read any more.
            Busy: others are being drawn.
            TooLarge, UnreadableBook: as `read`.
        """
        deadline = time.monotonic() + DRAWING_TURN_S
        task, shown = partial(draw_by, path, page, quote), f"page {page} of {path.name}"
        slot = self._reading if self._inside else self._drawing  # PDFium is not safe to use from two threads at once
        try:
            with _turn(slot, lambda: time.monotonic() > deadline, shown):
                if self._inside:
                    return task()
                picture: bytes = self.run(task, shown, replace(self._limits, wall_s=DRAWING_S))
                return picture
        except TooLarge as large:
            raise TooLarge(large.message, hint="read the page's text instead") from large
        except Cancelled as waited:
            raise Busy(msg("'{}' could not be drawn yet.", shown), hint="try again in a moment") from waited

    def close(self) -> None:
        """End every process; a book that is being read is cancelled."""
        with self._lock:
            self._closed = True
            _end_all([*self._idle, *self._busy])
            self._idle.clear()

    def run(
        self,
        task: Callable[..., Any],
        shown: str,
        limits: Limits | None = None,
        *,
        progress: Listen | None = None,
        cancelled: CancelCheck | None = None,
    ) -> Any:
        """Run a task in a process, and return what it returns there.

        Args:
            task: a function of a module, or a `partial` of one; called with `progress`.
            shown: what the task works on, for messages.
            limits: those of the settings, if not given.

        Raises:
            TooLarge: it reached a limit. UnreadableBook: it ended its process. Cancelled: `cancelled` returned True.
            What the task raises, where that is a `CoalesceError`; UnreadableBook otherwise.
        """
        limits = limits or self._limits
        process, keep = self._take(), False
        try:
            answer = process.do(task, shown, limits, progress, cancelled)
            keep = process.usage()[0] < self._limits.memory_bytes * GROWN_SHARE
        except _Ended as ended:
            if self._closed:
                raise Cancelled(f"Reading '{shown}' was stopped.") from None
            raise UnreadableBook(
                msg("'{}' ended the process that read it ({}).", shown, ended), hint="get another copy of the file"
            ) from None
        finally:
            self._give_back(process, keep=keep)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    @property
    def _inside(self) -> bool:
        return self._settings.reading_processes == 0

    def _take(self) -> _Process:
        with self._lock:
            if self._closed:
                raise Cancelled("Reading was stopped.")
            while self._idle:
                process = self._idle.pop()
                if process.alive:
                    break
            else:
                process = _Process(self._limits.memory_bytes)
            self._busy.add(process)
        return process

    def _give_back(self, process: _Process, *, keep: bool) -> None:
        with self._lock:
            self._busy.discard(process)
            keep = keep and not self._closed
            if keep:
                self._idle.append(process)
        if not keep:
            process.kill()


def _end_all(processes: list[_Process]) -> None:
    for process in processes:
        process.kill()


@contextmanager
def _turn(slots: threading.Semaphore, cancelled: CancelCheck | None, shown: str) -> Iterator[None]:
    while not slots.acquire(timeout=LOOK_S):
        if cancelled is not None and cancelled():
            raise Cancelled(f"Reading '{shown}' was cancelled before it began.")
    try:
        yield
    finally:
        slots.release()


class _Ended(Exception):
    """The process is gone; the text says how it ended."""


class _Process:
    """One process, and the thread that starts it and hears it.

    That thread lives as long as the process: Linux ends the process with the thread that started it.
    """

    def __init__(self, memory_bytes: int) -> None:
        import psutil

        started: Future[subprocess.Popen[bytes]] = Future()
        self._heard: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._hear, args=(started, memory_bytes), name="coalesce-reading", daemon=True).start()
        try:
            self._popen = started.result()
        except OSError as error:
            raise Busy(
                msg("A process that reads books cannot be started: {}.", error),
                hint="end other programs, and try again",
            ) from error
        self._watched = psutil.Process(self._popen.pid)

    @property
    def alive(self) -> bool:
        """Whether it can take a task."""
        return self._popen.poll() is None

    def kill(self) -> None:
        """End it at once."""
        self._popen.kill()

    def do(
        self, task: Callable[..., Any], shown: str, limits: Limits, listen: Listen | None, cancelled: CancelCheck | None
    ) -> Any:
        """Run a task there, and return what it returned or the error it raised.

        Raises:
            Cancelled: `cancelled` returned True. TooLarge: a limit was reached. _Ended: the process died.
            The process is to be killed then.
        """
        started_at_s = looked_at_s = time.monotonic()
        cpu_before_s = self.usage()[1]
        with contextlib.suppress(OSError, ValueError):  # it died: that is heard below
            assert self._popen.stdin is not None
            pickle.dump(task, self._popen.stdin)
            self._popen.stdin.flush()
        while True:
            try:
                kind, value = self._heard.get(timeout=LOOK_S)
            except queue.Empty:
                kind, value = "", None
            if isinstance(value, MemoryError):
                raise _beyond(shown, "memory", limits)
            if kind == "answer":
                return value
            if kind == "ended":
                raise _Ended(value)
            if kind == "progress" and listen is not None:
                listen(*value)
            elif kind == "log":
                readers_logger.log(*value, extra={"error": RuntimeError(value[1])})
            if time.monotonic() - looked_at_s < LOOK_S:
                continue
            looked_at_s = time.monotonic()
            if cancelled is not None and cancelled():
                raise Cancelled(msg("Reading '{}' was cancelled.", shown))
            memory_bytes, cpu_s = self.usage()
            if memory_bytes > limits.memory_bytes:
                raise _beyond(shown, "memory", limits)
            if cpu_s - cpu_before_s > limits.cpu_s:
                raise _beyond(shown, "cpu", limits)
            if looked_at_s - started_at_s > limits.wall_s:
                raise _beyond(shown, "wall", limits)

    def usage(self) -> tuple[int, float]:
        """Bytes of memory that it holds, and seconds of the processor that it used; zeros once it has ended."""
        import psutil

        try:
            with self._watched.oneshot():
                times = self._watched.cpu_times()
                return self._watched.memory_info().rss, times.user + times.system
        except psutil.Error:
            return 0, 0.0

    def _hear(self, started: Future[subprocess.Popen[bytes]], memory_bytes: int) -> None:
        """Start the process and pass on what it says until it has ended."""
        inside = (memory_bytes, os.getpid(), readers_logger.getEffectiveLevel())
        code = f"import sys; sys.path[:] = {sys.path!r}; from indexes.reading_process import work; work{inside}"
        try:
            popen = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is the parent's
            )
        except OSError as error:
            started.set_exception(error)
            return
        started.set_result(popen)
        with popen:
            assert popen.stdout is not None
            with contextlib.suppress(Exception):  # its end, in the middle of a word or between two
                while True:
                    self._heard.put(pickle.load(popen.stdout))
            popen.kill()
            status = popen.wait()
        self._heard.put(("ended", signal.strsignal(-status) if status < 0 else f"exit status {status}"))


def _beyond(shown: str, what: str, limits: Limits) -> TooLarge:
    """The error of a task that went beyond a limit: which, its value, and the setting that raises it."""
    told, value, setting = {
        "memory": (
            "'{}' took more memory to read than the limit of {} bytes.",
            f"{limits.memory_bytes:,}",
            "reading_memory_bytes",
        ),
        "cpu": (
            "'{}' took more time of the processor to read than the limit of {} seconds.",
            f"{limits.cpu_s:g}",
            "reading_cpu_s",
        ),
        "wall": ("'{}' took more time to read than the limit of {} seconds.", f"{limits.wall_s:g}", "reading_wall_s"),
    }[what]
    return TooLarge(
        msg(told, shown, value),
        hint=msg("if you trust the file, raise the setting `{}`", setting),
    )


# --- inside the process


def work(memory_bytes: int, parent: int, log_level: int) -> None:
    """Do one task after another from standard input until that is closed."""
    _bound(memory_bytes)
    gc.set_threshold(MADE_BETWEEN_COLLECTIONS)
    tasks: queue.SimpleQueue[Callable[..., Any]] = queue.SimpleQueue()
    # What readers print must not get between the words: only this function has the pipes.
    hear, say = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)

    def tell(kind: str, value: Any) -> None:
        pickle.dump((kind, value), say)
        say.flush()

    threading.Thread(target=_listen, args=(hear, tasks), daemon=True).start()
    _end_with(parent)
    readers_logger.setLevel(log_level)
    readers_logger.addHandler(_Telling(tell))
    readers_logger.propagate = False
    while True:
        task = tasks.get()
        try:
            answer: Any = task(progress=lambda done, total: tell("progress", (done, total)))
        except (CoalesceError, MemoryError) as error:
            answer = error.__cause__ if isinstance(error.__cause__, MemoryError) else error
        except Exception as error:  # noqa: BLE001  told as every error that no reader foresaw
            answer = UnreadableBook(unforeseen("the file", error), hint="Please report it.")
        tell("answer", answer)


def _listen(hear: Any, tasks: queue.SimpleQueue[Callable[..., Any]]) -> None:
    """Pass tasks on; the end of the pipe is the end of the parent, and so of this process, whatever it is doing."""
    with contextlib.suppress(Exception):
        while True:
            tasks.put(pickle.load(hear))
    os._exit(0)


def _bound(memory_bytes: int) -> None:
    """Limits of the system: on memory, and on dumps of it."""
    with contextlib.suppress(ImportError):
        import resource

        most = int(memory_bytes * (1 + SPARE_SHARE))
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):  # where memory runs out, Linux ends this process and not the parent
        Path("/proc/self/oom_score_adj").write_text("1000")


def _end_with(parent: int) -> None:
    """Have Linux end this process with its parent, even while a reader keeps every thread of ours from running."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


class _Telling(logging.Handler):
    """Tells the parent what readers log."""

    def __init__(self, tell: Callable[[str, Any], None]) -> None:
        super().__init__()
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        """Tell level and words, with the traceback where there is one."""
        self._tell("log", (record.levelno, self.format(record)))
