"""`POST /v1/ask`, `/v1/search` and `/v1/compare`: the contract's fields, events, filters and refusals."""

from __future__ import annotations

import http.client
import json
import threading

import httpx
import pytest
from api_fakes import PATIENCE_S, SAMPLE_ID, FakeBuilder, Live, running, wait_until
from fakes import ScriptedGenerator, signals_only

from indexes.errors import Busy, CoalesceError
from rag.errors import GenerationFailed
from rag.evidence import EvidenceJudge
from rag.sentence_reader import LearnedReader

ANSWER_FIELDS = {
    "id", "conversation_id", "question", "answer", "refused", "evidence", "note", "arm", "generator", "model",
    "adapter", "citations",
    "passages", "timings", "usage", "tokens_per_s", "peak_memory_bytes", "filters",
}  # fmt: skip
PASSAGE_FIELDS = {
    "node_id", "document_id", "title", "section", "page_label", "page_start", "page_end", "text", "score",
}  # fmt: skip
CITATION_FIELDS = {
    "marker", "node_id", "document_id", "title", "section", "page_label", "page_start", "page_end", "quote",
    "char_start", "char_end", "verdict",
}  # fmt: skip
QUESTION = "How many threads are in a warp?"


def events_of(response: httpx.Response) -> list[tuple[str, dict]]:
    """The named events of a finished stream."""
    events = []
    for block in response.text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if lines:
            events.append((lines["event"], json.loads(lines["data"])))
    return events


def test_an_answer_has_exactly_the_contracts_fields(shared: Live):
    answer = shared.client.post("/v1/ask", json={"question": QUESTION}).json()
    assert set(answer) == ANSWER_FIELDS
    assert set(answer["passages"][0]) == PASSAGE_FIELDS
    assert set(answer["citations"][0]) == CITATION_FIELDS
    assert set(answer["timings"]) == {"retrieve_s", "ttft_s", "total_s"}
    assert set(answer["usage"]) == {
        "prompt_tokens", "cached_prompt_tokens", "completion_tokens", "reasoning_tokens", "finish",
    }  # fmt: skip
    assert (answer["arm"], answer["generator"], answer["model"], answer["adapter"]) == (
        "rag",
        "scripted",
        "script",
        None,
    )


def test_a_citation_quotes_its_passage_verbatim_and_its_marker_is_in_the_answer(shared: Live):
    answer = shared.client.post("/v1/ask", json={"question": QUESTION}).json()
    citation = answer["citations"][0]
    passage = answer["passages"][citation["marker"] - 1]
    assert passage["text"][citation["char_start"] : citation["char_end"]] == citation["quote"] != ""
    assert f"[{citation['marker']}]" in answer["answer"]
    assert (citation["page_start"], citation["page_label"]) == (3, "iii")


