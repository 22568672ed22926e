"""The examples of docs/llama-index.md, run in order as one program."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from api.settings import load_settings

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "llama-index.md"


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
def test_every_example_of_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    examples = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(examples) == 3
    names: dict[str, object] = {}
    for number, example in enumerate(examples, 1):
        exec(compile(example, f"{GUIDE.name}, example {number}", "exec"), names)


def test_the_settings_of_the_guide_are_settings(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```toml\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "coalesce.toml").write_text(example)
    settings = load_settings({"home": tmp_path})
    assert settings.index.readers[".json"].startswith("llama_index:")
    assert settings.rag.generator.kind == "llama_index"
