"""A real server with a local model and an adapter: one base model answers in all four arms."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from api_fakes import PATIENCE_S, serving, wait_until

from api.services import SAMPLE_MARKER, Services
from api.settings import load_settings

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("one_thread")]
ARMS = ["base", "tuned", "rag", "rag+tuned"]


@dataclass
class Server:
    """A running server."""

    client: httpx.Client
    address: str


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, tiny_adapter: Path) -> Iterator[Server]:
    """In this process, which has imported what it needs; `test_serve.py` starts processes."""
    home = tmp_path_factory.mktemp("home")
    (home / SAMPLE_MARKER).touch()
    model = {"generator": "local", "model": str(tiny_model), "adapters": f"mine={tiny_adapter}"}
    services = Services(load_settings({"home": home, **model}))
    with serving(services) as address, httpx.Client(base_url=address, timeout=PATIENCE_S) as client:
        preparation = services.preparation
        wait_until(lambda: preparation.ready or preparation.error is not None, "the model is loaded")
        assert preparation.error is None
        book = b"# Warps\n\nA warp is a group of 32 threads that run in lockstep.\n"
        job_id = client.post("/v1/documents", files={"file": ("notes.md", book)}).json()["job_id"]
        job = f"/v1/jobs/{job_id}"
        wait_until(lambda: client.get(job).json()["state"] in ("done", "failed"), "the book is added")
        assert client.get(job).json()["state"] == "done", client.get(job).json()
        yield Server(client, address)


def test_ready_names_the_model_its_precision_and_its_adapters(server: Server):
    ready = server.client.get("/readyz").json()
    assert (ready["generator"], ready["quantization"], ready["adapters"]) == ("local", "none", ["mine"])
    assert ready["arms"] == ARMS


def test_one_question_goes_through_all_four_arms(server: Server):
    body = {"question": "How many threads run in a warp?", "arms": ARMS, "max_tokens": 8}
    answers = server.client.post("/v1/compare", json=body).json()["answers"]
    assert [(answer["arm"], answer["adapter"]) for answer in answers] == [
        ("base", None), ("tuned", "mine"), ("rag", None), ("rag+tuned", "mine"),
    ]  # fmt: skip
    assert all(0 < answer["usage"]["completion_tokens"] <= 8 for answer in answers)
    assert [bool(answer["passages"]) for answer in answers] == [False, False, True, True]


def test_a_question_longer_than_the_context_is_a_413_in_every_arm(server: Server):
    for arm in ARMS:
        reply = server.client.post("/v1/ask", json={"question": "warp " * 3900, "arm": arm})
        assert (reply.status_code, reply.json()["error"]["type"]) == (413, "prompt_too_long")


def test_thirty_questions_at_once_are_all_answered_and_told_their_place(server: Server):
    def ask(number: int) -> tuple[str, str, int]:
        body = {"question": f"How many threads run in warp {number}?", "arm": ARMS[number % 2], "max_tokens": 40}
        with httpx.Client(base_url=server.address, timeout=PATIENCE_S) as client:
            reply = client.post("/v1/ask", json=body | {"stream": True})
        assert reply.status_code == 200, reply.text
        events = [event.split("\ndata: ") for event in reply.text.strip().split("\n\n") if event[0] != ":"]
        assert events[-1][0] == "event: done", reply.text
        answer = json.loads(events[-1][1])
        assert answer["question"] == body["question"]
        text = "".join(json.loads(data)["text"] for kind, data in events if kind == "event: delta")
        assert text == answer["answer"]
        places = [json.loads(data)["before"] for kind, data in events if kind == "event: waiting"]
        assert places == sorted(places, reverse=True)
        return answer["answer"], answer["arm"], max(places, default=0)

    with ThreadPoolExecutor(30) as pool:
        answers = list(pool.map(ask, range(30)))
    assert max(place for _, _, place in answers) >= 10
    body = {"question": "How many threads run in warp 29?", "arm": ARMS[1], "max_tokens": 40}
    assert server.client.post("/v1/ask", json=body).json()["answer"] == answers[29][0]
