"""Training data: rows, the three file formats that the ecosystem reads, files and folders, the validation split.

`columns` and `tags` have the meaning and defaults of LLaMA-Factory's `dataset_info.json`. Three columns are ours and
are ignored elsewhere: `section` (for the split), `passages` (objects with title, section, text) and `choices`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from indexes.disk import disk_errors, make_folder
from indexes.jsonl import parse_lines, read_text, to_jsonl
from indexes.messages import msg
from rag.errors import MalformedTrainingData
from rag.generators.prompts import Message, render_choices, render_messages
from rag.generators.protocol import GenerationRequest
from rag.query import english_query
from rag.question import asks_in_chinese
from rag.types import Arm, Passage, Turn

INFO_FILE = "dataset_info.json"
_SUFFIXES = (".json", ".jsonl")

Format: TypeAlias = Literal["alpaca", "sharegpt", "messages"]


@dataclass(frozen=True, slots=True)
class RowPassage:
    """A passage shown with a training question."""

    title: str
    section: tuple[str, ...]
    text: str

    def as_passage(self) -> Passage:
        """The passage as prompts show it."""
        return Passage("", "", self.title, self.section, None, None, None, self.text, 0.0)


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """A question with the answer to learn.

    Attributes:
        history: earlier exchanges (question, answer), oldest first.
        system: replaces the system text that serving uses; None keeps that.
        passages: shown in the prompt (an adapter for the `rag+tuned` arm); empty trains closed book.
        section: the topic; rows of one section stay on one side of the validation split.
        choices: options of a choice question, whose answer is the letter of the right one.
    """

    question: str
    answer: str
    history: tuple[tuple[str, str], ...] = ()
    system: str | None = None
    passages: tuple[RowPassage, ...] = ()
    section: str | None = None
    choices: tuple[str, ...] = ()

    def request(self) -> GenerationRequest:
        """The request that serving would answer with this row's answer."""
        arm: Arm = "rag" if self.passages else "base"
        passages = tuple(passage.as_passage() for passage in self.passages)
        turns = tuple(Turn(question, answer) for question, answer in self.history)
        if not self.choices:
            return GenerationRequest(self.question, arm, passages, turns)
        asked = render_choices(self.question, self.choices)
        query = replace(english_query(self.question), chinese=asks_in_chinese(self.question))
        return GenerationRequest(asked, arm, passages, turns, query=query)

    def messages(self, request: GenerationRequest | None = None, *, brief: bool = False) -> list[Message]:
        """The chat to train on, ending with the answer; its prompt is the one that serving renders.

        Args:
            request: `self.request()`, possibly made smaller.
            brief: in the words for small models.
        """
        messages = render_messages(request or self.request(), brief=brief)
        if self.system is not None:
            messages[0] = {"role": "system", "content": self.system}
            messages[-1] = {"role": "user", "content": self.request().question}
        return [*messages, {"role": "assistant", "content": self.answer}]

    def exchanges(self) -> list[TrainingRow]:
        """One row per answer in the conversation, so that each is trained with the prompt it would be served with."""
        earlier = [
            replace(self, question=question, answer=answer, history=self.history[:place], choices=())
            for place, (question, answer) in enumerate(self.history)
        ]
        return [*earlier, self]


