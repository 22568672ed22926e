"""`tune`, `export`, `quantize` and `memory` from the command line, Ctrl-C included."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from fakes import ScriptedGenerator
from tiny_models import edit_json

from api.cli import run, tuning
from api.console import Console
from evals.questions import load_bank
from rag.generators.prompts import REFUSAL
from rag.tuning.data import TrainingRow, write_dataset
from rag.tuning.preferences import SAMPLES
from rag.tuning.settings import TuneProgress

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("one_thread")]

ROWS = [TrainingRow(f"What is number {n % 4}?", f"It is {n % 4}.", section=f"s{n % 4}") for n in range(16)]
QUICK = ["--quantization", "none", "--rank", "8", "--batch-size", "2", "--accumulation", "1", "--max-length", "256"]


@pytest.fixture
def model(tiny_model: Path) -> str:
    return str(tiny_model)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_dataset(ROWS, tmp_path / "data")
    return tmp_path / "data"


def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_tuning_exporting_and_quantizing_work_end_to_end(tmp_path, model, data, capsys):
    out = tmp_path / "adapter"
    tune = ["tune", "--model", model, "--data", str(data), "--out", str(out), "--max-steps", "4", *QUICK, "--json"]
    assert run(tune) == 0
    report = printed(capsys)
    contract = {"adapter", "steps", "train_loss", "eval_loss", "tokens_per_s", "peak_memory_bytes", "seconds"}
    assert contract <= report.keys()
    assert (report["adapter"], report["steps"]) == (str(out), 4)

    assert run(tune) == 1
    assert "--resume" in capsys.readouterr().err

    exported = tmp_path / "exported"
    command = ["export", "--model", "Qwen/Qwen3-8B", "--adapter", str(out), "--out", str(exported), "--json"]
    assert run(command) == 0
    assert printed(capsys)["findings"] == []
    merged = tmp_path / "merged"
    assert run(["export", "--model", model, "--adapter", str(out), "--out", str(merged), "--merge", "--json"]) == 0
    assert printed(capsys)["kind"] == "merged"
    assert (merged / "config.json").is_file()

    quantized = tmp_path / "nf4"
    assert run(["quantize", "--model", model, "--out", str(quantized), "--json"]) == 0
    sizes = printed(capsys)
    assert sizes["after_bytes"] < sizes["before_bytes"]


def test_memory_prints_the_contracts_fields(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["memory", "--model", str(Path(model) / "config.json"), "--context", "100", "--json"]) == 0
    serving = printed(capsys)
    names = ("weights", "kv_cache", "adapter", "optimizer", "activation")
    assert serving["total_bytes"] == sum(serving[f"{name}_bytes"] for name in names)
    assert run(["memory", "--model", model, "--train", "--rank", "8", "--json"]) == 0
    assert printed(capsys)["optimizer_bytes"] > 0
    assert run(["memory", "--model", model]) == 0
    said = capsys.readouterr().out
    assert "GiB" in said and "quantization none" in said


def test_a_broken_line_and_a_missing_model_are_reported_without_a_traceback(tmp_path, model, data, capsys):
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"instruction": "a", "output": "b"}\n{oops\n', "utf-8")
    assert run(["tune", "--model", model, "--data", str(broken), "--out", str(tmp_path / "x")]) == 1
    said = capsys.readouterr().err
    assert "broken.jsonl:2: not JSON (Expecting property name enclosed in double quotes, column 2)." in said
    assert "Traceback" not in said
    assert run(["tune", "--model", "./nowhere", "--data", str(data), "--out", str(tmp_path / "y")]) == 1
    assert "does not exist" in capsys.readouterr().err
    assert run(["memory", "--model", "./nowhere"]) == 1
    assert "does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["tune", "export", "quantize"])
def test_a_folder_that_cannot_be_made_is_named(tmp_path, model, tiny_adapter, data, capsys, command):
    (tmp_path / "file").write_text("in the way", "utf-8")
    options = {"tune": ["--data", str(data), *QUICK], "export": ["--adapter", str(tiny_adapter)], "quantize": []}
    assert run([command, "--model", model, "--out", str(tmp_path / "file" / "out"), *options[command]]) == 1
    said = capsys.readouterr().err
    assert "cannot be made: Not a directory" in said
    assert str(tmp_path / "file") in said
    assert "--out" in said


def test_a_config_with_a_wrong_value_is_named_with_it(tmp_path, model, capsys):
    config = tmp_path / "config.json"
    config.write_bytes((Path(model) / "config.json").read_bytes())
    edit_json(config, hidden_size="many")
    assert run(["memory", "--model", str(config)]) == 1
    said = capsys.readouterr().err
    assert "hidden_size" in said
    assert "many" in said
    assert "inside Coalesce" not in said


def test_ctrl_c_writes_a_checkpoint_and_the_run_goes_on(tmp_path, model, data, monkeypatch, capsys):
    """A real signal, in this process: another one would import the libraries for longer than it trains."""
    show = tuning._show
    steps: list[int] = []

    def show_then_interrupt(console: Console, now: TuneProgress) -> None:
        show(console, now)
        steps.append(now.step)
        if steps.count(30) == 1 and now.step == 30:  # a tenth of the run: the first step whose loss is shown
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(tuning, "_show", show_then_interrupt)
    handler = signal.getsignal(signal.SIGINT)
    out = tmp_path / "adapter"
    command = [
        "tune", "--model", model, "--data", str(data), "--out", str(out),
        "--max-steps", "300", "--checkpoint-steps", "1000", "--validation-share", "0", *QUICK,
    ]  # fmt: skip
    assert run(command) == 130
    text = capsys.readouterr().err
    assert "\nstep " in text
    assert "Go on with --resume" in text
    assert "Traceback" not in text
    assert len(steps) < 300
    assert signal.getsignal(signal.SIGINT) is handler
    assert len(list((out / "checkpoints").glob("checkpoint-*/complete"))) == 1
    assert not (out / "adapter_model.safetensors").exists()


def test_preferences_are_sampled_for_the_answered_questions_of_the_bank(tmp_path, monkeypatch, capsys):
    """A row to be refused shows no passage with the facts, so to state them there is no better answer."""
    question = next(question.question for question in load_bank(split="tune") if question.key_facts)
    rows = [TrainingRow(question, "Yes."), TrainingRow(question, REFUSAL), TrainingRow("Is it mine?", "Yes.")]
    write_dataset(rows, tmp_path / "data")
    writer = ScriptedGenerator()
    monkeypatch.setattr("rag.assemble.build_language_model", lambda *_: writer)
    command = ["tune", "--model", str(tmp_path), "--data", str(tmp_path / "data"), "--preferences", "sampled"]
    assert run([*command, "--out", str(tmp_path / "out")]) == 1
    assert "There are 0 preferences" in capsys.readouterr().err
    assert [request.question for request in writer.requests] == [question] * SAMPLES
