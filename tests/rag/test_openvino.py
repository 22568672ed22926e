"""The processor's engine: what transformers gives, adapters that act, many answers at once, small failures."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import answer_of
from tiny_models import build_adapter, build_model, write_gguf
from waiting import PATIENCE_S, wait_until

from indexes.disk import file_sha256
from indexes.errors import Cancelled, CoalesceError, StorageFull
from rag.errors import (
    AdapterMismatch,
    ArmUnavailable,
    DoesNotFitInMemory,
    GenerationFailed,
    ModelCannotLoad,
    PromptTooLong,
)
from rag.generators import openvino
from rag.generators.local.generator import load_local_generator
from rag.generators.openvino import OpenVINOGenerator, build_ir, load_openvino_generator, runs_here
from rag.generators.protocol import ChoiceScorer, GenerationRequest, Generator, Item, TextPiece, quantization_of
from rag.generators.stream_text import THINK
from rag.models.adapters import AdapterRecord
from rag.models.home import find_model, locked_model
from rag.settings import GeneratorSettings
from rag.types import Thinking, Waiting

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("one_thread")]

QUESTION = GenerationRequest("How many threads are in a warp?", "base", max_tokens=12)
OPTIONS = ("8 threads", "16 threads", "32 threads", "64 threads")


@pytest.fixture(scope="module", params=["qwen2", "llama", "qwen3"])
def settings(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> GeneratorSettings:
    """A tiny model as a GGUF file, and an adapter of it."""
    home = tmp_path_factory.mktemp("openvino")
    model = build_model(home / "model", family=request.param, dtype="bfloat16", num_hidden_layers=2)
    gguf = write_gguf(model, home / "tiny.gguf", half=True)
    folder = Path(find_model(str(gguf), home))
    adapter = build_adapter(home / "adapter", folder, rank=4, seed=3)
    return GeneratorSettings("local", str(gguf), home=home, adapters={"qa": str(adapter)}, kv_budget_bytes=1 << 30)


@pytest.fixture(scope="module")
def generator(settings: GeneratorSettings) -> Iterator[OpenVINOGenerator]:
    with closing(load_openvino_generator(settings)) as made:
        yield made


def test_the_bare_model_and_its_adapter_give_what_transformers_gives(
    settings: GeneratorSettings, generator: OpenVINOGenerator
) -> None:
    import torch

    assert isinstance(generator, Generator)
    assert isinstance(generator, ChoiceScorer)
    assert quantization_of(generator) == "f16"
    found = []
    with closing(load_local_generator(replace(settings, quantization="none", dtype="float32"))) as reference:
        for adapter in (None, "qa"):
            request = replace(QUESTION, arm="tuned" if adapter else "base", adapter=adapter)
            prompt = reference.prompt_of(request)
            reference._adapters.activate(adapter)
            with torch.inference_mode():
                expected = reference.loaded.model(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
            found.append(generator._pipelines[adapter].next_tokens(prompt))
            assert found[-1] == pytest.approx({token: float(expected[token]) for token in found[-1]}, abs=0.1)
            letters = generator.score_choices(request, OPTIONS).scores
            assert max(letters) <= max(found[-1].values())
    assert found[0] != pytest.approx({token: found[1].get(token, 0) for token in found[0]}, abs=0.2), "it acts"


def test_an_option_has_the_likelihood_that_transformers_gives_it_in_whatever_order_it_stands(
    settings: GeneratorSettings, generator: OpenVINOGenerator
) -> None:
    import torch

    options = ("32", "32 threads", "a bank", "memory accesses")  # one begins as another does
    with closing(load_local_generator(replace(settings, quantization="none", dtype="float32"))) as reference:
        request = replace(QUESTION, question="What is read together?")
        prompt, expected = reference.prompt_of(request), []
        for option in options:
            tokens = reference._chat.text_tokens(option)
            with torch.inference_mode():
                rows = reference.loaded.model(torch.tensor([prompt + tokens])).logits[0].log_softmax(-1)
            known = sum(float(rows[len(prompt) - 1 + place, token]) for place, token in enumerate(tokens))
            expected.append(known / len(option.encode()))
    for turn in range(4):
        scored = generator.score_choices(request, options[turn:] + options[:turn])
        found = scored.extra["likelihood"][-turn:] + scored.extra["likelihood"][:-turn]
        assert found == pytest.approx(expected, abs=0.05)


def test_answers_are_the_same_alone_and_eight_at_once(generator: OpenVINOGenerator) -> None:
    asked = [replace(QUESTION, question=f"What is number {n}?") for n in range(4)]
    asked += [replace(each, arm="tuned", adapter="qa") for each in asked]
    alone = [answer_of(generator, each)[0] for each in asked]
    with ThreadPoolExecutor(len(asked)) as pool:
        assert list(pool.map(lambda each: answer_of(generator, each)[0], asked)) == alone
    assert len(set(alone)) > 1, "the adapter acts"


def test_answers_beyond_those_that_are_written_at_once_hear_their_place_in_line(
    generator: OpenVINOGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [replace(QUESTION, question=f"What is number {n}?") for n in range(6)]
    alone = [answer_of(generator, each)[0] for each in asked]
    monkeypatch.setattr(openvino, "MOST_ROWS", 2)
    step = openvino._Pipeline._step

    def step_once_all_have_asked(pipeline: openvino._Pipeline, new: list[Any]) -> None:
        all_have_asked.wait(PATIENCE_S)
        step(pipeline, new)

    all_have_asked = threading.Event()
    monkeypatch.setattr(openvino._Pipeline, "_step", step_once_all_have_asked)

    def listen(request: GenerationRequest) -> tuple[str, list[int]]:
        items = list(generator.stream(request))
        text = "".join(item.text for item in items if isinstance(item, TextPiece))
        return text, [item.before for item in items if isinstance(item, Waiting)]

    with ThreadPoolExecutor(len(asked)) as pool:
        listening = pool.map(listen, asked)
        bare = generator._pipelines[None]
        wait_until(lambda: bare.open >= len(asked), "all have asked")
        all_have_asked.set()
        texts, places = zip(*listening, strict=True)
    assert list(texts) == alone
    assert max(max(told, default=0) for told in places) >= 2
    assert all(told == sorted(told, reverse=True) for told in places)


def test_one_seed_gives_one_text_whatever_else_is_written_and_none_gives_others(
    settings: GeneratorSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32: in bfloat16 a step of several answers rounds otherwise than a step of one."""
    monkeypatch.setattr(openvino, "_OPTIONS", {"INFERENCE_PRECISION_HINT": "f32"})
    sampled = [replace(QUESTION, temperature=1.0, seed=seed) for seed in range(6)]
    with closing(load_openvino_generator(replace(settings, adapters={}))) as generator:
        alone = [answer_of(generator, each)[0] for each in sampled]
        assert len(set(alone)) > 1
        with ThreadPoolExecutor(8) as pool:
            for _ in range(2):
                pool.submit(answer_of, generator, replace(QUESTION, temperature=1.0, max_tokens=30))
            assert list(pool.map(lambda each: answer_of(generator, each)[0], sampled)) == alone
        assert len({answer_of(generator, replace(QUESTION, temperature=1.0))[0] for _ in range(3)}) > 1