def rows_sha256(rows: Iterable[TrainingRow]) -> str:
    """Hash of the rows in their order; identifies the data in an adapter's record."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(asdict(row), ensure_ascii=False, sort_keys=True).encode())
        digest.update(b"\n")
    return digest.hexdigest()


class BadRow(ValueError):
    """A record cannot be read as a training row; whoever reads the file adds its name and the line."""


@dataclass(frozen=True, slots=True)
class RowFormat:
    """The layout of one file's records: which keys hold what, read and written.

    Attributes:
        columns: of the record. In an Alpaca record they hold texts; in a chat `messages` is a list of turns.
        tags: of a chat's turns: the keys of a turn, and the names of who speaks; empty for Alpaca.
    """

    columns: Mapping[str, str]
    tags: Mapping[str, str]

    def read(self, record: object) -> TrainingRow:
        """One record as a row.

        Raises:
            BadRow: a field is missing, empty or of the wrong type.
        """
        if not isinstance(record, dict):
            raise BadRow(f"expected an object, found {type(record).__name__}")
        exchanges, said = self._turns(record) if self.tags else self._exchanges(record)
        *history, (question, answer) = exchanges
        system = said or _text(record, self.columns.get("system", "system"), needed=False) or None
        section = _text(record, "section", needed=False) or None
        return TrainingRow(question, answer, tuple(history), system, _passages(record), section, _choices(record))

    def write(self, row: TrainingRow) -> dict[str, Any]:
        """One row as a record of this layout."""
        if self.tags:
            record = self._written_turns(row)
        else:
            record = {self.columns["prompt"]: row.question, self.columns["query"]: ""}
            record |= {self.columns["response"]: row.answer}
            if row.history:
                record[self.columns["history"]] = [list(exchange) for exchange in row.history]
        if row.system is not None and "system" in self.columns:
            record[self.columns["system"]] = row.system
        if row.passages:
            record["passages"] = [{"title": p.title, "section": list(p.section), "text": p.text} for p in row.passages]
        if row.section is not None:
            record["section"] = row.section
        if row.choices:
            record["choices"] = list(row.choices)
        return record

    def describe(self, file_name: str) -> dict[str, Any]:
        """The entry of `dataset_info.json` for a file in this layout, as LLaMA-Factory reads it."""
        chat = {"formatting": "sharegpt", "tags": self.tags} if self.tags else {}
        return {"file_name": file_name, "columns": self.columns} | chat

    def _exchanges(self, record: dict[str, Any]) -> tuple[list[tuple[str, str]], str]:
        question = _text(record, self.columns["prompt"])
        if extra := _text(record, self.columns.get("query", "input"), needed=False):
            question = f"{question}\n{extra}"
        history = record.get(self.columns.get("history", "history")) or []
        if not isinstance(history, list) or not all(_is_exchange(exchange) for exchange in history):
            raise BadRow("`history` is not a list of [question, answer]")
        return [
            *((first, second) for first, second in history),
            (question, _text(record, self.columns["response"])),
        ], ""

    def _turns(self, record: dict[str, Any]) -> tuple[list[tuple[str, str]], str]:
        """(exchanges, what a system turn says)."""
        column = self.columns["messages"]
        turns = record.get(column)
        if not isinstance(turns, list) or not turns:
            raise BadRow(f"`{column}` is not a list of messages")
        exchanges: list[tuple[str, str]] = []
        question: str | None = None
        system = ""
        for turn in turns:
            if not isinstance(turn, dict):
                raise BadRow(f"a message of `{column}` is not an object")
            role, content = turn.get(self.tags["role_tag"]), _text(turn, self.tags["content_tag"])
            if role == self.tags["system_tag"] and not exchanges and question is None:
                system = content
            elif role == self.tags["user_tag"] and question is None:
                question = content
            elif role == self.tags["assistant_tag"] and question is not None:
                exchanges.append((question, content))
                question = None
            else:
                raise BadRow(f"role {role!r} is out of turn in `{column}`")
        if question is not None or not exchanges:
            raise BadRow(f"`{column}` does not end with an answer")
        return exchanges, system

    def _written_turns(self, row: TrainingRow) -> dict[str, Any]:
        tags = self.tags
        said = [(tags["system_tag"], row.system)] if row.system is not None and "system" not in self.columns else []
        for question, answer in (*row.history, (row.question, row.answer)):
            said += [(tags["user_tag"], question), (tags["assistant_tag"], answer)]
        return {self.columns["messages"]: [{tags["role_tag"]: role, tags["content_tag"]: text} for role, text in said]}


FORMATS: dict[Format, RowFormat] = {
    "alpaca": RowFormat(
        {"prompt": "instruction", "query": "input", "response": "output", "system": "system", "history": "history"}, {}
    ),
    "sharegpt": RowFormat(
        {"messages": "conversations", "system": "system"},
        {
            "role_tag": "from", "content_tag": "value", "user_tag": "human", "assistant_tag": "gpt",
            "system_tag": "system",
        },
    ),
    "messages": RowFormat(
        {"messages": "messages"},
        {
            "role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant",
            "system_tag": "system",
        },
    ),
}  # fmt: skip
"""The standard layouts. Those of `messages` are OpenAI's, whose system text is a turn."""