def test_the_deltas_of_a_stream_joined_are_the_answer(shared: Live):
    response = shared.client.post("/v1/ask", json={"question": QUESTION, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    events = events_of(response)
    names = [name for name, _ in events]
    assert names == ["passages", *["delta"] * (len(names) - 2), "done"]
    done = events[-1][1]
    assert set(done) == ANSWER_FIELDS
    assert "".join(data["text"] for name, data in events if name == "delta") == done["answer"]
    assert events[0][1]["passages"] == done["passages"]


def test_an_answer_belongs_to_a_conversation_that_can_be_gone_on_with(live: Live):
    first = live.client.post("/v1/ask", json={"question": QUESTION}).json()
    second = live.client.post(
        "/v1/ask", json={"question": "And why?", "conversation_id": first["conversation_id"]}
    ).json()
    assert second["conversation_id"] == first["conversation_id"]
    turns = live.generator.requests[-1].turns
    assert [turn.question for turn in turns] == [QUESTION]


def test_an_arm_that_cannot_run_is_a_409_with_a_hint(shared: Live):
    reply = shared.client.post("/v1/ask", json={"question": QUESTION, "arm": "tuned"})
    assert reply.status_code == 409
    assert reply.json()["error"]["type"] == "arm_unavailable"
    assert reply.json()["error"]["hint"]


def test_an_error_before_the_stream_begins_keeps_its_status(shared: Live):
    reply = shared.client.post("/v1/ask", json={"question": QUESTION, "arm": "tuned", "stream": True})
    assert reply.status_code == 409


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
        events = events_of(live.client.post("/v1/ask", json={"question": QUESTION, "stream": True}))
        assert [name for name, _ in events] == ["passages", "delta", "error"]
        whole = live.client.post("/v1/ask", json={"question": QUESTION})
        failed = whole.json()["error"]
        assert failed == {"type": failed["type"], "message": "it broke", "hint": "ask again"}
        assert (whole.status_code, whole.headers["retry-after"]) == (503, str(wait_s))
        assert events[-1][1] == {"error": failed | {"retry_after_s": wait_s}}
        assert f'coalesce_answers_failed_total{{type="{failed["type"]}"}} 2.0' in live.client.get("/metrics").text


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_stops_the_generator(settings, stream):
    generator = Endless()
    with running(settings, FakeBuilder(generator)) as live:
        ask_and_leave(live, "/v1/ask", {"question": QUESTION, "stream": stream}, generator)
        wait_until(lambda: generator.closed_streams == 1, "the generator was closed")
        assert live.client.get("/healthz").status_code == 200


def test_a_client_that_leaves_a_comparison_stops_it(settings):
    generator = Endless()
    with running(settings, FakeBuilder(generator)) as live:
        ask_and_leave(live, "/v1/compare", {"question": QUESTION}, generator)
        wait_until(lambda: "coalesce_answers_inside 0.0" in live.client.get("/metrics").text, "it stopped")
        assert len(generator.requests) == 1


class Endless(ScriptedGenerator):
    """Writes for longer than any test waits; `writes` is set when it has begun."""

    def __init__(self) -> None:
        self.writes = threading.Event()
        super().__init__(["word "] * 5000, before_piece=self._slow)

    def _slow(self, index: int) -> None:
        self.writes.set()
        threading.Event().wait(0.05)


def ask_and_leave(live: Live, path: str, body: dict, generator: Endless) -> None:
    """Sends a request and hangs up once the generator writes."""
    connection = http.client.HTTPConnection(live.address.removeprefix("http://"))
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    assert generator.writes.wait(PATIENCE_S)
    connection.close()


def test_the_answers_of_a_comparison_are_kept_together_and_can_be_judged(live: Live):
    answers = live.client.post("/v1/compare", json={"question": QUESTION, "arms": ["rag", "base"]}).json()["answers"]
    conversations = live.client.get("/v1/conversations").json()["conversations"]
    assert [one["id"] for one in conversations] == [answers[0]["conversation_id"]]
    assert live.client.get(f"/v1/conversations/{conversations[0]['id']}").json()["answers"] == answers
    for answer in answers:
        assert live.client.post("/v1/feedback", json={"answer_id": answer["id"], "rating": "up"}).status_code == 201


def test_one_thread_drives_an_answer_from_its_first_piece_to_its_last(settings):
    threads: set[int] = set()
    generator = ScriptedGenerator(["w "] * 50, before_piece=lambda index: threads.add(threading.get_ident()))
    with running(settings, FakeBuilder(generator)) as live:
        live.client.post("/v1/ask", json={"question": QUESTION, "stream": True})
    assert len(threads) == 1


def test_search_gives_the_passages_an_answer_would_be_given(shared: Live):
    found = shared.client.post("/v1/search", json={"query": QUESTION}).json()
    asked = shared.client.post("/v1/ask", json={"question": QUESTION}).json()
    assert found["passages"] == asked["passages"] != []


def test_filters_restrict_what_is_found(shared: Live):
    def found(**filters) -> list:
        return shared.client.post("/v1/search", json={"query": "warp", "filters": filters}).json()["passages"]

    assert (
        found(document_ids=[SAMPLE_ID]) and found(chapters=[1]) and found(chapters=["Chapter"]) and found(pages=[1, 3])
    )
    assert not found(pages=[4, 9])


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"document_ids": ["nobody"]}, "nobody"),
        ({"chapters": [99]}, "No chapter 99; this book has 1."),
        ({"chapters": ["Chap"]}, "No chapter Chap; this book has 1."),
    ],
)
@pytest.mark.parametrize("call", ["ask", "search", "compare"])
def test_a_filter_that_names_an_unknown_book_or_chapter_is_a_404(shared: Live, call: str, filters, message: str):
    body = {"query" if call == "search" else "question": "warp", "filters": filters}
    reply = shared.client.post(f"/v1/{call}", json=body)
    assert reply.status_code == 404
    assert message.rstrip(".").lower() in reply.json()["error"]["message"].lower()


def test_a_comparison_answers_in_the_order_asked(shared: Live):
    answers = shared.client.post("/v1/compare", json={"question": QUESTION, "arms": ["rag", "base"]}).json()["answers"]
    assert [answer["arm"] for answer in answers] == ["rag", "base"]
    assert answers[0]["citations"] and not answers[1]["passages"]


