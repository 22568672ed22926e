"""vLLM as a child of the program, with a stand-in for `vllm serve`; the real one is in `test_real_engines.py`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from fakes import ScriptedReader, answer_of, make_passage
from safetensors.numpy import save_file
from waiting import wait_until

from indexes.errors import InvalidInput
from rag.assemble import build_language_model
from rag.errors import ArmUnavailable, CoalesceError, ModelCannotLoad
from rag.generators import openai_client
from rag.generators.prompts import BRIEF_WITH_PASSAGES
from rag.generators.protocol import GenerationRequest, Generator
from rag.generators.vllm import VllmGenerator, start_vllm
from rag.settings import GeneratorSettings

pytestmark = pytest.mark.integration

STAND_IN = f"{sys.executable} {Path(__file__).parents[1] / 'fake_vllm.py'} serve"


def settings(home: Path, **changes: object) -> GeneratorSettings:
    made: dict[str, object] = {"kind": "vllm", "model": str(home / "base"), "vllm": STAND_IN, "home": home}
    (home / "base").mkdir(exist_ok=True)
    return GeneratorSettings(**(made | changes))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmGenerator]:
    home = tmp_path_factory.mktemp("home")
    pair = {"q.lora_A.weight": np.zeros((4, 8), np.float32), "q.lora_B.weight": np.zeros((8, 4), np.float32)}
    save_file(pair, home / "adapter_model.safetensors")
    (home / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4}', "utf-8")
    made = start_vllm(settings(home, adapters={"qa": str(home)}, context_tokens=512))
    yield made
    made.close()


def ask(generator: Generator, question: str = "What is a warp?", arm: str = "base") -> str:
    request = GenerationRequest(question, arm, adapter="qa" if arm == "tuned" else None)  # type: ignore[arg-type]
    return answer_of(generator, request)[0]


def test_the_base_and_adapters_are_models_of_one_vllm(generator: VllmGenerator) -> None:
    assert isinstance(generator, Generator)
    assert (generator.name, generator.arms) == ("vllm", ("base", "tuned", "rag", "rag+tuned"))
    base, tuned = ask(generator), ask(generator, arm="tuned")
    assert base.startswith(generator.model_name)
    assert tuned.startswith("qa of process")
    assert tuned.rpartition(" ")[2] == base.rpartition(" ")[2]
    log = generator._server.log.read_text("utf-8")
    assert '"--max-lora-rank", "8"' in log  # rank 4 is not one that vLLM takes
    assert '"--max-model-len", "512"' in log
    with pytest.raises(ArmUnavailable):
        generator.check(GenerationRequest("What?", "tuned", adapter="other"))


def test_a_small_model_is_prompted_as_in_the_local_generator(tmp_path: Path, tiny_model: Path) -> None:
    passages = (make_passage("A warp has 32 threads. " * 40),)
    reader = ScriptedReader({"A warp": 0.9})
    request = GenerationRequest("Show the prompt: how many threads has a warp?", "rag", passages)
    shown = {}
    for read_by in (reader, None):
        made = start_vllm(settings(tmp_path, model=str(tiny_model)), read_by)
        shown[read_by] = answer_of(made, request)[0]
        made.close()
    assert shown[reader].startswith(BRIEF_WITH_PASSAGES)
    assert "A warp has 32 threads." in shown[reader]
    assert len(shown[reader]) < len(passages[0].text) < len(shown[None])


def test_one_that_crashed_is_started_again_by_the_next_question(
    generator: VllmGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai_client, "_LONGEST_PAUSE_S", 0.02)
    before = ask(generator)
    with pytest.raises(CoalesceError):
        ask(generator, "crash")
    process = generator._server._process
    assert process is not None
    wait_until(lambda: process.poll() is not None, "its watchdog to end")
    assert ask(generator).rpartition(" ")[2] != before.rpartition(" ")[2]


def test_closing_stops_it(tmp_path: Path) -> None:
    made = start_vllm(settings(tmp_path))
    process = int(ask(made).rpartition(" ")[2])
    made.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_it_is_gone_when_the_server_is_killed(tmp_path: Path) -> None:
    program = f"""
        from pathlib import Path
        from rag.generators.vllm import start_vllm
        from rag.settings import GeneratorSettings
        home = Path({str(tmp_path)!r})
        made = start_vllm(GeneratorSettings(kind="vllm", model=str(home), vllm={STAND_IN!r}, home=home))
        print(made._server.address, flush=True)
        input()
    """
    server = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdin is not None
    assert server.stdout is not None
    address = server.stdout.readline().strip()
    assert answers(address)
    server.send_signal(signal.SIGKILL)
    server.wait()
    wait_until(lambda: not answers(address), "vLLM to end")
    server.stdin.close()
    server.stdout.close()


def answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/models", timeout=5, trust_env=False).is_success
    except httpx.HTTPError:
        return False


def test_one_that_does_not_start_is_an_error_with_the_end_of_its_log(tmp_path: Path) -> None:
    with pytest.raises(ModelCannotLoad, match="ValueError: no kernel image") as error:
        start_vllm(settings(tmp_path, vllm=f"{STAND_IN} --fail 'no kernel image'"))
    assert str(tmp_path / "vllm.log") in error.value.hint


@pytest.mark.parametrize(("number", "said"), [("ILL", "this processor lacks"), ("KILL", "a signal ended it (Killed)")])
def test_one_that_a_signal_ends_is_an_error_that_says_why(tmp_path: Path, number: str, said: str) -> None:
    (tmp_path / "vllm.log").write_text("an earlier start\n", "utf-8")
    with pytest.raises(ModelCannotLoad, match=re.escape(said)) as error:
        start_vllm(settings(tmp_path, vllm=f"sh -c 'kill -{number} $$'"))
    assert error.value.message.endswith("; it said nothing")
    assert ("a build for this processor" in error.value.hint) == (number == "ILL")


def test_a_missing_program_or_model_is_said(tmp_path: Path) -> None:
    with pytest.raises(ModelCannotLoad, match="no program 'no-such-vllm'") as error:
        start_vllm(settings(tmp_path, vllm="no-such-vllm serve"))
    assert "COALESCE_VLLM" in error.value.hint
    with pytest.raises(InvalidInput, match="needs a model"):
        build_language_model(settings(tmp_path, model=None))
