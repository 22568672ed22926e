"""JSON Lines files, one object per line: errors name file and line, and a killed writer loses its last line at most."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from indexes.disk import disk_errors
from indexes.errors import CoalesceError, Conflict
from indexes.messages import msg

_HINT = "Write one JSON object per line; correct or remove this one."


def read_jsonl(path: Path, failure: type[CoalesceError]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Reads the objects of a file, skipping blank lines.

    Args:
        failure: the error to raise.

    Yields:
        (`file:line` for messages, the object).

    Raises:
        failure: the file is missing or not UTF-8, or a line is not a JSON object.
    """
    return parse_jsonl(read_text(path, failure), path.name, failure)


def parse_jsonl(text: str, name: str, failure: type[CoalesceError]) -> Iterator[tuple[str, dict[str, Any]]]:
    """As `read_jsonl`, for text that came from a file called `name`."""
    for where, value in parse_lines(text, name, failure):
        if isinstance(value, CoalesceError):
            raise value
        yield where, value


def parse_lines(
    text: str, name: str, failure: type[CoalesceError]
) -> Iterator[tuple[str, dict[str, Any] | CoalesceError]]:
    """As `parse_jsonl`, with its error in place of each line that is not a JSON object."""
    for number, line in enumerate(text.split("\n"), 1):  # not splitlines: a JSON string may hold U+2028
        if line.strip():
            where = f"{name}:{number}"
            try:
                yield where, _parse_object(line, where, failure)
            except CoalesceError as error:
                yield where, error


def read_text(path: Path, failure: type[CoalesceError]) -> str:
    """The text of a UTF-8 file, with or without a byte order mark.

    Raises:
        failure: the file is missing, cannot be read or is not UTF-8.
    """
    try:
        return path.read_text("utf-8-sig")
    except FileNotFoundError:
        raise failure(f"{path} does not exist.", hint="Check the path.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise failure(msg("{} cannot be read: {}", path, error), hint="Save it as UTF-8.") from None


def to_jsonl(rows: Iterable[Mapping[str, Any]]) -> str:
    """The rows as text, each on a line that ends in a newline."""
    return "".join(f"{_line(row)}\n" for row in rows)


class JsonlLog:
    """A file that objects are appended to, so that a long run goes on where it stopped.

    Opening it repairs a last line that a kill cut short: a whole object gets its newline, half of one is removed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        _repair_last_line(path)

    def read(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """(`file:line`, object) of every line; none where the file does not exist yet.

        Raises:
            Conflict: a line is not a JSON object.
        """
        if self.path.is_file():
            yield from read_jsonl(self.path, Conflict)

    def append(self, row: Mapping[str, Any]) -> None:
        """Adds one object; it is in the file when this returns.

        Raises:
            StorageFull, HomeNotWritable: it could not be written; the file is as it was before.
        """
        line = f"{_line(row)}\n".encode()
        with disk_errors(self.path, kept="the lines before are kept"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                before = file.tell()
                try:
                    file.write(line)
                    file.flush()
                except OSError:
                    os.truncate(self.path, before)
                    raise


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False)


def _parse_object(line: str, where: str, failure: type[CoalesceError]) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise failure(f"{where}: not JSON ({error.msg}, column {error.colno}).", hint=_HINT) from None
    except (ValueError, RecursionError):
        raise failure(f"{where}: not JSON (nested too deeply, or a number too long).", hint=_HINT) from None
    if not isinstance(value, dict):
        raise failure(f"{where}: expected an object, found {type(value).__name__}.", hint=_HINT)
    return value


def _repair_last_line(path: Path) -> None:
    if not path.is_file():
        return
    content = path.read_bytes()
    complete = content.rfind(b"\n") + 1
    rest = content[complete:]
    if not rest:
        return
    try:
        json.loads(rest)
    except (ValueError, RecursionError):
        os.truncate(path, complete)
    else:
        with path.open("ab") as file:
            file.write(b"\n")
