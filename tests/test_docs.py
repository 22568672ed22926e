"""What the documents show is true: commands parse and run, links and paths lead somewhere, snippets work."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
from api_fakes import running
from fake_engine import MODEL, FakeEngine, fake_engine
from fakes import make_answer
from serving import COALESCE_SERVE, start, stop

from api.cli import run
from api.cli.app import app
from api.settings import CoalesceSettings, load_settings
from evals.training_rows import library_home
from indexes.sample import SAMPLE_PATH
from rag.conversations import ConversationStore

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
DOCUMENTS = (
    README,
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "CHANGELOG.md",
    ROOT / "evals" / "question_bank" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
)
FOLDERS = ("indexes", "rag", "evals", "api", "tests", "tools")
SOURCES = tuple(path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"(?:^|\s)#.*")
INLINE = re.compile(r"`(coalesce|make) ([^`\n]+)`")
LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")
PATH = re.compile(r"`((?:api|evals|rag|indexes|tests|tools|docs)/[\w./-]+)`")
VARIABLE = re.compile(r"COALESCE_[A-Z]\w+")
DOCUMENT_NAME = re.compile(r"docs/[\w-]+\.md")

RUN = ("ask", "search", "list", "add", "remove", "doctor", "quiz", "dataset", "memory")
"""Commands of the README that are quick enough for every run of the tests; slow tests run the others."""

NOT_RUN = {
    "make install": "brings two gigabytes of packages; tests/test_packaging.py installs the wheel",
    "make check": "runs these tests",
    "make test": "runs these tests",
    "accelerate launch --num_processes 2": "tests/rag/test_distributed_tuning.py starts the two processes",
    "accelerate launch --config_file rag/tuning/launch/fsdp.yaml": "accelerate shards on GPUs only",
    "accelerate launch --config_file rag/tuning/launch/deepspeed_zero3.yaml": "DeepSpeed needs GPUs",
}
"""Commands shown that no test runs, by how their line begins, and why. They are parsed."""

SHORTER = {"eval": ("--limit", "4"), "dataset": ("--limit", "2"), "tune": ("--max-steps", "1")}
"""Options that the slow tests add, so that a command ends soon."""

FRUITLESS = {
    "dataset books/ --generator": "None of",
    "tune --model MODEL --preferences sampled": "There are 0 preferences",
}
"""What a model with random weights cannot do, and how the command says so."""


@dataclass(frozen=True)
class Shown:
    """A `coalesce` or `make` command of a document's block, as words and as a line, and the output shown below it."""

    words: tuple[str, ...]
    line: str
    output: tuple[str, ...] = ()


def shown_in(document: Path) -> Iterator[Shown]:
    """The commands of `console` blocks, behind `$ `, and of blocks without a language."""
    for language, block in FENCE.findall(document.read_text("utf-8")):
        lines = block.replace("\\\n", " ").splitlines()
        if language == "console":
            starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
            for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
                yield from commands_of(lines[start].removeprefix("$ "), lines[start + 1 : end])
        elif not language:
            for line in lines:
                yield from commands_of(line)


def commands_of(line: str, output: Sequence[str] = ()) -> Iterator[Shown]:
    """The line's command, if it is one of ours; variables before it and launchers are left out."""
    words = shlex.split(COMMENT.sub("", line))
    if "api.cli" in words:
        words = ["coalesce", *words[words.index("api.cli") + 1 :]]
    while words and VARIABLE.match(words[0]):
        words.pop(0)
    if words and words[0] in ("coalesce", "make"):
        yield Shown(tuple(words), " ".join(line.split()), tuple(output))


def all_shown() -> list[Any]:
    return [
        pytest.param(shown.words, id=f"{document.name}: {' '.join(shown.words)}"[:90])
        for document in DOCUMENTS
        for shown in shown_in(document)
    ]


