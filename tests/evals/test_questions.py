"""Question files: every broken line is named, none is skipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evals.errors import MalformedQuestions
from evals.metrics.key_facts import fact_met, key_fact_recall
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
def test_a_line_that_is_no_object_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps(GOOD) + "\n\n" + line, encoding="utf-8")
    with pytest.raises(MalformedQuestions, match=r"mine\.jsonl:3"):
        load_questions(path)


def test_missing_empty_and_binary_files_are_clear_errors(tmp_path: Path) -> None:
    for name, content in (("empty", b""), ("binary", b"\xff\xfe\x00\x01")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(MalformedQuestions, match=name):
            load_questions(tmp_path / name)
    with pytest.raises(MalformedQuestions, match="not there"):
        load_questions(tmp_path / "none")


def test_an_id_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join([json.dumps(GOOD)] * 2), encoding="utf-8")
    with pytest.raises(MalformedQuestions, match="'a' stands twice"):
        load_questions(path)


def test_question_and_answer_are_enough() -> None:
    question = parse_question({"question": "Why?", "answer": "Because."}, where="f:1")
    assert (question.id, question.type, question.answerable, question.choices) == ("f:1", "short", True, ())


@pytest.mark.parametrize(
    ("fact", "text", "met"),
    [
        ("32 threads|thirty-two threads", "A warp has **32  threads**.", True),
        ("thirty-two threads", "thirty‑two threads", True),
        ("4194304 bytes", "It takes 4,194,304 bytes", True),
        ("2 threads", "32 threads", False),
        ("cudaMemcpy", "call `cudaMemcpyAsync`", False),
        ("__syncthreads()", "then `__syncthreads()` waits", True),
        ("3 x 10", "$3 \\times 10$", True),
    ],
)
def test_a_fact_is_met_as_whole_words(fact: str, text: str, met: bool) -> None:
    assert fact_met(fact, text) is met


def test_recall_is_unscored_without_facts() -> None:
    assert key_fact_recall([], "anything") is None
    assert key_fact_recall(["a fact", "b fact"], "a fact only") == 0.5
    assert key_fact_recall(["a fact"], "") == 0.0
