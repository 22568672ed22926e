"""`POST /v1/ask`, `/search`, `/compare` and `/explain`: the contract's fields, events, filters and refusals."""

from __future__ import annotations

import http.client
import json
import threading
from typing import Any

import httpx
import pytest
from api_fakes import PATIENCE_S, SAMPLE_ID, WARP, FakeBuilder, Live, running, wait_until
from fakes import ScriptedGenerator, signals_only

from api import answering
from indexes.errors import Busy, CoalesceError
from rag.errors import GenerationFailed
from rag.evidence import EvidenceJudge
from rag.sentence_reader import LearnedReader

PLACE = "node_id document_id title section page_label page_start page_end"
ANSWER_FIELDS = set(
    "id conversation_id question answer quotes refused written evidence note arm generator model adapter citations "
    "passages timings usage tokens_per_s peak_memory_bytes filters talk".split()
)
PARTS = {
    "passages": f"{PLACE} text score format",
    "citations": f"{PLACE} marker quote char_start char_end verdict",
    "timings": "retrieve_s ttft_s total_s",
    "usage": "prompt_tokens cached_prompt_tokens completion_tokens reasoning_tokens finish",
}
QUESTION = "How many threads are in a warp?"
ASKED = {"question": QUESTION}
STREAM = ASKED | {"stream": True}


def events_of(response: httpx.Response) -> list[tuple[str, dict[str, Any]]]:
    """The named events of a finished stream."""
    events = []
    for block in response.text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if lines:
            events.append((lines["event"], json.loads(lines["data"])))
    return events


def test_an_answer_has_exactly_the_contracts_fields_and_quotes_its_passage_verbatim(shared: Live):
    answer = shared.post("/v1/ask", **ASKED)
    assert set(answer) == ANSWER_FIELDS
    for name, fields in PARTS.items():
        part = answer[name]
        assert set(part[0] if isinstance(part, list) else part) == set(fields.split())
    assert [answer[name] for name in ("arm", "generator", "model", "adapter")] == ["rag", "scripted", "script", None]
    assert shared.post("/v1/search", query=QUESTION)["passages"] == answer["passages"]
    citation = answer["citations"][0]
    passage = answer["passages"][citation["marker"] - 1]
    assert passage["text"][citation["char_start"] : citation["char_end"]] == citation["quote"] != ""
    assert f"[{citation['marker']}]" in answer["answer"]
    assert (citation["page_start"], citation["page_label"]) == (3, "iii")


def test_the_deltas_of_a_stream_joined_are_the_answer(shared: Live):
    response = shared.client.post("/v1/ask", json=STREAM)
    assert response.headers["content-type"].startswith("text/event-stream")
    (_, first), *deltas, (_, done) = events = events_of(response)
    assert [name for name, _ in events] == ["passages", *["delta"] * len(deltas), "done"]
    assert set(done) == ANSWER_FIELDS
    assert "".join(data["text"] for _, data in deltas) == done["answer"] != ""
    assert first == {name: done[name] for name in first}
    assert {"passages", "evidence", "note"} <= set(first) and done["evidence"] in ("strong", "weak")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("ask", {"arm": "tuned"}),
        ("ask", {"arm": "tuned", "stream": True}),
        ("compare", {"arms": ["rag", "tuned"]}),
        ("compare", {"variants": [{"arm": "tuned"}]}),
        ("choose", {"choices": ["16", "32"], "arms": ["tuned"]}),
    ],
)
def test_an_arm_that_cannot_run_is_a_409_and_nothing_is_asked(live: Live, path: str, body: dict[str, Any]):
    assert live.refusal("POST", f"/v1/{path}", ASKED | body) == (409, "arm_unavailable")
    assert live.generator.requests == []


