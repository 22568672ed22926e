"""The checks of `coalesce doctor`. Each gives a verdict with the value it saw, and the command that mends a fault."""

from __future__ import annotations

import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from api.chosen_generator import CHOICE_FILE, read_choice
from api.console import counted
from api.jobs import JOBS, Job, JobStore
from api.server_state import SERVERS
from api.services import SAMPLE_MARKER, check_home
from api.settings import CoalesceSettings
from api.uploads import left_over, uploads_of
from evals.made_store import QUESTIONS
from evals.study_store import STUDY
from indexes.catalog import CATALOG
from indexes.database import MEND, damage, later_version
from indexes.errors import CoalesceError, IndexMissing, InvalidInput
from indexes.integrity import library_faults, saved_vectors_fault
from indexes.postgres import shown_url, store_at
from indexes.types import Document, book_id
from rag.conversations import CONVERSATIONS

MIN_FREE_BYTES = 1024**3
RESTORE_PREFIX = ".restore-"
"""Begins the name of a folder in the home that `coalesce restore` unpacks into."""
STATE_FILES = {
    "conversations.sqlite3": CONVERSATIONS,
    "study.sqlite3": STUDY,
    "questions.sqlite3": QUESTIONS,
    "jobs.sqlite3": JOBS,
}
"""The databases of a home beside the library."""
STORES = (CATALOG, *STATE_FILES.values())
PACKAGES = ("torch", "transformers", "peft", "sentence-transformers", "llama-index-core", "fastapi")


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
    home = (_models, _home, _disk, _database, _files, _library)
    for check in (_python, _packages, _faiss, _embedder, *home, _generator):
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
    half = any(settings.home.glob(f"{RESTORE_PREFIX}*"))
    detail = f"{settings.home}" + (", of which a restore was interrupted" if half else "")
    yield Check("home", ok=not half, detail=detail, hint="Empty it, and run `coalesce restore FILE` again.")


def _disk(settings: CoalesceSettings) -> Iterator[Check]:
    free = shutil.disk_usage(settings.home).free
    yield Check(
        "disk", ok=free >= MIN_FREE_BYTES, detail=f"{free / 1024**3:.1f} GiB free", hint="Free at least 1 GiB of space."
    )


def _models(settings: CoalesceSettings) -> Iterator[Check]:
    from rag.models.home import models_of

    for name, fault in models_of(settings.home).items():
        detail = fault or f"{name}, file and folder whole"
        yield Check("model", ok=not fault, detail=detail, hint=f"Run `coalesce models get {name}`.")


def _database(settings: CoalesceSettings) -> Iterator[Check]:
    if (url := settings.index.database_url) is not None:
        for schema in (*STORES, SERVERS):
            store_at(url, schema).open()
        settings.chosen  # noqa: B018  raises where it is damaged
        yield Check("database", ok=True, detail=f"{shown_url(url)}, {counted(len(STORES) + 1, 'store')}")


def _files(settings: CoalesceSettings) -> Iterator[Check]:
    if settings.database_url is not None:
        return
    for name, schema in STATE_FILES.items():
        path = settings.home / name
        if not path.exists():
            continue
        later = later_version(path, schema)
        fault = f"version {later}; this program knows up to {schema.version}" if later else damage(path, schema)
        detail = f"{path} is damaged: {fault}" if fault and not later else fault or f"{path.stat().st_size:,} bytes"
        yield Check(name, ok=not fault, detail=detail, hint="Use the newer program that wrote it." if later else MEND)
    try:
        read_choice(settings.choice_place)
    except InvalidInput as error:
        yield Check(CHOICE_FILE, ok=False, detail=error.message, hint=MEND)
    vectors = settings.index.vectors_path
    if vectors.exists():
        fault = saved_vectors_fault(vectors)
        yield Check(vectors.name, ok=not fault, detail=fault or f"{vectors.stat().st_size:,} bytes", hint=MEND)


def _library(settings: CoalesceSettings) -> Iterator[Check]:
    from indexes.library import open_library

    path, at_home = settings.index.catalog_path, settings.database_url is None
    if at_home and path.exists():
        later = later_version(path, CATALOG)
        if faults := [] if later else library_faults(path):
            yield Check("library", ok=False, detail=f"{path} is damaged: {'; '.join(faults)}", hint=MEND)
            return
    try:
        library = open_library(settings.index, create=False)
    except IndexMissing:
        lost = (settings.home / SAMPLE_MARKER).exists() or bool(uploads_of(settings).orphans(()))
        detail = f"{path} is gone" if lost else "none yet; `coalesce serve` or `coalesce add PATH` makes one"
        yield Check("library", ok=not lost, detail=detail, hint=MEND)
        return
    with closing(library):
        library.load()
        documents, removed = library.documents(), library.removed()
        if documents:
            library.dense("warp", 1)
            library.lexical("warp", 1)
    nodes = sum(document.nodes for document in documents)
    held = f"{counted(len(documents), 'book')}, {counted(nodes, 'node')}, each with its words and its vector"
    yield Check("library", ok=True, detail=f"{held}, searchable on {library.faiss_device}")
    yield from _uploads(settings, documents, removed)


def _uploads(settings: CoalesceSettings, documents: tuple[Document, ...], removed: frozenset[str]) -> Iterator[Check]:
    folder = uploads_of(settings)
    uploaded = [book for book in documents if not book.sample and not Path(book.source).is_absolute()]
    kept = folder.contents()
    gone = [book.title for book in uploaded if book.sha256 not in kept]
    lost = lost_uploads(settings, Held(documents, removed))
    if gone:
        yield Check(
            "uploads", ok=False, detail=f"gone: the file of {', '.join(gone)}", hint="Upload it again: the book stays."
        )
    elif lost:
        names = ", ".join(lost.values())
        hint = MEND if settings.database_url is None else "Upload it again."
        yield Check("uploads", ok=False, detail=f"the library has no book of {names}", hint=hint)
    elif uploaded:
        yield Check("uploads", ok=True, detail=f"the files of {counted(len(uploaded), 'book')}")


@dataclass(frozen=True, slots=True)
class Held:
    """The books of a library, and the uploaded contents whose books were removed from it."""

    documents: tuple[Document, ...] = ()
    removed: frozenset[str] = frozenset()


def lost_uploads(settings: CoalesceSettings, held: Held) -> dict[str, str]:
    """Names of uploads, by their content, of books that the library should have: they were not removed, and their job
    did not fail."""
    orphans = uploads_of(settings).orphans(held.documents)
    known = set(left_over(orphans, held.removed, kept_jobs(settings), unfinished=True)) if orphans else set()
    return {sha256: name for sha256, name in orphans.items() if sha256 not in known}


def kept_jobs(settings: CoalesceSettings) -> list[Job]:
    """The jobs of the home; none where they cannot be read."""
    place = settings.jobs_place
    if isinstance(place, Path) and not place.exists():
        return []
    with suppress(CoalesceError), closing(JobStore(place)) as jobs:
        return jobs.list()
    return []


def held_by(settings: CoalesceSettings) -> Held | None:
    """What the library holds; None where it cannot be read."""
    from indexes.library import open_library

    path = settings.index.catalog_path
    try:
        if settings.database_url is None and path.exists() and damage(path):  # opening it could make an empty one of it
            return None
        with closing(open_library(settings.index, create=False)) as library:
            return Held(library.documents(), library.removed())
    except CoalesceError:
        return None


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
