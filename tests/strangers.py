"""What a stranger's file may do to the process that reads it, and a PDF that does it."""

from __future__ import annotations

import gc
import os
import re
import signal
import time
import zlib
from collections.abc import Callable
from typing import Any


def read_well(progress: Callable[[int, int], None]) -> int:
    progress(1, 2)
    progress(2, 2)
    return os.getpid()


def fill_memory(**_: Any) -> None:
    held = [bytearray(2**24) for _ in range(32)]
    time.sleep(60 * len(held))


def ask_for_all_memory(**_: Any) -> None:
    bytearray(2**40)


def compute(**_: Any) -> None:
    """Computes without giving any other thread of the process a turn."""
    re.match("(a+)+$", "a" * 60 + "b")


def make_much(**_: Any) -> int:
    """Makes 100,000 objects that stay; gives how often Python's collector ran meanwhile."""
    before = _collections()
    made = [[number] for number in range(100_000)]
    assert made
    return _collections() - before


def _collections() -> int:
    return sum(generation["collections"] for generation in gc.get_stats())


def wait(**_: Any) -> None:
    time.sleep(60)


def leave(**_: Any) -> None:
    os._exit(3)


def crash(**_: Any) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def raise_something(**_: Any) -> None:
    raise ZeroDivisionError


def pdf_of(operators: bytes, million_times: int) -> bytes:
    """A page of some kilobytes whose content is these operators over and over.

    `q ` saves a graphics state, of which PDFium keeps each; `q Q ` saves and restores one, which takes only time.
    """
    packer, million = zlib.compressobj(9), operators * 1_000_000
    packed = b"".join(packer.compress(million) for _ in range(million_times)) + packer.flush()
    content = zlib.compress(packed, 9)
    head = b"<< /Length %d /Filter [/FlateDecode /FlateDecode] >>" % len(content)
    bodies = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents 4 0 R >>",
        head + b"\nstream\n" + content + b"\nendstream",
    ]
    file, offsets = b"%PDF-1.7\n", []
    for number, body in enumerate(bodies, 1):
        offsets.append(len(file))
        file += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    return file + b"xref\n0 5\n0000000000 65535 f \n%btrailer << /Size 5 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % (
        table,
        len(file),
    )
