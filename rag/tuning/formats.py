"""The three ways to write a training row that the ecosystem reads: Alpaca, ShareGPT, and messages.

`columns` and `tags` have the meaning and the defaults of LLaMA-Factory's `dataset_info.json`. Two columns are ours and
are ignored elsewhere: `section` (for the validation split) and `passages` (objects with title, section, text).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from rag.tuning.rows import RowPassage, TrainingRow

Format: TypeAlias = Literal["alpaca", "sharegpt", "messages"]
FORMATS: tuple[Format, ...] = ("alpaca", "sharegpt", "messages")

ALPACA_COLUMNS = {
    "prompt": "instruction", "query": "input", "response": "output", "system": "system", "history": "history",
}  # fmt: skip
CHAT_COLUMNS = {"messages": "conversations", "system": "system"}
SHAREGPT_TAGS = {
    "role_tag": "from", "content_tag": "value", "user_tag": "human", "assistant_tag": "gpt", "system_tag": "system",
}  # fmt: skip
MESSAGES_TAGS = {
    "role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant",
    "system_tag": "system",
}  # fmt: skip


class BadRow(ValueError):
    """A record that is no training row; the reader adds file and line."""


@dataclass(frozen=True, slots=True)
class RowFormat:
    """How the records of one file are laid out."""

    kind: Literal["alpaca", "chat"]
    columns: Mapping[str, str]
    tags: Mapping[str, str]

    def read(self, record: object) -> TrainingRow:
        """One record as a row.

        Raises:
            BadRow: a field is missing, empty or of the wrong type.
        """
        if not isinstance(record, dict):
            raise BadRow(f"expected an object, found {type(record).__name__}")
        return _read_alpaca(record, self.columns) if self.kind == "alpaca" else self._read_chat(record)

    def _read_chat(self, record: dict[str, Any]) -> TrainingRow:
        column = self.columns["messages"]
        turns = record.get(column)
        if not isinstance(turns, list) or not turns:
            raise BadRow(f"`{column}` is no list of messages")
        system = _text(record, self.columns.get("system", "system"), needed=False) or None
        exchanges: list[tuple[str, str]] = []
        question: str | None = None
        for turn in turns:
            if not isinstance(turn, dict):
                raise BadRow(f"a message of `{column}` is no object")
            role, content = turn.get(self.tags["role_tag"]), _text(turn, self.tags["content_tag"])
            if role == self.tags["system_tag"] and not exchanges and question is None:
                system = content
            elif role == self.tags["user_tag"] and question is None:
                question = content
            elif role == self.tags["assistant_tag"] and question is not None:
                exchanges.append((question, content))
                question = None
            else:
                raise BadRow(f"role {role!r} stands out of turn in `{column}`")
        if question is not None or not exchanges:
            raise BadRow(f"`{column}` does not end with an answer")
        *history, (last, answer) = exchanges
        return TrainingRow(last, answer, tuple(history), system, _passages(record), _section(record))


def format_named(name: str) -> RowFormat:
    """The standard layout of a format."""
    if name == "alpaca":
        return RowFormat("alpaca", ALPACA_COLUMNS, {})
    if name == "sharegpt":
        return RowFormat("chat", CHAT_COLUMNS, SHAREGPT_TAGS)
    return RowFormat("chat", CHAT_COLUMNS | {"messages": "messages"}, MESSAGES_TAGS)


def format_of_record(record: object) -> RowFormat:
    """The layout that a record shows by its keys.

    Raises:
        BadRow: none of the three.
    """
    keys = set(record) if isinstance(record, dict) else set()
    if "messages" in keys:
        return format_named("messages")
    if "conversations" in keys:
        return format_named("sharegpt")
    if "instruction" in keys:
        return format_named("alpaca")
    raise BadRow("expected the key `instruction` (Alpaca), `conversations` (ShareGPT) or `messages`")


def write_record(row: TrainingRow, name: Format) -> dict[str, Any]:
    """One row as a record of the standard layout."""
    if name == "alpaca":
        record: dict[str, Any] = {"instruction": row.question, "input": "", "output": row.answer}
        if row.history:
            record["history"] = [list(exchange) for exchange in row.history]
        if row.system is not None:
            record["system"] = row.system
    else:
        tags = SHAREGPT_TAGS if name == "sharegpt" else MESSAGES_TAGS
        said = [(tags["system_tag"], row.system)] if row.system is not None and name == "messages" else []
        for question, answer in (*row.history, (row.question, row.answer)):
            said += [(tags["user_tag"], question), (tags["assistant_tag"], answer)]
        turns = [{tags["role_tag"]: role, tags["content_tag"]: content} for role, content in said]
        record = {"conversations" if name == "sharegpt" else "messages": turns}
        if row.system is not None and name == "sharegpt":
            record["system"] = row.system
    if row.passages:
        record["passages"] = [{"title": p.title, "section": list(p.section), "text": p.text} for p in row.passages]
    if row.section is not None:
        record["section"] = row.section
    return record


def describe(name: Format, file_name: str) -> dict[str, Any]:
    """The entry of `dataset_info.json` for a file in a standard layout, as LLaMA-Factory reads it."""
    if name == "alpaca":
        return {"file_name": file_name, "columns": ALPACA_COLUMNS}
    columns = {"messages": "conversations", "system": "system"} if name == "sharegpt" else {"messages": "messages"}
    tags = SHAREGPT_TAGS if name == "sharegpt" else MESSAGES_TAGS
    return {"file_name": file_name, "formatting": "sharegpt", "columns": columns, "tags": tags}


def _read_alpaca(record: dict[str, Any], columns: Mapping[str, str]) -> TrainingRow:
    question = _text(record, columns["prompt"])
    if extra := _text(record, columns.get("query", "input"), needed=False):
        question = f"{question}\n{extra}"
    history = record.get(columns.get("history", "history")) or []
    if not isinstance(history, list) or not all(_is_exchange(exchange) for exchange in history):
        raise BadRow("`history` is no list of [question, answer]")
    return TrainingRow(
        question,
        _text(record, columns["response"]),
        tuple((first, second) for first, second in history),
        _text(record, columns.get("system", "system"), needed=False) or None,
        _passages(record),
        _section(record),
    )


def _is_exchange(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(part, str) for part in value)


def _text(record: Mapping[str, Any], key: str, *, needed: bool = True) -> str:
    value = record.get(key)
    if value is None and not needed:
        return ""
    if not isinstance(value, str):
        raise BadRow(f"`{key}` is missing" if value is None else f"`{key}` is no text but {type(value).__name__}")
    if needed and not value.strip():
        raise BadRow(f"`{key}` is empty")
    return value


def _passages(record: Mapping[str, Any]) -> tuple[RowPassage, ...]:
    found = record.get("passages") or []
    if not isinstance(found, list):
        raise BadRow("`passages` is no list")
    return tuple(_passage(passage) for passage in found)


def _passage(value: object) -> RowPassage:
    if isinstance(value, str) and value.strip():
        return RowPassage("", (), value)
    if not isinstance(value, dict):
        raise BadRow("a passage is neither text nor an object with `text`")
    section = value.get("section") or []
    if not isinstance(section, list) or not all(isinstance(part, str) for part in section):
        raise BadRow("a passage's `section` is no list of headings")
    return RowPassage(_text(value, "title", needed=False), tuple(section), _text(value, "text"))


def _section(record: Mapping[str, Any]) -> str | None:
    return _text(record, "section", needed=False) or None
