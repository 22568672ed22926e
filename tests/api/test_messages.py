"""Messages of the program keep how they were made, and have their Chinese."""

from __future__ import annotations

import ast
import copy
import json
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

from api.errors import ERROR_TABLE, describe, openai_body
from api.page_files import FOLDER
from indexes.errors import InvalidInput
from indexes.messages import dump, load, msg, parts_of

ERRORS = {cls.__name__ for cls in ERROR_TABLE} - {"Cancelled"}


TABLE: dict[str, str] = json.loads((FOLDER / "messages.zh.json").read_text(encoding="utf-8"))


def key_of(template: str) -> str:
    """As `keyOf` of the page's `texts.js`."""
    return template.strip().removesuffix(".").lower()


KNOWN = {key_of(english) for english in TABLE}


def test_a_translation_has_no_argument_that_its_message_lacks() -> None:
    for message, own in TABLE.items():
        gaps = {int(number) for number in re.findall(r"\{(\d)\}", own)}
        assert gaps <= set(range(message.count("{}"))), message


def test_an_error_carries_the_key_and_the_arguments_of_its_texts_whatever_stands_in_them() -> None:
    inner = msg("'{}' is empty", "a {} b")
    error = describe(InvalidInput(msg("the {} is empty", inner), hint="Say more.")).body["error"]
    parts = {"key": "the {} is empty", "arguments": [{"key": "'{}' is empty", "arguments": ["a {} b"]}]}
    assert error == {
        "type": "invalid_input",
        "message": "the 'a {} b' is empty is empty",
        "message_parts": parts,
        "hint": "Say more.",
    }
    assert openai_body(describe(InvalidInput(inner, hint="")))["error"]["message_parts"] == parts["arguments"][0]


def test_a_message_keeps_its_template_through_pickles_copies_and_a_file_of_jobs() -> None:
    made = msg("the {} is empty", msg("'{}' is empty", 'a "b" {}'))
    for again in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made), load(dump(made))):
        assert (again, parts_of(again)) == (made, parts_of(made))
    for plain in ("plain {}", dump(made), '{"key": "{0.__class__}", "arguments": ["a"]}', '{"key": cut off'):
        assert load(dump(plain)) == plain == parts_of(plain)
    for never_dumped in (
        '{"key": cut off',
        '{"key": "{} {}", "arguments": []}',
        '{"key": 1}',
        '{"key": "", "arguments": 1}',
    ):
        assert load(never_dumped) == never_dumped


HEARD_ON_THE_PAGE = (
    "api/fetch.py", "api/generator.py", "api/shared_files.py", "api/uploads.py", "evals/exam.py", "evals/questions.py",
    "evals/study.py", "evals/study_store.py", "indexes/readers",
    "rag/models/adapters.py", "rag/models/folder.py", "rag/models/gguf.py", "rag/models/home.py",
    "rag/models/loading.py", "rag/generators/local", "rag/generators/openvino.py",
    "rag/generators/vllm.py",
)  # fmt: skip
"""Where the errors arise that a reader meets when a book is added, a model is chosen or an exam is taken."""


def test_errors_of_adding_a_book_of_choosing_a_model_and_of_studying_have_their_chinese() -> None:
    root = Path(__file__).parents[2]
    files = [file for name in HEARD_ON_THE_PAGE for file in (root / name, *(root / name).rglob("*.py"))]
    messages = {message for file in files if file.is_file() for message in _messages_of(file)}
    assert len(messages) > 50
    assert [message for message in sorted(messages) if key_of(message) not in KNOWN] == []


def _messages_of(file: Path) -> Iterator[str]:
    """Templates of the messages and hints of the errors that a file raises; a cancelled job shows none."""
    for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in ERRORS):
            continue
        for part in (*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "hint")):
            if isinstance(part, ast.JoinedStr):
                yield ast.unparse(part)  # has no template
            elif isinstance(part, ast.Constant):
                yield str(part.value)
            elif isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id == "msg":
                yield str(ast.literal_eval(part.args[0]))
