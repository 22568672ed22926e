"""Every developer's tool can be imported and says how it is called."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

TOOLS = sorted(path.stem for path in (Path(__file__).parents[1] / "tools").glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_says_how_it_is_called(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        import_module(f"tools.{name}").main(["--help"])
    assert not ended.value.code
    assert "usage:" in capsys.readouterr().out
