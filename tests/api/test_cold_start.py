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
for words in (["list"], ["search", "warp"], ["ask", "What is a warp?"]):
    assert run(words) == 0
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.integration
def test_questions_and_the_server_do_without_llama_index(tmp_path: Path, sample_home: Path) -> None:
    home = shutil.copytree(sample_home, tmp_path / "home")
    server = start(home, command=(sys.executable, "-c", WITHOUT_LLAMA_INDEX, "serve"))
    try:
        assert server.client.get("/readyz").json()["documents"] == 1
        assert server.client.post("/v1/ask", json={"question": "What is a warp?"}).json()["citations"]
    finally:
        assert stop(server) == 0
