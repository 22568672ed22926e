"""What a question, a list and a server's start on a home with books never import."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from serving import start, stop

WITHOUT_LLAMA_INDEX = """
import sys
sys.modules["llama_index"] = None  # whatever imports it fails
from api.cli import run
heavy = ("torch", "transformers", "peft", "faiss", "sentence_transformers")
for words, others in ((["ask", "--help"], ["fastapi"]), (["list"], [])):
    assert run(words) == 0
    assert [name for name in (*heavy, *others) if name in sys.modules] == []
assert run(["search", "warp"]) == run(["ask", "What is a warp?"]) == 0
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.integration
def test_help_and_a_list_load_nothing_heavy_and_nothing_here_loads_llama_index(tmp_path: Path, sample_home: Path):
    home = shutil.copytree(sample_home, tmp_path / "home")
    server = start(home, command=(sys.executable, "-c", WITHOUT_LLAMA_INDEX, "serve"))
    try:
        assert server.client.get("/readyz").json()["documents"] == 1
        assert server.client.post("/v1/ask", json={"question": "What is a warp?"}).json()["citations"]
    finally:
        assert stop(server) == 0
