"""The remote generator against a real engine: `transformers serve` with a model made by the test."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from waiting import PATIENCE_S

from rag.generators import chat_prompt
from rag.generators.local.generator import load_local_generator
from rag.generators.protocol import GenerationDone, GenerationRequest, TextPiece
from rag.generators.remote import RemoteGenerator
from rag.settings import GeneratorSettings

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("one_thread")]


@pytest.fixture(scope="module")
def engine(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running engine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("engine") / "log"
    command = [
        str(Path(sys.executable).with_name("transformers")), "serve", str(tiny_model), "--device", "cpu", "--dtype",
        "float32", "--host", "127.0.0.1", "--port", str(port),
    ]  # fmt: skip
    cache = tmp_path_factory.mktemp("hub")  # an engine without one ends when it is asked for a model it lacks
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                httpx.get(f"http://127.0.0.1:{port}/health", timeout=2)
                break
            except httpx.HTTPError:
                if process.poll() is not None or time.monotonic() > deadline:
                    pytest.fail(f"the engine did not start:\n{log.read_text('utf-8', 'replace')[-3000:]}")
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def test_a_real_engine_writes_what_the_local_generator_writes(
    engine: str, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_prompt, "SMALL_PARAMETERS", 0)  # an engine does not say how small its model is
    local = load_local_generator(
        GeneratorSettings(kind="local", model=str(tiny_model), quantization="none", dtype="float32", device="cpu")
    )
    remote = RemoteGenerator(GeneratorSettings(kind="remote", model=str(tiny_model), base_url=engine))
    request = GenerationRequest("How many threads?", "base", max_tokens=16)
    try:
        texts = []
        for generator in (local, remote):
            generator.check(request)
            pieces = list(generator.stream(request))
            done = pieces[-1]
            assert isinstance(done, GenerationDone)
            assert done.usage.completion_tokens == 16
            texts.append(("".join(p.text for p in pieces if isinstance(p, TextPiece)), done.usage.prompt_tokens))
        assert texts[0] == texts[1]
    finally:
        local.close()
        remote.close()
