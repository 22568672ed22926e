"""The embedder: sentence-transformers behind llama-index's `BaseEmbedding`. The only file that runs the encoder.

`load_embedder` does the heavy work (some seconds of imports, then the weights); an `Embedder` is always ready.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from pydantic import PrivateAttr

from indexes.encode_workers import encode_workers
from indexes.errors import Cancelled, EmbedderCannotLoad, InvalidInput
from indexes.model_files import bundled_model_folder, cpu_computes_bfloat16, weights_fingerprint
from indexes.settings import EMBEDDED_MODEL, IndexSettings
from indexes.text_encoder import CancelCheck, EncodeListener, Matrix

DTYPES = ("auto", "float32", "bfloat16", "float16")
BATCH_SIZES = {"cpu": 4, "cuda": 128}
"""Texts embedded together. On a CPU few are as fast as many, and a question that comes while a book is added waits for
one batch."""


class Embedder(BaseEmbedding):
    """A loaded embedding model. Threads may share it: `encode_workers` runs their batches.

    As a llama-index embedding it gives lists of floats; the library uses `encode`, which gives arrays.
    """

    _model: Any = PrivateAttr()
    _tokenizer: Any = PrivateAttr()
    _fingerprint: str = PrivateAttr()
    _tokenizing: threading.Lock = PrivateAttr(default_factory=threading.Lock)
    _max_text_tokens: int = PrivateAttr()

    def __init__(self, model: Any, tokenizer: Any, fingerprint: str, model_name: str, batch_size: int) -> None:
        """Take what `load_embedder` loaded; `tokenizer` is a copy without truncation or padding."""
        super().__init__(model_name=model_name, embed_batch_size=batch_size)
        self._model = model
        self._tokenizer = tokenizer
        self._fingerprint = fingerprint
        longest = int(model.max_seq_length or 512)
        specials = len(tokenizer.encode("").ids)
        prompts = [len(tokenizer.encode(prompt, add_special_tokens=False).ids) for prompt in self._prompts()]
        self._max_text_tokens = longest - specials - max(prompts, default=0)

    @classmethod
    def class_name(cls) -> str:
        """Name under which llama-index knows the class."""
        return "CoalesceEmbedder"

    @property
    def fingerprint(self) -> str:
        """Names the weights and how they are used."""
        return self._fingerprint

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return int(self._model.get_embedding_dimension())

    @property
    def max_text_tokens(self) -> int:
        """Most tokens of a text that are read, special tokens and prompt left out."""
        return self._max_text_tokens

    @property
    def device(self) -> str:
        """`cpu` or `cuda`, where the weights are."""
        return str(self._model.device.type)

    @property
    def dtype(self) -> str:
        """`float32`, `bfloat16` or `float16`."""
        return str(self._model.dtype).removeprefix("torch.")

    def token_starts(self, texts: Sequence[str]) -> list[list[int]]:
        """For each text, the character offsets at which its tokens begin."""
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [[start for start, _ in encoding.offsets] for encoding in encodings]

    def encode(
        self,
        texts: Sequence[str],
        *,
        progress: EncodeListener | None = None,
        cancelled: CancelCheck | None = None,
    ) -> Matrix:
        """Vectors of passages: float32, shape (len(texts), dimension), unit length.

        Raises:
            Cancelled: `cancelled` said so between two batches.
            EmbedderCannotLoad: the model gave a vector that is no number.
        """
        return self._encode(texts, "document", progress, cancelled)

    def encode_queries(self, texts: Sequence[str]) -> Matrix:
        """Vectors of questions: float32, shape (len(texts), dimension), unit length."""
        return self._encode(texts, "query", None, None)

    def _prompts(self) -> list[str]:
        prompts = getattr(self._model, "prompts", None) or {}
        return [prompt for prompt in prompts.values() if prompt]

    def _encode(
        self,
        texts: Sequence[str],
        kind: str,
        progress: EncodeListener | None,
        cancelled: CancelCheck | None,
    ) -> Matrix:
        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        prompts = getattr(self._model, "prompts", None) or {}
        prompt = prompts.get(kind) or (prompts.get("passage") if kind == "document" else None) or ""
        # Texts of like length share a batch, so that little is computed on padding; the longest come first, so that
        # memory runs out at once or never.
        order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
        workers = encode_workers(self.device)
        size = min(self.embed_batch_size, -(-len(texts) // workers.count))
        running: deque[tuple[list[int], Future[Matrix]]] = deque()

        def finish_oldest() -> int:
            rows, future = running.popleft()
            vectors[rows] = future.result()
            return len(rows)

        done = 0
        for first in range(0, len(order), max(size, 1)):
            if len(running) == workers.count:
                done += finish_oldest()
                if progress is not None:
                    progress(done, len(texts))
            if cancelled is not None and cancelled():
                raise Cancelled(f"Embedding was cancelled after {done} of {len(texts)} texts.")
            rows = order[first : first + size]
            running.append((rows, workers.submit(self._forward, [prompt + texts[row] for row in rows])))
        while running:
            done += finish_oldest()
            if progress is not None:
                progress(done, len(texts))
        if not np.isfinite(vectors).all():
            raise EmbedderCannotLoad(
                f"The embedding model '{self.model_name}' gave vectors that are no numbers in {self.dtype}.",
                hint="set the embedder's dtype to float32",
            )
        return vectors

    def _forward(self, texts: list[str]) -> Matrix:
        """Vectors of one batch, computed in the thread that calls: float32, shape (len(texts), dimension)."""
        import torch

        with self._tokenizing:  # a fast tokenizer's padding cannot be set while another thread is using it
            features = self._model.preprocess(texts)
        with torch.inference_mode():
            features = {
                name: value.to(self._model.device) if hasattr(value, "to") else value
                for name, value in features.items()
            }
            for number, module in enumerate(self._model):
                features = module(features)
                if number == 0:
                    # Pooling in bfloat16 would lose a digit that costs nothing to keep.
                    features["token_embeddings"] = features["token_embeddings"].float()
            batch = torch.nn.functional.normalize(features["sentence_embedding"].float(), dim=-1)
            return np.asarray(batch.cpu().numpy(), dtype=np.float32)

    def _get_query_embedding(self, query: str) -> list[float]:
        return [float(value) for value in self.encode_queries([query])[0]]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return [[float(value) for value in row] for row in self.encode(texts)]


def load_embedder(
    settings: IndexSettings,
    on_step: Callable[[str], None] | None = None,
    *,
    adapt: Callable[[Any], None] | None = None,
) -> Embedder:
    """Load the configured embedding model.

    Args:
        settings: `embedder`, `embedder_dtype`, `device`, `embed_batch_size`.
        on_step: told what is being done, in words for a person.
        adapt: changes the loaded sentence-transformers model in place, as a LoRA adapter does.

    Raises:
        EmbedderCannotLoad: not on disk, damaged, or of a kind sentence-transformers cannot run.
        InvalidInput: unknown dtype or device.
    """
    if settings.embedder_dtype not in DTYPES:
        raise InvalidInput(f"Unknown embedder dtype '{settings.embedder_dtype}'.", hint=f"one of {', '.join(DTYPES)}")
    bundled = settings.embedder == EMBEDDED_MODEL
    source = bundled_model_folder() if bundled else settings.embedder
    if on_step is not None:
        on_step(f"loading embedder {settings.embedder}")
    fingerprint = weights_fingerprint(Path(source), settings.home, bundled=bundled) if Path(source).is_dir() else None

    # Imported by sentence-transformers; it advises a package that would download kernels from a hub.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    import torch
    from sentence_transformers import SentenceTransformer
    from tokenizers import Tokenizer
    from transformers.utils import logging as transformers_logging

    device = _device(settings.device, torch.cuda.is_available())
    dtype = settings.embedder_dtype
    if dtype == "auto":
        fast = torch.cuda.is_bf16_supported() if device == "cuda" else cpu_computes_bfloat16()
        dtype = "bfloat16" if fast else "float32"
    transformers_logging.disable_progress_bar()  # callers say what they load
    try:
        model = SentenceTransformer(
            str(source), device=device, model_kwargs={"dtype": dtype}, trust_remote_code=False
        ).eval()
        if adapt is not None:
            adapt(model)
        tokenizer = Tokenizer.from_str(model.tokenizer.backend_tokenizer.to_str())
    except (OSError, ValueError, KeyError, RuntimeError, AttributeError, ImportError) as error:
        raise EmbedderCannotLoad(
            f"The embedding model '{settings.embedder}' cannot be loaded: {str(error).splitlines()[0]}",
            hint=f"give the path of a sentence-transformers model, or leave the bundled '{EMBEDDED_MODEL}'",
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if fingerprint is None:
        revision = getattr(getattr(model[0], "auto_model", None), "config", None)
        fingerprint = f"{settings.embedder}@{getattr(revision, '_commit_hash', None) or 'unknown'}"
    batch_size = settings.embed_batch_size or BATCH_SIZES[device]
    return Embedder(model, tokenizer, fingerprint, settings.embedder, batch_size)


def _device(wanted: str, has_cuda: bool) -> str:
    if wanted not in ("auto", "cpu", "cuda"):
        raise InvalidInput(f"Unknown device '{wanted}'.", hint="one of auto, cpu, cuda")
    if wanted == "cuda" and not has_cuda:
        raise EmbedderCannotLoad("The device 'cuda' was asked for, but torch sees no CUDA GPU.", hint="set device=cpu")
    return "cuda" if wanted != "cpu" and has_cuda else "cpu"
