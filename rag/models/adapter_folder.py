"""A LoRA adapter on disk: what it was trained on and what shapes it has, read without loading it.

An adapter folder is plain PEFT (`adapter_config.json`, `adapter_model.safetensors`), so any engine can serve it; beside
them lies our record of how it came to be (`coalesce_adapter.json`), which says of which base model it is part.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rag.errors import AdapterMismatch, ModelCannotLoad

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
RECORD_FILE = "coalesce_adapter.json"


@dataclass(frozen=True, slots=True)
class AdapterRecord:
    """How an adapter came to be.

    Attributes:
        base_model: the base as it was named; base_fingerprint: see `rag.models.fingerprint`.
        quantization: of the base while training.
        data_sha256: of the training rows in their order; num_rows: how many.
        with_passages: whether the training prompts held passages.
        settings: of the training; metrics: what it reached; versions: of the libraries.
    """

    base_model: str
    base_fingerprint: str
    quantization: str
    data_sha256: str
    num_rows: int
    with_passages: bool
    settings: dict[str, Any]
    metrics: dict[str, Any]
    versions: dict[str, str] = field(default_factory=dict)
    created_at: str = ""

    def write(self, folder: Path) -> None:
        """Writes the record into an adapter folder."""
        (folder / RECORD_FILE).write_text(json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n", "utf-8")


@dataclass(frozen=True, slots=True)
class LoraLayer:
    """One adapted linear layer: its name in the base model and its shape."""

    module: str
    in_features: int
    out_features: int
    rank: int


@dataclass(frozen=True, slots=True)
class AdapterFolder:
    """A LoRA adapter.

    Attributes:
        config: content of `adapter_config.json`.
        layers: what it adapts; other_tensors: names of tensors that belong to no LoRA pair.
        revision: hash of the weights, part of the prefix cache's key.
        record: ours, None for an adapter made elsewhere.
    """

    path: Path
    config: dict[str, Any]
    layers: tuple[LoraLayer, ...]
    other_tensors: tuple[str, ...]
    revision: str
    record: AdapterRecord | None


def read_adapter(path: Path) -> AdapterFolder:
    """Reads an adapter folder.

    Raises:
        ModelCannotLoad: it is missing, incomplete or damaged.
        AdapterMismatch: it is no LoRA adapter, or its tensors contradict its config.
    """
    again = "Give the folder that `coalesce tune --out` wrote."
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (path / name).is_file():
            raise ModelCannotLoad(f"{path} is no adapter: it holds no {name}.", hint=again)
    try:
        config = json.loads((path / CONFIG_FILE).read_text("utf-8"))
        shapes = _tensor_shapes(path / WEIGHTS_FILE)
        record = _read_record(path / RECORD_FILE)
    except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
        raise ModelCannotLoad(f"The adapter {path} is damaged: {error}", hint=again) from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        kind = config.get("peft_type") if isinstance(config, dict) else None
        raise AdapterMismatch(f"The adapter {path} is of kind {kind}, not LoRA.", hint="Only LoRA adapters are served.")
    layers, others = _pair(path, shapes)
    _check_ranks(path, config, layers)
    digest = hashlib.sha256((path / WEIGHTS_FILE).read_bytes())
    digest.update(json.dumps(config, sort_keys=True).encode())
    return AdapterFolder(path, config, layers, others, digest.hexdigest()[:16], record)


def check_fits(adapter: AdapterFolder, linear_shapes: dict[str, tuple[int, int]], base_model: str) -> None:
    """Compares an adapter's layers with the base model's.

    Args:
        linear_shapes: (in_features, out_features) by module name.

    Raises:
        AdapterMismatch: a layer is missing, has another width, or some of the base's layers of the same kind have none.
    """
    retrain = "Serve it on the base it was trained on, or train one for this base with `coalesce tune`."
    for layer in adapter.layers:
        shape = linear_shapes.get(layer.module)
        if shape is None:
            raise AdapterMismatch(
                f"The adapter {adapter.path.name} adapts {layer.module}, which {base_model} does not have.",
                hint=retrain,
            )
        if shape != (layer.in_features, layer.out_features):
            raise AdapterMismatch(
                f"The adapter {adapter.path.name} expects {layer.module} to be {layer.in_features} → "
                f"{layer.out_features}; in {base_model} it is {shape[0]} → {shape[1]}.",
                hint=retrain,
            )
    adapted = {layer.module for layer in adapter.layers}
    kinds = {name.rpartition(".")[2] for name in adapted}
    restricted = adapter.config.get("layers_to_transform") or adapter.config.get("exclude_modules")
    left_out = [name for name in linear_shapes if name.rpartition(".")[2] in kinds and name not in adapted]
    if left_out and not restricted:
        raise AdapterMismatch(
            f"The adapter {adapter.path.name} adapts {len(adapted)} layers; {base_model} has "
            f"{len(adapted) + len(left_out)} of these kinds, so it was trained on another base.",
            hint=retrain,
        )


def check_base(adapter: AdapterFolder, base_fingerprint: str, base_model: str) -> None:
    """Raises `AdapterMismatch` when the adapter's record names another base model."""
    record = adapter.record
    if record is not None and record.base_fingerprint != base_fingerprint:
        raise AdapterMismatch(
            f"The adapter {adapter.path.name} was trained on {record.base_model} "
            f"({record.base_fingerprint}); {base_model} is {base_fingerprint}.",
            hint=f"Serve it with --model {record.base_model}, or train one for this base with `coalesce tune`.",
        )


