"""Writes a model folder with its weights quantized, so that loading it later takes no time to quantize."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from indexes.errors import Conflict, InvalidInput
from rag.models.folder import inspect_folder, local_folder
from rag.models.loading import load_model
from rag.tuning.atomic_folder import writing_folder


@dataclass(frozen=True, slots=True)
class QuantizeReport:
    """What was written: sizes are those of the weight files; `before_bytes` is None for a hub name."""

    out: str
    quantization: str
    before_bytes: int | None
    after_bytes: int


def quantize_model(model: str, out: Path, quantization: str = "nf4") -> QuantizeReport:
    """Loads, quantizes and saves a model with its tokenizer; it then loads without any argument.

    It is saved before its first pass: some processors repack 4-bit weights at that, which loses precision.

    Raises:
        InvalidInput: nothing to quantize to.
        ModelCannotLoad, DoesNotFitInMemory: the model.
        Conflict: `out` exists. StorageFull: the disk filled.
    """
    if quantization not in ("nf4", "int8"):
        raise InvalidInput(f"A model cannot be quantized to {quantization!r}.", hint="Use --quantization nf4 or int8.")
    if out.exists():
        raise Conflict(f"{out} is there already.", hint="Choose another --out, or remove it.")
    folder = local_folder(model)
    before = inspect_folder(folder).weights_bytes if folder is not None else None
    loaded = load_model(model, quantization=quantization, for_training=True)
    with writing_folder(out) as target:
        loaded.model.save_pretrained(target)
        loaded.tokenizer.save_pretrained(target)
        after = sum(file.stat().st_size for file in target.glob("*.safetensors"))
    return QuantizeReport(str(out), quantization, before, after)
