"""`coalesce quiz` and the tools for assistants, over the bank and without a library."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest
from api_fakes import WARP, FakeBuilder, Shelf

from api.cli import run
from api.mcp_server import build_mcp_server
from api.services import open_study
from api.settings import load_settings
from evals.questions import load_bank


def quiz(monkeypatch: pytest.MonkeyPatch, home: Path, answers: str, *options: str) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO(answers))
    return run(["--home", str(home), "quiz", "--seed", "1", *options])


def test_right_answers_score_and_misses_become_cards(monkeypatch, tmp_path, capsys):
    assert quiz(monkeypatch, tmp_path, "", "--count", "3", "--types", "choice", "--json") == 0
    first = json.loads(capsys.readouterr().out)
    assert first["score"] == 0.0
    bank = {question.id: question for question in load_bank()}
    letters = ["ABCD"[bank[mark["question_id"]].answer_index or 0] for mark in first["marks"]]
    assert quiz(monkeypatch, tmp_path, "\n".join(letters) + "\n", "--count", "3", "--types", "choice", "--json") == 0
    again = json.loads(capsys.readouterr().out)
    assert again["score"] == again["max_score"] == 3.0
    assert all(mark["passage"]["text"] for mark in again["marks"])
    with open_study(load_settings({"home": tmp_path})) as study:
        assert {card.question_id for card in study.due_cards()} == {mark["question_id"] for mark in first["marks"]}


def test_the_learner_has_the_last_word_in_the_terminal(monkeypatch, tmp_path, capsys):
    own = tmp_path / "own.jsonl"
    own.write_text('{"question": "How many lanes does a warp have?", "answer": "It has 32.", "key_facts": ["32"]}')
    options = ("--questions", str(own), "--count", "1", "--json")
    assert quiz(monkeypatch, tmp_path, "How many lanes does a warp have\np\n", *options) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["score"], result["marks"][0]["by"]) == (0.5, "self")


def test_the_terminal_shows_marks_with_their_quote(monkeypatch, tmp_path, capsys):
    assert quiz(monkeypatch, tmp_path, "A\n", "--count", "1", "--types", "choice", "--zh") == 0
    shown = capsys.readouterr()
    assert "“" in shown.out
    assert " of 1" in shown.out
    assert any("\u4e00" <= character <= "\u9fff" for character in shown.err)


@pytest.mark.parametrize(
    "options",
    [
        ["--chapters", "one"],
        ["--types", "essay"],
        ["--chapters", "99"],
        ["--weights", "5"],
        ["--weights", "5=nan"],
        ["--chapters", "9" * 5000],
    ],
)
def test_a_quiz_that_makes_no_sense_is_one_line(monkeypatch, tmp_path, capsys, options):
    assert quiz(monkeypatch, tmp_path, "", *options) == 1
    assert capsys.readouterr().err.startswith("coalesce: ")


def test_an_answer_that_is_not_an_option_gets_the_letters(monkeypatch, tmp_path, capsys):
    assert quiz(monkeypatch, tmp_path, "Z\n", "--count", "1", "--types", "choice") == 1
    assert "Answer A, B, C, D" in capsys.readouterr().err


def test_chapters_are_weighed_in_the_terminal(monkeypatch, tmp_path, capsys):
    assert quiz(monkeypatch, tmp_path, "", "--count", "4", "--weights", "5=3,6=1", "--json") == 0
    asked = [mark["question_id"] for mark in json.loads(capsys.readouterr().out)["marks"]]
    chapters = {question.id: question.chapter for question in load_bank()}
    assert sorted(chapters[question_id] for question_id in asked) == [5, 5, 5, 6]


def test_a_malformed_question_file_is_named_by_line(monkeypatch, tmp_path, capsys):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"question": "a", "answer": "b"}\n{', encoding="utf-8")
    assert quiz(monkeypatch, tmp_path, "", "--questions", str(path)) == 1
    assert "mine.jsonl:2" in capsys.readouterr().err


def test_an_assistants_question_with_control_characters_is_refused_in_words(tmp_path: Path) -> None:
    shelf = Shelf()
    shelf.put("sample", WARP, source="Sample")
    engine = FakeBuilder().engine(load_settings({"home": tmp_path}), shelf)

    async def talk() -> None:
        from mcp import Client

        with open_study(load_settings({"home": tmp_path})) as study:
            async with Client(build_mcp_server(lambda: engine, study, "ada")) as client:
                for tool, argument in (("search", "query"), ("ask", "question")):
                    told = (await client.call_tool(tool, {argument: "bell \x07"})).structured_content
                    assert told is not None
                    assert told["error"]["type"] == "InvalidInput"
                    assert "U+0007" in told["error"]["message"]

    asyncio.run(talk())


def test_assistants_can_set_and_mark_a_quiz_and_get_errors_in_words(tmp_path: Path) -> None:
    def no_engine() -> Any:
        from indexes.errors import IndexMissing

        raise IndexMissing("there is no library", hint="coalesce add PATH")

    async def talk() -> None:
        from mcp import Client

        with open_study(load_settings({"home": tmp_path})) as study:
            async with Client(build_mcp_server(no_engine, study, "ada")) as client:
                names = {tool.name for tool in (await client.list_tools()).tools}
                assert names == {"search", "ask", "quiz", "mark_quiz"}
                found = (await client.call_tool("search", {"query": "warp"})).structured_content
                assert found is not None
                assert found["error"]["hint"] == "coalesce add PATH"
                exam = (await client.call_tool("quiz", {"count": 2, "types": ["choice"]})).structured_content
                assert exam is not None
                answers = {question["id"]: 0 for question in exam["questions"]}
                marked = (
                    await client.call_tool("mark_quiz", {"exam_id": exam["exam_id"], "answers": answers})
                ).structured_content
                assert marked is not None
                assert marked["max_score"] == 2.0
            async with Client(build_mcp_server(no_engine, study, "bob")) as stranger:
                peeked = (
                    await stranger.call_tool("mark_quiz", {"exam_id": exam["exam_id"], "answers": {}})
                ).structured_content
                assert peeked is not None
                assert peeked["error"]["type"] == "NotFound"
            assert study.due_cards("bob") == ()
            assert study.exams("ada")[0].id == exam["exam_id"]

    asyncio.run(talk())
