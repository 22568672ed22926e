"""LoRA adapters: what a folder holds, whether it belongs to a base model, and switching several over one base.

A base is identified by a fingerprint that survives quantization: its shape, and the bytes of its norms and embeddings,
which quantizing leaves alone, rounded to bfloat16.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from indexes.errors import first_line
from indexes.messages import msg
from rag.errors import AdapterMismatch, ModelCannotLoad
from rag.models.folder import load_config, tensor_shapes, weight_files
from rag.models.loading import LoadedModel
from rag.models.memory import linear_layers

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
RECORD_FILE = "coalesce_adapter.json"

VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM's `--max-lora-rank` takes."""
_EMBEDDING_ROWS = 256
_NOT_IDENTITY = frozenset(
    {
        "quantization_config", "dtype", "torch_dtype", "use_cache", "transformers_version", "_name_or_path",
        "architectures", "bos_token_id", "eos_token_id", "pad_token_id", "max_position_embeddings",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class AdapterRecord:
    """How an adapter came to be.

    Attributes:
        base_model: the base as it was named; base_fingerprint: see the function of that name.
        quantization: of the base while training.
        data_sha256: of the training rows in their order; num_rows: how many.
        with_passages: whether the training prompts held passages.
        settings: of the training; metrics: what it reached; versions: of the libraries.
        weights_sha256: of the weights' file, "" where it is not known; command: what made it, where it was noted.
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
    weights_sha256: str = ""
    command: str = ""

    def write(self, folder: Path) -> None:
        """Writes the record, with the digest of the weights beside it, into an adapter folder."""
        digest = hashlib.sha256((folder / WEIGHTS_FILE).read_bytes()).hexdigest()
        (folder / RECORD_FILE).write_text(
            json.dumps(asdict(self) | {"weights_sha256": digest}, indent=2) + "\n", "utf-8"
        )


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
        AdapterMismatch: it is of another kind than LoRA, or its tensors contradict its config.
    """
    again = "Give the folder that `coalesce tune --out` wrote."
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (path / name).is_file():
            raise ModelCannotLoad(msg("{} is not an adapter: it holds no {}.", path, name), hint=again)
    try:
        config = json.loads((path / CONFIG_FILE).read_text("utf-8"))
        record = _read_record(path / RECORD_FILE)
        shapes = tensor_shapes(path / WEIGHTS_FILE)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelCannotLoad(msg("The adapter {} is damaged: {}", path, error), hint=again) from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        kind = config.get("peft_type") if isinstance(config, dict) else None
        raise AdapterMismatch(
            msg("The adapter {} is of kind {}, not LoRA.", path, kind), hint="Only LoRA adapters are served."
        )
    layers, others = _pair(path, shapes)
    _check_ranks(path, config, layers)
    digest = hashlib.sha256((path / WEIGHTS_FILE).read_bytes())
    if record is not None and record.weights_sha256 not in ("", found := digest.hexdigest()):
        raise ModelCannotLoad(
            msg(
                "The adapter {} is damaged: the digest of {} is {}, {} is recorded.",
                path,
                WEIGHTS_FILE,
                found[:12],
                record.weights_sha256[:12],
            ),
            hint="Copy it again, or train it again.",
        )
    digest.update(json.dumps(config, sort_keys=True).encode())
    return AdapterFolder(path, config, layers, others, digest.hexdigest()[:16], record)


def check_adapter(adapter: AdapterFolder, model: Any, base_model: str) -> None:
    """Checks that an adapter belongs to the loaded `model`, called `base_model` in messages.

    Raises:
        AdapterMismatch: its record names another base, a layer is missing or has another width, or an adapter without
            a record adapts only some of the base's layers that it should.
    """
    name, record = adapter.path.name, adapter.record
    if record is not None and record.base_fingerprint != (fingerprint := base_fingerprint(model)):
        raise AdapterMismatch(
            msg(
                "The adapter {} was trained on {} ({}); {} is {}.",
                name,
                record.base_model,
                record.base_fingerprint,
                base_model,
                fingerprint,
            ),
            hint=msg("Serve it with --model {}, or train one for this base with `coalesce tune`.", record.base_model),
        )
    check_layers(adapter, model, base_model)


def check_layers(adapter: AdapterFolder, model: Any, base_model: str) -> None:
    """As `check_adapter`, without the record's word on the base: `model` may be an `empty_model`."""
    retrain = "Serve it on the base it was trained on, or train one for this base with `coalesce tune`."
    name, record = adapter.path.name, adapter.record
    shapes = {layer: (module.in_features, module.out_features) for layer, module in linear_layers(model)}
    for layer in adapter.layers:
        shape = shapes.get(layer.module)
        if shape is None:
            raise AdapterMismatch(
                msg("The adapter {} adapts {}, which {} does not have.", name, layer.module, base_model), hint=retrain
            )
        if shape != (layer.in_features, layer.out_features):
            raise AdapterMismatch(
                msg(
                    "The adapter {} expects {} to be {} → {}; in {} it is {} → {}.",
                    name,
                    layer.module,
                    layer.in_features,
                    layer.out_features,
                    base_model,
                    shape[0],
                    shape[1],
                ),
                hint=retrain,
            )
    adapted = {layer.module for layer in adapter.layers}
    restricted = adapter.config.get("layers_to_transform") or adapter.config.get("exclude_modules")
    if record is not None or restricted:
        return  # the base is known by its fingerprint, or the layers were chosen by number or exception
    left_out = [module for module in layers_meant(adapter, shapes) if module not in adapted]
    if left_out:
        raise AdapterMismatch(
            msg(
                "The adapter {} adapts {} layers; {} has {} of these kinds, so it was trained on another base.",
                name,
                len(adapted),
                base_model,
                len(adapted) + len(left_out),
            ),
            hint=retrain,
        )


def changes_anything(adapter: AdapterFolder) -> bool:
    """Whether one of its layers adds other than zeros to the base model."""
    from safetensors import safe_open

    with safe_open(str(adapter.path / WEIGHTS_FILE), framework="pt") as tensors:
        names = [name for name in tensors.keys() if name.endswith(".lora_B.weight")]  # noqa: SIM118 - no mapping
        return any(bool(tensors.get_tensor(name).any()) for name in names)


def layers_meant(adapter: AdapterFolder, modules: Iterable[str]) -> list[str]:
    """The base's layers that the adapter should adapt: by its pattern, else all of the kinds that it adapts."""
    pattern = adapter.config.get("target_modules")
    if isinstance(pattern, str) and pattern != "all-linear":
        try:
            return [module for module in modules if re.fullmatch(pattern, module)]
        except re.error:
            return []
    kinds = {layer.module.rpartition(".")[2] for layer in adapter.layers}
    return [module for module in modules if module.rpartition(".")[2] in kinds]


def vllm_rank(rank: int) -> int:
    """The least `--max-lora-rank` with which vLLM serves adapters of `rank`."""
    return next((allowed for allowed in VLLM_RANKS if allowed >= rank), VLLM_RANKS[-1])


def base_fingerprint(model: Any) -> str:
    """16 hexadecimal digits for a loaded `transformers` model, the same in every quantization."""
    rows = model.get_input_embeddings().weight.detach()[:_EMBEDDING_ROWS]
    return _fingerprint(model.config, rows, [parameter.detach() for _, parameter in _norms(model)])


def folder_fingerprint(folder: Path) -> str:
    """The same for a model's folder, of which only the norms and some rows of the embedding are read."""
    from safetensors import safe_open

    model = empty_model(folder)
    embedding = model.get_input_embeddings().weight
    wanted = [name for name, parameter in model.named_parameters() if parameter is embedding]
    wanted += [name for name, _ in _norms(model)]
    found: dict[str, Any] = {}
    for file in weight_files(folder):
        with safe_open(str(file), framework="pt") as tensors:
            for name in set(wanted).intersection(tensors.keys()):
                whole = tensors.get_slice(name)
                found[name] = whole[:_EMBEDDING_ROWS] if name == wanted[0] else whole[:]
    rows, *norms = (found[name] for name in wanted)
    return _fingerprint(model.config, rows, norms)


def empty_model(folder: Path) -> Any:
    """A folder's model without its weights."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(load_config(str(folder)))


def _norms(model: Any) -> list[tuple[str, Any]]:
    return [(name, each) for name, each in model.named_parameters() if name.endswith("norm.weight") and each.dim() == 1]


def _fingerprint(config: Any, rows: Any, norms: list[Any]) -> str:
    import torch

    values = config.to_dict()
    shape = {name: value for name, value in values.items() if name not in _NOT_IDENTITY and not name.startswith("_")}
    digest = hashlib.sha256(json.dumps(shape, sort_keys=True, default=str).encode())
    for tensor in (rows, *norms):
        numbers = tensor.to(device="cpu", dtype=torch.bfloat16).contiguous()
        digest.update(numbers.view(torch.int16).numpy().tobytes())
    return digest.hexdigest()[:16]


def _pair(path: Path, shapes: dict[str, list[int]]) -> tuple[tuple[LoraLayer, ...], tuple[str, ...]]:
    """LoRA pairs by layer, and the names of all other tensors."""
    layers, others = [], []
    for name, shape in sorted(shapes.items()):
        if name.endswith(".lora_A.weight") and len(shape) == 2:
            partner = shapes.get(name.replace(".lora_A.", ".lora_B."))
            module = name.removesuffix(".lora_A.weight").removeprefix("base_model.model.")
            if partner is None or partner[1] != shape[0]:
                raise AdapterMismatch(
                    msg(
                        "The adapter {} has ranks {} and {} in {}.", path.name, shape[0], partner and partner[1], module
                    ),
                    hint="Its weights are mixed from two adapters: train it again.",
                )
            layers.append(LoraLayer(module, shape[1], partner[0], shape[0]))
        elif not name.endswith(".lora_B.weight"):
            others.append(name)
    return tuple(layers), tuple(others)


def _check_ranks(path: Path, config: dict[str, Any], layers: tuple[LoraLayer, ...]) -> None:
    """The config's rank must be the tensors' (a `rank_pattern` may name exceptions)."""
    if not layers:
        raise AdapterMismatch(msg("The adapter {} holds no LoRA layers.", path.name), hint="Train it again.")
    if config.get("rank_pattern"):
        return
    wrong = next((layer for layer in layers if layer.rank != config.get("r")), None)
    if wrong is not None:
        raise AdapterMismatch(
            msg(
                "The adapter {} says rank {} but {} has rank {}.", path.name, config.get("r"), wrong.module, wrong.rank
            ),
            hint="Its config and its weights belong to different adapters: train it again.",
        )


def _read_record(file: Path) -> AdapterRecord | None:
    if not file.is_file():
        return None
    content = json.loads(file.read_text("utf-8"))
    known = AdapterRecord.__dataclass_fields__
    return AdapterRecord(**{name: value for name, value in content.items() if name in known})


class AdapterSet:
    """The adapters over one loaded model; `load_adapters` makes it.

    Args:
        peft_model: the `peft.PeftModel` around the base; None without adapters.
        folders: adapters by name.
        fingerprint: of the base model.
    """

    def __init__(self, peft_model: Any, folders: Mapping[str, AdapterFolder], fingerprint: str) -> None:
        self._peft_model = peft_model
        self._folders = dict(folders)
        self._peft_names = {name: _peft_name(number) for number, name in enumerate(self._folders)}
        self.fingerprint = fingerprint
        self._active: str | None = None
        self._switch(None)

    @property
    def names(self) -> tuple[str, ...]:
        """Adapters that can be activated."""
        return tuple(self._folders)

    def revision(self, name: str | None) -> str | None:
        """Hash of an adapter's weights; None for the bare base."""
        return None if name is None else f"{name}@{self._folders[name].revision}"

    def activate(self, name: str | None) -> None:
        """Switches the model to adapter `name`, or to the bare base. Only the thread that owns the model may."""
        if name != self._active:
            self._switch(name)

    def _switch(self, name: str | None) -> None:
        if self._peft_model is not None:
            if name is None:
                self._peft_model.base_model.disable_adapter_layers()
            else:
                self._peft_model.base_model.enable_adapter_layers()
                self._peft_model.set_adapter(self._peft_names[name], inference_mode=True)
            self._peft_model.requires_grad_(False)  # switching layers on marks them trainable
        self._active = name


def load_adapters(loaded: LoadedModel, adapters: Mapping[str, str]) -> AdapterSet:
    """Loads every adapter into the one base model.

    Args:
        adapters: folder by name.

    Raises:
        ModelCannotLoad: a folder is missing or damaged.
        AdapterMismatch: it was trained on another base, or has other shapes.
    """
    fingerprint = base_fingerprint(loaded.model)  # before peft renames the model's layers
    folders = {name: read_adapter(Path(path).expanduser()) for name, path in adapters.items()}
    for folder in folders.values():
        check_adapter(folder, loaded.model, loaded.name)
    peft_model = None
    for number, (name, folder) in enumerate(folders.items()):
        try:
            peft_model = _attach(loaded, peft_model, _peft_name(number), folder.path)
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise AdapterMismatch(
                msg(
                    "The adapter {} ({}) cannot be loaded onto {}: {}",
                    name,
                    folder.path,
                    loaded.name,
                    first_line(error),
                ),
                hint="Train one for this base with `coalesce tune`.",
            ) from error
    return AdapterSet(peft_model, folders, fingerprint)


def _peft_name(number: int) -> str:
    """The adapter's name in peft, where a user's own (`train`, `v1.2`) may clash with an attribute or a module path."""
    return f"coalesce{number}"


def _attach(loaded: LoadedModel, peft_model: Any, name: str, path: Path) -> Any:
    """Adds one adapter, in the model's own number format: training computed in it too (autocast)."""
    import torch
    from peft import PeftModel

    options = {"adapter_name": name, "autocast_adapter_dtype": False, "torch_device": loaded.device}
    if peft_model is None:
        peft_model = PeftModel.from_pretrained(loaded.model, str(path), **options)
    else:
        peft_model.load_adapter(str(path), **options)
    for parameter_name, parameter in peft_model.named_parameters():
        if "lora_" in parameter_name and f".{name}." in parameter_name:
            parameter.data = parameter.data.to(getattr(torch, loaded.dtype))
    peft_model.eval()
    return peft_model
