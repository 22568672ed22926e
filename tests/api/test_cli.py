"""The `coalesce` command: exit statuses, one JSON document on stdout, errors in words and never a traceback."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_fakes import SAMPLE_ID, WARP, FakeBuilder, Live, Shelf, running
from fakes import signals_only

from api.cli import run
from api.cli.app import SECTIONS
from api.health_checks import faiss_check
from api.running_server import announce, withdraw
from api.settings import load_settings
from indexes.errors import InvalidInput, UnreadableBook
from indexes.types import AddResult, BookHealth, Document
from rag.evidence import EvidenceJudge
from rag.sentence_reader import LearnedReader
from rag.tuning.data import TrainingRow, write_dataset
from rag.tuning.settings import TuneSettings

TUNE = ["tune", "--model", "m", "--out", "o"]
QUESTION = "How many threads are in a warp?"
UNKNOWN = "What does a warp cost?"

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def served(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    """The running server of the home."""
    monkeypatch.setattr("api.running_server.PROBE_TIMEOUT_S", 60)  # on a busy machine it would pass for none
    with running(load_settings({"home": home})) as live:
        announce(home, live.address)
        yield live
    withdraw(home)


@pytest.fixture
def builder(home: Path, monkeypatch: pytest.MonkeyPatch) -> FakeBuilder:
    """What the command line answers by, which finds evidence for nothing."""
    builder = FakeBuilder()
    builder.shelf.put("sample", WARP, source="Sample", sample=True, pages=True)
    builder.judge = EvidenceJudge(LearnedReader(signals_only), 1.1)
    monkeypatch.setattr("indexes.library.open_library", lambda *_, **__: builder.shelf)
    monkeypatch.setattr(
        "rag.assemble.build_engine", lambda *_: builder.engine(load_settings({"home": home}), builder.shelf)
    )
    return builder


def raises(error: BaseException) -> Any:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize("command", sorted(name for names in SECTIONS.values() for name in names))
def test_every_command_is_listed_once_and_explains_itself_with_an_example(command, coalesce):
    listed = re.findall(r"^  ([a-z]+) ", coalesce.says("--help"), re.MULTILINE)
    assert listed.count(command) == 1
    if command not in ("bench", "questions"):  # which have commands of their own
        text = coalesce.says(command, "--help")
        assert re.search(rf"Example.*coalesce\b.*\b{command}", text, re.DOTALL)
        assert ("--json" in text) == (command not in ("serve", "chat", "mcp"))


def test_models_lists_what_can_be_fetched_and_names_what_cannot(coalesce):
    found = coalesce.gives("models")
    assert {"models", "adapters", "engines", "available"} == set(found)
    assert ("qwen2.5-coder-1.5b", False) in [(each["name"], each["here"]) for each in found["available"]]
    assert "nobody-1t" in coalesce.refuses("models", "get", "nobody-1t")
    assert "coalesce models get smollm2-135m" in coalesce.refuses("memory", "--model", "smollm2-135m")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--nonsense"], ["nonsense"], ["ask"], ["add"], ["remove"], ["ask", "q", "--arm", "both"],
        ["ask", "q", "--top-k", "many"], ["serve", "--port", "x"], ["ask", "q", "--generator", "magic"],
        ["ask", "q", "--quantization", "int3"], [*TUNE, "--rank", "0"], [*TUNE, "--quantization", "int8"],
        ["dataset", "--from-bank"], ["dataset", "--out", "x", "--format", "csv"], ["questions", "mend"],
        ["add", "--ray"], ["add", "--ray=head:6379", "--watch", "a"],
    ],
)  # fmt: skip
def test_wrong_usage_is_status_2(arguments, capsys):
    assert run(arguments) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["serve", "--host", "0.0.0.0"], "COALESCE_API_KEYS"),
        (["serve", "--port", "99999"], "99999"),
        (["serve", "--host", "203.0.113.77", "--insecure"], "203.0.113.77"),
        (["remove", "nobody"], "coalesce"),
        (["ask", "q", "--pages", "9-2"], "9-2"),
        (["ask", "q", "--pages", "x"], "A-B"),
        (["ask", "q", "--adapter", "nopair"], "NAME=PATH"),
        (["add", "a", "b", "--title", "One"], "--title"),
        (["add", "--ray", "a"], "COALESCE_DATABASE_URL"),
        (["ask", "bell \x07"], "U+0007"),
        (["search", "bell \x07"], "U+0007"),
        (["doctor", "--book", "nobody"], "coalesce"),
        (["dataset", "--out", "x"], "--from-bank"),
        (["questions", "export", "--out", "bank.xls"], "bank.xls"),
    ],
)
def test_our_errors_are_status_1_with_the_value_and_what_mends_it(arguments, named, coalesce):
    assert named in coalesce.refuses(*arguments)


@pytest.mark.parametrize(("option", "address"), [("--ray", ""), ("--ray=head:6379", "head:6379")])
def test_books_added_by_ray_are_told_as_those_added_here(option, address, tmp_path, home, monkeypatch, capsys):
    (tmp_path / "book.md").write_text("# Warps\n\nA warp has 32 threads.\n")
    (tmp_path / "broken.md").write_text("# Nothing\n")
    seen = []

    def add_by_ray(settings, books, *, address, title):
        seen.append((address, [book.name for book in books]))
        book = Document(SAMPLE_ID, "Warps", "book.md", False, "markdown", None, 1, 1, "", "2026-01-01", BookHealth())
        yield books[0], AddResult(book, "added", 1, 0.0)
        yield books[1], UnreadableBook("'broken.md' holds no text")

    monkeypatch.setattr("indexes.ray_ingest.check_ray", lambda settings: None)
    monkeypatch.setattr("indexes.ray_ingest.add_by_ray", add_by_ray)
    status = run(["add", option, str(tmp_path / "book.md"), str(tmp_path / "broken.md")])
    out, err = capsys.readouterr()
    assert seen == [(address, ["book.md", "broken.md"])]
    assert (status, "added: Warps" in out, "broken.md" in err) == (1, True, True)


def test_settings_and_a_home_that_cannot_be_used_stop_every_command(tmp_path, monkeypatch, coalesce):
    (tmp_path / "coalesce.toml").write_text("nonsense = 1\n")
    assert str(tmp_path) in coalesce.refuses("--home", str(tmp_path), "list"), "the option beats the environment"
    monkeypatch.setenv("COALESCE_HOME", str(tmp_path / "coalesce.toml" / "home"))
    for arguments in (["serve"], ["add", str(tmp_path)]):
        assert "COALESCE_HOME" in coalesce.refuses(*arguments)


def test_a_port_in_use_is_reported_with_another_one_to_try(coalesce):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"coalesce serve --port {port + 1}" in coalesce.refuses("serve", "--port", str(port))


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


def test_the_version_and_an_empty_library_are_printed(coalesce):
    assert re.fullmatch(r"coalesce \d+(\.\d+)*\n", coalesce.says("--version"))
    assert coalesce.gives("list") == {"documents": []}
    assert "coalesce add PATH" in coalesce.says("list")


def test_questions_are_put_to_the_running_server_of_the_home(home, served, monkeypatch, coalesce):
    monkeypatch.setattr("indexes.library.open_library", raises(InvalidInput("models are loaded here", hint="no")))
    answer = coalesce.gives("ask", QUESTION)
    assert answer == served.get(f"/v1/conversations/{answer['conversation_id']}")["answers"][0]
    assert coalesce.says("ask", QUESTION, "--book", "sample").startswith("A warp has 32 threads [1].")
    assert coalesce.gives("ask", QUESTION, "--book", "SAMPLE")["filters"]["document_ids"] == [SAMPLE_ID]
    assert coalesce.gives("search", "warp")["passages"]
    assert "nobody" in coalesce.refuses("ask", QUESTION, "--book", "nobody")
    assert "loaded here" in coalesce.refuses("ask", QUESTION, "--generator", "extractive")
    withdraw(home)
    assert not (home / "server.json").exists()
    announce(home, "http://127.0.0.1:9")
    assert "loaded here" in coalesce.refuses("ask", QUESTION), "the server has gone"


def test_a_command_says_what_its_answer_is_made_of_and_shows_the_quotes_first(served, coalesce):
    holds = "The scheduler picks a ready warp in each cycle."
    served.shelf.put(SAMPLE_ID, f"{WARP} In each cycle the scheduler picks a ready warp.", source="sample", sample=True)
    served.generator.pieces = (holds,)
    assert holds not in coalesce.says("ask", QUESTION, "--answers", "quotes")
    text = coalesce.says("ask", QUESTION, "--answers", "both")
    quoted, written = text.index("A warp is a group"), text.index(f"{holds} [1]")
    assert quoted < written and text.count(holds) == 1 and "---" not in text


def test_a_cut_answer_and_a_refusal_of_the_server_say_so_once_with_their_sources(served, coalesce):
    served.generator.finish = "length"
    assert "cut off" in coalesce.says("ask", QUESTION)
    served.generator.finish, served.generator.pieces = "stop", ("",)
    text = coalesce.says("ask", QUESTION)
    assert "cut off" not in text and text.count("nearest") == 1
    served.generator.pieces, served.generator.refused = ("Not enough of it in [1].",), True
    assert coalesce.says("ask", QUESTION).endswith("[1].\n\n[1] Sample › Chapter › Section, page iii\n")


def test_an_unexpected_error_is_one_line_and_its_details_are_kept(monkeypatch, home, coalesce, capsys):
    monkeypatch.setattr("indexes.library.open_library", raises(RuntimeError("a fault of the program")))
    assert "RuntimeError: a fault of the program" in coalesce.refuses("list")
    assert "Traceback" in (home / "errors.log").read_text()
    assert run(["--debug", "list"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [(OSError(28, "No space left on device"), 1, "disk is full"), (KeyboardInterrupt(), 130, "")],
)
def test_a_full_disk_and_ctrl_c_have_words_and_a_status_of_their_own(error, status, words, monkeypatch, capsys):
    monkeypatch.setattr("indexes.library.open_library", raises(error))
    assert run(["list"]) == status
    text = capsys.readouterr().err
    assert words in text and "Traceback" not in text


@pytest.mark.integration
def test_a_closed_pipe_causes_no_error_message():
    read, write = os.pipe()
    os.close(read)
    code = "from api.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "list", "--json"], stdout=write, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write)
    assert not re.search("Traceback|Exception", done.stderr)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["ask", "q", "--book", "nope"], "'nope'"),
        (["ask", "q", "--arm", "tuned"], "--adapter NAME=FOLDER"),
        *(([command, "q", "--chapter", "99"], "no chapter 99; this book has 1") for command in ("ask", "search")),
        *(([command, "q"], "coalesce add PATH") for command in ("ask", "search")),
    ],
)
def test_what_cannot_be_answered_is_refused_before_models_load(arguments, named, monkeypatch, coalesce):
    shelf = Shelf()
    if "add" not in named:
        shelf.put("sample", WARP, source="Sample", sample=True)
    monkeypatch.setattr("indexes.library.open_library", lambda *_, **__: shelf)
    monkeypatch.setattr("rag.assemble.build_engine", raises(AssertionError("models were loaded")))
    assert named in coalesce.refuses(*arguments)
    assert shelf.closed


def test_what_the_books_do_not_answer_is_refused_with_the_nearest_sections_or_noted(builder, coalesce):
    answer = coalesce.gives("ask", UNKNOWN)
    assert answer["refused"] and " › ".join(answer["passages"][0]["section"]) in answer["answer"]
    assert coalesce.says("ask", UNKNOWN).strip() == answer["answer"]
    note, text, *_ = filter(None, coalesce.says("ask", UNKNOWN, "--answer-anyway").splitlines())
    anyway = coalesce.gives("ask", UNKNOWN, "--answer-anyway")
    assert (anyway["note"], anyway["answer"].startswith(text)) == (note, True)


def test_a_book_is_named_by_its_title_or_its_id(builder, coalesce):
    for document_id in ("a", "b"):
        builder.shelf.put(document_id, WARP, source="Twice")
    by_id, by_title = (coalesce.gives("search", "warp", "--book", name) for name in ("sample", "SAMPLE"))
    assert by_id == by_title and by_id["passages"]
    assert "a, b" in coalesce.refuses("search", "warp", "--book", "twice")


def test_both_faiss_distributions_at_once_are_a_fault():
    there = (("1.15", None), (None, "1.15"), ("1.15", "1.15"), (None, None))
    checks = [faiss_check(*versions) for versions in there]
    assert [check.ok for check in checks] == [True, True, False, False]
    assert "pip uninstall" in checks[2].hint


def test_a_chat_asks_one_question_after_another_in_one_conversation(builder, home, monkeypatch, capsys):
    builder.judge = FakeBuilder().judge
    lines = iter([QUESTION, "?!?", "And why?", ""])
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    assert run(["chat"]) == 0
    assert [request.question for request in builder.generator.requests] == [QUESTION, "And why?"]
    assert "A warp has 32 threads" in capsys.readouterr().out
