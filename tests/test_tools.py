"""Every developer's tool can be imported and says how it is called; the zoo counts what was kept."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
from pdf_maker import make_book

TOOLS = sorted(path.stem for path in (Path(__file__).parents[1] / "tools").glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_says_how_it_is_called(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        import_module(f"tools.{name}").main(["--help"])
    assert not ended.value.code
    assert "usage:" in capsys.readouterr().out


def test_the_zoo_counts_words_without_running_heads_and_says_what_became_of_a_file(tmp_path: Path) -> None:
    from tools.zoo import read_one

    make_book(tmp_path / "a.pdf", chapters=3)
    (tmp_path / "b.pdf").write_bytes(b"%PDF-1.7 and no more")
    found = read_one(tmp_path / "a.pdf", "pdf")
    assert (found["outcome"], found["surrogates"]) == ("read", 0)
    assert found["words"] > 500
    assert found["kept"] > 0.99 * found["words"]
    assert read_one(tmp_path / "b.pdf", "pdf")["outcome"] == "refused"
