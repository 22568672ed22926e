"""The quick comparison as a job: asked for over REST, reported at the end, cancelled between two steps."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from api_fakes import WARP, FakeBuilder
from fastapi.testclient import TestClient
from waiting import PATIENCE_S, wait_until

from api.server import create_app
from api.services import Services
from api.settings import CoalesceSettings
from evals.questions import parse_question

OWN = parse_question({"id": "made-1", "question": "How many?", "answer": "32 threads", "book": "own"}, where="test")


def test_the_quick_comparison_is_a_job_that_ends_in_its_report_or_is_cancelled(settings: CoalesceSettings) -> None:
    gate, runs, asked = threading.Event(), [], []

    def run(spec: Any, index: Any, rag: Any, folder: Path, tell: Any) -> Mapping[str, Any]:
        runs.append(([arm.name for arm in spec.arms], len(spec.questions), spec.quick))
        asked.append((spec.own_library, {question.book for question in spec.questions}))
        tell("asking", 1, 2)
        gate.wait(PATIENCE_S)
        tell("asking", 2, 2)
        folder.mkdir(parents=True, exist_ok=True)  # two within a second have one name
        return {}

    builder = FakeBuilder()
    services = Services(settings, load=builder.load, add_sample=builder.add_sample, compare=run)
    with TestClient(create_app(services, pages=False), base_url="http://127.0.0.1") as client:
        wait_until(lambda: services.preparation.ready, "the services are ready")
        first = client.post("/v1/reports").json()["job_id"]
        wait_until(lambda: client.get(f"/v1/jobs/{first}").json()["total"] == 2, "it reports progress")
        assert client.post("/v1/reports").status_code == 409
        client.delete(f"/v1/jobs/{first}")
        gate.set()
        wait_until(lambda: client.get(f"/v1/jobs/{first}").json()["state"] == "cancelled", "it is cancelled")
        second = client.post("/v1/reports").json()["job_id"]
        wait_until(lambda: client.get(f"/v1/jobs/{second}").json()["state"] == "done", "it ends")
        report = client.get(f"/v1/jobs/{second}").json()["message"]
        builder.shelf.put("own", WARP, source="own.md")
        assert client.post("/v1/reports", json={"document_id": "own"}).status_code == 409, "none were made yet"
        assert client.post("/v1/reports", json={"document_id": "none"}).status_code == 404
        services.questions.made.keep(builder.shelf.document("own"), [OWN])
        third = client.post("/v1/reports", json={"document_id": "own"}).json()["job_id"]
        wait_until(lambda: client.get(f"/v1/jobs/{third}").json()["state"] == "done", "it ends")
    assert (settings.reports_folder / report).is_dir()
    assert (asked[0], asked[-1]) == ((False, {""}), (True, {"own"}))
    assert runs[0] == (["base", "tuned", "rag", "rag+tuned", "oracle", "random"], 48, True)
