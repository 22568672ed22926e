"""The quick comparison as a job: asked for over REST, reported at the end, cancelled between two steps."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from api_fakes import WARP, running
from waiting import PATIENCE_S, wait_until

from evals.questions import parse_question

OWN = parse_question({"id": "made-1", "question": "How many?", "answer": "32 threads", "book": "own"}, where="test")


def test_the_quick_comparison_is_a_job_that_ends_in_its_report_or_is_cancelled(settings):
    gate, asked = threading.Event(), []

    def run(spec: Any, index: Any, rag: Any, folder: Path, tell: Any) -> Mapping[str, Any]:
        asked.append((spec, {question.book for question in spec.questions}))
        tell("asking", 1, 2)
        gate.wait(PATIENCE_S)
        tell("asking", 2, 2)
        folder.mkdir(parents=True, exist_ok=True)  # two within a second have one name
        return {}

    with running(settings, compare=run) as live:
        first = live.post("/v1/reports")["job_id"]
        wait_until(lambda: live.get(f"/v1/jobs/{first}")["total"] == 2, "it reports progress")
        assert live.status("POST", "/v1/reports") == 409
        live.client.delete(f"/v1/jobs/{first}")
        gate.set()
        assert live.ended(first)["state"] == "cancelled"
        report = live.ended(live.post("/v1/reports")["job_id"])["message"]
        document = live.shelf.put("own", WARP, source="own.md")
        assert live.status("POST", "/v1/reports", {"document_id": "own"}) == 409, "none were made yet"
        assert live.status("POST", "/v1/reports", {"document_id": "none"}) == 404
        live.services.questions.made.keep(document, [OWN])
        assert live.ended(live.post("/v1/reports", document_id="own")["job_id"])["state"] == "done"
    assert (settings.reports_folder / report).is_dir()
    (quick, books), *_, (own, own_books) = asked
    assert [(quick.own_library, books), (own.own_library, own_books)] == [(False, {""}), (True, {"own"})]
    arms = ["base", "tuned", "rag", "rag+tuned", "oracle", "random"]
    assert ([arm.name for arm in quick.arms], len(quick.questions), quick.quick) == (arms, 48, True)