def _format_of_record(record: object) -> RowFormat:
    """The layout of a record, known by its keys.

    Raises:
        BadRow: it fits none of the three formats.
    """
    keys = set(record) if isinstance(record, dict) else set()
    if "messages" in keys:
        return FORMATS["messages"]
    if "conversations" in keys:
        return FORMATS["sharegpt"]
    if "instruction" in keys:
        return FORMATS["alpaca"]
    raise BadRow("expected the key `instruction` (Alpaca), `conversations` (ShareGPT) or `messages`")


def _is_exchange(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(part, str) for part in value)


def _text(record: Mapping[str, Any], key: str, *, needed: bool = True) -> str:
    value = record.get(key)
    if value is None and not needed:
        return ""
    if not isinstance(value, str):
        raise BadRow(f"`{key}` is missing" if value is None else f"`{key}` must be text, not {type(value).__name__}")
    if needed and not value.strip():
        raise BadRow(f"`{key}` is empty")
    return value


def _passages(record: Mapping[str, Any]) -> tuple[RowPassage, ...]:
    found = record.get("passages") or []
    if not isinstance(found, list):
        raise BadRow("`passages` is not a list")
    return tuple(_passage(passage) for passage in found)


def _choices(record: Mapping[str, Any]) -> tuple[str, ...]:
    found = record.get("choices") or []
    if not isinstance(found, list) or not all(isinstance(choice, str) and choice.strip() for choice in found):
        raise BadRow("`choices` is not a list of texts")
    return tuple(found)


def _passage(value: object) -> RowPassage:
    if isinstance(value, str) and value.strip():
        return RowPassage("", (), value)
    if not isinstance(value, dict):
        raise BadRow("a passage is neither text nor an object with `text`")
    section = value.get("section") or []
    if not isinstance(section, list) or not all(isinstance(part, str) for part in section):
        raise BadRow("a passage's `section` is not a list of headings")
    return RowPassage(_text(value, "title", needed=False), tuple(section), _text(value, "text"))


@dataclass(frozen=True, slots=True)
class Split:
    """Rows to train on and rows to validate with, split `by` `section` or `row`."""

    train: tuple[TrainingRow, ...]
    validation: tuple[TrainingRow, ...]
    by: str


def read_dataset(path: Path, left_out: Callable[[MalformedTrainingData], None] | None = None) -> list[TrainingRow]:
    """Rows of a file (.json, .jsonl), or of a folder: what its `dataset_info.json` names, else all such files in it.

    Args:
        left_out: told of each row that cannot be used, which is left out as long as others can; None takes none.

    Raises:
        MalformedTrainingData: there is no data, or a line or row is broken; file and line are named.
    """
    if not path.exists():
        raise MalformedTrainingData(
            f"There is no training data at {path}.", hint="Make some with `coalesce dataset PATH… --out FOLDER`."
        )
    files = _files_of(path) if path.is_dir() else [(path, _layout_beside(path))]
    found = [each for file, layout in files for each in _read_file(file, layout)]
    rows = [row for row in found if isinstance(row, TrainingRow)]
    bad = [row for row in found if not isinstance(row, TrainingRow)]
    if bad and (left_out is None or not rows):
        raise bad[0]
    if not rows:
        raise MalformedTrainingData(
            f"{path} holds no training rows.", hint="Give a .jsonl file or a folder with dataset_info.json."
        )
    if left_out is not None:
        for error in bad:
            left_out(error)
    return rows


