"""`coalesce quiz` and the tools for assistants, over the bank and without a library."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import pytest
from api_fakes import PATIENCE_S, WARP, FakeBuilder, Shelf
from serving import COMMAND, environment

from api.cli import run
from api.mcp_server import build_mcp_server
from api.services import open_study
from api.settings import load_settings
from evals.questions import load_bank
from indexes.errors import IndexMissing

Quiz = Callable[..., int]


@pytest.fixture
def quiz(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Quiz:
    def ask(answers: str, *options: str) -> int:
        monkeypatch.setattr("sys.stdin", io.StringIO(answers))
        return run(["--home", str(tmp_path), "quiz", "--seed", "1", *options])

    return ask


def test_right_answers_score_and_misses_become_cards(quiz: Quiz, tmp_path, capsys):
    options = ("--count", "3", "--types", "choice", "--json")
    assert quiz("", *options) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["score"] == 0.0
    bank = {question.id: question for question in load_bank()}
    letters = ["ABCD"[bank[mark["question_id"]].answer_index or 0] for mark in first["marks"]]
    assert quiz("\n".join(letters) + "\n", *options) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["score"] == again["max_score"] == 3.0
    assert all(mark["passage"]["text"] for mark in again["marks"])
    with open_study(load_settings({"home": tmp_path})) as study:
        assert {card.question_id for card in study.due_cards()} == {mark["question_id"] for mark in first["marks"]}


def test_the_learner_has_the_last_word_in_the_terminal(quiz: Quiz, tmp_path, capsys):
    own = tmp_path / "own.jsonl"
    own.write_text('{"question": "How many lanes does a warp have?", "answer": "It has 32.", "key_facts": ["32"]}')
    assert quiz("How many lanes does a warp have\np\n", "--questions", str(own), "--count", "1", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["score"], result["marks"][0]["by"]) == (0.5, "self")


def test_the_terminal_shows_marks_with_their_quote_and_weighs_chapters(quiz: Quiz, capsys):
    assert quiz("A\n", "--count", "1", "--types", "choice", "--zh") == 0
    shown = capsys.readouterr()
    assert "“" in shown.out
    assert any("\u4e00" <= character <= "\u9fff" for character in shown.err)
    assert quiz("", "--count", "4", "--weights", "5=3,6=1", "--json") == 0
    asked = [mark["question_id"] for mark in json.loads(capsys.readouterr().out)["marks"]]
    chapters = {question.id: question.chapter for question in load_bank()}
    assert sorted(chapters[question_id] for question_id in asked) == [5, 5, 5, 6]


@pytest.mark.parametrize(
    ("answers", "options", "named"),
    [
        ("", ["--chapters", "one"], "one"), ("", ["--types", "essay"], "essay"), ("", ["--chapters", "99"], "chapters"),
        ("", ["--weights", "5"], "5"), ("", ["--weights", "5=nan"], "nan"), ("", ["--chapters", "9" * 5000], "9"),
        ("Z\n", ["--count", "1", "--types", "choice"], "A, B, C, D"),
        ("", ["--questions", "mine.jsonl"], "mine.jsonl:2"),
    ],
)  # fmt: skip
def test_a_quiz_that_makes_no_sense_is_an_error_that_names_the_value(
    quiz: Quiz, monkeypatch, tmp_path, capsys, answers, options, named
):
    monkeypatch.chdir(tmp_path)
    Path("mine.jsonl").write_text('{"question": "a", "answer": "b"}\n{', encoding="utf-8")
    assert quiz(answers, *options) == 1
    said = capsys.readouterr().err
    assert "coalesce: " in said and named in said and "Traceback" not in said


def called(client: Any, tool: str, **arguments: Any) -> Any:
    async def call() -> Any:
        return (await client.call_tool(tool, arguments)).structured_content

    return call()


def test_assistants_ask_and_set_and_mark_a_quiz_and_get_errors_in_words(tmp_path: Path) -> None:
    from mcp import Client

    shelf = Shelf()
    shelf.put("sample", WARP, source="Sample")
    engine = FakeBuilder().engine(load_settings({"home": tmp_path}), shelf)

    def no_engine() -> Any:
        raise IndexMissing("there is no library", hint="coalesce add PATH")

    async def talk(study: Any) -> None:
        async with Client(build_mcp_server(no_engine, study, "ada")) as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == {"search", "ask", "quiz", "mark_quiz"}
            assert (await called(client, "search", query="warp"))["error"]["hint"] == "coalesce add PATH"
            assert (await client.call_tool("search", {"query": "warp"})).is_error
            exam = await called(client, "quiz", count=2, types=["choice"])
            answers = {question["id"]: 0 for question in exam["questions"]}
            assert (await called(client, "mark_quiz", exam_id=exam["exam_id"], answers=answers))["max_score"] == 2.0
        async with Client(build_mcp_server(lambda: engine, study, "bob")) as stranger:
            peeked = await called(stranger, "mark_quiz", exam_id=exam["exam_id"], answers={})
            assert peeked["error"]["type"] == "NotFound"
            for tool, argument in (("search", "query"), ("ask", "question")):
                error = (await called(stranger, tool, **{argument: "bell \x07"}))["error"]
                assert (error["type"], "U+0007" in error["message"]) == ("InvalidInput", True)
            assert (await called(stranger, "search", query="warp"))["passages"]
            for book, found in (("Sample", "sample"), ("other", None)):
                reply = await called(stranger, "ask", question="How many threads are in a warp?", book=book)
                assert [each["document_id"] for each in reply.get("citations", ())] == ([found] if found else [])
            assert (await stranger.call_tool("ask", {"question": " "})).is_error
        assert study.due_cards("bob") == ()
        assert study.exams("ada")[0].id == exam["exam_id"]

    with open_study(load_settings({"home": tmp_path})) as study:
        asyncio.run(talk(study))


@pytest.mark.integration
def test_a_line_that_is_no_message_gets_its_error(tmp_path: Path) -> None:
    who = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    first = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": who}
    lines = [b"garbage", json.dumps(first).encode(), b'{"jsonrpc": "2.0", "id": 2, "method": "\\ud800"}', b"\xff\xfe"]
    command = [*COMMAND, "mcp"]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=environment(tmp_path)) as server:
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(b"\n".join(lines) + b"\n")
        server.stdin.flush()
        replies = [json.loads(server.stdout.readline()) for _ in lines]
        server.stdin.close()
        assert server.wait(PATIENCE_S) == 0
    [hello] = [reply["result"] for reply in replies if "error" not in reply]
    assert hello["serverInfo"]["version"]
    assert [reply["error"]["code"] for reply in replies if "error" in reply] == [-32700] * 3