@cache
def parser() -> Any:
    """The command line with every command's body taken out."""
    root = typer.main.get_command(app)
    for command in leaves(root).values():
        command.callback = lambda **_: None
    return root


def leaves(command: Any, name: str = "") -> dict[str, Any]:
    """Commands by their full names."""
    if not hasattr(command, "commands"):
        return {name: command}
    found: dict[str, Any] = {}
    for part, below in command.commands.items():
        found |= leaves(below, f"{name} {part}".strip())
    return found


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


@pytest.mark.parametrize("words", all_shown())
def test_every_command_shown_is_one_that_the_command_line_takes(words: tuple[str, ...]) -> None:
    program, *arguments = words
    if program == "make":
        assert {argument for argument in arguments if "=" not in argument} <= make_targets()
        return
    status = parser().main(arguments, "coalesce", standalone_mode=False)
    assert not status


@pytest.mark.parametrize("script", ["evals/small_model.sh OUT", "rag/tuning/launch/smollm2.sh TEXTS OUT --resume"])
def test_every_command_of_a_script_is_one_that_the_command_line_takes(script: str, tmp_path: Path) -> None:
    path, *arguments = script.split()
    environment = os.environ | {"COALESCE": "echo coalesce", "PYTHON": "true"}
    command = ["bash", str(ROOT / path), *(word.replace("OUT", str(tmp_path / "out")) for word in arguments)]
    (tmp_path / "out-data").mkdir()
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    commands = [words for line in done.stdout.splitlines() for words in commands_of(line)]
    assert len(commands) >= 5
    for shown in commands:
        assert not parser().main(list(shown.words[1:]), "coalesce", standalone_mode=False)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_named_in_a_sentence_exists_with_its_options(document: Path) -> None:
    commands = leaves(parser())
    for program, rest in INLINE.findall(document.read_text("utf-8")):
        words = rest.split()
        if program == "make":
            assert words[0] in make_targets(), rest
            continue
        name = next((name for name in commands if f"{rest} ".startswith(f"{name} ")), None)
        groups = {known.split()[0] for known in commands}
        assert name is not None or words[0] in groups, rest
        if name is not None:
            taken = {
                option for parameter in commands[name].params for option in (*parameter.opts, *parameter.secondary_opts)
            }
            assert {word.split("=")[0] for word in words if word.startswith("--")} <= taken, rest


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_and_path_of_a_document_leads_to_a_file(document: Path) -> None:
    text = document.read_text("utf-8")
    assert [link for link in LINK.findall(text) if not (document.parent / link).exists()] == []
    assert [path for path in PATH.findall(text) if not (ROOT / path).exists()] == []


def test_every_module_on_the_map_is_on_its_floor() -> None:
    _, *floors = (ROOT / "docs" / "architecture.md").read_text("utf-8").split("## The way")[0].split("\n**")
    assert len(floors) == 4
    for floor in floors:
        folder = ROOT / floor.split("**")[0]
        for name in re.findall(r"`([\w/]+\.py)`", floor):
            assert any(folder.glob(f"*/{name}")) or (folder / name).exists(), f"{folder.name} has no {name}"


def test_every_document_named_in_the_code_exists() -> None:
    named = {(name, path.name) for path in SOURCES for name in DOCUMENT_NAME.findall(path.read_text("utf-8"))}
    assert {(name, where) for name, where in named if not (ROOT / name).exists()} == set()


def test_every_variable_named_is_a_setting() -> None:
    settings = {f"COALESCE_{name.upper()}" for name in CoalesceSettings.model_fields}
    product = [path for path in SOURCES if not path.is_relative_to(ROOT / "tests")]
    for path in (*DOCUMENTS, *product):
        assert set(VARIABLE.findall(path.read_text("utf-8"))) <= settings, path


def readme_block(language: str) -> str:
    return next(block for kind, block in FENCE.findall(README.read_text("utf-8")) if kind == language)


