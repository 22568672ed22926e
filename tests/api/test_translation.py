"""Messages of the program in another language: by their templates, never by what they look like."""

from __future__ import annotations

import ast
import copy
import json
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import api.translation
from api.errors import ERROR_TABLE
from api.translation import translate
from indexes.messages import dump, load, msg

ERRORS = {cls.__name__ for cls in ERROR_TABLE} - {"Cancelled"}
GAP = "http://a"


def chinese(text: str) -> str:
    return translate(text, "zh")


def test_every_message_of_the_table_is_put_into_chinese_with_its_arguments() -> None:
    said = json.loads((Path(api.translation.__file__).parent / "messages.zh.json").read_text(encoding="utf-8"))
    for message, own in said.items():
        gaps = {int(number) for number in re.findall(r"\{(\d)\}", own)}
        assert gaps <= set(range(message.count("{}"))), message
        made = msg(message, *"7" * message.count("{}"))
        assert chinese(made) != made, message
        assert chinese(made).count("7") >= len(gaps), message


def test_only_a_message_is_translated_never_a_text_that_looks_like_one() -> None:
    title = "the question is empty"
    assert chinese(f"the {title} is empty") == f"the {title} is empty"
    assert chinese(msg("the {} is empty", msg("'{}' is empty", "İİ-Ab"))) == "“İİ-Ab”是空的是空的"
    assert chinese(msg("the {} is empty", "question")) == "问题是空的"


def test_a_message_keeps_its_template_through_pickles_copies_and_a_file_of_jobs() -> None:
    made = msg("the {} is empty", msg("'{}' is empty", 'a "b" {}'))
    for again in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made), load(dump(made))):
        assert (again, chinese(again)) == (made, chinese(made))
    for plain in ("plain {}", dump(made), '{"key": "{0.__class__}", "arguments": ["a"]}', '{"key": cut off'):
        assert load(dump(plain)) == chinese(load(dump(plain))) == plain
    for never_dumped in (
        '{"key": cut off',
        '{"key": "{} {}", "arguments": []}',
        '{"key": 1}',
        '{"key": "", "arguments": 1}',
    ):
        assert load(never_dumped) == never_dumped


HEARD_ON_THE_PAGE = (
    "api/fetch.py", "api/generator.py", "api/uploads.py", "indexes/readers",
    "rag/models/adapters.py", "rag/models/folder.py", "rag/models/gguf.py", "rag/models/home.py",
    "rag/models/loading.py", "rag/generators/local", "rag/generators/openvino.py",
    "rag/generators/vllm.py",
)  # fmt: skip
"""Where the errors arise that a reader meets when a book is added or a model is chosen."""


def test_errors_of_adding_a_book_and_of_choosing_a_model_have_their_chinese() -> None:
    root = Path(__file__).parents[2]
    files = [file for name in HEARD_ON_THE_PAGE for file in (root / name, *(root / name).rglob("*.py"))]
    messages = {message for file in files if file.is_file() for message in _messages_of(file)}
    assert len(messages) > 50
    assert [message for message in sorted(messages) if chinese(message) == message] == []


def _messages_of(file: Path) -> Iterator[str]:
    """Messages and hints of the errors that a file raises; a cancelled job shows none."""
    for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in ERRORS):
            continue
        for part in (*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "hint")):
            if isinstance(part, ast.JoinedStr):
                yield ast.unparse(part)  # has no template
            elif isinstance(part, ast.Constant):
                yield str(part.value)
            elif isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id == "msg":
                template = ast.literal_eval(part.args[0])
                yield msg(template, *[GAP] * template.count("{}"))
