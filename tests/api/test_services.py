"""What REST and the page share: following an answer again, votes, explanations, and the choice of an adapter."""

from __future__ import annotations

import json
import threading

import pytest
from api_fakes import PATIENCE_S, SAMPLE_ID, WARP, FakeBuilder, Live, running, wait_until
from fakes import ScriptedGenerator

from api.settings import load_settings

QUESTION = "How many threads are in a warp?"
ALL_ARMS = ("base", "tuned", "rag", "rag+tuned")


def test_a_finished_answer_is_followed_again_with_the_same_events(shared: Live):
    first = shared.client.post("/v1/ask", json={"question": QUESTION, "stream": True})
    answer_id = first.headers["x-answer-id"]
    again = shared.client.get(f"/v1/answers/{answer_id}/events")
    assert again.headers["content-type"].startswith("text/event-stream")
    assert again.text == first.text
    assert json.loads(first.text.rpartition("data: ")[2])["id"] == answer_id
    assert shared.client.get("/v1/answers/nobody/events").status_code == 404


def test_an_answer_in_work_is_followed_from_its_start_and_goes_on_for_the_second_reader(settings):
    go_on = threading.Event()
    generator = ScriptedGenerator(["one ", "two"], before_piece=lambda index: index and go_on.wait(PATIENCE_S) and None)
    with running(settings, FakeBuilder(generator)) as live:
        with live.client.stream("POST", "/v1/ask", json={"question": QUESTION, "stream": True}) as first:
            address = f"/v1/answers/{first.headers['x-answer-id']}/events"
            with live.client.stream("GET", address) as second:
                first.close()
                go_on.set()
                text = second.read().decode()
        assert [line for line in text.splitlines() if line.startswith("event: ")] == [
            "event: passages",
            "event: delta",
            "event: delta",
            "event: done",
        ]


def test_an_answer_stops_when_its_conversation_is_deleted(settings):
    generator = ScriptedGenerator(["word "] * 5000, before_piece=lambda index: threading.Event().wait(0.05) and None)
    with running(settings, FakeBuilder(generator)) as live:
        conversation = live.client.post("/v1/conversations", json={}).json()["id"]
        body = {"question": QUESTION, "stream": True, "conversation_id": conversation}
        with live.client.stream("POST", "/v1/ask", json=body) as reply:
            next(reply.iter_raw())
            assert live.client.delete(f"/v1/conversations/{conversation}").status_code == 204
            wait_until(lambda: generator.closed_streams == 1, "the generator was closed")


def test_an_answer_of_another_learner_cannot_be_followed_or_voted_on(tmp_path):
    settings = load_settings({"home": tmp_path / "home", "learner_keys": "ann=a1,bob=b1"})
    with running(settings, wait=False) as live:
        wait_until(lambda: live.services.preparation.ready, "ready")
        ann, bob = ({"authorization": f"Bearer {key}"} for key in ("a1", "b1"))
        asked = live.client.post("/v1/ask", json={"question": QUESTION}, headers=ann).json()
        address = f"/v1/answers/{asked['id']}/events"
        assert live.client.get(address, headers=ann).status_code == 200
        assert live.client.get(address, headers=bob).status_code == 404
        vote = {"answer_ids": [asked["id"], asked["id"]]}
        assert live.client.post("/v1/votes", json=vote, headers=bob).status_code == 404


def test_a_vote_names_the_arm_of_the_preferred_answer(live: Live):
    answers = live.client.post("/v1/compare", json={"question": QUESTION, "arms": ["rag", "base"]}).json()["answers"]
    ids = [answer["id"] for answer in answers]
    kept = live.client.post("/v1/votes", json={"answer_ids": ids, "preferred": ids[1]})
    assert (kept.status_code, kept.json()["winner"], kept.json()["blind"]) == (201, "base", True)
    assert live.client.post("/v1/votes", json={"answer_ids": ids, "preferred": None}).json()["winner"] is None
    lines = live.client.get("/v1/compare/votes.jsonl").text.splitlines()
    assert [json.loads(line)["winner"] for line in lines] == ["base", None]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"answer_ids": ["x", "y"], "preferred": "z"}, 404),
        ({"answer_ids": ["x"]}, 422),
        ({"preferred": "x"}, 422),
    ],
)
def test_a_vote_between_answers_that_are_not_there_is_refused(body, status, shared: Live):
    assert shared.client.post("/v1/votes", json=body).status_code == status


