"""Question files: every broken line is named, none is skipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evals.errors import MalformedQuestions
from evals.questions import load_questions, parse_question

GOOD: dict[str, Any] = {"id": "a", "question": "How many?", "answer": "32 threads."}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"question": ""}, "question"),
        ({"question": 7}, "question"),
        ({"type": "essay"}, "type"),
        ({"choices": ["a", "b"], "answer_index": 0}, "choices"),
        ({"choices": ["a", "a", "b", "c"], "answer_index": 0}, "choices"),
        ({"choices": ["a", "b", "c", "d"], "answer_index": 4}, "answer_index"),
        ({"choices": ["a", "b", "c", "d"]}, "answer_index"),
        ({"type": "choice"}, "choices"),
        ({"key_facts": "32"}, "key_facts"),
        ({"gold": [{"heading": "x"}]}, "file"),
        ({"split": "train"}, "split"),
        ({"seen": 1}, "seen"),
        ({"answer": "a\x07b"}, r"answer holds the control character U\+0007"),
        ({"key_facts": ["a\x07b"]}, r"key_facts holds the control character U\+0007"),
        ({"key_facts": [" "]}, r"key_facts\.0 is blank"),
        ({"answer_index": True, "choices": ["a", "b", "c", "d"]}, "answer_index must be a whole number"),
        ({"difficulty": 10**7}, "difficulty must be less than or equal to 1000000"),
    ],
)
def test_a_field_that_breaks_the_schema_is_named_with_file_and_line(
    tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps(GOOD) + "\n" + json.dumps(GOOD | {"id": "b"} | change) + "\n", encoding="utf-8")
    with pytest.raises(MalformedQuestions, match=rf"mine\.jsonl:2.*{named}"):
        load_questions(path)


@pytest.mark.parametrize("line", ["{", "[1]", "NaN", "[" * 100_000])
def test_a_line_that_is_not_an_object_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps(GOOD) + "\n\n" + line, encoding="utf-8")
    with pytest.raises(MalformedQuestions, match=r"mine\.jsonl:3"):
        load_questions(path)


def test_missing_empty_and_binary_files_are_clear_errors(tmp_path: Path) -> None:
    for name, content in (("empty", b""), ("binary", b"\xff\xfe\x00\x01")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(MalformedQuestions, match=name):
            load_questions(tmp_path / name)
    with pytest.raises(MalformedQuestions, match="does not exist"):
        load_questions(tmp_path / "none")


def test_an_id_that_is_used_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join([json.dumps(GOOD)] * 2), encoding="utf-8")
    with pytest.raises(MalformedQuestions, match="'a' is used twice"):
        load_questions(path)


def test_question_and_answer_are_enough() -> None:
    question = parse_question({"question": "Why?", "answer": "Because."}, where="f:1")
    assert (question.id, question.type, question.answerable, question.choices) == ("f:1", "short", True, ())
