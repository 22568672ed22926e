"""What a model folder holds, read without loading it: kind, quantization, and whether the download finished.

Knows nothing of torch: everything is read from JSON and from the headers of the weight files.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rag.errors import ModelCannotLoad

_HEADER_LIMIT_BYTES = 256 << 20  # a safetensors header is a few MB at most; more means the length field is damaged


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A complete model folder.

    Attributes:
        path: the folder.
        config: the content of `config.json`.
        weights_bytes: size of the weight files.
        quantized_as: `nf4`, `int8`, another method's name (`gptq`, `awq`, ...), or None when it is not quantized.
    """

    path: Path
    config: dict[str, Any]
    weights_bytes: int
    quantized_as: str | None


def local_folder(name: str) -> Path | None:
    """The folder that `name` means, or None when it is a hub name.

    Raises:
        ModelCannotLoad: `name` can only be a path and nothing is there.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    looks_like_path = name.startswith(("/", "./", "../", "~", ".")) or name.count("/") > 1 or "\\" in name
    if looks_like_path or path.exists():
        what = "is a file, not a folder" if path.exists() else "does not exist"
        raise ModelCannotLoad(
            f"The model folder {name} {what}.",
            hint="Give --model the folder that holds config.json and *.safetensors, or a hub name OWNER/NAME.",
        )
    return None


def inspect_folder(path: Path) -> ModelFolder:
    """Reads and checks a model folder.

    Raises:
        ModelCannotLoad: no or broken `config.json`, weights missing or cut short, an adapter instead of a model.
    """
    config = read_config(path)
    files = _weight_files(path)
    for file in files:
        if file.suffix == ".safetensors":
            _check_safetensors(file)
    return ModelFolder(path, config, sum(file.stat().st_size for file in files), quantization_of(config))


def read_config(path: Path) -> dict[str, Any]:
    """Content of `config.json` in the folder, or of the file itself.

    Raises:
        ModelCannotLoad: it is missing, is not JSON, or describes no model.
    """
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        if (file.parent / "adapter_config.json").is_file():
            raise ModelCannotLoad(
                f"{path} holds a LoRA adapter, not a model.",
                hint=f"Give its base model with --model and the adapter with --adapter NAME={path}.",
            )
        raise ModelCannotLoad(
            f"{path} holds no config.json.", hint="Download the model again, or give the folder that holds config.json."
        )
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelCannotLoad(f"{file} cannot be read: {error}", hint="Download the model again.") from error
    if not isinstance(config, dict) or "model_type" not in config:
        raise ModelCannotLoad(f"{file} names no model_type.", hint="Give the config.json of a transformers model.")
    return config


def quantization_of(config: dict[str, Any]) -> str | None:
    """How the folder's weights are quantized: `nf4`, `int8`, the method's name, or None."""
    found = config.get("quantization_config")
    if not isinstance(found, dict):
        return None
    if found.get("load_in_4bit"):
        return str(found.get("bnb_4bit_quant_type", "nf4"))
    if found.get("load_in_8bit"):
        return "int8"
    return str(found.get("quant_method", "unknown"))


def _weight_files(path: Path) -> list[Path]:
    again = f"The download did not finish: run `hf download NAME --local-dir {path}` again."
    unfinished = list(path.rglob("*.incomplete"))
    if unfinished:
        raise ModelCannotLoad(f"{path} is half downloaded: {unfinished[0].name} is there.", hint=again)
    for index in (path / "model.safetensors.index.json", path / "pytorch_model.bin.index.json"):
        if index.is_file():
            try:
                names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
            except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
                raise ModelCannotLoad(f"{index} cannot be read: {error}", hint=again) from error
            missing = [name for name in names if not (path / name).is_file()]
            if missing:
                shown = ", ".join(missing[:3])
                raise ModelCannotLoad(
                    f"{path} is half downloaded: {len(missing)} of {len(names)} weight files are missing ({shown}).",
                    hint=again,
                )
            return [path / name for name in names]
    for pattern in ("*.safetensors", "*.bin"):
        files = sorted(p for p in path.glob(pattern) if p.name not in {"training_args.bin"})
        if files:
            return files
    hint = again
    if any(path.glob("*.gguf")):
        hint = "A GGUF file is served by llama.cpp or Ollama: use --generator remote --base-url URL --model NAME."
    raise ModelCannotLoad(f"{path} holds no weight files (*.safetensors).", hint=hint)


def _check_safetensors(file: Path) -> None:
    """Compares the size that the header promises with the file's, so that a cut download is named before loading."""
    size = file.stat().st_size
    again = "The file is cut short or damaged: download it again."
    try:
        with file.open("rb") as stream:
            (header_bytes,) = struct.unpack("<Q", stream.read(8))
            if header_bytes > min(size, _HEADER_LIMIT_BYTES):
                raise ValueError(f"header of {header_bytes:,} bytes in a file of {size:,}")
            header = json.loads(stream.read(header_bytes))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    except (OSError, ValueError, struct.error, KeyError, TypeError, AttributeError) as error:
        raise ModelCannotLoad(f"{file} is no readable safetensors file: {error}", hint=again) from error
    promised = 8 + header_bytes + max(ends, default=0)
    if size != promised:
        raise ModelCannotLoad(f"{file} has {size:,} bytes where its header promises {promised:,}.", hint=again)