def test_a_vote_is_between_answers_to_one_question(shared: Live):
    ids = [shared.client.post("/v1/ask", json={"question": text}).json()["id"] for text in (QUESTION, "And a block?")]
    for body in ({"answer_ids": ids}, {"answer_ids": [ids[0], ids[0]]}, {"answer_ids": ids, "preferred": "other"}):
        assert shared.client.post("/v1/votes", json=body).status_code == 400


def test_an_explanation_ranks_the_nodes_of_a_page_or_section_among_all(live: Live):
    live.shelf.extend(SAMPLE_ID, "A stream is a queue of kernels and copies.", path=("Chapter", "Streams"))

    def explained(**place: object) -> dict:
        body = {"question": QUESTION, "document_id": SAMPLE_ID, **place}
        return live.client.post("/v1/explain", json=body).json()

    wanted, other = explained(page=3), explained(section=["Chapter", "Streams"])
    assert [node["text"] for node in wanted["nodes"]] == [WARP]
    assert [found["nodes"][0]["fused_rank"] for found in (wanted, other)] == [1, 2]
    assert [found["nodes"][0]["lexical_rank"] for found in (wanted, other)] == [1, None]
    assert "warp" in other["nodes"][0]["missing"] and "warp" in wanted["nodes"][0]["shared"]


@pytest.mark.parametrize(
    ("place", "status"),
    [
        ({}, 400),
        ({"page": 3, "section": ["Chapter"]}, 400),
        ({"page": 99}, 404),
        ({"section": ["No such chapter"]}, 404),
        ({"document_id": "nobody", "page": 1}, 404),
    ],
)
def test_an_explanation_needs_one_place_that_is_there(place, status, shared: Live):
    body = {"question": QUESTION, "document_id": SAMPLE_ID} | place
    assert shared.client.post("/v1/explain", json=body).status_code == status


def test_a_comparison_takes_the_adapter_that_is_named_and_refuses_to_choose_between_several(settings):
    generator = ScriptedGenerator(["A warp."], arms=ALL_ARMS, adapters=("qa", "raft"))
    with running(settings, FakeBuilder(generator)) as live:
        refused = live.client.post("/v1/compare", json={"question": QUESTION})
        assert (refused.status_code, refused.json()["error"]["type"]) == (409, "arm_unavailable")
        assert "qa, raft" in refused.json()["error"]["message"]
        assert generator.requests == []
        answers = live.client.post("/v1/compare", json={"question": QUESTION, "adapter": "raft"}).json()["answers"]
        assert {answer["arm"]: answer["adapter"] for answer in answers} == {
            "base": None,
            "tuned": "raft",
            "rag": None,
            "rag+tuned": "raft",
        }


def test_control_characters_are_refused_in_titles_and_comments(shared: Live):
    answer_id = shared.client.post("/v1/ask", json={"question": QUESTION}).json()["id"]
    conversation = shared.client.post("/v1/conversations", json={}).json()["id"]
    for reply in (
        shared.client.post("/v1/conversations", json={"title": "bell \x07"}),
        shared.client.patch(f"/v1/conversations/{conversation}", json={"title": "bell \x07"}),
        shared.client.post("/v1/feedback", json={"answer_id": answer_id, "rating": "up", "comment": "bell \x07"}),
    ):
        assert reply.status_code == 400
        assert "U+0007" in reply.json()["error"]["message"]


def test_a_made_up_key_does_not_get_around_the_rate_limit(settings):
    with running(settings.model_copy(update={"rate_limit_per_minute": 2})) as live:
        statuses = [
            live.client.post("/v1/ask", json={"question": QUESTION}, headers={"authorization": f"Bearer x{n}"})
            for n in range(3)
        ]
        assert [reply.status_code for reply in statuses] == [200, 200, 429]


def test_a_full_disk_is_an_answer_and_the_connection_goes_on(live: Live, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(live.services.engine.conversations, "create", full)
    for _ in range(2):
        reply = live.client.post("/v1/conversations", json={})
        assert (reply.status_code, reply.json()["error"]["type"]) == (503, "storage_full")
        assert "connection" not in reply.headers or reply.headers["connection"] != "close"
