"""Fixtures of the API's tests: settings over an empty home, and a live server without models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from api_fakes import Live, running

from api.settings import CoalesceSettings, load_settings


@pytest.fixture
def settings(tmp_path: Path) -> CoalesceSettings:
    return load_settings({"home": tmp_path / "home"})


@pytest.fixture
def live(settings: CoalesceSettings) -> Iterator[Live]:
    with running(settings) as server:
        yield server


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """One server for tests that change nothing that another one looks at."""
    with running(load_settings({"home": tmp_path_factory.mktemp("home")})) as server:
        yield server
