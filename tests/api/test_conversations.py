"""`/v1/conversations`, `/v1/feedback` and `/v1/votes`: what was kept comes back unchanged."""

from __future__ import annotations

import json

from api_fakes import Live

from rag.errors import GenerationFailed

QUESTION = {"question": "How many threads are in a warp?"}


def test_a_conversation_is_started_renamed_listed_and_deleted_with_its_answers(live: Live):
    path = f"/v1/conversations/{live.post('/v1/conversations', title='Exam')['id']}"
    assert live.client.patch(path, json={"title": "Final exam"}).json()["title"] == "Final exam"
    for title in ("", "   ", "x" * 301, "a\x00b"):
        assert live.status("PATCH", path, {"title": title}) in (400, 422)
    assert [one["title"] for one in live.get("/v1/conversations")["conversations"]] == ["Final exam"]
    answer = live.post("/v1/ask", **QUESTION, conversation_id=path.rpartition("/")[2])
    assert [live.status(method, path) for method in ("DELETE", "GET", "DELETE")] == [204, 404, 404]
    assert live.status("PATCH", path, {"title": "x"}) == 404
    assert live.status("POST", "/v1/feedback", {"answer_id": answer["id"], "rating": "up"}) == 404
    assert [live.client.post("/v1/conversations", **body).status_code for body in ({}, {"json": {}})] == [201, 201]


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


def test_feedback_is_kept_with_its_answer_and_the_last_one_counts(live: Live):
    answer_id = live.post("/v1/ask", **QUESTION)["id"]
    last = {"answer_id": answer_id, "rating": "down", "comment": "wrong page"}
    assert live.status("POST", "/v1/feedback", last | {"comment": "bell \x07"}) == 400
    for body in (last | {"rating": "up"}, last):
        assert live.post("/v1/feedback", **body) | {"created_at": ""} == body | {"created_at": ""}
    assert live.get("/v1/feedback") == {"up": 0, "down": 1}
    kept = live.services.engine.conversations.feedback()
    assert [(one.rating, one.comment, answered.id) for one, answered in kept] == [("down", "wrong page", answer_id)]
    (conversation,) = live.get("/v1/conversations")["conversations"]
    assert live.get(f"/v1/conversations/{conversation['id']}")["ratings"] == {answer_id: "down"}


def test_conversations_are_searched_exported_and_all_deleted(live: Live) -> None:
    answer = live.post("/v1/ask", **QUESTION)
    live.post("/v1/conversations", title="Tiles")
    path = f"/v1/conversations/{answer['conversation_id']}"
    for search, found in (("THREADS", [answer["conversation_id"]]), ("100% tiles_", [])):
        assert [one["id"] for one in live.get("/v1/conversations", search=search)["conversations"]] == found
    begun = live.post("/v1/conversations", title="on the page", begun_in="page")
    assert live.get("/v1/conversations", begun_in="page")["conversations"] == [begun]
    assert live.status("POST", "/v1/conversations", {"begun_in": "elsewhere"}) == 422
    text = live.client.get(f"{path}/export.md").text
    assert "## How many threads are in a warp?" in text and "[^1-1]: Sample › Chapter" in text
    assert [live.status("DELETE", f"/v1/answers/{answer['id']}") for _ in range(2)] == [204, 404]
    assert live.get(path)["answers"] == []
    assert live.status("DELETE", "/v1/conversations", begun_in="page") == 204
    assert [one["title"] for one in live.get("/v1/conversations")["conversations"]] == ["Tiles", QUESTION["question"]]
    assert live.status("DELETE", "/v1/conversations") == 204
    assert live.get("/v1/conversations")["conversations"] == []


def test_a_vote_names_the_arm_of_the_preferred_answer_and_is_between_answers_to_one_question(live: Live):
    ids = [answer["id"] for answer in live.post("/v1/compare", **QUESTION, arms=["rag", "base"])["answers"]]
    kept = live.post("/v1/votes", answer_ids=ids, preferred=ids[1])
    assert (kept["winner"], kept["blind"]) == ("base", True)
    assert live.post("/v1/votes", answer_ids=ids, preferred=None)["winner"] is None
    lines = live.client.get("/v1/compare/votes.jsonl").text.splitlines()
    assert [json.loads(line)["winner"] for line in lines] == ["base", None]
    other = live.post("/v1/ask", question="And a block?")["id"]
    for body, status in (
        ({"answer_ids": ["x", "y"], "preferred": "x"}, 404), ({"answer_ids": ["x"]}, 422), ({"preferred": "x"}, 422),
        ({"answer_ids": [ids[0], other]}, 400), ({"answer_ids": [ids[0]] * 2}, 400),
        ({"answer_ids": ids, "preferred": other}, 400),
    ):  # fmt: skip
        assert live.status("POST", "/v1/votes", body) == status, body


def test_a_full_disk_is_an_answer_and_the_connection_goes_on(live: Live, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(live.services.engine.conversations, "create", full)
    for _ in range(2):
        reply = live.client.post("/v1/conversations", json={})
        assert (reply.status_code, reply.json()["error"]["type"]) == (503, "storage_full")
        assert reply.headers.get("connection") != "close"
