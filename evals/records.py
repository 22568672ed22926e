"""What running an arm over a question left behind: one JSON object a line, appended as it happens.

Metrics read records, never models: scoring again costs nothing. A half-written last line, left by a kill, is dropped
when the file is opened again, and that question is asked again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from indexes.errors import Conflict, StorageFull


@dataclass(frozen=True, slots=True)
class PassageRecord:
    """A passage as the answerer saw it."""

    document_id: str
    section: tuple[str, ...]
    chapter: int
    text: str


@dataclass(frozen=True, slots=True)
class Record:
    """One question asked of one arm.

    Attributes:
        repetition: which tuning seed, from 0; arms without tuning have 0 only.
        mode: `choice` (options scored), `generated-choice` (an option asked for in words) or `open`.
        scores: one number an option, higher is better; extra: other scorings by name.
        picked: the option chosen, None when the words name none (unparsed).
        passages: those that were read; passages_left_out: found besides, but too long for the model's context.
        error: why there is no answer; the question is then unscored, not wrong.
    """

    question_id: str
    arm: str
    repetition: int
    mode: str
    answer: str = ""
    refused: bool = False
    picked: int | None = None
    scores: tuple[float, ...] = ()
    extra: dict[str, tuple[float, ...]] = field(default_factory=dict)
    passages: tuple[PassageRecord, ...] = ()
    passages_left_out: int = 0
    quotes: tuple[str, ...] = ()
    retrieve_s: float = 0.0
    ttft_s: float = 0.0
    total_s: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    tokens_per_s: float = 0.0
    peak_memory_bytes: int = 0
    error: str = ""

    @property
    def key(self) -> tuple[str, str, int, str]:
        """What makes a record one of a kind: question, arm, repetition, mode."""
        return (self.question_id, self.arm, self.repetition, self.mode)


class RecordFile:
    """Appends records to a file and knows which are there. The first line names the run they belong to."""

    def __init__(self, path: Path, run: dict[str, Any]) -> None:
        """Opens or starts the file of one run.

        Raises:
            Conflict: the file belongs to a run with other questions, arms or settings.
        """
        self._path = path
        self.records: list[Record] = []
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and path.stat().st_size:
            self._drop_broken_tail()
        if path.is_file() and path.stat().st_size:
            header, self.records = _read(path)
            if header != run:
                different = sorted(key for key in header.keys() | run.keys() if header.get(key) != run.get(key))
                raise Conflict(
                    f"{path.parent} holds another run (different: {', '.join(different)})",
                    hint="give another --out folder, or remove this one",
                )
        else:
            self._write(json.dumps({"run": run}, ensure_ascii=False, sort_keys=True))
        self._known = {record.key for record in self.records}

    def __contains__(self, key: tuple[str, str, int, str]) -> bool:
        return key in self._known

    def append(self, record: Record) -> None:
        """Keeps one record; it is on disk when this returns.

        Raises:
            StorageFull: the disk is full; what was kept before stays readable.
        """
        self._write(json.dumps(asdict(record), ensure_ascii=False))
        self.records.append(record)
        self._known.add(record.key)

    def _write(self, line: str) -> None:
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
                file.flush()
        except OSError as error:
            raise StorageFull(
                f"{self._path} cannot be written: {error.strerror}", hint="free some space, then run the same command"
            ) from error

    def _drop_broken_tail(self) -> None:
        content = self._path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(self._path, whole)


def read_records(path: Path) -> tuple[dict[str, Any], list[Record]]:
    """The run and the records of a file.

    Raises:
        Conflict: a line that is no record, named by number.
    """
    return _read(path)


def _read(path: Path) -> tuple[dict[str, Any], list[Record]]:
    run: dict[str, Any] = {}
    records: list[Record] = []
    for number, line in _lines(path):
        try:
            value = json.loads(line)
            if number == 1:
                run = value["run"]
                continue
            value["passages"] = tuple(
                PassageRecord(**{**passage, "section": tuple(passage["section"])}) for passage in value["passages"]
            )
            value["extra"] = {name: tuple(scores) for name, scores in value["extra"].items()}
            for name in ("scores", "quotes"):
                value[name] = tuple(value[name])
            records.append(Record(**value))
        except (ValueError, KeyError, TypeError) as error:
            raise Conflict(
                f"{path}:{number} is no record ({error})", hint="give another --out folder, or remove this one"
            ) from None
    return run, records


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield number, line
