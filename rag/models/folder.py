"""What a model folder holds, read without loading it: config, quantization, and whether its download finished.

Imports no torch: everything comes from JSON files and from the headers of the weight files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from indexes.messages import msg
from rag.errors import ModelCannotLoad

ORIGIN_FILE = "coalesce_model.json"
"""Stands in a folder that Coalesce made: what the model is called and what it was made from."""


def local_folder(name: str) -> Path | None:
    """The folder that `name` means, or None when it is a hub name.

    Raises:
        ModelCannotLoad: `name` can only be a path, and there is no folder.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    looks_like_path = name.startswith(("/", "./", "../", "~", ".")) or name.count("/") > 1 or "\\" in name
    if looks_like_path or path.exists():
        raise ModelCannotLoad(
            msg("The model folder {} is a file.", name)
            if path.exists()
            else msg("The model folder {} does not exist.", name),
            hint="Give --model the folder that holds config.json and *.safetensors, a .gguf file, or a hub name "
            "OWNER/NAME.",
        )
    return None


def shown_name(model: str) -> str:
    """What a model is called in answers and records: the name it was fetched by, or what the user gave."""
    try:
        return str(json.loads((Path(model).expanduser() / ORIGIN_FILE).read_text("utf-8"))["name"])
    except (OSError, ValueError, KeyError, TypeError):
        return model


def check_folder(path: Path) -> int:
    """Checks that a model folder is complete; gives the bytes of its weight files.

    Raises:
        ModelCannotLoad: `config.json` is missing or broken, weights are missing or cut short, or it is an adapter.
    """
    read_config(path)
    files = weight_files(path)
    for file in files:
        if file.suffix == ".safetensors":
            tensor_shapes(file)
    return sum(file.stat().st_size for file in files)


def read_config(path: Path) -> dict[str, Any]:
    """Content of `config.json` in the folder, or of the file itself.

    Raises:
        ModelCannotLoad: it is missing, not JSON, or not the config of a model.
    """
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        if (file.parent / "adapter_config.json").is_file():
            raise ModelCannotLoad(
                msg("{} holds a LoRA adapter, not a model.", path),
                hint=msg("Give its base model with --model and the adapter with --adapter NAME={}.", path),
            )
        raise ModelCannotLoad(
            msg("{} holds no config.json.", path),
            hint="Download the model again, or give the folder that holds config.json.",
        )
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelCannotLoad(msg("{} cannot be read: {}", file, error), hint="Download the model again.") from error
    if not isinstance(config, dict) or "model_type" not in config:
        raise ModelCannotLoad(
            msg("{} names no model_type.", file), hint="Give the config.json of a transformers model."
        )
    return config


def load_config(model: str) -> Any:
    """The transformers config of a folder, a config.json or a hub name.

    Raises:
        ModelCannotLoad: it is missing, broken, or of a model type that transformers does not know.
    """
    from transformers import AutoConfig

    path = Path(model).expanduser()
    folder = path if path.is_file() else local_folder(model)
    if folder is not None:
        read_config(folder)  # its errors are clearer
    try:
        return AutoConfig.from_pretrained(folder or model, trust_remote_code=False)
    except Exception as error:  # each model type checks its config in its own way
        raise ModelCannotLoad(
            msg("No config can be read for the model {}: {}", model, " ".join(str(error).split())[:300]),
            hint="Give a model folder or a config.json with --model; a name needs the model on this disk or the hub.",
        ) from error


def quantization_of(config: dict[str, Any]) -> str | None:
    """How weights with this config are quantized: `nf4`, `int8`, the method's name, or None."""
    found = config.get("quantization_config")
    if not isinstance(found, dict):
        return None
    if found.get("load_in_4bit"):
        return str(found.get("bnb_4bit_quant_type", "nf4"))
    if found.get("load_in_8bit"):
        return "int8"
    return str(found.get("quant_method", "unknown"))


def tensor_shapes(file: Path) -> dict[str, list[int]]:
    """Shapes by name from a safetensors file's header.

    Raises:
        ModelCannotLoad: the file is cut short or damaged.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy") as tensors:  # compares the header with the file's size
            return {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118 - not a dict
    except (OSError, SafetensorError) as error:
        raise ModelCannotLoad(
            msg("{} is cut short or damaged ({}).", file, error), hint="Download it again, or train it again."
        ) from error


def weight_files(path: Path) -> list[Path]:
    """The weight files of a folder.

    Raises:
        ModelCannotLoad: there are none, or some are missing.
    """
    again = f"The download did not finish: run `hf download NAME --local-dir {path}` again."
    unfinished = list(path.rglob("*.incomplete"))
    if unfinished:
        raise ModelCannotLoad(msg("{} is half downloaded: it holds {}.", path, unfinished[0].name), hint=again)
    for index in (path / "model.safetensors.index.json", path / "pytorch_model.bin.index.json"):
        if index.is_file():
            return _shards(path, index, again)
    for pattern in ("*.safetensors", "*.bin"):
        files = sorted(file for file in path.glob(pattern) if file.name != "training_args.bin")
        if files:
            return files
    hint = again
    if any(path.glob("*.gguf")):
        hint = f"Give the file itself: --model {next(path.glob('*.gguf'))}"
    raise ModelCannotLoad(msg("{} holds no weight files (*.safetensors).", path), hint=hint)


def _shards(path: Path, index: Path, again: str) -> list[Path]:
    """The weight files that an index names, all of which must exist."""
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ModelCannotLoad(msg("{} cannot be read: {}", index, error), hint=again) from error
    missing = [name for name in names if not (path / name).is_file()]
    if missing:
        shown = ", ".join(missing[:3])
        raise ModelCannotLoad(
            msg(
                "{} is half downloaded: {} of {} weight files are missing ({}).", path, len(missing), len(names), shown
            ),
            hint=again,
        )
    return [path / name for name in names]


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Keeps transformers' own bars from the terminal: a server has none, and commands say themselves what they load."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
