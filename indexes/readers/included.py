"""What a text takes in from another file of its book: only files inside the book's folder, and the lines asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from indexes.readers.source import clean_text

MAX_INCLUDED_BYTES = 1_000_000


def included_file(name: str, file: Path, root: Path) -> Path | None:
    """The file that `name` means in `file`; a leading slash begins at `root`. None when it is not inside `root`."""
    root = root.resolve()
    base = root if name.startswith("/") else file.resolve().parent
    target = (base / name.lstrip("/")).resolve()
    inside = target.is_relative_to(root) and target.is_file() and target.stat().st_size <= MAX_INCLUDED_BYTES
    return target if inside else None


def included_lines(target: Path, options: Mapping[str, str]) -> list[str]:
    """The lines of a file that Sphinx's options choose: `start-after`, `end-before`, `lines` and their kin."""
    lines = clean_text(target.read_text(encoding="utf-8", errors="replace")).split("\n")
    start = _find(lines, options.get("start-after"), 1) or _find(lines, options.get("start-at"), 0) or 0
    rest = lines[start:]
    end = _find(rest, options.get("end-before"), 0) or _find(rest, options.get("end-at"), 1)
    rest = rest[:end] if end is not None else rest
    wanted = options.get("lines")
    if not wanted:
        return rest
    chosen: list[str] = []
    for part in wanted.split(","):
        bounds = re.fullmatch(r"\s*(\d*)\s*(-?)\s*(\d*)\s*", part)
        if bounds is not None and (bounds[1] or bounds[3]):
            first = int(bounds[1] or 1)
            last = int(bounds[3]) if bounds[3] else (len(rest) if bounds[2] else first)
            chosen.extend(rest[first - 1 : last])
    return chosen


def _find(lines: Sequence[str], wanted: str | None, after: int) -> int | None:
    if not wanted:
        return None
    return next((number + after for number, line in enumerate(lines) if wanted in line), None)
