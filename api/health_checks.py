"""The checks of `coalesce doctor`. Each gives a verdict with the value it saw, and the command that mends a fault."""

from __future__ import annotations

import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from api.console import counted
from api.services import check_home
from api.settings import CoalesceSettings
from indexes.errors import CoalesceError, IndexMissing
from indexes.types import book_id

MIN_FREE_BYTES = 1024**3
PACKAGES = ("torch", "transformers", "peft", "sentence-transformers", "llama-index-core", "fastapi", "nicegui")


@dataclass(frozen=True, slots=True)
class Check:
    """A check and its verdict."""

    name: str
    ok: bool
    detail: str
    hint: str = ""


def run_checks(settings: CoalesceSettings) -> list[Check]:
    """Runs every check; one that raises counts as failed, and the others still run."""
    checks: list[Check] = []
    for check in (_python, _packages, _faiss, _embedder, _home, _disk, _library, _generator):
        checks.extend(_guarded(check, settings))
    return checks


def book_report(settings: CoalesceSettings, book: str) -> dict[str, Any]:
    """What reading one book, named by its id or title, lost or doubts; raises NotFound, IndexMissing."""
    from indexes.library import open_library

    with closing(open_library(settings.index, create=False)) as library:
        document = library.document(book_id(book, [(one.document_id, one.title) for one in library.documents()]))
    health = {name: list(items) for name, items in asdict(document.health).items()}
    return {"id": document.document_id, "title": document.title, "format": document.format} | health


def installed_version(package: str) -> str | None:
    """The version of an installed distribution, None when it is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def faiss_check(cpu: str | None, gpu: str | None) -> Check:
    """Exactly one of the two FAISS distributions may be there: both install into one folder."""
    if cpu and gpu:
        return Check(
            "faiss",
            ok=False,
            detail=f"faiss-cpu {cpu} and faiss-gpu {gpu} are both installed and overwrite each other's files",
            hint="Run `pip uninstall -y faiss-cpu faiss-gpu && pip install faiss-cpu` (or faiss-gpu).",
        )
    if not (cpu or gpu):
        return Check("faiss", ok=False, detail="not installed", hint="Run `pip install faiss-cpu`.")
    return Check("faiss", ok=True, detail=f"faiss-cpu {cpu}" if cpu else f"faiss-gpu {gpu}")


def _guarded(check: Callable[[CoalesceSettings], Iterator[Check]], settings: CoalesceSettings) -> Iterator[Check]:
    name = check.__name__.strip("_")
    try:
        yield from check(settings)
    except CoalesceError as error:
        yield Check(name, ok=False, detail=error.message, hint=error.hint)
    except Exception as error:  # noqa: BLE001  a doctor reports what breaks, whatever it is
        yield Check(name, ok=False, detail=f"{type(error).__name__}: {error}", hint="Run `make install`.")


def _python(_: CoalesceSettings) -> Iterator[Check]:
    yield Check(
        "python",
        ok=sys.version_info >= (3, 11),
        detail=f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        hint="Use Python 3.11 or newer.",
    )


def _packages(_: CoalesceSettings) -> Iterator[Check]:
    versions = {package: installed_version(package) for package in PACKAGES}
    missing = [package for package, found in versions.items() if found is None]
    detail = ", ".join(f"{package} {found or 'missing'}" for package, found in versions.items())
    yield Check("packages", ok=not missing, detail=detail, hint="Run `make install`.")


def _faiss(_: CoalesceSettings) -> Iterator[Check]:
    yield faiss_check(installed_version("faiss-cpu"), installed_version("faiss-gpu"))


def _embedder(settings: CoalesceSettings) -> Iterator[Check]:
    from indexes.settings import EMBEDDED_MODEL, LLAMA_INDEX

    if settings.embedder.startswith(LLAMA_INDEX):
        yield Check("embedder", ok=True, detail=settings.index.embedder_name)
        return
    if settings.embedder != EMBEDDED_MODEL:
        folder = Path(settings.embedder).expanduser()
        where = "on disk" if folder.is_dir() else "to be fetched by name when it is first used"
        yield Check("embedder", ok=True, detail=f"{settings.embedder}, {where}")
        return
    from indexes.embedder import BUNDLED_SHA256, bundled_model_folder, weights_fingerprint

    # The library remembers digests in the home; an empty folder in its place makes this check read the weights.
    with tempfile.TemporaryDirectory() as nothing_remembered:
        weights_fingerprint(bundled_model_folder(), Path(nothing_remembered), bundled=True)
    yield Check("embedder", ok=True, detail=f"{EMBEDDED_MODEL}, sha256 {BUNDLED_SHA256[:12]}… as published")


def _home(settings: CoalesceSettings) -> Iterator[Check]:
    check_home(settings.home)
    yield Check("home", ok=True, detail=str(settings.home))


def _disk(settings: CoalesceSettings) -> Iterator[Check]:
    free = shutil.disk_usage(settings.home).free
    yield Check(
        "disk", ok=free >= MIN_FREE_BYTES, detail=f"{free / 1024**3:.1f} GiB free", hint="Free at least 1 GiB of space."
    )


def _library(settings: CoalesceSettings) -> Iterator[Check]:
    from indexes.library import open_library

    try:
        library = open_library(settings.index, create=False)
    except IndexMissing:
        yield Check("library", ok=True, detail="none yet; `coalesce serve` or `coalesce add PATH` makes one")
        return
    with closing(library):
        library.load()
        documents = library.documents()
        if documents:
            library.dense("warp", 1)
            library.lexical("warp", 1)
    nodes = sum(document.nodes for document in documents)
    held = f"{counted(len(documents), 'book')}, {counted(nodes, 'node')}"
    yield Check("library", ok=True, detail=f"{held}, searchable on {library.faiss_device}")


def _generator(settings: CoalesceSettings) -> Iterator[Check]:
    from rag.assemble import resolve_kind
    from rag.settings import LANGUAGE_MODELS

    kind = resolve_kind(settings.rag.generator)
    model = f", model {settings.model}" if settings.model else ""
    asked = " (chosen by `auto`)" if settings.generator == "auto" else ""
    if kind in LANGUAGE_MODELS and not settings.model:
        yield Check("generator", ok=False, detail=f"{kind} without a model", hint="Set COALESCE_MODEL or --model.")
        return
    yield Check("generator", ok=True, detail=f"{kind}{model}{asked}")
