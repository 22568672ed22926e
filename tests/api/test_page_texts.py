"""The page's languages: the same keys with the same values in them, and the right one for a browser."""

from __future__ import annotations

import ast
import copy
import json
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.errors import ERROR_TABLE
from api.pages.texts import FOLDER, LANGUAGES, language_of, texts_of
from indexes.errors import InvalidInput
from indexes.messages import dump, load, msg

PAGES = FOLDER.parent
ERRORS = {cls.__name__ for cls in ERROR_TABLE} - {"Cancelled"}
GAP = "http://a"
_VALUE = re.compile(r"\{(\w+)\}")


def table(language: str) -> dict[str, str]:
    loaded: dict[str, str] = json.loads((FOLDER / f"{language}.json").read_text(encoding="utf-8"))
    return loaded


def test_every_language_has_the_same_keys_and_values() -> None:
    english = table("en")
    for language in LANGUAGES:
        other = table(language)
        assert {key for key in english if not _is_one(key, english)} == {k for k in other if not _is_one(k, other)}
        for key, text in other.items():
            assert set(_VALUE.findall(text)) == set(_VALUE.findall(english[key])), key


def _is_one(key: str, keys: dict[str, str]) -> bool:
    """A form for the number 1, which not every language has."""
    return key.endswith(".one") and key.removesuffix(".one") in keys


def test_every_key_the_views_use_is_there() -> None:
    english = table("en")
    used = set()
    for path in sorted(Path(PAGES).glob("*.py")):
        used |= set(re.findall(r'\bt(?:\.count)?\(\s*"([\w.+]+)"', path.read_text(encoding="utf-8")))
    assert used and not {key for key in used if key not in english}


@pytest.mark.parametrize(
    ("chosen", "accepted", "spoken"),
    [
        (None, "zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        (None, "en;q=0.5, zh-TW;q=0.7", "zh"),
        (None, "fr-FR, de;q=0.9", "en"),
        ("en", "zh-CN", "en"),
        ("klingon", "zh-CN", "zh"),
        (None, "", "en"),
        (None, "zh;q=nonsense,,;;q=1.2.3", "zh"),
        (None, ";;=,,q", "en"),
    ],
)
def test_the_language_is_the_chosen_one_or_the_browsers(chosen: str | None, accepted: str, spoken: str) -> None:
    assert language_of(chosen, accepted) == spoken


def test_one_has_its_own_form_where_the_language_has_one() -> None:
    assert texts_of("en").count("exam.questions", 1) == "one question"
    assert texts_of("en").count("exam.questions", 1234) == "1,234 questions"
    assert texts_of("zh").count("exam.questions", 1) == "1 道题"


def test_messages_of_the_program_are_chinese_on_the_chinese_page() -> None:
    chinese = texts_of("zh")
    plan = InvalidInput(
        msg("an exam of {} questions was asked for, {} fit the chapters and types", 99, 42), hint="do it otherwise"
    )
    assert chinese.error(plan) == "要求 99 道题，但所选章节和题型只有 42 道。Do it otherwise."
    said = json.loads((FOLDER / "said-zh.json").read_text(encoding="utf-8"))
    for message, own in said.items():
        gaps = {int(number) for number in re.findall(r"\{(\d)\}", own)}
        assert gaps <= set(range(message.count("{}"))), message
        made = msg(message, *"7" * message.count("{}"))
        assert chinese.said(made) != made, message


def test_only_a_message_is_translated_never_a_text_that_looks_like_one() -> None:
    chinese = texts_of("zh")
    title = "the question is empty"
    assert chinese.said(f"the {title} is empty") == f"the {title} is empty"
    assert chinese.said(msg("the {} is empty", msg("'{}' is empty", "İİ-Ab"))) == "“İİ-Ab”是空的是空的"
    assert chinese.said(msg("the {} is empty", "question")) == "问题是空的"


def test_a_message_keeps_its_template_through_pickles_copies_and_a_file_of_jobs() -> None:
    made = msg("the {} is empty", msg("'{}' is empty", 'a "b" {}'))
    for again in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made), load(dump(made))):
        assert (again, texts_of("zh").said(again)) == (made, texts_of("zh").said(made))
    for plain in ("plain {}", dump(made), '{"key": "{0.__class__}", "arguments": ["a"]}', '{"key": cut off'):
        assert load(dump(plain)) == texts_of("zh").said(load(dump(plain))) == plain
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
    "rag/models/loading.py", "rag/generators/local", "rag/generators/openvino.py", "rag/generators/quotes.py",
    "rag/generators/vllm.py",
)  # fmt: skip
"""Where the errors arise that a reader meets when a book is added or a model is chosen."""


def test_errors_of_adding_a_book_and_of_choosing_a_model_have_their_chinese() -> None:
    root, chinese = Path(__file__).parents[2], texts_of("zh")
    files = [file for name in HEARD_ON_THE_PAGE for file in (root / name, *(root / name).rglob("*.py"))]
    messages = {message for file in files if file.is_file() for message in _messages_of(file)}
    assert len(messages) > 50
    assert [message for message in sorted(messages) if chinese.said(message) == message] == []


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
