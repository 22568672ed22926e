"""The bundled embedder: what it counts, what it gives, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from indexes import model_files
from indexes.errors import Cancelled, EmbedderCannotLoad, InvalidInput
from indexes.model_files import bundled_model_folder, weights_fingerprint
from indexes.settings import IndexSettings

MODULES = sorted(
    path.relative_to(Path(__file__).parents[2]).with_suffix("").as_posix().replace("/", ".")
    for path in (Path(__file__).parents[2] / "indexes").rglob("*.py")
    if path.name != "__init__.py"
)


def test_importing_the_floor_loads_no_heavy_library() -> None:
    code = (
        "import importlib, json, sys\n"
        f"for name in {MODULES!r}: importlib.import_module(name)\n"
        "heavy = ('torch', 'transformers', 'peft', 'bitsandbytes', 'faiss', 'sentence_transformers', 'jieba')\n"
        "print(json.dumps([name for name in heavy if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_a_digest_is_computed_once_and_again_when_the_file_changes(tmp_path: Path) -> None:
    folder, home = tmp_path / "model", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    first = weights_fingerprint(folder, home)
    memory = json.loads((home / "digests.json").read_text())
    assert len(memory) == 1
    assert weights_fingerprint(folder, home) == first
    (folder / "model.safetensors").write_bytes(b"other weights")
    assert weights_fingerprint(folder, home) != first


def test_how_a_model_pools_belongs_to_its_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    first = weights_fingerprint(tmp_path, tmp_path)
    (tmp_path / "modules.json").write_text("[]")
    assert weights_fingerprint(tmp_path, tmp_path) != first


def test_damaged_bundled_weights_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"not the published weights")
    with pytest.raises(EmbedderCannotLoad, match="damaged") as caught:
        weights_fingerprint(tmp_path, tmp_path, bundled=True)
    assert "pip install" in caught.value.hint


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EmbedderCannotLoad, match="no model weights"):
        weights_fingerprint(tmp_path, tmp_path)


def test_a_missing_package_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_files, "find_spec", lambda name: None)
    with pytest.raises(EmbedderCannotLoad, match="not installed"):
        bundled_model_folder()


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    """The bundled model in float32, so that figures are the same on every machine."""
    from indexes.embedder import load_embedder

    return load_embedder(
        IndexSettings(tmp_path_factory.mktemp("home"), embedder_dtype="float32", device="cpu", embed_batch_size=32)
    )


@pytest.mark.integration
def test_vectors_are_those_of_sentence_transformers(embedder) -> None:  # type: ignore[no-untyped-def]
    texts = ["A warp has 32 threads.", "x", "Shared memory is fast. " * 30, ""]
    ours = embedder.encode(texts)
    theirs = embedder._model.encode(texts, normalize_embeddings=True)
    assert ours.dtype == np.float32
    assert ours.shape == (4, embedder.dimension) == (4, 384)
    assert np.allclose(np.linalg.norm(ours, axis=1), 1, atol=1e-5)
    assert (ours * theirs).sum(axis=1).min() > 0.9999


@pytest.mark.integration
def test_bfloat16_gives_nearly_the_same_vectors(embedder, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    from indexes.embedder import load_embedder

    half = load_embedder(IndexSettings(tmp_path, embedder_dtype="bfloat16", device="cpu"))
    texts = ["A warp has 32 threads.", "Coalesced accesses move whole lines.", "`cudaMemcpyAsync` returns at once."]
    assert (half.encode(texts) * embedder.encode(texts)).sum(axis=1).min() > 0.998
    assert half.fingerprint == embedder.fingerprint


@pytest.mark.integration
def test_tokens_are_counted_as_the_model_reads_them(embedder) -> None:  # type: ignore[no-untyped-def]
    text = "Call cudaMemcpyAsync, then __syncthreads(); 线程束 has 32 threads."
    (starts,) = embedder.token_starts([text])
    assert len(starts) == len(embedder._model.tokenizer(text, add_special_tokens=False)["input_ids"])
    assert starts == sorted(starts)
    assert embedder.max_text_tokens == 254


@pytest.mark.integration
def test_progress_and_cancelling_come_between_batches(embedder) -> None:  # type: ignore[no-untyped-def]
    seen: list[tuple[int, int]] = []
    embedder.encode(["word"] * 70, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(32, 70), (64, 70), (70, 70)]
    with pytest.raises(Cancelled):
        embedder.encode(["word"] * 70, cancelled=lambda: True)


@pytest.mark.integration
def test_it_is_a_llama_index_embedding(embedder) -> None:  # type: ignore[no-untyped-def]
    vector = embedder.get_text_embedding("A warp has 32 threads.")
    assert np.allclose(vector, embedder.encode(["A warp has 32 threads."])[0], atol=1e-6)
    assert len(embedder.get_query_embedding("threads of a warp")) == 384


@pytest.mark.integration
@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"embedder": "/no/such/model"}, EmbedderCannotLoad),
        ({"embedder_dtype": "int3"}, InvalidInput),
        ({"device": "tpu"}, InvalidInput),
    ],
)
def test_what_cannot_be_loaded_is_a_clear_error(
    fields: dict[str, str], error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from indexes.embedder import load_embedder

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(error):
        load_embedder(IndexSettings(tmp_path, **fields))


def test_a_question_waits_for_one_batch_of_a_book_at_most(embedder) -> None:  # type: ignore[no-untyped-def]
    from indexes.encode_workers import encode_workers

    done: list[int] = []
    started = threading.Event()

    def listen(count: int, _total: int) -> None:
        done.append(count)
        started.set()

    small = embedder.model_copy(update={"embed_batch_size": 2})
    book = threading.Thread(target=lambda: small.encode(["a warp is 32 threads " * 20] * 80, progress=listen))
    book.start()
    assert started.wait(60)
    before = len(done)
    embedder.encode_queries(["What is a warp?"])
    batches = len(done) - before
    book.join()
    assert done[-1] == 80
    # Those that ran when the question came, and those that ended beside it.
    assert batches <= 2 * encode_workers("cpu").count + 1


def test_many_threads_may_encode_at_once(embedder) -> None:  # type: ignore[no-untyped-def]
    texts = [f"thread {number} waits at the barrier of its block" for number in range(12)]
    alone = [embedder.encode_queries([text])[0] for text in texts]
    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(lambda text: embedder.encode_queries([text])[0], texts * 4))
    for number, vector in enumerate(together):
        np.testing.assert_allclose(vector, alone[number % 12], atol=1e-6)


def test_other_threads_keep_all_cores(embedder) -> None:  # type: ignore[no-untyped-def]
    import torch

    embedder.encode_queries(["What is a warp?"])
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == torch.get_num_threads()
