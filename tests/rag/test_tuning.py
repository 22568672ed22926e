"""Training: only answers are learnt, gradients are right, an interrupted run ends as if it had not been."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import answer_of
from tiny_models import build_model, build_tokenizer

from indexes.errors import Cancelled, Conflict, InvalidInput, StorageFull
from rag.errors import AdapterMismatch, MalformedTrainingData, ModelCannotLoad
from rag.generators.chat_prompt import ChatPrompt
from rag.generators.local.generator import load_local_generator
from rag.generators.protocol import GenerationRequest
from rag.models.adapters import read_adapter
from rag.models.folder import load_config
from rag.settings import GeneratorSettings
from rag.tuning import train
from rag.tuning.data import RowPassage, TrainingRow
from rag.tuning.examples import IGNORED, answer_loss, collate, encode_rows
from rag.tuning.settings import TuneProgress, TuneReport, TuneSettings, place_process
from rag.tuning.train import LengthSampler, add_lora, keep_gradients_right, load_for_training, tune
from rag.types import Arm

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("one_thread")]
PAIRS = (
    ("What is a warp?", "A warp is 32 threads."),
    ("What is occupancy?", "Active warps over maximum warps."),
    ("What makes a barrier?", "__syncthreads() does."),
    ("What is coalescing?", "Consecutive threads touch consecutive addresses."),
)
ROWS = [TrainingRow(q, a, section=q) for q, a in PAIRS for _ in range(4)]
QUICK = TuneSettings(
    quantization="none", dtype="float32", device="cpu", rank=8, alpha=16, learning_rate=3e-3, batch_size=2,
    accumulation=1, max_tokens=256, max_steps=8, checkpoint_steps=4, log_steps=1, validation_share=0.25,
)  # fmt: skip


@pytest.fixture(scope="module")
def shallow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of one layer, on which a step of training takes a third of the time."""
    return build_model(tmp_path_factory.mktemp("models") / "shallow", num_hidden_layers=1)


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, its report, and the progress it reported."""

    out: Path
    report: TuneReport
    seen: list[TuneProgress]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, shallow: Path) -> Run:
    """A run of `QUICK` on `shallow`, to be looked at and never written to."""
    out = tmp_path_factory.mktemp("tuned") / "out"
    seen: list[TuneProgress] = []
    return Run(out, tune(str(shallow), ROWS, out, QUICK, progress=seen.append), seen)


@pytest.fixture(scope="module")
def biased_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen2 shape: its attention has biases, wide enough for 4-bit blocks."""
    return build_model(tmp_path_factory.mktemp("models") / "qwen2", family="qwen2", num_hidden_layers=1)


def stop_after(steps: int) -> tuple[Callable[[TuneProgress], None], Callable[[], bool]]:
    """(progress, cancelled) that stop a run after some steps."""
    seen = [0]
    return (lambda progress: seen.append(progress.step)), (lambda: seen[-1] >= steps)


