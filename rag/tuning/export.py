"""Exports an adapter (as plain PEFT, or merged into its base) and quantizes model folders.

An adapter is merged into the dequantized base that it was trained over, never into 4-bit weights: rounding a merged
matrix to NF4 again moved logits by 28 % in a trial, merging into the dequantized base by 1 %, into the original 16-bit
base by 15 %, because the adapter had learnt to correct the rounding it was trained with.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indexes.disk import new_folder
from indexes.errors import InvalidInput, first_line
from rag.errors import AdapterMismatch
from rag.models.adapters import (
    CONFIG_FILE,
    RECORD_FILE,
    VLLM_RANKS,
    WEIGHTS_FILE,
    AdapterFolder,
    check_adapter,
    read_adapter,
    vllm_rank,
)
from rag.models.folder import check_folder, local_folder
from rag.models.loading import load_model


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What was written.

    Attributes:
        out: the folder; kind: `adapter` or `merged`.
        base_model: the base that an engine has to serve with the adapter (for `merged`: what it was merged into).
        findings: what an engine such as vLLM will not accept; empty is good.
        bytes_written: size of the weights.
    """

    out: str
    kind: str
    base_model: str
    findings: tuple[str, ...]
    bytes_written: int


@dataclass(frozen=True, slots=True)
class QuantizeReport:
    """What was written: sizes are those of the weight files; `before_bytes` is None for a hub name."""

    out: str
    quantization: str
    before_bytes: int | None
    after_bytes: int


def export_adapter(adapter: Path, out: Path, *, base_model: str | None = None) -> ExportReport:
    """Copies an adapter as plain PEFT whose config names `base_model` (None keeps the name it was trained with).

    Raises:
        ModelCannotLoad, AdapterMismatch: `adapter` is not a LoRA adapter.
        Conflict: `out` exists.
    """
    folder = read_adapter(adapter)
    name = base_model or _base_of(folder)
    with new_folder(out) as target:
        config = folder.config | {"base_model_name_or_path": name, "inference_mode": True}
        (target / CONFIG_FILE).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", "utf-8")
        shutil.copyfile(adapter / WEIGHTS_FILE, target / WEIGHTS_FILE)
        if (adapter / RECORD_FILE).is_file():
            shutil.copyfile(adapter / RECORD_FILE, target / RECORD_FILE)
        size = (target / WEIGHTS_FILE).stat().st_size
    return ExportReport(str(out), "adapter", name, lint_adapter(folder), size)


def export_merged(model: str, adapter: Path, out: Path, *, quantization: str | None = None) -> ExportReport:
    """Writes base and adapter as one 16-bit model folder that any program loads (needs memory for the whole model).

    Args:
        quantization: what the adapter was trained over; None takes it from its record, else `none`.

    Raises:
        ModelCannotLoad, DoesNotFitInMemory: the base.
        AdapterMismatch: the adapter belongs to another base.
        Conflict: `out` exists.
    """
    folder = read_adapter(adapter)
    trained_over = quantization or (folder.record.quantization if folder.record else "none")
    with new_folder(out) as target:
        loaded = load_model(model, quantization=trained_over, device="cpu", dtype="bfloat16", for_training=True)
        check_adapter(folder, loaded.model, model)
        base = loaded.model.dequantize() if loaded.quantization != "none" else loaded.model
        size = _save(_merge(base, adapter, model), loaded.tokenizer, target)
    return ExportReport(str(out), "merged", model, (), size)


def quantize_model(model: str, out: Path, quantization: str = "nf4") -> QuantizeReport:
    """Loads, quantizes and saves a model with its tokenizer; it then loads without any argument.

    It is saved before its first pass, at which some processors repack 4-bit weights and lose precision.

    Raises:
        InvalidInput: an unknown quantization.
        ModelCannotLoad, DoesNotFitInMemory: the model.
        Conflict: `out` exists.
        StorageFull: the disk is full; nothing is kept.
    """
    if quantization not in ("nf4", "int8"):
        raise InvalidInput(f"A model cannot be quantized to {quantization!r}.", hint="Use --quantization nf4 or int8.")
    folder = local_folder(model)
    before = check_folder(folder) if folder is not None else None
    with new_folder(out) as target:
        loaded = load_model(model, quantization=quantization, for_training=True)
        after = _save(loaded.model, loaded.tokenizer, target)
    return QuantizeReport(str(out), quantization, before, after)


def lint_adapter(adapter: AdapterFolder) -> tuple[str, ...]:
    """What vLLM (and with it most engines) does not accept in a LoRA adapter, one sentence each."""
    config = adapter.config
    ranks = {layer.rank for layer in adapter.layers}
    checks = (
        (config.get("use_dora"), "It is a DoRA adapter: engines serve plain LoRA only."),
        (config.get("modules_to_save"), f"It replaces whole modules ({config.get('modules_to_save')})."),
        (config.get("bias", "none") != "none", f"It trains biases (bias={config.get('bias')})."),
        (config.get("rank_pattern") or len(ranks) > 1, f"Its layers have different ranks ({sorted(ranks)})."),
        (
            any(vllm_rank(rank) != rank for rank in ranks),
            f"Rank {max(ranks)} needs --max-lora-rank {vllm_rank(max(ranks))} in vLLM, which takes "
            f"{', '.join(map(str, VLLM_RANKS))}.",
        ),
        (adapter.other_tensors, f"It holds tensors outside the LoRA pairs ({', '.join(adapter.other_tensors[:3])})."),
        (
            any("embed" in layer.module or "lm_head" in layer.module for layer in adapter.layers),
            "It adapts the embeddings.",
        ),
    )
    return tuple(text for found, text in checks if found)


def _save(model: Any, tokenizer: Any, folder: Path) -> int:
    """Writes a model folder; gives the bytes of its weights."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def _merge(base: Any, adapter: Path, model: str) -> Any:
    from peft import PeftModel

    try:
        return PeftModel.from_pretrained(base, str(adapter)).merge_and_unload()
    except (RuntimeError, ValueError, KeyError) as error:
        raise AdapterMismatch(
            f"The adapter {adapter} cannot be merged into {model}: {first_line(error)}",
            hint="Give the base it was trained on.",
        ) from error


def _base_of(folder: AdapterFolder) -> str:
    if folder.record is not None:
        return folder.record.base_model
    return str(folder.config.get("base_model_name_or_path") or "")
