"""Reads and writes training data: one file or a folder with a `dataset_info.json`; splits off the validation rows.

Every broken line is an error that names file and line; none is skipped silently.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rag.errors import MalformedTrainingData
from rag.tuning.disk import make_folder
from rag.tuning.formats import (
    ALPACA_COLUMNS,
    CHAT_COLUMNS,
    FORMATS,
    SHAREGPT_TAGS,
    BadRow,
    Format,
    RowFormat,
    describe,
    format_of_record,
    write_record,
)
from rag.tuning.rows import TrainingRow

INFO_FILE = "dataset_info.json"
_SUFFIXES = (".json", ".jsonl")


@dataclass(frozen=True, slots=True)
class Split:
    """Rows to train on and rows to validate with; `by` says what kept them apart: `section` or `row`."""

    train: tuple[TrainingRow, ...]
    validation: tuple[TrainingRow, ...]
    by: str


def read_dataset(path: Path) -> list[TrainingRow]:
    """Rows of a file (.json, .jsonl), or of a folder: what its `dataset_info.json` names, else all such files in it.

    Raises:
        MalformedTrainingData: nothing is there, or a line is broken.
    """
    if path.is_dir():
        rows = [row for file, layout in _files_of(path) for row in _read_file(file, layout)]
    elif path.is_file():
        rows = list(_read_file(path, _layout_beside(path)))
    else:
        raise MalformedTrainingData(
            f"There is no training data at {path}.", hint="Make some with `coalesce dataset PATH… --out FOLDER`."
        )
    if not rows:
        raise MalformedTrainingData(
            f"{path} holds no training rows.", hint="Give a .jsonl file or a folder with dataset_info.json."
        )
    return rows


def write_dataset(
    rows: Sequence[TrainingRow], folder: Path, *, name: str = "coalesce", file_format: Format = "messages"
) -> Path:
    """Writes `NAME.jsonl` (Alpaca: `NAME.json`) and its entry in `dataset_info.json`; returns the data file.

    Raises:
        MalformedTrainingData: no rows, or a `dataset_info.json` in the folder that cannot be read.
    """
    if file_format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, not {file_format!r}")
    if not rows:
        raise MalformedTrainingData("There are no rows to write.", hint="Choose a split that has questions.")
    make_folder(folder)
    info_file = folder / INFO_FILE
    info = _read_info(info_file) if info_file.is_file() else {}
    records = [write_record(row, file_format) for row in rows]
    if file_format == "alpaca":
        file = folder / f"{name}.json"
        content = json.dumps(records, ensure_ascii=False, indent=1)
    else:
        file = folder / f"{name}.jsonl"
        content = "\n".join(json.dumps(record, ensure_ascii=False) for record in records)
    file.write_text(content + "\n", "utf-8")
    info[name] = describe(file_format, file.name)
    info_file.write_text(json.dumps(info, ensure_ascii=False, indent=2) + "\n", "utf-8")
    return file


def split_rows(rows: Sequence[TrainingRow], validation_share: float, seed: int = 0) -> Split:
    """Splits by section where every row names one and there are two or more, else by row.

    Which side a section falls on depends on its name and the seed only, so added rows move no others.

    Raises:
        MalformedTrainingData: one side would be empty.
    """
    if not 0 <= validation_share < 1:
        raise ValueError(f"validation_share must be at least 0 and below 1, not {validation_share}")
    if validation_share == 0:
        return Split(tuple(rows), (), "row")
    by_section = all(row.section for row in rows) and len({row.section for row in rows}) > 1
    groups = [row.section if by_section else f"{number}:{row.question}" for number, row in enumerate(rows)]
    ordered = sorted(set(groups), key=lambda group: hashlib.sha256(f"{seed}:{group}".encode()).digest())
    wanted = validation_share * len(rows)
    chosen: set[str | None] = set()
    for group in ordered[:-1]:  # one group at least stays for training
        if chosen and sum(other in chosen for other in groups) >= wanted:
            break
        chosen.add(group)
    train = tuple(row for row, group in zip(rows, groups, strict=True) if group not in chosen)
    validation = tuple(row for row, group in zip(rows, groups, strict=True) if group in chosen)
    if not train or not validation:
        raise MalformedTrainingData(
            f"{len(rows)} row(s) leave an empty split: {len(train)} to train on, {len(validation)} to validate with.",
            hint="Add rows, or train without validation (--validation-share 0).",
        )
    return Split(train, validation, "section" if by_section else "row")


def _files_of(folder: Path) -> list[tuple[Path, RowFormat | None]]:
    info_file = folder / INFO_FILE
    if not info_file.is_file():
        return [(file, None) for file in sorted(folder.iterdir()) if file.suffix in _SUFFIXES]
    files: list[tuple[Path, RowFormat | None]] = []
    for name, entry in _read_info(info_file).items():
        if not isinstance(entry, dict) or not isinstance(entry.get("file_name"), str):
            raise MalformedTrainingData(
                f"{info_file}: the entry {name!r} names no file_name.", hint="Only local files are read."
            )
        file = folder / entry["file_name"]
        if not file.is_file():
            raise MalformedTrainingData(
                f"{info_file}: {name!r} names {entry['file_name']}, which is not there.", hint="Correct the entry."
            )
        files.append((file, _layout(entry)))
    return files


def _layout_beside(file: Path) -> RowFormat | None:
    """The layout that a `dataset_info.json` in the file's folder gives it; None when none does."""
    info_file = file.parent / INFO_FILE
    if not info_file.is_file():
        return None
    entries = _read_info(info_file).values()
    return next((_layout(e) for e in entries if isinstance(e, dict) and e.get("file_name") == file.name), None)