def write_dataset(
    rows: Sequence[TrainingRow], folder: Path, *, name: str = "coalesce", file_format: Format = "messages"
) -> Path:
    """Writes `NAME.jsonl` (Alpaca: `NAME.json`) and its entry in `dataset_info.json`; returns the data file.

    Raises:
        MalformedTrainingData: no rows, or a `dataset_info.json` in the folder that cannot be read.
    """
    if not rows:
        raise MalformedTrainingData("There are no rows to write.", hint="Choose a split that has questions.")
    make_folder(folder)
    info_file = folder / INFO_FILE
    info = _read_info(info_file) if info_file.is_file() else {}
    layout = FORMATS[file_format]
    records = [layout.write(row) for row in rows]
    if file_format == "alpaca":
        file = folder / f"{name}.json"
        content = json.dumps(records, ensure_ascii=False, indent=1) + "\n"
    else:
        file = folder / f"{name}.jsonl"
        content = to_jsonl(records)
    info[name] = layout.describe(file.name)
    with disk_errors(file):
        file.write_text(content, "utf-8")
        info_file.write_text(json.dumps(info, ensure_ascii=False, indent=2) + "\n", "utf-8")
    return file


def split_rows(rows: Sequence[TrainingRow], validation_share: float, seed: int = 0) -> Split:
    """Splits by section where every row names one and there are two or more, else by row.

    The side of a section depends on its name and the seed only, so that added rows do not move others.

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
    for group in ordered[:-1]:  # at least one group stays for training
        if chosen and sum(other in chosen for other in groups) >= wanted:
            break
        chosen.add(group)
    train = tuple(row for row, group in zip(rows, groups, strict=True) if group not in chosen)
    validation = tuple(row for row, group in zip(rows, groups, strict=True) if group in chosen)
    if not train or not validation:
        raise MalformedTrainingData(
            f"One side of the split is empty: rows to train on {len(train)}, to validate with {len(validation)}.",
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
                f"{info_file}: the entry {name!r} has no file_name.", hint="Only local files are read."
            )
        file = folder / entry["file_name"]
        if not file.is_file():
            raise MalformedTrainingData(
                f"{info_file}: {name!r} names {entry['file_name']}, which does not exist.", hint="Correct the entry."
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
    usual = FORMATS["alpaca" if entry.get("formatting", "alpaca") == "alpaca" else "sharegpt"]
    tags = {**usual.tags, **(entry.get("tags") or {})} if usual.tags else {}
    return RowFormat({**usual.columns, **(entry.get("columns") or {})}, tags)


def _read_info(file: Path) -> dict[str, Any]:
    try:
        info = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise MalformedTrainingData(msg("{} cannot be read: {}", file, error), hint="Correct its JSON.") from error
    if not isinstance(info, dict):
        raise MalformedTrainingData(f"{file} is not a JSON object.", hint="Write it as LLaMA-Factory documents it.")
    return info


def _read_file(file: Path, layout: RowFormat | None) -> Iterator[TrainingRow | MalformedTrainingData]:
    """The rows of a file; in place of one that cannot be used, its error."""
    for where, record in _records(file):
        if isinstance(record, MalformedTrainingData):
            yield record
            continue
        try:
            layout = layout or _format_of_record(record)
            yield layout.read(record)
        except BadRow as error:
            yield MalformedTrainingData(f"{where}: {error}.", hint="Correct or remove this row.")


def _records(file: Path) -> Iterator[tuple[str, Any]]:
    """(where, record) of every record: a JSON array, or one object per line, or the error of a line."""
    text = read_text(file, MalformedTrainingData)
    if not text.lstrip().startswith("["):
        yield from parse_lines(text, file.name, MalformedTrainingData)
        return
    try:
        records = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedTrainingData(
            f"{file.name}:{getattr(error, 'lineno', 1)}: not JSON ({error})", hint="Correct the JSON on this line."
        ) from error
    yield from ((f"{file.name}, row {number}", record) for number, record in enumerate(records, 1))
