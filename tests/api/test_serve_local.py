"""A real server with a local model and an adapter: one base model answers in all four arms."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from serving import Process, start, stop

pytestmark = pytest.mark.integration
ARMS = ["base", "tuned", "rag", "rag+tuned"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, tiny_adapter: Path) -> Iterator[Process]:
    home = tmp_path_factory.mktemp("serve") / "home"
    home.mkdir()
    (home / "sample-book-added").touch()
    adapter = f"mine={tiny_adapter}"
    options = ("--generator", "local", "--model", str(tiny_model), "--quantization", "none", "--adapter", adapter)
    process = start(home, *options)
    notes = Path(home.parent / "notes.md")
    notes.write_text("# Warps\n\nA warp is a group of 32 threads that run in lockstep.\n")
    process.client.post("/v1/documents", files={"file": ("notes.md", notes.read_bytes())})
    yield process
    stop(process)


def test_ready_names_the_model_its_precision_and_its_adapters(server: Process):
    ready = server.client.get("/readyz").json()
    assert (ready["generator"], ready["quantization"], ready["adapters"]) == ("local", "none", ["mine"])
    assert ready["arms"] == ARMS


def test_one_question_goes_through_all_four_arms(server: Process):
    body = {"question": "How many threads run in a warp?", "arms": ARMS, "max_tokens": 8}
    answers = server.client.post("/v1/compare", json=body).json()["answers"]
    assert [(answer["arm"], answer["adapter"]) for answer in answers] == [
        ("base", None), ("tuned", "mine"), ("rag", None), ("rag+tuned", "mine"),
    ]  # fmt: skip
    assert all(0 < answer["usage"]["completion_tokens"] <= 8 for answer in answers)
    assert [bool(answer["passages"]) for answer in answers] == [False, False, True, True]


def test_a_question_longer_than_the_context_is_a_413_in_every_arm(server: Process):
    for arm in ARMS:
        reply = server.client.post("/v1/ask", json={"question": "warp " * 3900, "arm": arm})
        assert (reply.status_code, reply.json()["error"]["type"]) == (413, "prompt_too_long")


def test_an_adapter_that_is_not_loaded_is_a_409_that_names_those_that_are(server: Process):
    reply = server.client.post("/v1/ask", json={"question": "x", "arm": "tuned", "adapter": "other"})
    assert reply.status_code == 409
    assert "mine" in reply.json()["error"]["message"] + reply.json()["error"]["hint"]


def test_the_official_client_reaches_every_arm(server: Process):
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as client:
        assert all(model.available for model in client.models.list())
        for arm in ARMS:
            completion = client.chat.completions.create(
                model=f"coalesce-{arm}", messages=[{"role": "user", "content": "What is a warp?"}], max_tokens=4
            )
            assert completion.usage.completion_tokens <= 4
