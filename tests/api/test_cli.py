"""The `coalesce` command: exit statuses, one JSON document on stdout, errors in words and never a traceback."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from api_fakes import SAMPLE_ID, WARP, FakeBuilder, Shelf, running
from fakes import signals_only

from api.cli import run
from api.cli.app import SECTIONS
from api.health_checks import faiss_check
from api.running_server import announce, withdraw
from api.settings import load_settings
from indexes.errors import InvalidInput
from rag.evidence import EvidenceJudge
from rag.sentence_reader import LearnedReader
from rag.tuning.data import TrainingRow, write_dataset
from rag.tuning.settings import TuneSettings

COMMANDS = ("serve", "add", "list", "remove", "ask", "search", "doctor", "questions export", "dataset", "tune")
HEAVY = ("torch", "transformers", "peft", "faiss", "sentence_transformers", "llama_index", "nicegui", "fastapi")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COALESCE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(command, capsys):
    assert run([*command.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert f"Example: coalesce {command}" in text
    assert ("--json" in text) == (command != "serve")


def test_the_help_lists_every_command_once_and_by_what_it_is_for(capsys):
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    assert "More:" not in text, "a new command goes into a section"
    listed = re.findall(r"^  ([a-z]+) ", text, re.MULTILINE)
    assert sorted(listed) == sorted(name for names in SECTIONS.values() for name in names)
    assert text.index("Books:") < text.index("  add ") < text.index("Ask:") < text.index("  ask ")


def test_models_lists_what_can_be_fetched_and_names_what_cannot(capsys):
    assert run(["models", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"models", "adapters", "engines", "available"} == set(found)
    assert [(each["name"], each["here"]) for each in found["available"]] == [("smollm2-135m", False)]
    assert run(["models", "get", "nobody-1t"]) == 1
    assert "There is no model 'nobody-1t' to fetch" in capsys.readouterr().err
    assert run(["memory", "--model", "smollm2-135m"]) == 1
    assert "coalesce models get smollm2-135m" in capsys.readouterr().err


@pytest.mark.integration
def test_help_imports_nothing_heavy():
    code = f"import sys, api.cli as c; c.run(['ask', '--help']); print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--nonsense"], ["nonsense"], ["ask"], ["add"], ["remove"], ["ask", "q", "--arm", "both"],
        ["ask", "q", "--top-k", "many"], ["serve", "--port", "x"], ["ask", "q", "--generator", "magic"],
        ["ask", "q", "--quantization", "int3"], ["tune", "--model", "m", "--out", "o", "--rank", "0"],
        ["tune", "--model", "m", "--out", "o", "--quantization", "int8"],
    ],
)  # fmt: skip
def test_wrong_usage_is_status_2(arguments, capsys):
    assert run(arguments) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "--host", "0.0.0.0"], "COALESCE_API_KEYS"),
        (["serve", "--port", "99999"], "99999"),
        (["serve", "--host", "203.0.113.77", "--insecure"], "203.0.113.77"),
        (["remove", "nobody"], "coalesce"),
        (["ask", "q", "--pages", "9-2"], "9-2"),
        (["ask", "q", "--pages", "x"], "A-B"),
        (["ask", "q", "--adapter", "nopair"], "NAME=PATH"),
        (["add", "a", "b", "--title", "One"], "--title"),
        (["ask", "bell \x07"], "U+0007"),
        (["search", "bell \x07"], "U+0007"),
        (["doctor", "--book", "nobody"], "coalesce"),
    ],
)
def test_our_errors_are_status_1_with_the_value_and_what_mends_it(arguments, said, capsys):
    assert run(arguments) == 1
    streams = capsys.readouterr()
    assert streams.out == ""
    assert said in streams.err
    assert "Traceback" not in streams.err
    assert len(streams.err.strip().splitlines()) == 2


def test_the_options_of_tuning_are_its_settings(tmp_path, monkeypatch):
    given: list[TuneSettings] = []

    def tune(model: str, rows: object, out: Path, settings: TuneSettings, **_: object) -> None:
        given.append(settings)
        raise InvalidInput("enough")

    monkeypatch.setattr("rag.tuning.train.tune", tune)
    write_dataset([TrainingRow("What is it?", "It.")], tmp_path / "data")
    command = ["tune", "--model", str(tmp_path), "--data", str(tmp_path / "data"), "--out", str(tmp_path / "out")]
    assert run(command) == 1
    assert run([*command, "--max-length", "64", "--no-passages", "--dora", "--learning-rate", "1e-3"]) == 1
    assert given == [TuneSettings(), TuneSettings(max_tokens=64, passages=False, dora=True, learning_rate=1e-3)]


def test_a_misspelt_setting_stops_every_command(monkeypatch, capsys):
    monkeypatch.setenv("COALESCE_GENERATER", "local")
    assert run(["list"]) == 1
    assert "COALESCE_GENERATOR" in capsys.readouterr().err


def test_the_version_is_printed(capsys):
    assert run(["--version"]) == 0
    assert re.fullmatch(r"coalesce \d+(\.\d+)*\n", capsys.readouterr().out)


def test_an_empty_library_lists_as_nothing(capsys):
    assert run(["list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"documents": []}
    assert run(["list"]) == 0
    assert "coalesce add PATH" in capsys.readouterr().out


def test_the_home_option_beats_the_environment(tmp_path, capsys):
    other = tmp_path / "other"
    other.mkdir()
    (other / "coalesce.toml").write_text("nonsense = 1\n")
    assert run(["--home", str(other), "list"]) == 1
    assert str(other) in capsys.readouterr().err


def test_questions_are_put_to_the_running_server_of_the_home(home, monkeypatch, capsys):
    def loads(*_: object, **__: object) -> None:
        raise InvalidInput("models are loaded here")

    monkeypatch.setattr("indexes.library.open_library", loads)
    with running(load_settings({"home": home})) as live:
        announce(home, live.address)
        assert run(["ask", "How many threads are in a warp?", "--json"]) == 0, capsys.readouterr()
        answer = json.loads(capsys.readouterr().out)
        assert answer == live.client.get(f"/v1/conversations/{answer['conversation_id']}").json()["answers"][0]
        assert run(["ask", "How many threads are in a warp?", "--book", "sample"]) == 0
        assert capsys.readouterr().out.startswith("A warp has 32 threads [1].")
        assert run(["search", "warp", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["passages"]
        assert run(["ask", "What?", "--book", "nobody"]) == 1
        assert "nobody" in capsys.readouterr().err
        assert run(["ask", "What is a warp?", "--generator", "extractive"]) == 1
        assert "models are loaded here" in capsys.readouterr().err
    assert run(["ask", "What is a warp?"]) == 1, "the server has gone"
    withdraw(home)
    assert not (home / "server.json").exists()


def test_an_unexpected_error_is_one_line_and_its_details_are_kept(monkeypatch, home, capsys):
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a fault of the program")

    monkeypatch.setattr("indexes.library.open_library", broken)
    assert run(["list"]) == 1
    streams = capsys.readouterr()
    assert "RuntimeError: a fault of the program" in streams.err
    assert "Traceback" not in streams.err
    assert "Traceback" in (home / "errors.log").read_text()
    assert run(["--debug", "list"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [(OSError(28, "No space left on device"), 1, "disk is full"), (KeyboardInterrupt(), 130, "")],
)
def test_a_full_disk_and_ctrl_c_have_words_and_a_status_of_their_own(error, status, said, monkeypatch, capsys):
    def raises(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("indexes.library.open_library", raises)
    assert run(["list"]) == status
    streams = capsys.readouterr()
    assert said in streams.err and "Traceback" not in streams.err


@pytest.mark.integration
def test_a_closed_pipe_causes_no_error_message():
    done = subprocess.run(
        [sys.executable, "-c", "from api.cli import main; main()", "list", "--json"],
        stdout=_closed_pipe(), stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_a_home_that_cannot_be_written_is_reported(tmp_path, monkeypatch, capsys):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("COALESCE_HOME", str(blocked / "home"))
    for arguments in (["serve"], ["add", str(tmp_path)]):
        assert run(arguments) == 1
        assert "COALESCE_HOME" in capsys.readouterr().err


def test_a_port_in_use_is_reported_with_another_one_to_try(capsys):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert run(["serve", "--port", str(port)]) == 1
    error = capsys.readouterr().err
    assert str(port) in error
    assert f"coalesce serve --port {port + 1}" in error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ask", "q", "--book", "nope"], "'nope'"),
        (["ask", "q", "--arm", "tuned"], "--adapter NAME=FOLDER"),
        (["ask", "q", "--chapter", "99"], "no chapter 99; this book has 1"),
        (["search", "q", "--chapter", "99"], "no chapter 99; this book has 1"),
    ],
)
def test_what_cannot_be_answered_is_refused_before_models_load(arguments, said, monkeypatch, capsys):
    shelf = Shelf()
    shelf.put("sample", WARP, source="Sample", sample=True)
    _refuse_to_load(monkeypatch, shelf)
    assert run(arguments) == 1
    assert said in capsys.readouterr().err
    assert shelf.closed


@pytest.mark.parametrize("command", ["ask", "search"])
def test_an_empty_library_says_how_to_fill_it_before_models_load(command, monkeypatch, capsys):
    _refuse_to_load(monkeypatch, Shelf())
    assert run([command, "warp"]) == 1
    assert "coalesce add PATH" in capsys.readouterr().err


def test_a_refusal_names_the_nearest_sections_once(monkeypatch, capsys, home):
    builder = FakeBuilder()
    _answer_by(builder, monkeypatch, home)
    assert run(["ask", "What does a warp cost?", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["refused"] and " › ".join(answer["passages"][0]["section"]) in answer["answer"]
    assert run(["ask", "What does a warp cost?"]) == 0
    assert capsys.readouterr().out.strip() == answer["answer"]


def test_a_refusal_of_the_server_and_an_answer_cut_off_say_so_once(home, capsys):
    with running(load_settings({"home": home})) as live:
        announce(home, live.address)
        live.generator.finish = "length"
        assert run(["ask", "How many threads are in a warp?"]) == 0
        assert "cut off" in capsys.readouterr().out
        live.generator.finish, live.generator.pieces = "stop", ("",)
        assert run(["ask", "How many threads are in a warp?"]) == 0
        said = capsys.readouterr().out
        assert "does not answer" in said and "cut off" not in said
        assert said.count("nearest") == 1
        live.generator.pieces, live.generator.refused = ("Not enough of it in [1].",), True
        assert run(["ask", "How many threads are in a warp?"]) == 0
        assert capsys.readouterr().out.endswith("[1].\n\n[1] Sample › Chapter › Section, page iii\n")
    withdraw(home)


def test_a_book_is_named_by_its_title_or_its_id(monkeypatch, capsys, home):
    builder = FakeBuilder()
    _answer_by(builder, monkeypatch, home)
    for document_id in ("a", "b"):
        builder.shelf.put(document_id, WARP, source="Twice")
    assert run(["search", "warp", "--book", "sample", "--json"]) == 0
    by_id = capsys.readouterr().out
    assert run(["search", "warp", "--book", "SAMPLE", "--json"]) == 0
    assert capsys.readouterr().out == by_id and json.loads(by_id)["passages"]
    assert run(["search", "warp", "--book", "twice"]) == 1
    assert "a, b" in capsys.readouterr().err
    with running(load_settings({"home": home})) as live:
        announce(home, live.address)
        assert run(["ask", "What is a warp?", "--book", "Sample", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["filters"]["document_ids"] == [SAMPLE_ID]
    withdraw(home)


def test_a_note_stands_above_the_answer_and_is_no_part_of_it(monkeypatch, capsys, home):
    builder = FakeBuilder()
    _answer_by(builder, monkeypatch, home)
    assert run(["ask", "What does a warp cost?", "--answer-anyway"]) == 0
    note, answer, *_ = filter(None, capsys.readouterr().out.splitlines())
    assert "does not seem to answer" in note
    assert answer.startswith("A warp has 32 threads")
    assert run(["ask", "What does a warp cost?", "--answer-anyway", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["note"] == note


def _answer_by(builder: FakeBuilder, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """Lets the command line answer by an engine that finds no evidence for anything."""
    builder.shelf.put("sample", WARP, source="Sample", sample=True, pages=True)
    builder.judge = EvidenceJudge(LearnedReader(signals_only), 1.1)
    engine = builder.engine(load_settings({"home": home}), builder.shelf)
    monkeypatch.setattr("indexes.library.open_library", lambda *_, **__: builder.shelf)
    monkeypatch.setattr("rag.assemble.build_engine", lambda *_: engine)


def _refuse_to_load(monkeypatch: pytest.MonkeyPatch, library: Shelf) -> None:
    def build_engine(*_: object) -> None:
        raise AssertionError("models were loaded")

    monkeypatch.setattr("indexes.library.open_library", lambda *_, **__: library)
    monkeypatch.setattr("rag.assemble.build_engine", build_engine)


def test_both_faiss_distributions_at_once_are_a_fault():
    assert faiss_check("1.15", None).ok
    assert faiss_check(None, "1.15").ok
    both, none = faiss_check("1.15", "1.15"), faiss_check(None, None)
    assert not both.ok
    assert "pip uninstall" in both.hint
    assert not none.ok


def _closed_pipe() -> int:
    read, write = os.pipe()
    os.close(read)
    return write


def test_a_chat_asks_one_question_after_another_in_one_conversation(tmp_path, monkeypatch, capsys):
    builder = FakeBuilder()
    builder.shelf.put("b", WARP, source="A Book")
    engine = builder.engine(load_settings({"home": tmp_path}), builder.shelf)
    monkeypatch.setattr("indexes.library.open_library", lambda *_, **__: builder.shelf)
    monkeypatch.setattr("rag.assemble.build_engine", lambda *_: engine)
    lines = iter(["How many threads are in a warp?", "?!?", "And why?", ""])
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    assert run(["--home", str(tmp_path), "chat"]) == 0
    assert [request.question for request in builder.generator.requests] == [
        "How many threads are in a warp?",
        "And why?",
    ]
    (kept,) = engine.conversations.list()
    assert kept.num_answers == 2
    said = capsys.readouterr()
    assert "A warp has 32 threads" in said.out and "no words" in said.err