def test_a_model_that_is_closed_right_after_an_answer_was_given_up_has_nothing_to_complain(
    settings: GeneratorSettings, capfd: pytest.CaptureFixture[str]
) -> None:
    generator = load_openvino_generator(replace(settings, adapters={}))
    capfd.readouterr()
    with closing(generator), closing(generator.stream(replace(QUESTION, max_tokens=500))) as answer:
        next(answer)
    assert capfd.readouterr() == ("", "")


def test_an_answer_has_its_length_and_its_end(generator: OpenVINOGenerator) -> None:
    text, done = answer_of(generator, QUESTION)
    assert done.usage.completion_tokens <= 12 and done.usage.prompt_tokens > 0
    end = text[len(text) // 2 :][:3]
    assert answer_of(generator, replace(QUESTION, stop=(end,)))[0] == text[: text.index(end)]


def test_a_cancelled_answer_ends_within_two_tokens(generator: OpenVINOGenerator) -> None:
    stopped = threading.Event()
    pieces = 0
    with pytest.raises(Cancelled):
        for item in generator.stream(replace(QUESTION, max_tokens=500, cancelled=stopped.is_set)):
            pieces += isinstance(item, TextPiece)
            stopped.set()
    assert pieces <= 2


def test_a_model_whose_prompt_opens_its_reasoning_is_heard_to_think(
    generator: OpenVINOGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generator._chat, "open_block", lambda _: THINK)
    items: list[Item] = []
    with pytest.raises(GenerationFailed, match="no answer"):
        items.extend(generator.stream(QUESTION))
    assert items == [Thinking()]


def test_what_can_never_run_is_refused_before_anything_is_read(generator: OpenVINOGenerator) -> None:
    with pytest.raises(ArmUnavailable):
        generator.check(replace(QUESTION, arm="tuned", adapter="other"))
    with pytest.raises(PromptTooLong):
        generator.check(replace(QUESTION, question="warp " * 9000))


def test_an_engine_that_fails_in_mid_answer_answers_the_next(
    generator: OpenVINOGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = generator._pipelines[None]
    works, steps = pipeline._step, itertools.count()

    def step(new: list[Any]) -> None:
        if next(steps) == 3:
            raise RuntimeError("Exception from src/core.cpp:84:\nThe device is lost.\n")
        works(new)

    with monkeypatch.context() as patch, pytest.raises(GenerationFailed, match=r"failed: The device is lost\."):
        patch.setattr(pipeline, "_step", step)
        answer_of(generator, QUESTION)
    assert answer_of(generator, QUESTION)[1].usage.completion_tokens == 12


def test_an_engine_whose_process_dies_in_mid_answer_answers_the_next(
    generator: OpenVINOGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = generator._pipelines[None]
    step, steps = pipeline._step, itertools.count()

    def die_before_the_fourth(new: list[Any]) -> None:
        if next(steps) == 3:
            pipeline._engine._popen.kill()
            pipeline._engine._popen.wait()
        step(new)

    with monkeypatch.context() as patch, pytest.raises(GenerationFailed, match="process ended"):
        patch.setattr(pipeline, "_step", die_before_the_fourth)
        answer_of(generator, QUESTION)
    assert answer_of(generator, QUESTION)[1].usage.completion_tokens == 12


def test_an_engine_that_hangs_in_mid_answer_is_ended_and_answers_the_next(
    generator: OpenVINOGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = generator._pipelines[None]
    step, steps, stopped = pipeline._step, itertools.count(), pipeline._engine

    def stop_before_the_fourth(new: list[Any]) -> None:
        if next(steps) == 3:
            os.kill(pipeline._engine._popen.pid, signal.SIGSTOP)
        step(new)

    with monkeypatch.context() as patch, pytest.raises(GenerationFailed, match="did not end a step"):
        patch.setattr(openvino, "_HANGS_S", 1.0)
        patch.setattr(pipeline, "_step", stop_before_the_fourth)
        answer_of(generator, QUESTION)
    assert stopped.has_ended
    assert answer_of(generator, QUESTION)[1].usage.completion_tokens == 12


def test_an_engine_heeds_its_parent_alone_and_ends_with_it_where_it_hangs(
    settings: GeneratorSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openvino, "_STEP_S", 0.1)
    hanging = load_openvino_generator(replace(settings, adapters={}))
    pipeline = hanging._pipelines[None]
    engine = pipeline._engine
    for number in (signal.SIGTERM, signal.SIGSTOP):
        os.kill(engine._popen.pid, number)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(answer_of, hanging, QUESTION)
        wait_until(lambda: pipeline.open == 1, "it is asked")
        hanging.close()
        with pytest.raises(GenerationFailed):
            asked.result()
    assert engine.has_ended


def test_a_pipeline_that_cannot_be_loaded_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **more: started.append(start(*args, **more)) or started[0])
    with pytest.raises(ModelCannotLoad, match="cannot load"):
        openvino._Pipeline(tmp_path, None, 1.0, 1 << 30)
    assert [each.poll() is not None for each in started] == [True]


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ((openvino, "free_memory_bytes", lambda _: 1000), DoesNotFitInMemory, "GiB are free"),
        ((shutil, "disk_usage", lambda _: SimpleNamespace(free=0)), StorageFull, "MB are free"),
        (None, ModelCannotLoad, "another file"),
    ],
)
def test_what_cannot_be_loaded_is_said_before_and_leaves_nothing(
    settings: GeneratorSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    changed: tuple[object, str, object] | None, error: type[CoalesceError], said: str,
) -> None:  # fmt: skip
    made = tmp_path / "models" / "m"
    shutil.copytree(find_model(settings.model or "", settings.home), made)
    file = Path(shutil.copy(settings.model or "", made.with_name("m.gguf")))
    digest = file_sha256(file) if changed else "0" * 64
    (made / "coalesce_model.json").write_text(json.dumps({"name": "m", "sha256": digest}))
    if changed is not None:
        monkeypatch.setattr(*changed)
    with pytest.raises(error, match=said):
        load_openvino_generator(replace(settings, model="m", home=tmp_path, adapters={}))
    assert sorted(path.name for path in made.parent.iterdir()) == ["m", "m.gguf"]


def test_an_adapter_without_effect_is_an_error(settings: GeneratorSettings, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    made = Path(settings.adapters["qa"])
    for change in ("zeros", "another layer", "another shape", "fewer layers", "another base"):
        folder = Path(shutil.copytree(made, tmp_path / change))
        weights = load_file(folder / "adapter_model.safetensors")
        if change == "zeros":
            weights = {name: each * ("lora_A" in name) for name, each in weights.items()}
        elif change == "another layer":
            weights = {name.replace("layers.1.", "layers.7."): each for name, each in weights.items()}
        elif change == "another shape":
            weights = {
                name: each[:, :-1].contiguous() if name.endswith("up_proj.lora_A.weight") else each
                for name, each in weights.items()
            }
        elif change == "fewer layers":
            weights = {name: each for name, each in weights.items() if "layers.1." not in name}
        else:
            record = AdapterRecord("x", "of another base", "none", "", 1, False, {}, {})
            (folder / "coalesce_adapter.json").write_text(json.dumps(asdict(record)))
        save_file(weights, folder / "adapter_model.safetensors")
        with pytest.raises(AdapterMismatch):
            load_openvino_generator(replace(settings, adapters={change: str(folder)}))


def test_only_large_models_that_genai_reads_on_a_processor_run_here(
    settings: GeneratorSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not runs_here(settings), "a small model"
    monkeypatch.setattr(openvino, "SMALL_PARAMETERS", 0)
    assert runs_here(settings)
    dora = Path(shutil.copytree(settings.adapters["qa"], tmp_path / "dora"))
    config = json.loads((dora / "adapter_config.json").read_text("utf-8"))
    (dora / "adapter_config.json").write_text(json.dumps(config | {"use_dora": True}))
    assert not runs_here(replace(settings, adapters={"dora": str(dora)}))
    assert not runs_here(replace(settings, quantization="nf4"))
    assert not runs_here(replace(settings, model=str(settings.home)))
    model = build_model(tmp_path / "model", family="gemma2", num_hidden_layers=2)
    assert not runs_here(replace(settings, model=str(write_gguf(model, tmp_path / "gemma.gguf", half=True))))


def test_a_file_that_changed_is_put_into_openvinos_form_again(
    settings: GeneratorSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Path] = []

    def build(gguf: Path, folder: Path) -> None:
        built.append(gguf)
        build_ir(gguf, folder)

    monkeypatch.setattr(openvino, "build_ir", build)
    bare = replace(settings, adapters={})
    load_openvino_generator(bare).close()
    load_openvino_generator(bare).close()
    before = len(built)
    os.utime(settings.model or "", ns=(1, 1))
    load_openvino_generator(bare).close()
    assert len(built) == before + 1


def test_two_that_start_at_once_make_openvinos_form_once_and_clear_what_a_killed_one_left(
    settings: GeneratorSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Path] = []
    both_have_looked = threading.Barrier(2)

    def build(gguf: Path, folder: Path) -> None:
        built.append(folder)
        folder.mkdir()

    def lock_once_both_have_looked(home: Path, name: str) -> AbstractContextManager[None]:
        both_have_looked.wait(PATIENCE_S)
        return locked_model(home, name)

    monkeypatch.setattr(openvino, "build_ir", build)
    monkeypatch.setattr(openvino, "locked_model", lock_once_both_have_looked)
    folder, gguf = Path(find_model(settings.model or "", settings.home)), Path(settings.model or "")
    ir = folder.with_name(f".{folder.name}.openvino")
    shutil.rmtree(ir, ignore_errors=True)
    left = ir.with_name(f".{ir.name}.1.part")
    left.mkdir()
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda _: openvino._ir_of(folder, gguf, ""), range(2))) == [ir, ir]
    assert built == [ir] and not left.exists()
    shutil.rmtree(ir)
