"""Texts of the program that can be put into another language: a template, and what stands in its gaps."""

from __future__ import annotations

import json
from typing import Any

_KEPT = '{"key": '


class Message(str):
    """A text as people read it, which still knows how it was made.

    Attributes:
        template: the English text with a `{}` for each argument.
        arguments: what stands in the gaps, in order; messages themselves, or plain text.
    """

    template: str
    arguments: tuple[str, ...]


def msg(template: str, *arguments: object) -> Message:
    """The text of a template, whose `{}` the arguments take in order."""
    kept = tuple(each if isinstance(each, str) else str(each) for each in arguments)
    message = Message(template.format(*kept))
    message.template, message.arguments = template, kept
    return message


def dump(text: str) -> str:
    """A text as it is stored: a message with its template, plain text as it is, unless it looks like a stored one."""
    if not isinstance(text, Message) and text.startswith(_KEPT):
        text = msg("{}", text)
    return json.dumps(parts_of(text), ensure_ascii=False) if isinstance(text, Message) else text


def load(stored: str) -> str:
    """What `dump` stored; any other text as it is."""
    if not stored.startswith(_KEPT):
        return stored
    try:
        return _of_parts(json.loads(stored))
    except (ValueError, LookupError, TypeError, AttributeError):  # stored before there were messages, or damaged
        return stored


def parts_of(text: str) -> object:
    """A message as `{"key", "arguments"}`, each argument such a value itself; plain text as it is."""
    if not isinstance(text, Message):
        return text
    return {"key": text.template, "arguments": [parts_of(each) for each in text.arguments]}


def _of_parts(parts: Any) -> str:
    return parts if isinstance(parts, str) else msg(parts["key"], *map(_of_parts, parts["arguments"]))
