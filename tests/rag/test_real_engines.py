"""The remote generator against real engines: `transformers serve`, llama-server (from the wheel `xllamacpp`), vLLM.

The last two never enter the tests' own environment. llama-server is installed once into the test cache. vLLM takes
3 GB: name an executable with TEST_VLLM (CONTRIBUTING.md says how one is made); without it its tests are skipped.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
from fakes import answer_of, make_passage
from tiny_models import build_adapter, build_model, write_adapter_gguf, write_gguf
from waiting import wait_until

from rag.errors import ArmUnavailable, PromptTooLong
from rag.generators import chat_prompt
from rag.generators import remote as remote_generator
from rag.generators.local.generator import load_local_generator
from rag.generators.protocol import GenerationRequest, Generator, TokenCounter
from rag.generators.remote import RemoteGenerator
from rag.settings import GeneratorSettings

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("one_thread")]

SLOW = [pytest.mark.slow, pytest.mark.timeout(2400)]

XLLAMACPP = "xllamacpp==2026.10.11549"
CONTEXT_TOKENS = 1024
READERS = 30
START_S = 1800.0
QUESTION = GenerationRequest("What is a warp?", "base", max_tokens=24)
TUNED = replace(QUESTION, arm="tuned", adapter="qa")


@dataclass(frozen=True)
class Model:
    """One model and its adapter, as transformers and as llama.cpp take them."""

    folder: Path
    adapter: Path
    gguf: Path
    adapter_gguf: Path


@dataclass(frozen=True)
class Engine:
    """A running engine; `busy` says whether it writes an answer."""

    address: str
    busy: Callable[[], bool]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("engines")
    base = build_model(
        folder / "base", seed=16, head_dim=32, num_attention_heads=4, max_position_embeddings=CONTEXT_TOKENS
    )  # vLLM has no kernel for narrower heads; this seed's two texts are varied and end with a whole character
    adapter = build_adapter(folder / "qa", base, rank=8)
    gguf = write_gguf(base, folder / "base.gguf", pre="gpt-2")
    return Model(base, adapter, gguf, write_adapter_gguf(adapter, folder / "qa.gguf"))


@pytest.fixture(scope="module")
def local(model: Model) -> Iterator[Generator]:
    """What the engines are held to."""
    with pytest.MonkeyPatch.context() as patch:
        for bound in ("SMALL_PARAMETERS", "EXCERPT_PARAMETERS"):
            patch.setattr(chat_prompt, bound, 0)  # an engine does not say how small its model is
        made = load_local_generator(
            GeneratorSettings(
                "local", str(model.folder), "none", adapters={"qa": str(model.adapter)}, dtype="float32", device="cpu"
            )
        )
    yield made
    made.close()


@pytest.fixture(scope="module")
def llama_python(pytestconfig: pytest.Config) -> Path:
    """A Python with llama-server in it."""
    folder = Path(pytestconfig.cache.mkdir("llama-server"))
    python = folder / "bin" / "python"
    if not (folder / "complete").is_file():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        done = subprocess.run([str(python), "-m", "pip", "install", "-q", XLLAMACPP], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"{XLLAMACPP} cannot be installed here: {done.stderr.strip()[-300:]}")
        (folder / "complete").touch()
    return python


@contextmanager
def started(command: list[str], port: int, log: Path, **environment: str) -> Iterator[str]:
    """The address of an engine once it serves."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=os.environ | environment, start_new_session=True
        )
    address, deadline = f"http://127.0.0.1:{port}", time.monotonic() + START_S
    try:
        while not answers(f"{address}/health"):
            if process.poll() == -signal.SIGILL:
                pytest.skip(f"this processor lacks instructions that {command[0]} or a library of it has")
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"the engine did not start:\n{log.read_text('utf-8', 'replace')[-3000:]}")
            time.sleep(0.2)
        yield f"{address}/v1"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).is_success
    except httpx.HTTPError:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def llama(llama_python: Path, model: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    port = free_port()
    options = {
        "model": str(model.gguf), "alias": "base", "port": port, "adapters": [str(model.adapter_gguf)],
        "context_tokens": 4 * CONTEXT_TOKENS, "at_once": 4,
    }  # fmt: skip
    command = [str(llama_python), str(Path(__file__).parents[1] / "llama_server.py"), json.dumps(options)]
    with started(command, port, tmp_path_factory.mktemp("llama") / "log") as address:
        slots = address.replace("/v1", "/slots")
        yield Engine(address, lambda: any(slot["is_processing"] for slot in httpx.get(slots).json()))


@pytest.fixture(scope="module")
def vllm(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    executable = os.environ.get("TEST_VLLM")
    if not executable:
        pytest.skip("vLLM is not installed here: name its executable with TEST_VLLM")
    port = free_port()
    command = [
        executable, "serve", str(model.folder), "--served-model-name", "base", "--port", str(port), "--dtype",
        "float32", "--max-model-len", str(CONTEXT_TOKENS), "--enforce-eager", "--generation-config", "vllm",
        "--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"qa={model.adapter}",
    ]  # fmt: skip
    offline = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with started(command, port, tmp_path_factory.mktemp("vllm") / "log", **offline) as address:
        metrics = address.replace("/v1", "/metrics")

        def busy() -> bool:
            lines = httpx.get(metrics, timeout=30).text.splitlines()
            running = [line for line in lines if line.startswith("vllm:num_requests_running")]
            return any(float(line.rpartition(" ")[2]) > 0 for line in running)

        yield Engine(address, busy)


@pytest.fixture(scope="module", params=[pytest.param("llama", marks=SLOW), pytest.param("vllm", marks=SLOW)])
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.getfixturevalue(request.param)
    return found


def remote_of(engine: Engine, **changes: object) -> RemoteGenerator:
    options = {"model": "base", "adapters": {"qa": "qa"}, "base_url": engine.address, "request_timeout_s": 300.0}
    return RemoteGenerator(GeneratorSettings(kind="remote", **(options | changes)))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def remote(engine: Engine) -> Iterator[RemoteGenerator]:
    made = remote_of(engine)
    yield made
    made.close()


def test_an_engine_writes_what_the_local_generator_writes(remote: RemoteGenerator, local: Generator) -> None:
    texts = []
    for request in (QUESTION, TUNED):
        remote.check(request)
        (theirs, done), (ours, expected) = answer_of(remote, request), answer_of(local, request)
        assert theirs == ours and len(set(ours)) > 5
        assert done.usage.prompt_tokens == expected.usage.prompt_tokens
        texts.append(ours)
    assert texts[0] != texts[1]


def test_an_engine_counts_as_the_local_generator_counts(
    engine: Engine, local: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_generator, "_AT_ONCE_S", START_S)
    assert isinstance(local, TokenCounter)
    counting = remote_of(engine)
    for text in ("A warp holds 32 threads.", "线程束", ""):
        assert counting.count_tokens(text) == local.count_tokens(text)
    counting.close()


def test_the_base_never_goes_on_from_what_an_adapter_read(remote: RemoteGenerator) -> None:
    """llama.cpp's cache of prompts did, after some turns of both arms."""
    passages = tuple(make_passage(f"{n} is a warp of threads. " * 60) for n in range(2))
    asked = {"Q": QUESTION, "T": TUNED}
    asked |= {f"P{arm}": replace(each, passages=passages) for arm, each in asked.items()}
    first = answer_of(remote, QUESTION)[0]
    for name in "T PQ Q PT Q T PQ PT PQ".split():
        answer_of(remote, asked[name])
    assert answer_of(remote, QUESTION)[0] == first


def test_what_the_engine_does_not_serve_is_no_arm(engine: Engine) -> None:
    for wrong, asked in (({"adapters": {"qa": "other"}}, TUNED), ({"model": "another"}, QUESTION)):
        generator = remote_of(engine, **wrong)
        with pytest.raises(ArmUnavailable, match="does not list"):
            answer_of(generator, asked)
        generator.close()


def test_what_does_not_fit_is_dropped_or_refused(remote: RemoteGenerator) -> None:
    passages = tuple(make_passage(f"{n} is a warp of threads. " * 60) for n in range(5))
    _, done = answer_of(remote, replace(QUESTION, arm="rag", passages=passages))
    assert done.passages_used is not None
    assert 0 < done.passages_used < 5
    with pytest.raises(PromptTooLong):
        answer_of(remote, replace(QUESTION, question="warp threads " * CONTEXT_TOKENS))


def test_hanging_up_stops_the_engine(engine: Engine, remote: RemoteGenerator) -> None:
    stream = remote.stream(replace(QUESTION, max_tokens=CONTEXT_TOKENS - 200))
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    wait_until(lambda: not engine.busy(), "the engine to stop")


@pytest.mark.parametrize("request_", [QUESTION, TUNED], ids=["base", "tuned"])
def test_thirty_readers_are_all_answered_each_with_their_own(
    remote: RemoteGenerator, request_: GenerationRequest
) -> None:
    """Each asks for another length. One arm at a time: vLLM 0.32 on a processor garbles the base beside an adapter."""
    asked = [replace(request_, max_tokens=5 + number) for number in range(READERS)]
    alone = [answer_of(remote, each) for each in asked]
    with ThreadPoolExecutor(READERS) as readers:
        together = list(readers.map(lambda each: answer_of(remote, each), asked))
    assert [done.usage.completion_tokens for _, done in together] == [5 + number for number in range(READERS)]
    assert [text for text, _ in together] == [text for text, _ in alone]


def test_transformers_serve_writes_what_the_local_generator_writes(
    model: Model, local: Generator, tmp_path: Path
) -> None:
    port, program = free_port(), str(Path(sys.executable).with_name("transformers"))
    command = [
        program, "serve", str(model.folder), "--device", "cpu", "--dtype", "float32", "--host", "127.0.0.1", "--port",
        str(port),
    ]  # fmt: skip
    # an engine without a cache ends when it is asked for a model it lacks
    offline = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path), "OMP_NUM_THREADS": "1"}
    with started(command, port, tmp_path / "log", **offline) as address:
        remote = RemoteGenerator(GeneratorSettings(kind="remote", model=str(model.folder), base_url=address))
        (theirs, done), (ours, expected) = (answer_of(generator, QUESTION) for generator in (remote, local))
        remote.close()
    assert theirs == ours and done.usage.prompt_tokens == expected.usage.prompt_tokens
