"""What REST and the page share: following an answer again, votes, explanations, and the choice of an adapter."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from api_fakes import PATIENCE_S, SAMPLE_ID, WARP, FakeBuilder, Live, running, wait_until
from fakes import ScriptedGenerator

QUESTION = "How many threads are in a warp?"
ASKED = {"question": QUESTION}
STREAM = ASKED | {"stream": True}


def test_a_finished_answer_is_followed_again_with_the_same_events(shared: Live):
    first = shared.client.post("/v1/ask", json=STREAM)
    answer_id = first.headers["x-answer-id"]
    again = shared.client.get(f"/v1/answers/{answer_id}/events")
    assert again.headers["content-type"].startswith("text/event-stream")
    assert again.text == first.text
    assert json.loads(first.text.rpartition("data: ")[2])["id"] == answer_id
    assert shared.status("GET", "/v1/answers/nobody/events") == 404


def test_an_answer_in_work_is_followed_from_its_start_and_goes_on_for_the_second_reader(live: Live):
    go_on = threading.Event()
    live.generator.before_piece = lambda index: index and go_on.wait(PATIENCE_S) and None
    stream = live.client.stream
    with (
        stream("POST", "/v1/ask", json=STREAM) as first,
        stream("GET", f"/v1/answers/{first.headers['x-answer-id']}/events") as second,
    ):
        first.close()
        go_on.set()
        lines = second.read().decode().splitlines()
    names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    assert names == ["passages", "delta", "delta", "done"]


def test_an_answer_stops_when_its_conversation_is_deleted(settings):
    generator = ScriptedGenerator(["word "] * 5000, before_piece=lambda index: threading.Event().wait(0.05) and None)
    with running(settings, FakeBuilder(generator)) as live:
        conversation = live.post("/v1/conversations")["id"]
        with live.client.stream("POST", "/v1/ask", json=STREAM | {"conversation_id": conversation}) as reply:
            next(reply.iter_raw())
            assert live.status("DELETE", f"/v1/conversations/{conversation}") == 204
            wait_until(lambda: generator.closed_streams == 1, "the generator was closed")


def test_a_vote_names_the_arm_of_the_preferred_answer_and_is_between_answers_to_one_question(live: Live):
    ids = [answer["id"] for answer in live.post("/v1/compare", **ASKED, arms=["rag", "base"])["answers"]]
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


def test_an_explanation_ranks_the_nodes_of_a_page_or_section_among_all(live: Live):
    live.shelf.extend(SAMPLE_ID, "A stream is a queue of kernels and copies.", path=("Chapter", "Streams"))
    places = ({"page": 3}, {"section": ["Chapter", "Streams"]})
    explained = [live.post("/v1/explain", **ASKED, document_id=SAMPLE_ID, **place)["nodes"] for place in places]
    wanted, other = (nodes[0] for nodes in explained)
    assert [node["text"] for node in explained[0]] == [WARP]
    assert [[node[f"{kind}_rank"] for node in (wanted, other)] for kind in ("fused", "lexical")] == [[1, 2], [1, None]]
    assert "warp" in other["missing"] and "warp" in wanted["shared"]


@pytest.mark.parametrize(
    ("place", "status"),
    [
        ({}, 400), ({"page": 3, "section": ["Chapter"]}, 400), ({"page": 99}, 404), ({"section": ["No such"]}, 404),
        ({"document_id": "nobody", "page": 1}, 404),
    ],
)  # fmt: skip
def test_an_explanation_needs_one_place_that_is_there(place: dict[str, Any], status: int, shared: Live):
    assert shared.status("POST", "/v1/explain", ASKED | {"document_id": SAMPLE_ID} | place) == status


def test_a_comparison_takes_the_adapter_that_is_named_and_refuses_to_choose_between_several(settings):
    arms = ("base", "tuned", "rag", "rag+tuned")
    generator = ScriptedGenerator(["A warp."], arms=arms, adapters=("qa", "raft"))
    with running(settings, FakeBuilder(generator)) as live:
        refused = live.client.post("/v1/compare", json=ASKED)
        assert (refused.status_code, refused.json()["error"]["type"]) == (409, "arm_unavailable")
        assert "qa, raft" in refused.json()["error"]["message"]
        assert generator.requests == []
        answers = live.post("/v1/compare", **ASKED, adapter="raft")["answers"]
        assert [(answer["arm"], answer["adapter"]) for answer in answers] == [
            (arm, "raft" if "tuned" in arm else None) for arm in arms
        ]


def test_a_full_disk_is_an_answer_and_the_connection_goes_on(live: Live, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(live.services.engine.conversations, "create", full)
    for _ in range(2):
        reply = live.client.post("/v1/conversations", json={})
        assert (reply.status_code, reply.json()["error"]["type"]) == (503, "storage_full")
        assert reply.headers.get("connection") != "close"
