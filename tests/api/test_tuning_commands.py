"""`tune`, `export`, `quantize` and `memory` from the command line, Ctrl-C included."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from fakes import ScriptedGenerator
from tiny_models import edit_json

from api import generator
from api.cli import run, tuning
from api.console import Console
from evals.questions import load_bank
from rag.generators.prompts import REFUSAL
from rag.tuning.data import TrainingRow, write_dataset
from rag.tuning.preferences import SAMPLES
from rag.tuning.settings import TuneProgress, TuneReport, TuneSettings

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


def test_tuning_exporting_and_quantizing_work_end_to_end(tmp_path, model, data, coalesce):
    out, exported, merged, quantized = (str(tmp_path / name) for name in ("adapter", "exported", "merged", "nf4"))
    tune = ["tune", "--model", model, "--data", str(data), "--out", out, "--max-steps", "4", *QUICK]
    report = coalesce.gives(*tune)
    contract = {"adapter", "steps", "train_loss", "eval_loss", "tokens_per_s", "peak_memory_bytes", "seconds"}
    assert contract <= report.keys()
    assert (report["adapter"], report["steps"]) == (out, 4)
    assert "--resume" in coalesce.refuses(*tune)

    command = ["export", "--model", "Qwen/Qwen3-8B", "--adapter", out, "--out", exported]
    assert coalesce.gives(*command)["findings"] == []
    command = ["export", "--model", model, "--adapter", out, "--out", merged, "--merge"]
    assert coalesce.gives(*command)["kind"] == "merged"
    assert (Path(merged) / "config.json").is_file()
    sizes = coalesce.gives("quantize", "--model", model, "--out", quantized)
    assert sizes["after_bytes"] < sizes["before_bytes"]


def test_an_adapter_whose_training_diverged_is_not_offered_without_a_word(monkeypatch, tmp_path, model, data, coalesce):
    report = TuneReport("out", 3, 10.8, None, 1.0, 1, 1.0, train_rows=8, warning="The loss rose.")
    monkeypatch.setattr("rag.tuning.train.tune", lambda *_, **__: report)
    command = ["tune", "--model", model, "--data", str(data), "--out", str(tmp_path / "out")]
    assert report.warning in coalesce.says(*command)
    said = generator._tune(model, [], tmp_path, TuneSettings(), lambda _: None, lambda: False)
    assert report.warning in said, "the last message of the page's job"


def test_memory_prints_the_contracts_fields(model: str, coalesce) -> None:
    serving = coalesce.gives("memory", "--model", f"{model}/config.json", "--context", "100")
    names = ("weights", "kv_cache", "adapter", "optimizer", "activation")
    assert serving["total_bytes"] == sum(serving[f"{name}_bytes"] for name in names) > 0
    assert coalesce.gives("memory", "--model", model, "--train", "--rank", "8")["optimizer_bytes"] > 0
    assert "GiB" in coalesce.says("memory", "--model", model)


def test_what_cannot_be_read_or_made_is_named(tmp_path, model, tiny_adapter, data, coalesce):
    broken, config = tmp_path / "broken.jsonl", tmp_path / "config.json"
    broken.write_text('{"instruction": "a"}\n{oops\n', "utf-8")
    config.write_bytes((Path(model) / "config.json").read_bytes())
    edit_json(config, hidden_size="many")
    out, in_the_way = str(tmp_path / "out"), str(broken / "out")
    tune, to_nowhere = ["tune", "--data", str(data), *QUICK], ["--model", model, "--out", in_the_way]
    for arguments, named in (
        (["tune", "--model", model, "--data", str(broken), "--out", out], ["broken.jsonl:1"]),
        ([*tune, "--model", "./nowhere", "--out", out], ["nowhere"]),
        (["memory", "--model", "./nowhere"], ["nowhere"]),
        (["memory", "--model", str(config)], ["hidden_size", "many"]),
        ([*tune, *to_nowhere], [str(broken), "--out"]),
        (["export", "--adapter", str(tiny_adapter), *to_nowhere], [str(broken), "--out"]),
        (["quantize", *to_nowhere], [str(broken), "--out"]),
    ):
        said = coalesce.refuses(*arguments)
        assert all(name in said for name in named), said


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


def test_preferences_are_sampled_for_the_answered_questions_of_the_bank(tmp_path, monkeypatch, coalesce):
    """A row to be refused shows no passage with the facts, so to state them there is no better answer."""
    question = next(question.question for question in load_bank(split="tune") if question.key_facts)
    rows = [TrainingRow(question, "Yes."), TrainingRow(question, REFUSAL), TrainingRow("Is it mine?", "Yes.")]
    write_dataset(rows, tmp_path / "data")
    writer = ScriptedGenerator()
    monkeypatch.setattr("rag.assemble.build_language_model", lambda *_: writer)
    command = ["tune", "--model", str(tmp_path), "--data", str(tmp_path / "data"), "--preferences", "sampled"]
    assert "There are 0 preferences" in coalesce.refuses(*command, "--out", str(tmp_path / "out"))
    assert [request.question for request in writer.requests] == [question] * SAMPLES
