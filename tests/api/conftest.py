"""Fixtures of the API's tests: settings over an empty home, a live server without models, and the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_fakes import Live, running

from api.cli import run
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


class Command:
    """`coalesce` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def says(self, *arguments: str) -> str:
        """What a command that succeeds prints."""
        assert run(list(arguments)) == 0, self._capsys.readouterr().err
        return self._capsys.readouterr().out

    def gives(self, *arguments: str) -> Any:
        """The one JSON document of a command that succeeds."""
        return json.loads(self.says(*arguments, "--json"))

    def refuses(self, *arguments: str) -> str:
        """The two lines, what was wrong and what mends it, of a command that ends with status 1."""
        assert run(list(arguments)) == 1
        streams = self._capsys.readouterr()
        assert streams.out == "" and "Traceback" not in streams.err
        lines = [line for line in streams.err.splitlines() if not line.endswith("...")]  # but for progress
        assert len(lines) == 2, lines
        return streams.err


@pytest.fixture
def coalesce(home: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command line on a home of its own."""
    return Command(capsys)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of the command line."""
    monkeypatch.setenv("COALESCE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"