def weights(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return dict(load_file(folder / "adapter_model.safetensors"))


def equal(first: Path, second: Path) -> bool:
    import torch

    a, b = weights(first), weights(second)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_only_the_answer_is_learnt() -> None:
    tokenizer = build_tokenizer()
    row = TrainingRow("What is a warp?", "A warp is 32 threads.", passages=(RowPassage("B", ("S",), "A warp…"),))
    encoded = encode_rows(tokenizer, [row], 512).rows[0]
    learnt = [token for token in encoded.labels if token != IGNORED]
    assert tokenizer.decode(learnt) == "A warp is 32 threads.<|im_end|>\n"
    unlearnt = encoded.labels.count(IGNORED)
    assert encoded.labels[:unlearnt] == [IGNORED] * unlearnt
    assert encoded.input_ids[unlearnt:] == learnt
    prompt = ChatPrompt(tokenizer, "tiny").message_tokens(row.messages()[:-1])
    assert encoded.input_ids[:unlearnt] == prompt  # what serving puts before the answer
    everything = encode_rows(tokenizer, [row], 512, train_on_prompt=True).rows[0]
    assert everything.labels == everything.input_ids


def test_a_template_that_rewrites_the_prompt_still_trains_behind_the_serving_prompt() -> None:
    """Some templates open a reasoning block for the answer to come, and leave it out of finished answers."""
    tokenizer = build_tokenizer()
    tokenizer.chat_template = tokenizer.chat_template.replace("assistant\n{% endif %}", "assistant\n<think>{% endif %}")
    encoded = encode_rows(tokenizer, [ROWS[0]], 512).rows[0]
    learnt = [token for token in encoded.labels if token != IGNORED]
    assert tokenizer.decode(learnt) == "A warp is 32 threads.<|im_end|>"
    before = tokenizer.decode(encoded.input_ids[: -len(learnt)])
    assert before.endswith("assistant\n<think>")


def test_a_template_without_system_role_gets_its_text_before_the_question() -> None:
    tokenizer = build_tokenizer()
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    tokenizer.chat_template = refuses + tokenizer.chat_template
    text = tokenizer.decode(ChatPrompt(tokenizer, "tiny").message_tokens(ROWS[0].messages()[:-1]))
    assert text.startswith("<|im_start|>user\nYou answer questions")
    assert "What is a warp?" in text


def test_the_loss_is_the_mean_over_answer_tokens_alone(shallow: Path) -> None:
    import torch

    loaded = load_for_training(str(shallow), QUICK, place_process("cpu"))
    rows = encode_rows(loaded.tokenizer, ROWS[:6:2], 256).rows
    batch = collate(rows, 0)
    labels = batch.pop("labels")
    loss = float(answer_loss(loaded.model(**batch), labels))
    total, count = 0.0, 0
    for row in rows:
        with torch.no_grad():
            logits = loaded.model(input_ids=torch.tensor([row.input_ids])).logits[0].log_softmax(-1)
        for place, label in enumerate(row.labels):
            if label != IGNORED:
                total -= float(logits[place - 1, label])
                count += 1
    assert loss == pytest.approx(total / count, abs=1e-4)
    assert float(answer_loss(loaded.model(**batch), labels, count)) == pytest.approx(total / count, abs=1e-4)
    assert len(loaded.model(**batch).logits) == count  # no logits of prompts and padding


def test_rows_of_like_length_share_a_batch_in_an_order_of_the_seed_and_epoch() -> None:
    lengths = [number * 37 % 400 for number in range(400)]

    def order(seed: int, epoch: int) -> list[int]:
        return list(LengthSampler(lengths, 8, seed, lambda: epoch))

    def padding(places: list[int]) -> int:
        batches = [[lengths[place] for place in places[start : start + 2]] for start in range(0, 400, 2)]
        return sum(max(batch) * 2 - sum(batch) for batch in batches)

    assert sorted(order(0, 0)) == list(range(400))
    assert lengths[order(0, 0)[0]] == max(lengths)  # what runs out of memory does so at once
    assert padding(order(0, 0)) < padding(list(range(400))) / 5
    assert order(0, 0) == order(0, 0) != order(0, 1) != order(1, 0)


def test_the_adapter_of_the_lowest_validation_loss_is_kept(tmp_path: Path, shallow: Path) -> None:
    out = tmp_path / "out"
    report = tune(
        str(shallow), ROWS, out, replace(QUICK, max_steps=7, learning_rate=1e-2, checkpoint_steps=2, patience=0)
    )
    points = [json.loads(line) for line in (out / "loss.jsonl").read_text("utf-8").splitlines()]
    losses = {int(point["step"]): point["eval_loss"] for point in points if "eval_loss" in point}
    assert list(losses) == [0, 2, 4, 6, 7], "the base and the last step are validated too"
    assert report.eval_loss == losses[report.best_step] == min(losses.values())
    assert equal(out, out / "checkpoints" / f"checkpoint-{report.best_step}")
    assert "lowest validation loss" in (out / "loss.svg").read_text("utf-8")


@pytest.mark.parametrize(
    ("losses", "patience", "stops"),
    [([3, 2, 2, 4], 2, True), ([3, 2, 4], 2, False), ([3, 4, 2], 2, False), ([1, 2, 3, 4], 0, False)],
)
def test_training_stops_when_the_validation_loss_no_longer_falls(
    tmp_path: Path, losses: list[float], patience: int, stops: bool
) -> None:
    """The losses are the log's: a resumed run has those from before."""
    control = SimpleNamespace(should_training_stop=False)
    log = [entry for loss in losses for entry in ({"loss": 1.0}, {"eval_loss": loss})]
    watcher = train._watcher(train.RunFolder(tmp_path), patience, lambda _: None, lambda: False)
    watcher.on_evaluate(None, SimpleNamespace(log_history=log), control)
    assert control.should_training_stop == stops


@pytest.mark.parametrize(
    ("targets", "kinds", "layers"),
    [("q_proj, v_proj", {"q_proj", "v_proj"}, 6), (r".*\.0\.mlp\.(up|down)_proj", {"up_proj", "down_proj"}, 2)],
)
def test_target_modules_are_names_or_a_regular_expression(
    tmp_path: Path, tiny_model: Path, targets: str, kinds: set[str], layers: int
) -> None:
    settings = replace(QUICK, max_steps=1, validation_share=0.0, target_modules=targets)
    tune(str(tiny_model), ROWS, tmp_path / "out", settings)
    adapted = read_adapter(tmp_path / "out").layers
    assert {layer.module.rpartition(".")[2] for layer in adapted} == kinds
    assert len(adapted) == layers


@pytest.mark.parametrize(("targets", "said"), [("query", "It has the layers"), ("q_(proj", "regular expression")])
def test_target_modules_that_are_not_there_are_refused(tmp_path: Path, shallow: Path, targets: str, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        tune(str(shallow), ROWS, tmp_path / "out", replace(QUICK, target_modules=targets))
    assert said in str(refused.value.hint)
    assert targets in refused.value.message


def test_a_mixture_is_adapted_at_its_attention_alone(tmp_path: Path) -> None:
    """A dense layer and shared experts are called as the experts are, which are one block."""
    shape = {
        "kv_lora_rank": 24, "q_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16,
        "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2,
        "moe_intermediate_size": 64, "first_k_dense_replace": 1, "num_key_value_heads": 8, "num_hidden_layers": 2,
    }  # fmt: skip
    mixture = build_model(tmp_path, family="deepseek_v2", **shape)
    model = add_lora(load_for_training(str(mixture), QUICK, place_process("cpu")), QUICK)
    names = [name.partition(".lora_A") for name, _ in model.named_parameters()]
    adapted = {layer.rpartition(".")[2] for layer, found, _ in names if found}
    assert adapted == {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"}


def test_a_model_without_linear_layers_is_refused_before_it_is_tuned(tmp_path: Path) -> None:
    old = build_model(tmp_path / "old", family="gpt2", n_embd=64, n_layer=1, n_head=4)
    with pytest.raises(ModelCannotLoad, match="no linear layers that could be adapted"):
        tune(str(old), ROWS, tmp_path / "run", QUICK)


def test_neftune_adds_noise_while_training_only(tmp_path: Path, shallow: Path) -> None:
    settings = replace(QUICK, max_steps=1, dropout=0.0, learning_rate=1e-9)
    plain = tune(str(shallow), ROWS, tmp_path / "plain", settings)
    noisy = tune(str(shallow), ROWS, tmp_path / "noisy", replace(settings, neftune=50.0))
    assert noisy.train_loss != plain.train_loss
    assert noisy.eval_loss == pytest.approx(plain.eval_loss, abs=1e-6)


def test_checkpointed_activations_give_the_same_adapter(tmp_path: Path, shallow: Path) -> None:
    settings = replace(QUICK, max_steps=2, validation_share=0.0)
    for name, switch in (("kept", False), ("again", True)):
        tune(str(shallow), ROWS, tmp_path / name, replace(settings, activation_checkpointing=switch))
    kept, again = weights(tmp_path / "kept"), weights(tmp_path / "again")
    assert all(kept[name].allclose(again[name], atol=1e-5) for name in kept)


def test_a_graphics_card_trains_over_4_bits_and_a_processor_over_plain_weights() -> None:
    assert TuneSettings().over("cuda").quantization == "nf4"
    assert TuneSettings().over("cpu").quantization == "none"
    assert TuneSettings(quantization="nf4").over("cpu").quantization == "nf4"


def test_long_rows_lose_their_last_passages_before_they_are_left_out() -> None:
    tokenizer = build_tokenizer()
    passages = tuple(RowPassage("B", (), f"Passage {n} " + "warp " * 100) for n in range(3))
    rows = [TrainingRow("Q?", "A.", passages=passages), TrainingRow("Q?", "warp " * 900)]
    encoded = encode_rows(tokenizer, rows, 700)
    assert (len(encoded.rows), encoded.shortened, encoded.dropped) == (1, 1, 1)
    text = tokenizer.decode(encoded.rows[0].input_ids)
    assert "Passage 0" in text
    assert "Passage 2" not in text
    cites = replace(rows[0], answer="A. [3]")
    assert (encode_rows(tokenizer, [*rows, cites], 700).dropped) == 2  # it would cite what it does not see
    with pytest.raises(MalformedTrainingData, match="fits into 30 tokens"):
        encode_rows(tokenizer, [ROWS[0]], 30)


@pytest.mark.parametrize(
    ("quantization", "kinds"), [("nf4", {}), ("none", {"rslora": True, "dora": True})], ids=["QLoRA", "rsLoRA and DoRA"]
)
def test_a_tuned_model_gives_the_answers_it_was_taught(
    tmp_path: Path, shallow: Path, quantization: str, kinds: dict[str, bool]
) -> None:
    settings = replace(
        QUICK, quantization=quantization, dtype="auto", max_steps=40, learning_rate=1e-2, validation_share=0.0,
        checkpoint_steps=40, activation_checkpointing=False, **kinds,
    )  # fmt: skip
    report = tune(str(shallow), ROWS[:8], tmp_path / "out", settings)
    assert (report.steps, report.eval_loss, report.warning) == (40, None, "") and report.tokens_per_s > 0
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text("utf-8"))
    assert (config["use_rslora"], config["use_dora"]) == (bool(kinds), bool(kinds))
    generator = load_local_generator(
        GeneratorSettings(
            kind="local", model=str(shallow), quantization=quantization, device="cpu", max_tokens=40,
            adapters={"qa": report.adapter},
        )
    )  # fmt: skip

    arms: list[tuple[Arm, str | None]] = [("tuned", "qa"), ("base", None)]
    with closing(generator):
        for question, answer in PAIRS[:2]:
            texts = [answer_of(generator, GenerationRequest(question, arm, adapter=name))[0] for arm, name in arms]
            assert texts[0].strip() == answer != texts[1].strip()


def test_the_run_leaves_an_adapter_its_record_and_a_loss_curve(finished: Run) -> None:
    out, report, seen = finished.out, finished.report, finished.seen
    assert [progress.step for progress in seen] == list(range(9)), "what is shown while the first step runs comes first"
    assert seen[-1].total_steps == 8
    assert report.eval_loss is not None
    assert (report.split_by, report.validation_rows) == ("section", 4)
    adapter = read_adapter(out)
    kinds = {layer.module.rpartition(".")[2] for layer in adapter.layers}
    assert kinds == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert adapter.record is not None
    assert adapter.record.num_rows == 16
    assert adapter.record.settings["rank"] == 8
    assert adapter.record.metrics["eval_loss"] == report.eval_loss
    points = [json.loads(line) for line in (out / "loss.jsonl").read_text("utf-8").splitlines()]
    assert sum("loss" in point for point in points) == 8
    assert "<polyline" in (out / "loss.svg").read_text("utf-8")
    assert not (out / "training_args.bin").exists()


def test_an_interrupted_run_resumes_to_the_same_bits(tmp_path: Path, shallow: Path) -> None:
    """Over four bits, dropout on, validation in between: every source of randomness has to be restored."""
    settings = replace(QUICK, quantization="nf4", dtype="auto", dropout=0.1)
    whole = tune(str(shallow), ROWS, tmp_path / "whole", settings)
    progress, cancelled = stop_after(5)
    with pytest.raises(Cancelled, match="stopped at step 5"):
        tune(str(shallow), ROWS, tmp_path / "parts", settings, progress=progress, cancelled=cancelled)
    assert not (tmp_path / "parts" / "adapter_model.safetensors").exists()
    resumed = tune(str(shallow), ROWS, tmp_path / "parts", settings, resume=True)
    assert equal(tmp_path / "whole", tmp_path / "parts")
    for name in ("steps", "eval_loss", "train_loss"):
        assert getattr(resumed, name) == getattr(whole, name) > 0
    losses = [(tmp_path / name / "loss.jsonl").read_text("utf-8") for name in ("whole", "parts")]
    assert losses[0] == losses[1]


def test_a_run_is_stopped_while_its_rows_are_encoded(tmp_path: Path, shallow: Path) -> None:
    polls = iter([False, True])
    with pytest.raises(Cancelled, match="before it began"):
        tune(str(shallow), ROWS, tmp_path / "out", QUICK, cancelled=lambda: next(polls))
    assert not (tmp_path / "out").exists()


def test_what_a_killed_run_leaves_goes_on_from_its_last_checkpoint_to_the_same_bits(
    tmp_path: Path, shallow: Path, finished: Run
) -> None:
    """What lies in the folder two steps behind the first checkpoint is what a kill would leave there."""
    out, left = tmp_path / "out", tmp_path / "left"
    steps = [0]

    def keep_what_is_there(now: TuneProgress) -> None:
        steps.append(now.step)
        if now.step == 6:
            shutil.copytree(out, left)

    with pytest.raises(Cancelled):
        tune(str(shallow), ROWS, out, QUICK, progress=keep_what_is_there, cancelled=lambda: steps[-1] >= 6)
    shutil.rmtree(out)
    left.rename(out)
    assert [mark.parent.name for mark in (out / "checkpoints").glob("*/complete")] == ["checkpoint-4"]
    assert not (out / "adapter_model.safetensors").exists()
    tune(str(shallow), ROWS, out, QUICK, resume=True)
    assert equal(out, finished.out)


@pytest.mark.parametrize("family", ["qwen3", "qwen2"])
def test_validation_leaves_gradients_as_they_were(shallow: Path, biased_model: Path, family: str) -> None:
    """Without `keep_gradients_right` this fails on CPUs with AVX512-BF16: wrong gradients, or an error with biases."""
    import torch

    base = shallow if family == "qwen3" else biased_model
    settings = replace(QUICK, quantization="nf4", dtype="bfloat16", dropout=0.0)
    loaded = load_for_training(str(base), settings, place_process("cpu"))
    model = add_lora(loaded, settings)
    batch = collate(encode_rows(loaded.tokenizer, ROWS[:4], 256).rows, 0)
    labels = batch.pop("labels")

    def gradients() -> dict[str, Any]:
        model.train()
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = answer_loss(model(**batch), labels)
        loss.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    before = gradients()
    model.eval()
    with torch.no_grad():
        model(**batch)
    after = gradients()
    assert before.keys() == after.keys()
    assert len(before) > 10
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_finished_or_other_run_is_not_overwritten(shallow: Path, finished: Run) -> None:
    with pytest.raises(Conflict, match="already holds a training run"):
        tune(str(shallow), ROWS, finished.out, QUICK)
    with pytest.raises(Conflict, match="was started with other training data"):
        tune(str(shallow), ROWS[1:], finished.out, QUICK, resume=True)
    with pytest.raises(Conflict, match=f"was started with rank {QUICK.rank}, not 4\\.$"):
        tune(str(shallow), ROWS, finished.out, replace(QUICK, rank=4), resume=True)


def test_a_finished_run_is_made_longer_by_resuming_with_more_steps(
    tmp_path: Path, shallow: Path, finished: Run
) -> None:
    shutil.copytree(finished.out, tmp_path / "out")
    report = tune(str(shallow), ROWS, tmp_path / "out", replace(QUICK, max_steps=12, patience=0), resume=True)
    points = [json.loads(line) for line in (tmp_path / "out" / "loss.jsonl").read_text("utf-8").splitlines()]
    assert report.steps == 12
    assert [point["step"] for point in points if "loss" in point] == list(range(1, 13))
    assert not equal(tmp_path / "out", finished.out)


@pytest.mark.parametrize(
    ("losses", "validation", "warns"),
    [
        ([2.3, 10.8], [], True),
        ([10.8, 10.8], [], True),
        ([2.3, 2.1], [], False),
        ([1.4, 2.6, 0.3, 2.4], [], False),
        ([2.3, 2.1], [2.2, 2.4, 2.3], True),
        ([2.3, 2.3], [2.2, 2.0, 2.4], False),
        ([2.3, 2.1], [2.2, 2.199], True),
        ([2.3], [2.2], False),
        ([], [], False),
    ],
)
def test_a_loss_that_does_not_fall_is_said_and_one_that_is_no_number_is_an_error(
    losses: list[float], validation: list[float], warns: bool
) -> None:
    history = [{"step": step, "loss": loss} for step, loss in enumerate(losses, 1)]
    history += [{"step": step, "eval_loss": loss} for step, loss in enumerate(validation)]
    assert ("--learning-rate" in train._loss_warning(history, 1e6)) == warns
    for nonsense in (float("nan"), float("inf")):
        with pytest.raises(InvalidInput, match="no longer a finite number"):
            train._loss_warning([*history, {"step": 9, "loss": nonsense}], 1e6)


def test_a_learning_rate_that_teaches_nothing_is_said(tmp_path: Path, shallow: Path) -> None:
    settings = replace(QUICK, learning_rate=1e-9, validation_share=0.4, max_steps=2)
    assert "--learning-rate" in tune(str(shallow), ROWS, tmp_path / "out", settings).warning


def test_only_the_top_layers_are_adapted_where_so_many_are_named(tmp_path: Path, tiny_model: Path) -> None:
    tune(str(tiny_model), ROWS, tmp_path / "out", replace(QUICK, max_steps=1, top_layers=1))
    layers = {layer.module.split(".layers.")[1].partition(".")[0] for layer in read_adapter(tmp_path / "out").layers}
    assert layers == {str(load_config(str(tiny_model)).num_hidden_layers - 1)}


def test_a_full_disk_loses_no_earlier_checkpoint(
    tmp_path: Path, shallow: Path, finished: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    save = torch.save
    calls = 0

    def full(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 4:  # in the middle of the second checkpoint
            raise OSError(errno.ENOSPC, "No space left on device")
        return save(*args, **kwargs)

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(StorageFull, match="the last complete checkpoint is kept"):
        tune(str(shallow), ROWS, tmp_path / "out", QUICK)
    monkeypatch.setattr(torch, "save", save)
    assert [folder.name for folder in (tmp_path / "out" / "checkpoints").iterdir()] == ["checkpoint-4"]
    tune(str(shallow), ROWS, tmp_path / "out", QUICK, resume=True)
    assert equal(tmp_path / "out", finished.out)


def test_an_adapter_is_refused_by_another_base_of_the_same_shape(tmp_path: Path, finished: Run) -> None:
    twin = build_model(tmp_path / "twin", seed=99, num_hidden_layers=1)
    with pytest.raises(AdapterMismatch, match="was trained on"):
        load_local_generator(
            GeneratorSettings(kind="local", model=str(twin), quantization="none", adapters={"qa": str(finished.out)})
        )


def test_passages_can_be_left_out_of_the_prompts(
    tmp_path: Path, shallow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "train_adapter", lambda _, lessons, *__, **___: lessons)
    rows = [replace(row, passages=(RowPassage("B", (), "A warp is 32 threads."),)) for row in ROWS]
    shown, left_out, none = (
        tune(str(shallow), given, tmp_path, replace(QUICK, passages=passages, max_tokens=512))
        for given, passages in ((rows, True), (rows, False), (ROWS, True))
    )
    assert shown.with_passages and shown.train != none.train  # type: ignore[attr-defined]
    assert left_out == none


@pytest.mark.parametrize(
    "change", [{"rank": 0}, {"epochs": 0}, {"batch_size": 0}, {"quantization": "int8"}, {"patience": -1}]
)
def test_settings_that_no_run_can_have_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        tune("anything", ROWS, tmp_path, replace(QUICK, **change))


def test_repacking_is_switched_off_for_every_quantized_layer(shallow: Path) -> None:
    settings = replace(QUICK, quantization="nf4", dtype="bfloat16")
    model = load_for_training(str(shallow), settings, place_process("cpu")).model
    flags = [m.support_avx512bf16_for_cpu for m in model.modules() if hasattr(m, "support_avx512bf16_for_cpu")]
    assert len(flags) == 7
    assert not any(flags)
    keep_gradients_right(model)