def test_a_comparison_without_arms_takes_those_that_can_run(shared: Live):
    answers = shared.client.post("/v1/compare", json={"question": QUESTION}).json()["answers"]
    assert [answer["arm"] for answer in answers] == ["base", "rag"]


def test_a_comparison_with_an_arm_that_cannot_run_runs_none(live: Live):
    reply = live.client.post("/v1/compare", json={"question": QUESTION, "arms": ["rag", "tuned"]})
    assert reply.status_code == 409
    assert live.generator.requests == []


def test_a_refusal_has_no_citations_and_says_so(settings):
    builder = FakeBuilder(ScriptedGenerator(["The books do not say."], refused=True))
    with running(settings, builder) as live:
        answer = live.client.post("/v1/ask", json={"question": QUESTION}).json()
    assert answer["refused"] is True
    assert answer["citations"] == []
    assert answer["answer"]


def test_the_first_event_says_what_the_search_is_worth(live: Live):
    reply = live.client.post("/v1/ask", json={"question": QUESTION, "stream": True})
    events = events_of(reply)
    first, done = events[0][1], events[-1][1]
    assert (first["evidence"], first["note"]) == (done["evidence"], done["note"])
    assert done["evidence"] in ("strong", "weak", "none")


def test_a_question_that_would_be_refused_is_answered_anyway_when_asked_so(settings):
    builder = FakeBuilder()
    builder.judge = EvidenceJudge(LearnedReader(signals_only), 1.1)
    with running(settings, builder) as live:
        refused = live.client.post("/v1/ask", json={"question": QUESTION}).json()
        answered = live.client.post("/v1/ask", json={"question": QUESTION, "answer_anyway": True}).json()
    assert (refused["refused"], refused["evidence"], refused["note"], refused["citations"]) == (True, "none", None, [])
    assert "Chapter › Section" in refused["answer"]
    assert (answered["refused"], answered["evidence"]) == (False, "none")
    assert answered["citations"] and "does not seem to answer" in answered["note"]
    assert answered["note"] not in answered["answer"]


def test_a_message_without_words_is_refused_and_talk_is_answered_without_passages(shared: Live):
    refused = shared.client.post("/v1/ask", json={"question": "?!?"})
    assert refused.status_code == 400 and "no words" in refused.json()["error"]["message"]
    answer = shared.client.post("/v1/ask", json={"question": "thank you!"}).json()
    assert (answer["refused"], answer["evidence"], answer["passages"], answer["citations"]) == (False, None, [], [])


def test_each_arm_takes_an_option_of_a_choice_question(live: Live):
    body = {"question": QUESTION, "choices": ["16", "thirty-two", "8"]}
    live.generator.arms = ("base", "rag")
    taken = live.client.post("/v1/choose", json=body).json()
    assert [(pick["arm"], pick["picked"], pick["scores"]) for pick in taken["picks"]] == [
        ("base", 1, [2.0, 10.0, 1.0]), ("rag", 1, [2.0, 10.0, 1.0])
    ]  # fmt: skip
    assert [bool(request.passages) for request in live.generator.requests] == [False, True]
    assert live.client.post("/v1/choose", json=body | {"choices": ["32"]}).status_code == 422
    assert live.client.post("/v1/choose", json=body | {"choices": ["32", " "]}).status_code == 400
    assert live.client.post("/v1/choose", json=body | {"arms": ["tuned"]}).status_code == 409


def test_variants_are_answered_in_order_and_counted_in_the_table_of_wins(live: Live):
    variants = [
        {"retrieval": "lexical"},
        {"retrieval": "dense", "top_k": 3},
        {"filters": {"document_ids": [SAMPLE_ID]}},
    ]
    compared = live.client.post("/v1/compare", json={"question": QUESTION, "variants": variants}).json()
    answers, names = compared["answers"], compared["variants"]
    assert names == ["rag retrieval=lexical", "rag retrieval=dense top_k=3", f"rag book={SAMPLE_ID}"]
    ids = [answer["id"] for answer in answers]
    assert live.client.post("/v1/votes", json={"answer_ids": ids, "preferred": ids[1]}).json()["winner"] == names[1]
    table = live.client.get("/v1/votes").json()
    assert (table["votes"], table["undecided"], table["wins"][0]) == (1, 0, {"name": names[1], "won": 1, "shown": 1})
    both = {"question": QUESTION, "variants": variants, "arms": ["rag"]}
    assert live.client.post("/v1/compare", json=both).status_code == 422
    missing = {"question": QUESTION, "variants": [{"arm": "tuned"}]}
    assert live.client.post("/v1/compare", json=missing).status_code == 409