def test_the_openai_example_prints_an_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running(load_settings({"home": tmp_path / "home"})) as live:
        code = readme_block("python").replace("http://127.0.0.1:8000", live.address)
        exec(compile(code, "README.md", "exec"), {})
    assert "32 threads" in capsys.readouterr().out


def test_the_curl_examples_are_calls_that_the_server_takes(tmp_path: Path) -> None:
    lines = [line for _, block in FENCE.findall(README.read_text("utf-8")) for line in block.splitlines()]
    calls = [shlex.split(line) for line in lines if line.startswith("curl ")]
    assert calls
    with running(load_settings({"home": tmp_path / "home"})) as live:
        for words in calls:
            path = next(word for word in words if word.startswith("localhost:8000")).removeprefix("localhost:8000")
            if "-d" in words:
                reply = live.client.post(path, json=json.loads(words[words.index("-d") + 1]))
            else:
                field, _, name = words[words.index("-F") + 1].partition("=@")
                reply = live.client.post(path, files={field: (name, b"%PDF-1.7 tiles")})
            assert reply.status_code in (httpx.codes.OK, httpx.codes.ACCEPTED), reply.text


@pytest.mark.integration
def test_the_light_commands_of_the_readme_print_what_it_shows(
    sample_home: Path,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(sample_home, tmp_path / "home")
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "tiles.md").write_text("# Tiles\n\nTiles are loaded into shared memory by all threads.\n")
    monkeypatch.setenv("COALESCE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    placeholders = {"MODEL": str(tiny_model)}
    ran = set()
    for shown in shown_in(README):
        if shown.words[:1] != ("coalesce",) or shown.words[1] not in RUN:
            continue
        monkeypatch.setattr("sys.stdin", io.StringIO(""))
        status = run([placeholders.get(word, word) for word in shown.words[1:]])
        printed = capsys.readouterr()
        assert status == 0, f"{shown.words}\n{printed.err}"
        for line in shown.output:
            assert plain(line.partition("…")[0]) in plain(printed.out), shown.words
        if shown.words[1] == "add":
            placeholders["ID"] = printed.out.split()[-1]
        ran.add(shown.words[1])
    assert ran == set(RUN)


def plain(text: str) -> str:
    """The text with its line breaks and indents as single spaces, and ids, which are made of paths, as ID."""
    return re.sub(r"\b[0-9a-f]{16}\b", "ID", " ".join(text.split()))


def left_to_run(document: Path) -> Iterator[Shown]:
    """The document's commands that only the slow tests run: servers last, since they take adapters that others make."""
    quick = set(RUN) - {"dataset"} if document == README else ()
    shown = [one for one in shown_in(document) if not one.line.startswith(tuple(NOT_RUN))]
    yield from sorted(
        (one for one in shown if one.words[1] not in quick and "smollm2-135m" not in one.words),
        key=lambda one: "serve" in one.words,
    )


def test_every_command_that_is_not_run_is_still_shown() -> None:
    lines = [shown.line for document in DOCUMENTS for shown in shown_in(document)]
    assert [begin for begin in NOT_RUN if not any(line.startswith(begin) for line in lines)] == []


def test_every_command_shown_is_in_a_document_whose_commands_are_run() -> None:
    ran = {README, ROOT / "docs" / "serving.md"}
    others = [shown for document in DOCUMENTS if document not in ran for shown in shown_in(document)]
    assert [shown.line for shown in others if not shown.line.startswith(tuple(NOT_RUN))] == []


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("document", [README, ROOT / "docs" / "serving.md"], ids=lambda path: path.name)
def test_the_other_commands_of_a_document_run(
    document: Path,
    sample_home: Path,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    home = tmp_path / "home"
    shutil.copytree(sample_home, home)
    prepare(tmp_path, home)
    shutil.copytree(sample_home, library_home([SAMPLE_PATH], load_settings({"home": home}).index))
    monkeypatch.setattr("evals.experiment.QUICK_STEPS", 1)
    monkeypatch.setenv("COALESCE_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    with fake_engine() as engine:
        stand_ins = dict.fromkeys(("NAME", "BASE"), MODEL) | {"http://127.0.0.1:8001/v1": engine.address}
        for shown in left_to_run(document):
            words = [stand_in(word, stand_ins, tiny_model) for word in shown.words]
            if words[1] == "serve":
                runs_a_server(words, home, engine, monkeypatch)
                continue
            if "--out" in words and words[1] != "dataset" and "--resume" not in words:
                shutil.rmtree(words[words.index("--out") + 1], ignore_errors=True)
            status = run([*words[1:], *SHORTER.get(words[1], ())])
            said = capsys.readouterr().err
            fruitless = next(
                (end for begin, end in FRUITLESS.items() if shown.line.startswith(f"coalesce {begin}")), ""
            )
            assert status == (1 if fruitless else 0), f"{shown.line}\n{said}"
            assert fruitless in said


def prepare(folder: Path, home: Path) -> None:
    """A book, questions about it, and a vote, for the commands that take them."""
    (folder / "books").mkdir()
    tiles = (
        "Tiles of a matrix are loaded into shared memory by all threads of a block, each of which copies one element. "
    )
    (folder / "books" / "tiles.md").write_text(f"# Tiles\n\n## Loading\n\n{tiles * 4}\n", "utf-8")
    gold = [{"file": "tiles.md", "heading": "Loading", "part": 1, "evidence": "loaded into shared memory"}]
    asked = {"id": "a", "question": "Where are tiles loaded?", "answer": "Into shared memory.", "gold": gold}
    (folder / "mine.jsonl").write_text(json.dumps(asked), "utf-8")
    with closing(ConversationStore(home / "conversations.sqlite3")) as store:
        worse = make_answer("Use barriers.", id="worse", arm="base")
        store.vote(
            [worse, replace(worse, id="better", answer="A warp is 32 threads.", arm="tuned")], "tuned", blind=True
        )


def stand_in(word: str, stand_ins: dict[str, str], model: Path) -> str:
    """What the tests take for a word: models are a tiny one."""
    return str(model) if word == "MODEL" or word.startswith("Qwen/") else stand_ins.get(word, word)


def runs_a_server(words: Sequence[str], home: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts the server as shown, asks a question, and stops it."""
    kind = words[words.index("--generator") + 1] if "--generator" in words else "extractive"
    if kind == "vllm":
        monkeypatch.setenv("COALESCE_VLLM", f"{sys.executable} {ROOT / 'tests' / 'fake_vllm.py'} serve")
    adapters = [word.partition("=")[2] for word in words if word.startswith("qa=")]
    engine.models = [MODEL, *adapters]
    live = start(home, *words[2:], command=make_serve(home.parent) if words[0] == "make" else COALESCE_SERVE)
    reply = live.client.post("/v1/ask", json={"question": "What is a warp?"})
    assert reply.json().get("generator") == kind, reply.text
    if words[0] == "make":  # make passes on this signal, and ends by it
        assert stop(live, signal.SIGTERM) == -signal.SIGTERM
    else:
        assert stop(live) == 0


def make_serve(folder: Path) -> list[str]:
    """`make serve` with the environment of these tests in place of its own, which it takes for up to date."""
    environment = folder / "venv"
    environment.mkdir(exist_ok=True)
    (environment / "bin").symlink_to(Path(sys.executable).parent)
    (environment / ".serving-cpu").touch()
    return ["make", "-C", str(ROOT), "serve", f"VENV={environment}"]


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(600)
def test_the_commands_with_the_fetched_model_run(small_model_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = [one for one in shown_in(ROOT / "docs" / "serving.md") if "smollm2-135m" in one.words]
    assert len(shown) == 2
    for one in shown:
        assert run(["--home", str(small_model_home), *one.words[1:]]) == 0, capsys.readouterr().err
    assert "Paris" in capsys.readouterr().out