def _tensor_shapes(file: Path) -> dict[str, list[int]]:
    size = file.stat().st_size
    with file.open("rb") as stream:
        (header_bytes,) = struct.unpack("<Q", stream.read(8))
        if header_bytes > size:
            raise ValueError("its weights are cut short")
        header = json.loads(stream.read(header_bytes))
    entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    promised = 8 + header_bytes + max((entry["data_offsets"][1] for entry in entries.values()), default=0)
    if size != promised:
        raise ValueError(f"its weights have {size:,} bytes where the header promises {promised:,}")
    return {name: list(entry["shape"]) for name, entry in entries.items()}


def _pair(path: Path, shapes: dict[str, list[int]]) -> tuple[tuple[LoraLayer, ...], tuple[str, ...]]:
    """LoRA pairs by layer, and the names of all other tensors."""
    layers, others = [], []
    for name, shape in sorted(shapes.items()):
        if name.endswith(".lora_A.weight") and len(shape) == 2:
            partner = shapes.get(name.replace(".lora_A.", ".lora_B."))
            module = name.removesuffix(".lora_A.weight").removeprefix("base_model.model.")
            if partner is None or partner[1] != shape[0]:
                raise AdapterMismatch(
                    f"The adapter {path.name} has ranks {shape[0]} and {partner and partner[1]} in {module}.",
                    hint="Its weights are mixed from two adapters: train it again.",
                )
            layers.append(LoraLayer(module, shape[1], partner[0], shape[0]))
        elif not name.endswith(".lora_B.weight"):
            others.append(name)
    return tuple(layers), tuple(others)


def _check_ranks(path: Path, config: dict[str, Any], layers: tuple[LoraLayer, ...]) -> None:
    """The config's rank must be the tensors' (a `rank_pattern` may name exceptions)."""
    if not layers:
        raise AdapterMismatch(f"The adapter {path.name} holds no LoRA layers.", hint="Train it again.")
    if config.get("rank_pattern"):
        return
    wrong = next((layer for layer in layers if layer.rank != config.get("r")), None)
    if wrong is not None:
        raise AdapterMismatch(
            f"The adapter {path.name} says rank {config.get('r')} but {wrong.module} has rank {wrong.rank}.",
            hint="Its config and its weights belong to different adapters: train it again.",
        )


def _read_record(file: Path) -> AdapterRecord | None:
    if not file.is_file():
        return None
    content = json.loads(file.read_text("utf-8"))
    known = AdapterRecord.__dataclass_fields__
    return AdapterRecord(**{name: value for name, value in content.items() if name in known})
