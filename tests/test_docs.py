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
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

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
OTHERS = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "evals/question_bank/README.md")
DOCUMENTS = (README, *(ROOT / name for name in OTHERS), *sorted((ROOT / "docs").glob("*.md")))
DEPLOYED = tuple(sorted((ROOT / "deploy").iterdir()))
FLOORS = ("indexes", "rag", "evals", "api")
PRODUCT = tuple(path for folder in (*FLOORS, "tools") for path in sorted((ROOT / folder).rglob("*.py")))
SOURCES = (*PRODUCT, *sorted((ROOT / "tests").rglob("*.py")))

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"(?:^|\s)#.*")
INLINE = re.compile(r"`(coalesce|make) ([^`\n]+)`")
LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")
PATH = re.compile(r"`((?:api|evals|rag|indexes|tests|tools|docs)/[\w./-]+)`")
VARIABLE = re.compile(r"COALESCE_[A-Z]\w+")
ID = re.compile(r"\b[0-9a-f]{16}\b")

LIGHT = ("ask", "search", "list", "add", "remove", "doctor", "quiz", "dataset", "memory")
"""Commands of the README that are quick enough for every run of the tests; a slow test runs the others."""
SHORTER = {"eval": ("--limit", "4"), "dataset": ("--limit", "2"), "tune": ("--max-steps", "1")}
"""Options that the slow test adds, so that a command ends soon."""
FRUITLESS = {"coalesce dataset books/ --generator": "None of", "--preferences sampled": "There are 0 preferences"}
"""What a model with random weights cannot do, and how the command says so."""


class Shown(NamedTuple):
    """A `coalesce` or `make` command of a document's block, its line, and the lines shown below it."""

    words: list[str]
    line: str
    output: list[str]


def shown_in(document: Path) -> Iterator[Shown]:
    """The commands of `console` blocks, behind `$ `, and of blocks without a language."""
    for language, block in FENCE.findall(document.read_text("utf-8")):
        if language not in ("", "console"):
            continue
        shown: list[Shown] = []
        for line in block.replace("\\\n", " ").splitlines():
            if language and not line.startswith("$ "):
                shown[-1].output.append(line)
            else:
                shown.append(Shown(command_of(line.removeprefix("$ ")), line, []))
        yield from (each for each in shown if each.words)


def command_of(line: str) -> list[str]:
    """The line's command, if it is one of ours; variables before it and launchers are left out."""
    words = shlex.split(COMMENT.sub("", line))
    if "api.cli" in words:
        words = ["coalesce", *words[words.index("api.cli") + 1 :]]
    while words and VARIABLE.match(words[0]):
        words.pop(0)
    return words if words and words[0] in ("coalesce", "make") else []


def leaves(command: Any, name: str = "") -> dict[str, Any]:
    """Commands by their full names."""
    if not hasattr(command, "commands"):
        return {name: command}
    below = [leaves(each, f"{name} {part}".strip()) for part, each in command.commands.items()]
    return {name: each for group in below for name, each in group.items()}


@cache
def parser() -> Any:
    """The command line with every command's body taken out."""
    root = typer.main.get_command(app)
    for command in leaves(root).values():
        command.callback = lambda **_: None
    return root


