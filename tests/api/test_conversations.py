"""`/v1/conversations` and `/v1/feedback`: what was kept comes back unchanged."""

from __future__ import annotations

import pytest
from api_fakes import Live, running

from rag.errors import GenerationFailed

QUESTION = {"question": "How many threads are in a warp?"}


def test_a_conversation_reloads_with_its_answers_and_citations_intact(settings):
    with running(settings) as live:
        answer = live.client.post("/v1/ask", json=QUESTION).json()
    with running(settings) as live:
        conversation = live.client.get(f"/v1/conversations/{answer['conversation_id']}").json()
        assert conversation["answers"] == [answer]
        assert conversation["title"]


def test_a_conversation_is_started_renamed_listed_and_deleted(live: Live):
    started = live.client.post("/v1/conversations", json={"title": "Exam"})
    assert started.status_code == 201
    path = f"/v1/conversations/{started.json()['id']}"
    assert live.client.patch(path, json={"title": "Final exam"}).json()["title"] == "Final exam"
    assert [one["title"] for one in live.client.get("/v1/conversations").json()["conversations"]] == ["Final exam"]
    assert live.client.delete(path).status_code == 204
    assert live.client.get(path).status_code == 404
    assert live.client.delete(path).status_code == 404
    assert live.client.patch(path, json={"title": "x"}).status_code == 404


def test_an_answer_is_replaced_by_one_that_is_finished_and_no_other(live: Live):
    first = live.client.post("/v1/ask", json=QUESTION | {"filters": {"document_ids": ["sample"]}}).json()
    assert first["filters"] == {"document_ids": ["sample"], "chapters": [], "pages": None}
    again = QUESTION | {"conversation_id": first["conversation_id"], "replaces": first["id"]}
    live.generator.before_piece = _fail
    assert live.client.post("/v1/ask", json=again).status_code == 503
    live.generator.before_piece = lambda index: None
    path = f"/v1/conversations/{first['conversation_id']}"
    assert live.client.get(path).json()["answers"] == [first]
    second = live.client.post("/v1/ask", json=again).json()
    assert live.generator.requests[-1].turns == ()
    assert live.client.get(path).json()["answers"] == [second]
    assert live.client.post("/v1/ask", json=again).status_code == 404
    assert live.client.post("/v1/ask", json=QUESTION | {"replaces": second["id"]}).status_code == 404


def _fail(index: int) -> None:
    raise GenerationFailed("the engine has gone")


def test_a_conversation_can_be_started_without_a_body(live: Live):
    assert live.client.post("/v1/conversations").status_code == 201
    assert live.client.post("/v1/conversations", json={}).status_code == 201


@pytest.mark.parametrize("title", ["", "   ", "x" * 301, "a\x00b"])
def test_a_title_that_is_none_is_refused(title, live: Live):
    path = f"/v1/conversations/{live.client.post('/v1/conversations').json()['id']}"
    assert live.client.patch(path, json={"title": title}).status_code in (400, 422)


def test_deleting_a_conversation_takes_its_answers_with_it(live: Live):
    answer = live.client.post("/v1/ask", json=QUESTION).json()
    live.client.delete(f"/v1/conversations/{answer['conversation_id']}")
    reply = live.client.post("/v1/feedback", json={"answer_id": answer["id"], "rating": "up"})
    assert reply.status_code == 404


def test_feedback_is_kept_with_its_answer_and_the_last_one_counts(live: Live):
    answer = live.client.post("/v1/ask", json=QUESTION).json()
    body = {"answer_id": answer["id"], "rating": "up"}
    assert live.client.post("/v1/feedback", json=body).status_code == 201
    reply = live.client.post("/v1/feedback", json=body | {"rating": "down", "comment": "wrong page"})
    assert reply.json() | {"created_at": ""} == body | {"rating": "down", "comment": "wrong page", "created_at": ""}
    kept = live.services.engine.conversations.feedback()
    assert [(one.rating, one.comment, answered.id) for one, answered in kept] == [("down", "wrong page", answer["id"])]


def test_conversations_are_searched_exported_and_all_deleted(live: Live) -> None:
    client = live.client
    answer = client.post("/v1/ask", json={"question": "How many threads are in a warp?"}).json()
    client.post("/v1/conversations", json={"title": "Tiles"})
    found = client.get("/v1/conversations", params={"search": "THREADS"}).json()["conversations"]
    assert [one["id"] for one in found] == [answer["conversation_id"]]
    assert client.get("/v1/conversations", params={"search": "100% tiles_"}).json()["conversations"] == []
    store = live.services.engine.conversations
    begun = store.create("on the page", "page")
    assert [one.id for one in store.list(of_the_page=True)] == [begun.id]
    text = client.get(f"/v1/conversations/{answer['conversation_id']}/export.md").text
    assert "## How many threads are in a warp?" in text and "[^1-1]: Sample › Chapter" in text
    assert client.delete(f"/v1/answers/{answer['id']}").status_code == 204
    assert client.delete(f"/v1/answers/{answer['id']}").status_code == 404
    assert client.get(f"/v1/conversations/{answer['conversation_id']}").json()["answers"] == []
    assert client.delete("/v1/conversations").status_code == 204
    assert client.get("/v1/conversations").json()["conversations"] == []