@pytest.mark.parametrize(
    ("error", "wait_s"),
    [(GenerationFailed("it broke", hint="ask again"), 5), (Busy("it broke", hint="ask again", retry_after_s=41.2), 42)],
)
def test_an_error_in_the_middle_of_a_stream_is_its_last_event(settings, error: CoalesceError, wait_s: int):
    def fail(index: int) -> None:
        if index == 1:
            raise error

    builder = FakeBuilder(ScriptedGenerator(["one ", "two"], before_piece=fail))
    with running(settings, builder) as live:
        events = events_of(live.client.post("/v1/ask", json=STREAM))
        assert [name for name, _ in events] == ["passages", "delta", "error"]
        whole = live.client.post("/v1/ask", json=ASKED)
        failed = whole.json()["error"]
        assert failed == {"type": failed["type"], "message": "it broke", "hint": "ask again"}
        assert (whole.status_code, whole.headers["retry-after"]) == (503, str(wait_s))
        assert events[-1][1] == {"error": failed | {"retry_after_s": wait_s}}
        assert f'coalesce_answers_failed_total{{type="{failed["type"]}"}} 2.0' in live.client.get("/metrics").text


@pytest.mark.parametrize(
    ("path", "stream"),
    [
        ("/v1/ask", {"stream": True}), ("/v1/ask", {}), ("/v1/compare", {"arms": ["rag", "base"]}),
        ("/v1/compare", {"stream": True, "arms": ["rag", "base"]}),
    ],
)  # fmt: skip
def test_a_client_that_leaves_stops_the_generator(settings, path: str, stream: dict[str, Any]):
    writes = threading.Event()

    def slowly(_: int) -> None:
        writes.set()
        threading.Event().wait(0.05)

    generator = ScriptedGenerator(["word "] * 5000, before_piece=slowly)
    with running(settings, FakeBuilder(generator)) as live:
        connection = http.client.HTTPConnection(live.address.removeprefix("http://"))
        connection.request("POST", path, json.dumps(ASKED | stream), {"content-type": "application/json"})
        assert writes.wait(PATIENCE_S)
        connection.close()
        wait_until(lambda: "coalesce_answers_inside 0.0" in live.client.get("/metrics").text, "it stopped")
        wait_until(lambda: generator.closed_streams == 1, "the generator is closed")
        assert len(generator.requests) == 1


def test_one_thread_drives_an_answer_from_its_first_piece_to_its_last(settings):
    threads: set[int] = set()
    generator = ScriptedGenerator(["w "] * 50, before_piece=lambda index: threads.add(threading.get_ident()))
    with running(settings, FakeBuilder(generator)) as live:
        live.client.post("/v1/ask", json=STREAM)
    assert len(threads) == 1


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({"document_ids": [SAMPLE_ID]}, True), ({"chapters": [1]}, True), ({"chapters": ["Chapter"]}, True),
        ({"pages": [1, 3]}, True), ({"pages": [4, 9]}, False),
        ({"document_ids": ["nobody"]}, "nobody"), ({"chapters": [99]}, "99"), ({"chapters": ["Chap"]}, "Chap"),
    ],
)  # fmt: skip
def test_filters_restrict_what_is_found_and_a_name_in_them_that_nothing_has_is_a_404(shared, filters, found):
    if isinstance(found, bool):
        assert bool(shared.post("/v1/search", query="warp", filters=filters)["passages"]) is found
        return
    for call, body in (("ask", ASKED), ("search", {"query": "warp"}), ("compare", ASKED)):
        reply = shared.client.post(f"/v1/{call}", json=body | {"filters": filters})
        assert (reply.status_code, found in reply.json()["error"]["message"]) == (404, True), call


def test_a_comparison_answers_in_the_order_asked_and_is_kept_together(live: Live):
    answers = live.post("/v1/compare", **ASKED, arms=["rag", "base"])["answers"]
    assert [answer["arm"] for answer in answers] == ["rag", "base"]
    assert answers[0]["citations"] and not answers[1]["passages"]
    (conversation,) = live.get("/v1/conversations")["conversations"]
    assert live.get(f"/v1/conversations/{conversation['id']}")["answers"] == answers
    for answer in answers:
        live.post("/v1/feedback", answer_id=answer["id"], rating="up")
    assert [answer["arm"] for answer in live.post("/v1/compare", **ASKED)["answers"]] == ["base", "rag"]


