"""Question files: every broken line is named, none is skipped."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from evals.errors import MalformedQuestions
from evals.questions import QuestionFolder, load_bank, load_questions, parse_question, parse_questions, questions_file
from indexes.errors import StorageFull

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


@pytest.mark.parametrize(
    ("content", "named"),
    [
        *((f"{json.dumps(GOOD)}\n\n{line}".encode(), r"mine\.jsonl:3") for line in ("{", "[1]", "NaN", "[" * 100_000)),
        ("\n".join([json.dumps(GOOD)] * 2).encode(), "'a' is used twice"),
        (b"", r"mine\.jsonl"),
        (b"\xff\xfe\x00\x01", r"mine\.jsonl"),
        (None, "does not exist"),
    ],
)
def test_a_file_that_holds_no_questions_is_named_with_its_line(
    tmp_path: Path, content: bytes | None, named: str
) -> None:
    if content is not None:
        (tmp_path / "mine.jsonl").write_bytes(content)
    with pytest.raises(MalformedQuestions, match=named):
        load_questions(tmp_path / "mine.jsonl")


def test_question_and_answer_are_enough() -> None:
    question = parse_question({"question": "Why?", "answer": "Because."}, where="f:1")
    assert (question.id, question.type, question.answerable, question.choices) == ("f:1", "short", True, ())


def test_a_question_file_that_cannot_be_written_whole_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    folder, content = QuestionFolder(tmp_path / "questions"), json.dumps(GOOD).encode()
    with monkeypatch.context() as patched, pytest.raises(StorageFull):
        patched.setattr("os.link", full)
        folder.add("mine.jsonl", content)
    assert folder.names() == () and not [*(tmp_path / "questions").iterdir()]
    assert len(folder.add("mine.jsonl", content)) == 1


TABLE = """id,chapter,question,option_a,option_b,option_c,option_d,right,answer,key_facts,quote
a,2,"How many, in all?",,,,,,32 threads.,"32 threads
a warp|a wave","A warp, at last, has 32"
b,,Which?,one,two,three,four,C,,,
c,,Which now?,one,two,three,four,,b,,
"""


def test_a_table_is_read_as_the_questions_that_it_holds() -> None:
    first, second, third = parse_questions(TABLE.replace("C,,,", "C,three it is,,"), "mine.csv")
    assert (first.type, first.chapter, first.key_facts) == ("short", 2, ("32 threads", "a warp|a wave"))
    assert first.gold[0].evidence == "A warp, at last, has 32"
    assert (second.type, second.answer_index, second.answer) == ("choice", 2, "three it is")
    assert (third.answer_index, third.answer) == (1, "two")
    for delimiter in ";\t":
        (other,) = parse_questions(f"question{delimiter}answer\nWhy?{delimiter}So, it is.", "mine.csv")
        assert other.answer == "So, it is."


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ("question,reply\nWhy?,So.", "mine.csv: no column is named 'answer'"),
        ("question,answer\nWhy?,So, it is.", "mine.csv:2: more cells"),
        ("question,answer\nWhy?,", "mine.csv:2: answer is missing"),
        ("question,answer,chapter\nWhy?,So.,two", "mine.csv:2: chapter must be a whole number"),
        ("question,answer,option_a,option_b\nWhy?,a,yes,no", "mine.csv:2: choices must be 4 options"),
        ("question,answer,option_a,option_b,option_c,option_d\nWhy?,e,1,2,3,4", "mine.csv:2: answer_index"),
        ('question,answer\n"Why?,So.', "mine.csv"),
        ("", "mine.csv: no column"),
        ("question,answer\n,\n", "holds no question"),
    ],
)
def test_a_table_that_breaks_the_schema_is_named_with_its_line(table: str, named: str) -> None:
    with pytest.raises(MalformedQuestions) as error:
        parse_questions(table, "mine.csv")
    assert named in error.value.message


def test_questions_leave_and_come_back_as_lines_and_as_a_table() -> None:
    questions = load_bank(chapter=5)
    assert parse_questions(questions_file(questions, ".jsonl"), "out.jsonl") == questions
    back = parse_questions(questions_file(questions, ".csv"), "out.csv")
    for before, after in zip(questions, back, strict=True):
        for name in ("id", "chapter", "type", "question", "question_zh", "answer", "answer_index", "difficulty"):
            assert getattr(before, name) == getattr(after, name)
        assert [fact.strip() for fact in before.key_facts] == list(after.key_facts)
        assert [gold.evidence for gold in before.gold[:1]] == [gold.evidence for gold in after.gold]