def takes(words: list[str]) -> bool:
    """Whether the command line, or the Makefile, takes the command."""
    program, *arguments = words
    if program == "make":
        targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
        return {argument for argument in arguments if "=" not in argument} <= targets
    return not parser().main(arguments, "coalesce", standalone_mode=False)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_shown_is_taken_and_every_link_and_path_leads_to_a_file(document: Path) -> None:
    for shown in shown_in(document):
        assert takes(shown.words), shown.words
    commands = leaves(parser())
    text = document.read_text("utf-8")
    for program, rest in INLINE.findall(text):
        words = rest.split()
        name = next((name for name in commands if f"{rest} ".startswith(f"{name} ")), None)
        if program == "make":
            assert takes([program, words[0]]), rest
        elif name is None:  # a group of commands, or the command with an option of its own
            assert any(f"{known} ".startswith(f"{words[0]} ") for known in commands), rest
        else:
            taken = {option for each in commands[name].params for option in (*each.opts, *each.secondary_opts)}
            assert {word.split("=")[0] for word in words if word.startswith("--")} <= taken, rest
    assert [link for link in LINK.findall(text) if not (document.parent / link).exists()] == []
    assert [path for path in PATH.findall(text) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("script", ["rag/tuning/launch/recipe.sh TEXTS OUT --resume"])
def test_every_command_of_a_script_is_one_that_the_command_line_takes(script: str, tmp_path: Path) -> None:
    path, *arguments = script.split()
    environment = os.environ | {"COALESCE": "echo coalesce", "PYTHON": "true"}
    command = ["bash", str(ROOT / path), *(word.replace("OUT", str(tmp_path / "out")) for word in arguments)]
    (tmp_path / "out-data").mkdir()
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    commands = [words for line in done.stdout.splitlines() if (words := command_of(line))]
    assert len(commands) >= 5
    assert all(takes(words) for words in commands)


def test_the_map_names_every_module_of_every_floor() -> None:
    """A row of one folder names the modules in it."""
    _, *sections = (ROOT / "docs" / "architecture.md").read_text("utf-8").split("## The way")[0].split("\n**")
    assert [section.split("**")[0] for section in sections] == list(FLOORS)
    for floor, section in zip(FLOORS, sections, strict=True):
        named = set()
        for row in section.splitlines():
            folder = re.match(r"\| `([\w/]+/)` \|", row)
            named |= {f"{folder[1] if folder else ''}{name}" for name in re.findall(r"`(\w+\.py)`", row)}
        modules = {str(path.relative_to(ROOT / floor)) for path in (ROOT / floor).rglob("*.py")}
        assert named == {name for name in modules if not name.endswith("__init__.py")}


def test_every_document_named_in_the_code_exists_and_every_variable_named_is_a_setting() -> None:
    settings = {f"COALESCE_{name.upper()}" for name in CoalesceSettings.model_fields}
    for path in (*DOCUMENTS, *PRODUCT, *DEPLOYED):
        assert set(VARIABLE.findall(path.read_text("utf-8"))) <= settings, path
    for path in SOURCES:
        named = set(re.findall(r"docs/[\w-]+\.md", path.read_text("utf-8")))
        assert [name for name in named if not (ROOT / name).exists()] == [], path


def test_the_container_copies_what_exists_and_starts_what_the_command_line_takes() -> None:
    container = (ROOT / "deploy" / "Containerfile").read_text("utf-8")
    copied = [line.split()[1:-1] for line in re.findall(r"^COPY .+$", container, re.MULTILINE)]
    assert [name for line in copied for name in line if not (ROOT / name).exists()] == []
    _, *start = json.loads(re.findall(r"^CMD (\[.+\])$", container, re.MULTILINE)[0])
    assert takes(["coalesce", *start])


def test_the_snippets_of_the_readme_are_calls_that_the_server_takes(tmp_path, capsys):
    blocks = FENCE.findall(README.read_text("utf-8"))
    (code,) = (block for language, block in blocks if language == "python")
    calls = [shlex.split(line) for _, block in blocks for line in block.splitlines() if line.startswith("curl ")]
    assert calls
    with running(load_settings({"home": tmp_path / "home"})) as live:
        exec(compile(code.replace("http://127.0.0.1:8000", live.address), "README.md", "exec"), {})
        assert "32 threads" in capsys.readouterr().out
        for words in calls:
            path = next(word for word in words if word.startswith("localhost:8000")).removeprefix("localhost:8000")
            if "-d" in words:
                reply = live.client.post(path, json=json.loads(words[words.index("-d") + 1]))
            else:
                field, _, name = words[words.index("-F") + 1].partition("=@")
                reply = live.client.post(path, files={field: (name, b"%PDF-1.7 tiles")})
            assert reply.status_code in (httpx.codes.OK, httpx.codes.ACCEPTED), reply.text


@pytest.fixture
def at_home(sample_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with the bundled book; beside it a book, and questions about it, for the commands that take them."""
    home, books = tmp_path / "home", tmp_path / "books"
    shutil.copytree(sample_home, home)
    books.mkdir()
    tiles = "Tiles of a matrix are loaded into shared memory by all threads of a block, and each copies one element. "
    (books / "tiles.md").write_text(f"# Tiles\n\n## Loading\n\n{tiles * 4}\n", "utf-8")
    gold = [{"file": "tiles.md", "heading": "Loading", "part": 1, "evidence": "loaded into shared memory"}]
    asked = {"id": "a", "question": "Where are tiles loaded?", "answer": "Into shared memory.", "gold": gold}
    (tmp_path / "mine.jsonl").write_text(json.dumps(asked), "utf-8")
    monkeypatch.setenv("COALESCE_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    return home


@pytest.mark.integration
@pytest.mark.usefixtures("at_home")
def test_the_light_commands_of_the_readme_print_what_it_shows(tiny_model, monkeypatch, capsys):
    stand_ins = {"MODEL": str(tiny_model)}
    ran = set()
    for words, _, output in shown_in(README):
        if words[0] != "coalesce" or words[1] not in LIGHT:
            continue
        monkeypatch.setattr("sys.stdin", io.StringIO(""))
        status = run([stand_ins.get(word, word) for word in words[1:]])
        printed = capsys.readouterr()
        assert status == 0, f"{words}\n{printed.err}"
        for line in output:
            expected = " ".join(ID.sub("ID", line.partition("…")[0]).split())
            assert expected in " ".join(ID.sub("ID", printed.out).split()), words
        if words[1] == "add":
            stand_ins["ID"] = printed.out.split()[-1]
        ran.add(words[1])
    assert ran == set(LIGHT)


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("document", [README, ROOT / "docs" / "serving.md"], ids=lambda path: path.name)
def test_the_other_commands_of_a_document_run(document, at_home, tiny_model, monkeypatch, capsys):
    """Servers last, since they take adapters that others make."""
    shutil.copytree(at_home, library_home([SAMPLE_PATH], load_settings({"home": at_home}).index))
    with closing(ConversationStore(at_home / "conversations.sqlite3")) as store:
        worse = make_answer("Use barriers.", id="worse", arm="base")
        better = replace(worse, id="better", answer="A warp is 32 threads.", arm="tuned")
        store.vote([worse, better], "tuned", blind=True)
    monkeypatch.setattr("evals.experiment.QUICK_STEPS", 1)
    with fake_engine() as engine:
        stand_ins = dict.fromkeys(("NAME", "BASE"), MODEL) | {"http://127.0.0.1:8001/v1": engine.address}
        quick = set(LIGHT) - {"dataset"} if document == README else ()
        here = [each for each in shown_in(document) if "accelerate" not in each.line]  # which shards on GPUs only
        shown = [each.words for each in here if each.words[0] == "coalesce" or "serve" in each.words]
        shown = [words for words in shown if words[1] not in quick and "qwen2.5-coder-1.5b" not in words]
        for line in sorted(shown, key=lambda words: words[1] == "serve"):
            models = {word: str(tiny_model) for word in line if word == "MODEL" or word.startswith("Qwen/")}
            words = [(stand_ins | models).get(word, word) for word in line]
            if words[1] == "serve":
                runs_a_server(words, at_home, engine, monkeypatch)
                continue
            if "--out" in words and words[1] != "dataset" and "--resume" not in words:
                shutil.rmtree(words[words.index("--out") + 1], ignore_errors=True)
            status = run([*words[1:], *SHORTER.get(words[1], ())])
            errors = capsys.readouterr().err
            fruitless = [said for part, said in FRUITLESS.items() if part in " ".join(line)]
            assert status == bool(fruitless), f"{line}\n{errors}"
            assert all(said in errors for said in fruitless)


def runs_a_server(words: list[str], home: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts the server as shown, asks a question, and stops it."""
    kind = words[words.index("--generator") + 1] if "--generator" in words else "extractive"
    if kind == "vllm":
        monkeypatch.setenv("COALESCE_VLLM", f"{sys.executable} {ROOT / 'tests' / 'fake_vllm.py'} serve")
    engine.models = [MODEL, *(word.partition("=")[2] for word in words if word.startswith("qa="))]
    made = words[0] == "make"
    live = start(home, *words[2:], command=make_serve(home.parent) if made else COALESCE_SERVE)
    reply = live.client.post("/v1/ask", json={"question": "What is a warp?"})
    assert reply.json().get("generator") == kind, reply.text
    # make passes on this signal, and ends by it
    assert stop(live, signal.SIGTERM if made else signal.SIGINT) == (-signal.SIGTERM if made else 0)


def make_serve(folder: Path) -> list[str]:
    """`make serve` with the environment of these tests in place of its own, which it takes for up to date."""
    environment = folder / "venv"
    environment.mkdir(exist_ok=True)
    (environment / "bin").symlink_to(Path(sys.executable).parent)
    (environment / ".serving-cpu").touch()
    return ["make", "-C", str(ROOT), "serve", f"VENV={environment}"]


def test_every_promise_of_the_security_page_has_its_tests() -> None:
    promises = re.findall(r"^\| .+ \| (`.+) \|$", (ROOT / "SECURITY.md").read_text(encoding="utf-8"), re.MULTILINE)
    named = {name for cell in promises for name in re.findall(r"`([^`]+)`", cell)}
    written = "\n".join(path.read_text(encoding="utf-8") for path in ROOT.glob("tests/**/test_*.py"))
    assert len(promises) >= 10
    assert [name for name in named if not ((ROOT / name).is_file() or f"def {name}(" in written)] == []


def test_no_model_brings_code_with_it_and_no_host_is_named() -> None:
    for path in (path for floor in FLOORS for path in (ROOT / floor).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"trust_remote_code\W+True|torch\.load\(|allow_pickle=True", text), path
        hosts = set(re.findall(r"https?://([\w.-]*\w)", text))
        meant = {host for host in hosts if not host.startswith(("127.", "localhost", "HOST")) and "example" not in host}
        assert meant <= {"www.w3.org", "github.com"}, (path, meant)