def test_a_streamed_comparison_writes_each_answer_in_turn_and_ends_with_what_is_kept(live: Live):
    events = events_of(live.client.post("/v1/compare", json=STREAM | {"arms": ["rag", "base"]}))
    assert [name for name, _ in events if name != "delta"] == [
        "comparing", "answer", "passages", "done", "answer", "passages", "done", "compared",
    ]  # fmt: skip
    assert events[0] == ("comparing", {"question": STREAM["question"], "names": ["rag", "base"]})
    begun = [data for name, data in events if name == "answer"]
    (compared,) = [data for name, data in events if name == "compared"]
    assert begun == [{"index": index, "id": answer["id"]} for index, answer in enumerate(compared["answers"])]
    (conversation,) = live.get("/v1/conversations")["conversations"]
    assert live.get(f"/v1/conversations/{conversation['id']}")["answers"] == compared["answers"]
    refused = live.client.post("/v1/compare", json=STREAM | {"arms": ["rag", "tuned"]})
    assert (refused.status_code, len(live.generator.requests)) == (409, 2)


def test_variants_are_answered_in_order_and_counted_in_the_table_of_wins(live: Live):
    book = {"filters": {"document_ids": [SAMPLE_ID]}}
    variants = [{"retrieval": "lexical"}, {"retrieval": "dense", "top_k": 3}, book]
    compared = live.post("/v1/compare", **ASKED, variants=variants)
    names, ids = compared["variants"], [answer["id"] for answer in compared["answers"]]
    assert names == ["rag retrieval=lexical", "rag retrieval=dense top_k=3", f"rag book={SAMPLE_ID}"]
    assert live.post("/v1/votes", answer_ids=ids, preferred=ids[1])["winner"] == names[1]
    table = live.get("/v1/votes")
    assert (table["votes"], table["undecided"], table["wins"][0]) == (1, 0, {"name": names[1], "won": 1, "shown": 1})
    assert live.status("POST", "/v1/compare", ASKED | {"variants": variants, "arms": ["rag"]}) == 422


def test_what_would_be_refused_is_answered_anyway_when_asked_so(settings):
    builder = FakeBuilder()
    builder.judge = EvidenceJudge(LearnedReader(signals_only), 1.1)
    with running(settings, builder) as live:
        answers = [live.post("/v1/ask", **ASKED, answer_anyway=anyway) for anyway in (False, True)]
    assert [(answer["refused"], answer["evidence"]) for answer in answers] == [(True, "none"), (False, "none")]


@pytest.mark.parametrize("answers", ["both", "free", "quotes"])
def test_quotes_come_before_a_written_answer_and_end_it(settings, answers: str):
    holds = "The scheduler picks a ready warp in each cycle."
    with running(settings, FakeBuilder(ScriptedGenerator([holds, " It has 64 lanes."]), "both")) as live:
        text = f"{WARP} In each cycle the scheduler picks a ready warp."
        live.shelf.put(SAMPLE_ID, text, source="sample", sample=True)
        events = events_of(live.client.post("/v1/ask", json=STREAM | {"answers": answers}))
        assert live.status("POST", "/v1/ask", ASKED | {"answers": "some"}) == 422
        ways = [{"answers": how} for how in ("quotes", "both")]
        compared = live.post("/v1/compare", **ASKED, variants=ways)
    _, *deltas, (_, done) = events
    quotes = [data for name, data in deltas if name == "quotes"]
    said = "".join(data["text"] for name, data in deltas if name == "delta")
    assert said == done["answer"] and done["written"] is (answers != "quotes")
    assert holds in said if answers != "quotes" else WARP in said
    assert (WARP in said) is (answers != "free") and ("64" in said) is (answers == "free")
    assert [one["text"] for one in quotes] == [done["quotes"]] * (answers == "both")
    if quotes:
        assert deltas[0] == ("quotes", quotes[0]) and said.endswith(done["quotes"]) and quotes[0]["citations"]
    assert [answer["written"] for answer in compared["answers"]] == [False, True]
    assert compared["variants"] == ["rag answers=quotes", "rag answers=both"]


