"""Adapters tuned from the page or over REST: on a book's own questions, with progress, a curve and cancel."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from api_fakes import FakeBuilder, Live, running
from waiting import PATIENCE_S, wait_until

from api.generator import GeneratorSwitch
from api.settings import CoalesceSettings, load_settings
from evals.made_store import is_for_tuning
from indexes.errors import Cancelled
from rag.models.adapters import read_adapter
from rag.tuning.data import TrainingRow
from rag.tuning.settings import TuneProgress, TuneSettings

SENTENCES = (
    "A warp is a group of neighbouring threads that a scheduler issues together.",
    "A stream is an ordered queue of work that the device performs in sequence.",
    "A barrier is a point in a kernel that all members must reach before any goes on.",
    "A sampler is a fixed piece of hardware that interpolates between neighbouring texels.",
    "A mailbox is a small buffer through which the host hands commands to the chip.",
    "A tile is a rectangular part of a matrix that one group loads and works on.",
    "A prefetcher is a unit that fetches lines of memory before they are asked for.",
    "A rasterizer is a unit that turns triangles into the pixels that they cover.",
    "A wavefront is a set of 64 lanes that execute one instruction at the same time.",
    "A semaphore is a counter that lets only so many workers into a region of code.",
)


class FakeTune:
    """Takes two steps, and holds still between them until `gate` is set."""

    def __init__(self) -> None:
        self.rows: Sequence[TrainingRow] = ()
        self.model = ""
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()

    def __call__(
        self, model: str, rows: Sequence[TrainingRow], out: Path, settings: TuneSettings, progress: Any, cancelled: Any
    ) -> str:
        self.model, self.rows = model, rows
        out.mkdir(parents=True)
        progress(TuneProgress(1, 2, 2.5, None, 100.0))
        self.reached.set()
        self.gate.wait(PATIENCE_S)
        if cancelled():
            raise Cancelled("stopped")
        progress(TuneProgress(2, 2, 1.5, 1.75, 100.0))
        return "2 steps"


@pytest.fixture
def tune() -> FakeTune:
    return FakeTune()


@pytest.fixture
def live(settings: CoalesceSettings, tune: FakeTune, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    """The settings name a local model, which nothing loads."""
    monkeypatch.setattr(GeneratorSwitch, "load", lambda switch, _tell: switch._engine())
    chosen = load_settings({"home": settings.home, "generator": "local", "model": "tiny"})
    with running(chosen, tune=tune) as server:
        yield server


def ended(live: Live, reply: Any) -> dict[str, Any]:
    assert reply.status_code == 202, reply.text
    return live.ended(reply.json()["job_id"])


def add_book(live: Live) -> None:
    live.shelf.put("own", SENTENCES[0], source="own.md")
    for sentence in SENTENCES[1:]:
        live.shelf.extend("own", sentence)
    ended(live, live.client.post("/v1/documents/own/questions"))


def test_an_adapter_learns_half_of_a_books_sections_with_the_passages_that_serving_shows(live, tune):
    add_book(live)
    made = live.services.questions.on(["own"])
    learnt = {question.question for question in made if is_for_tuning(question)}
    assert learnt and len(learnt) < len(made), "the other half measures"
    job = ended(live, live.client.post("/v1/adapters", json={"name": "mine", "document_ids": ["own"]}))
    assert (job["state"], job["kind"], job["title"], job["message"]) == ("done", "adapter", "mine", "2 steps")
    assert {row.question for row in tune.rows} == learnt
    assert all(1 <= len(row.passages) <= 3 for row in tune.rows)
    assert tune.model == "tiny"
    assert "<svg" in live.client.get("/v1/adapters/mine/loss.svg").text
    assert [(point["loss"], point["eval_loss"]) for point in live.get("/v1/adapters/mine/loss")["points"]] == [
        (2.5, None), (1.5, 1.75),
    ]  # fmt: skip
    assert live.get("/v1/adapters")["model"] == "tiny"
    again = live.client.post("/v1/adapters", json={"name": "mine", "document_ids": ["own"]})
    assert (again.status_code, again.json()["error"]["type"]) == (409, "conflict")


def test_a_cancelled_tuning_keeps_nothing_and_its_curve_is_seen_while_it_runs(live: Live, tune: FakeTune) -> None:
    add_book(live)
    tune.gate.clear()
    job_id = live.post("/v1/adapters", name="mine", document_ids=["own"])["job_id"]
    assert tune.reached.wait(PATIENCE_S)
    assert "<svg" in live.client.get("/v1/adapters/mine/loss.svg").text
    assert live.status("POST", "/v1/adapters", {"name": "other", "document_ids": ["own"]}) == 409
    live.client.delete(f"/v1/jobs/{job_id}")
    tune.gate.set()
    assert live.ended(job_id)["state"] == "cancelled"
    wait_until(lambda: not (live.services.settings.home / "adapters" / "mine").exists(), "the folder is gone")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"name": "../up"}, 400), ({"name": "a" * 65}, 422), ({"epochs": 0}, 422), ({"document_ids": ["none"]}, 404),
        ({"questions": "bank:test"}, 400), ({"questions": "none.jsonl"}, 404),
        ({"questions": "x.csv", "document_ids": ["own"]}, 400),
    ],
)  # fmt: skip
def test_a_tuning_that_cannot_be_is_refused(live: Live, body: dict[str, Any], status: int) -> None:
    assert live.status("POST", "/v1/adapters", {"name": "a"} | body) == status


def test_without_a_local_model_nothing_can_be_tuned(shared: Live) -> None:
    assert shared.status("POST", "/v1/adapters", {"name": "a"}) == 409
    for name in ("none", "..%2Fx"):
        assert shared.status("GET", f"/v1/adapters/{name}/loss.svg") == 404
        assert shared.status("GET", f"/v1/adapters/{name}/loss") == 404
    assert shared.get("/v1/adapters") == {"model": None, "quantization": None, "adapters": []}


@pytest.mark.integration
@pytest.mark.usefixtures("one_thread")
def test_a_tiny_model_is_tuned_on_a_books_questions_and_the_adapter_fits_it(settings, tmp_path):
    from tiny_models import build_model

    model = build_model(tmp_path / "tiny", num_hidden_layers=1)
    chosen = load_settings({"home": settings.home, "generator": "local", "model": str(model), "device": "cpu"})
    with running(chosen, FakeBuilder()) as live:
        add_book(live)
        body = {"name": "mine", "document_ids": ["own"], "epochs": 1.0}
        job = ended(live, live.client.post("/v1/adapters", json=body))
        assert job["state"] == "done", job
        folder = settings.home / "adapters" / "mine"
        assert read_adapter(folder).record is not None
        assert not (folder / "checkpoints").exists()
        fits = [(found["name"], found["base_model"]) for found in live.client.get("/v1/generator").json()["adapters"]]
        assert fits == [("mine", str(model))]
