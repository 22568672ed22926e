"""What only a GPU can show. The local generator's own tests run there too, with TEST_DEVICE=cuda."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import answer_of
from tiny_models import build_adapter, build_model, decode_together, prompt_of, write_alone

from indexes.embedder import MiniLM, bundled_model_folder
from indexes.vectors import VectorIndex
from rag.errors import GenerationFailed
from rag.generators.local.cache import SlabCache
from rag.generators.local.generator import LocalGenerator, load_local_generator
from rag.generators.local.recorder import GraphMemory, Recorder
from rag.generators.protocol import GenerationRequest
from rag.models.adapters import load_adapters
from rag.models.folder import load_config
from rag.models.loading import load_model
from rag.models.memory import estimate_memory
from rag.settings import GeneratorSettings
from rag.tuning.data import TrainingRow
from rag.tuning.settings import TuneSettings
from rag.tuning.train import tune

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

WIDE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 32}


@pytest.fixture(scope="session")
def gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("models") / "wide", **WIDE)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    return build_adapter(tmp_path_factory.mktemp("adapters") / "qa", model)


def write(loaded: Any, lengths: list[int], *, record: bool) -> list[list[int]]:
    """Eighty tokens after each prompt, decoded together."""
    graphs = GraphMemory()
    recorder = Recorder(loaded.model, graphs) if record else None
    written = decode_together(loaded.model, [(length, 0, 80) for length in lengths], recorder)
    assert not graphs.fails
    return written


def load_generator(model: Path) -> LocalGenerator:
    settings = GeneratorSettings("local", str(model), quantization="none", dtype="float32", device="cuda")
    return load_local_generator(settings)


def text_of(generator: LocalGenerator, number: int, max_tokens: int) -> str:
    request = GenerationRequest(f"What is number {number}?", "base", max_tokens=max_tokens)
    return answer_of(generator, request)[0]


@pytest.mark.parametrize("quantization", ["none", "nf4"])
@pytest.mark.parametrize("name", [None, "qa"])
def test_recorded_steps_write_the_same(model: Path, adapter: Path, quantization: str, name: str | None) -> None:
    """One row and four, with and without an adapter."""
    loaded = load_model(str(model), quantization=quantization, dtype="float32", device="cuda")
    load_adapters(loaded, {"qa": str(adapter)}).activate(name)
    alone = [write(loaded, [length], record=False)[0] for length in (200, 30, 240, 120)]
    assert [write(loaded, [length], record=True)[0] for length in (200, 30, 240, 120)] == alone
    assert write(loaded, [200, 30, 240, 120], record=True) == alone


def test_a_four_bit_folder_made_on_the_processor_answers_on_the_gpu(model: Path, tmp_path: Path) -> None:
    made = load_model(str(model), quantization="nf4", dtype="float32", device="cpu")
    expected = write_alone(made.model, prompt_of(60), SlabCache(3, 100), 24)
    made.model.save_pretrained(tmp_path)
    made.tokenizer.save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path), dtype="float32", device="cuda")
    assert loaded.quantization == "nf4"
    assert write_alone(loaded.model, prompt_of(60), SlabCache(3, 100), 24) == expected


@pytest.mark.parametrize("quantization", ["none", "int8", "nf4"])
def test_weights_take_the_memory_that_was_estimated(tmp_path: Path, quantization: str) -> None:
    import torch

    folder = build_model(tmp_path, dtype="bfloat16", **WIDE | {"hidden_size": 1024, "intermediate_size": 4096})
    before = torch.cuda.memory_allocated()
    loaded = load_model(str(folder), quantization=quantization, dtype="bfloat16", device="cuda")
    held = torch.cuda.memory_allocated() - before
    estimate = estimate_memory(load_config(str(folder)), quantization=quantization, context_tokens=1)
    assert held == pytest.approx(estimate.weights_bytes, rel=0.05), loaded.name


def test_an_answer_that_runs_out_of_memory_harms_no_other(tmp_path: Path) -> None:
    """On a card with little room: its cache takes 200 MB where 60 are left."""
    import torch

    folder = build_model(tmp_path, hidden_size=256, intermediate_size=512, num_key_value_heads=8, head_dim=512)
    generator = load_generator(folder)
    expected = text_of(generator, 0, 8)
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    room = torch.cuda.memory_reserved() + (60 << 20)
    torch.cuda.set_per_process_memory_fraction(room / total)
    try:
        with pytest.raises(GenerationFailed, match="ran out of memory"):
            text_of(generator, 0, 1900)
        assert text_of(generator, 0, 8) == expected
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        generator.close()


def test_faiss_finds_the_same_on_the_gpu() -> None:
    faiss = pytest.importorskip("faiss")
    if faiss.get_num_gpus() == 0:
        pytest.skip("needs faiss-gpu")
    draw = np.random.default_rng(0)
    vectors = draw.standard_normal((5000, 384), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    ids = np.arange(5000, dtype=np.int64) * 3
    here, there = VectorIndex(384), VectorIndex(384, use_gpu=True)
    assert there.device == "cuda"
    for start in (0, 2000):
        for index in (here, there):
            index.add(ids[start : start + 2000], vectors[start : start + 2000])
        for query in vectors[:20] + 0.05:
            assert list(there.search(query, 10)[0]) == list(here.search(query, 10)[0])
    for index in (here, there):
        index.remove_range(300, 600)
    assert list(there.search(vectors[120], 10)[0]) == list(here.search(vectors[120], 10)[0])
    allowed = ids[1000:1500]
    assert list(there.search(vectors[120], 10, allowed)[0]) == list(here.search(vectors[120], 10, allowed)[0])


def test_vectors_of_the_gpu_are_those_of_the_processor() -> None:
    texts = [f"A warp has 32 threads. {'Shared memory has banks. ' * n}" for n in range(12)]
    here = MiniLM(bundled_model_folder(), "cpu", "float32").forward(texts)
    there = MiniLM(bundled_model_folder(), "cuda", "bfloat16").forward(texts)
    assert (here * there).sum(1).min() > 0.999


def test_answers_go_on_while_an_adapter_is_trained(model: Path, tmp_path: Path) -> None:
    """Dropout draws random numbers, which torch refuses while a step is recorded."""
    rows = [TrainingRow(f"What is number {n}?", "A warp is 32 threads.", section=str(n)) for n in range(64)]
    settings = TuneSettings(epochs=1, validation_share=0, device="cuda", max_tokens=256, dropout=0.2)
    generator = load_generator(model)
    try:
        expected = [text_of(generator, n, 40) for n in range(4)]
        with ThreadPoolExecutor(1) as pool:
            training = pool.submit(tune, str(model), rows, tmp_path / "out", settings)
            answered = 0
            while not training.done():
                assert text_of(generator, answered % 4, 40) == expected[answered % 4]
                answered += 1
            assert training.result().steps == 8
        assert answered
    finally:
        generator.close()


def test_a_four_bit_base_learns_on_the_gpu(model: Path, tmp_path: Path) -> None:
    rows = [TrainingRow(f"What is number {n}?", "A warp is 32 threads.", section=str(n)) for n in range(64)]
    settings = TuneSettings(epochs=3, validation_share=0, device="cuda", max_tokens=256, learning_rate=3e-3)
    losses: list[float] = []

    def note(progress: Any) -> None:
        if progress.loss is not None:
            losses.append(progress.loss)

    report = tune(str(model), rows, tmp_path / "out", settings, progress=note)
    assert report.steps == 24
    assert losses[-1] < 0.5 * losses[0]
    loaded = load_model(str(model), quantization="nf4", device="cuda")
    load_adapters(loaded, {"mine": str(tmp_path / "out")}).activate("mine")