def test_each_arm_takes_an_option_of_a_choice_question(live: Live):
    body = ASKED | {"choices": ["16", "thirty-two", "8"]}
    taken = live.post("/v1/choose", **body)["picks"]
    assert [(pick["arm"], pick["picked"], pick["scores"]) for pick in taken] == [
        (arm, 1, [2.0, 10.0, 1.0]) for arm in ("base", "rag")
    ]
    assert [bool(request.passages) for request in live.generator.requests] == [False, True]
    assert live.status("POST", "/v1/choose", body | {"choices": ["32"]}) == 422
    assert live.status("POST", "/v1/choose", body | {"choices": ["32", " "]}) == 400


# --- followed, stopped, explained


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


def test_an_answer_that_may_go_on_is_found_by_its_conversation_and_stopped(live: Live):
    live.generator.before_piece = lambda index: index and threading.Event().wait(0.05) and None
    live.generator.pieces = ["word "] * 5000
    path = f"/v1/conversations/{live.post('/v1/conversations')['id']}"
    asked = STREAM | {"conversation_id": path.rpartition("/")[2], "grace_s": 30}
    with live.client.stream("POST", "/v1/ask", json=asked) as reply:
        next(reply.iter_raw())
    found = live.get(path)["unfinished"]
    assert found == {"id": reply.headers["x-answer-id"], "question": QUESTION, "replaces": None}
    with live.client.stream("GET", f"/v1/answers/{found['id']}/events") as again:
        assert live.status("DELETE", f"/v1/answers/{found['id']}") == 204
        names = [line for line in again.read().decode().splitlines() if line.startswith("event: ")]
    assert names[0] == "event: passages" and "event: done" not in names
    assert (live.get(path)["unfinished"], live.get(path)["answers"]) == (None, [])
    assert live.status("DELETE", f"/v1/answers/{found['id']}") == 404
    assert live.status("POST", "/v1/ask", ASKED | {"grace_s": 61}) == 422


def test_an_answer_stops_when_its_conversation_is_deleted(settings):
    generator = ScriptedGenerator(["word "] * 5000, before_piece=lambda index: threading.Event().wait(0.05) and None)
    with running(settings, FakeBuilder(generator)) as live:
        conversation = live.post("/v1/conversations")["id"]
        with live.client.stream("POST", "/v1/ask", json=STREAM | {"conversation_id": conversation}) as reply:
            next(reply.iter_raw())
            assert live.status("DELETE", f"/v1/conversations/{conversation}") == 204
            wait_until(lambda: generator.closed_streams == 1, "the generator was closed")


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


def test_a_comparison_that_is_refused_takes_no_place_of_another(shared: Live, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(answering, "COMPARISONS_REMEMBERED", 1)
    made = shared.client.post("/v1/compare", json=STREAM)
    assert shared.status("POST", "/v1/compare", STREAM | {"arms": ["tuned"]}) == 409
    assert shared.status("GET", f"/v1/compare/{made.headers['x-comparison-id']}/events") == 200


def test_a_comparison_is_followed_from_its_start_by_who_made_it_and_stopped(live: Live):
    body = STREAM | {"arms": ["rag", "base"], "grace_s": 30}
    with live.client.stream("POST", "/v1/compare", json=body) as left:
        path = f"/v1/compare/{left.headers['x-comparison-id']}"
    events = events_of(live.client.get(f"{path}/events"))
    assert (events[0][0], events[-1][0], len(live.generator.requests)) == ("comparing", "compared", 2)
    assert live.status("GET", "/v1/compare/other/events") == live.status("DELETE", "/v1/compare/other") == 404
    live.generator.before_piece = lambda index: index and threading.Event().wait(0.05) and None
    live.generator.pieces = ("word ",) * 500
    closed = live.generator.closed_streams
    with live.client.stream("POST", "/v1/compare", json=body | {"grace_s": 0}) as left:
        next(line for line in left.iter_lines() if line == "event: delta")
    wait_until(lambda: live.generator.closed_streams > closed, "who leaves without grace stops it")
    with live.client.stream("POST", "/v1/compare", json=body) as stopped:
        path = f"/v1/compare/{stopped.headers['x-comparison-id']}"
        assert live.status("DELETE", path) == 204
        stopped.read()
    name, data = events_of(stopped)[-1]
    assert (name, data["error"]["type"]) == ("error", "cancelled")