def _layout(entry: dict[str, Any]) -> RowFormat:
    columns, tags = entry.get("columns") or {}, entry.get("tags") or {}
    if entry.get("formatting", "alpaca") == "alpaca":
        return RowFormat("alpaca", ALPACA_COLUMNS | columns, {})
    return RowFormat("chat", CHAT_COLUMNS | columns, SHAREGPT_TAGS | tags)


def _read_info(file: Path) -> dict[str, Any]:
    try:
        info = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise MalformedTrainingData(f"{file} cannot be read: {error}", hint="Correct its JSON.") from error
    if not isinstance(info, dict):
        raise MalformedTrainingData(f"{file} is no JSON object.", hint="Write it as LLaMA-Factory documents it.")
    return info


def _read_file(file: Path, layout: RowFormat | None) -> Iterator[TrainingRow]:
    for place, record in _records(file):
        try:
            layout = layout or format_of_record(record)
            yield layout.read(record)
        except BadRow as error:
            raise MalformedTrainingData(f"{file}, {place}: {error}.", hint="Correct or remove this row.") from error


def _records(file: Path) -> Iterator[tuple[str, object]]:
    """(where, record) of every record: an array of JSON, or one object a line."""
    try:
        text = file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise MalformedTrainingData(f"{file} cannot be read: {error}", hint="Save it as UTF-8.") from error
    if text.lstrip().startswith("["):
        try:
            records = json.loads(text)
        except (ValueError, RecursionError) as error:
            line = getattr(error, "lineno", 1)
            raise MalformedTrainingData(
                f"{file}, line {line}: {error}", hint="Correct the JSON on this line."
            ) from error
        yield from ((f"row {number}", record) for number, record in enumerate(records, 1))
        return
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            yield f"line {number}", json.loads(line)
        except (ValueError, RecursionError) as error:
            raise MalformedTrainingData(
                f"{file}, line {number}: {_fault(error)}", hint="Correct or remove this line."
            ) from error


def _fault(error: ValueError | RecursionError) -> str:
    """What is wrong within one line: the parser counts lines from the line itself."""
    return f"{error.msg} (column {error.colno})." if isinstance(error, json.JSONDecodeError) else f"{error}."
