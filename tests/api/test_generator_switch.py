"""Another generator without a restart: found, switched, kept for the next start, and left alone after a failure."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from api_fakes import FakeBuilder, Live, running
from fake_engine import MODEL, WRITES, FakeEngine, fake_engine
from fakes import ScriptedGenerator
from waiting import PATIENCE_S, wait_until

from api.chosen_generator import GeneratorChoice, keep_choice
from api.generator import GeneratorSwitch
from api.running_server import announce, find_server
from api.settings import CoalesceSettings, load_settings
from rag.engine import AnswerEngine

QUESTION = {"question": "How many threads are in a warp?"}


@pytest.fixture(scope="module")
def engine() -> Iterator[FakeEngine]:
    with fake_engine() as server:
        yield server


def put(live: Live, **body: Any) -> dict[str, Any]:
    """The job of a switch, ended."""
    reply = live.client.put("/v1/generator", json=body)
    assert reply.status_code == 202, reply.text
    return live.ended(reply.json()["job_id"])


def ask(live: Live) -> dict[str, Any]:
    answer: dict[str, Any] = live.post("/v1/ask", **QUESTION)
    return answer


def test_a_switch_answers_at_once_and_is_kept_for_the_next_start(live, engine, settings, monkeypatch):
    assert live.client.get("/v1/generator").json()["chosen"] is False
    assert put(live, generator="remote", base_url=engine.address, model=MODEL)["state"] == "done"
    answer = ask(live)
    assert (answer["generator"], answer["model"]) == ("remote", MODEL) and answer["quotes"] in answer["answer"]
    assert live.post("/v1/ask", **QUESTION, arm="base")["answer"] == WRITES.replace(" [1]", "")
    now = live.client.get("/v1/generator").json()
    assert (now["generator"], now["base_url"], now["chosen"]) == ("remote", engine.address, True)
    kept = load_settings({"home": settings.home}).rag.generator
    assert (kept.kind, kept.base_url, kept.model) == ("remote", engine.address, MODEL)
    assert load_settings({"home": settings.home, "generator": "extractive"}).rag.generator.model is None
    monkeypatch.setenv("COALESCE_MODEL", "other")
    assert load_settings({"home": settings.home}).rag.generator.model == "other"
    monkeypatch.delenv("COALESCE_MODEL")
    assert put(live, generator="auto")["state"] == "done"
    assert load_settings({"home": settings.home}).chosen is None


def test_a_failure_keeps_the_old_generator_and_says_why(live: Live, engine: FakeEngine) -> None:
    for choice, said in (
        ({"generator": "remote", "base_url": engine.address, "model": "another"}, "another"),
        ({"generator": "remote", "base_url": "http://127.0.0.1:9/v1", "model": MODEL}, "127.0.0.1:9"),
        ({"generator": "local", "model": "no-such-folder.gguf"}, "no-such-folder.gguf"),
    ):
        job = put(live, **choice)
        assert (job["state"], said in job["error"]["message"]) == ("failed", True), job
    assert ask(live)["generator"] == "scripted"
    assert live.get("/v1/generator")["chosen"] is False


def test_a_password_in_an_engines_address_is_in_no_reply(live: Live, engine: FakeEngine) -> None:
    address = engine.address.replace("http://", "http://user:hidden@")
    failed = put(live, generator="remote", base_url=address, model="another")
    assert failed["state"] == "failed"
    assert put(live, generator="remote", base_url=address, model=MODEL)["state"] == "done"
    now = live.client.get("/v1/generator").json()
    assert now["base_url"] == engine.address
    refused = live.client.put("/v1/generator", json={"generator": "remote", "model": "m", "base_url": "x:hidden@y"})
    for shown in (failed, now, ask(live), refused.json(), live.client.get("/v1/jobs").json()):
        assert "hidden" not in str(shown)


@pytest.mark.parametrize(
    ("held", "path", "body"),
    [
        ("stream", "/v1/ask", QUESTION),
        ("score_choices", "/v1/choose", QUESTION | {"choices": ["16", "32"], "arms": ["rag"]}),
    ],
)
def test_what_is_in_work_is_finished_by_the_old_generator_before_that_is_freed(
    held, path, body, live, engine, monkeypatch
):
    reached, gate, closed = threading.Event(), threading.Event(), threading.Event()
    work = getattr(live.generator, held)

    def hold(*given: Any) -> Any:
        reached.set()
        gate.wait(PATIENCE_S)
        return work(*given)

    def close() -> None:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()  # which would stand still
        closed.set()

    monkeypatch.setattr(live.generator, held, hold)
    monkeypatch.setattr(live.generator, "close", close)
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(live.client.post, path, json=body)
        assert reached.wait(PATIENCE_S)
        put(live, generator="remote", base_url=engine.address, model=MODEL)
        assert ask(live)["generator"] == "remote"
        assert not closed.is_set()
        gate.set()
        assert reply.result().json()["generator"] == "scripted"
    assert closed.wait(PATIENCE_S)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        *(({"generator": "remote", "model": "m", "base_url": address}, status) for address, status in [
            ("http://10.0.0.1/v1", 403), ("http://127.0.0.1:80@example.org/v1", 403),
            ("http://127.0.0.1.example.org/v1", 403), ("http://localhost:8000/v1", 400),
            ("file:///etc/passwd", 400), ("http://[::1/v1", 400), ("http://127.0.0.1:9/v1,http://10.0.0.1/v1", 403),
        ]),
        ({"generator": "remote", "base_url": "http://127.0.0.1:9/v1"}, 400), ({"generator": "local"}, 400),
        ({"generator": "local", "model": "m", "adapter": "../x"}, 404), ({"generator": "vllm"}, 422),
    ],
)  # fmt: skip
def test_what_may_not_answer_is_refused_before_any_job(shared: Live, body: dict[str, Any], status: int) -> None:
    assert shared.status("PUT", "/v1/generator", body) == status


def test_a_stored_key_goes_to_its_own_address_only(engine, tmp_path):
    stored = {"home": tmp_path, "generator_api_key": "secret"}
    with running(load_settings({**stored, "base_url": "http://books.example.org/v1"})) as live:
        engine.keys.clear()
        assert put(live, generator="remote", base_url=engine.address, model=MODEL)["state"] == "done"
        assert set(engine.keys) == {None}
    own = load_settings({**stored, "base_url": engine.address})
    choice = GeneratorChoice(generator="remote", base_url=engine.address, model=MODEL)
    assert own.rag_with(choice).generator.api_key == "secret"
    both = choice.model_copy(update={"base_url": f"{engine.address},http://127.0.0.1:9/v1"})
    assert own.rag_with(both).generator.api_key is None
    assert load_settings({**stored, "base_url": both.base_url}).rag_with(both).generator.api_key == "secret"


def test_a_kept_choice_that_cannot_load_does_not_stop_the_server(settings: CoalesceSettings) -> None:
    settings.home.mkdir()
    keep_choice(settings.choice_place, GeneratorChoice(generator="local", model="gone.gguf"))
    with running(load_settings({"home": settings.home})) as live:
        now = live.client.get("/v1/generator").json()
        assert (now["chosen"], now["generator"]) == (False, "scripted")
        assert "There is no file gone.gguf" in now["problem"]


def test_questions_are_answered_while_the_model_is_loaded(
    settings: CoalesceSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.home.mkdir()
    file = settings.home / "m.gguf"
    file.touch()
    quoting = ScriptedGenerator(["A warp has 32 threads [1]."], arms=("rag",))
    builder, loaded = FakeBuilder(quoting), threading.Event()

    def load(_self: GeneratorSwitch, _tell: Callable[[str, int, int], None]) -> AnswerEngine:
        assert loaded.wait(PATIENCE_S)
        writer = FakeBuilder(ScriptedGenerator(["A warp is written [1]."]))
        return writer.engine(settings, builder.shelf)

    monkeypatch.setattr(GeneratorSwitch, "load", load)
    with running(settings.model_copy(update={"model": str(file)}), builder, wait=False) as live:
        wait_until(lambda: live.services.preparation.answering, "questions are answered")
        assert ask(live)["answer"] == "A warp has 32 threads [1]."
        waiting = live.client.get("/readyz")
        assert (waiting.status_code, waiting.json()["waiting_for"]) == (503, "loading the language model")
        assert live.status("PUT", "/v1/generator", {"generator": "extractive"}) == 409
        announce(settings.home, live.address)
        assert find_server(settings) is not None, "commands do not load a model of their own"
        for path, body in (
            ("/v1/ask", {"question": "What is a warp?", "arm": "base"}),
            ("/v1/compare", {"question": "What is a warp?", "arms": ["base"]}),
            ("/v1/chat/completions", {"model": "coalesce-base", "messages": [{"role": "user", "content": "Why?"}]}),
        ):
            early = live.client.post(path, json=body)
            assert (early.status_code, early.json()["error"]["type"]) == (503, "not_ready")
            assert "loading" in early.json()["error"]["message"] and early.headers["Retry-After"]
        loaded.set()
        wait_until(lambda: live.services.preparation.ready, "the model is loaded")
        assert ask(live)["answer"] == "A warp is written [1]."
