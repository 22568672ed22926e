"""The OpenAI-compatible calls, driven by OpenAI's own client over real HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from api_fakes import PATIENCE_S, SAMPLE_ID, WARP, FakeBuilder, Live, running
from fakes import ScriptedGenerator

from api.routes.openai import question_of
from api.schemas.openai import ChatIn
from rag.errors import GenerationFailed

MESSAGES = [{"role": "user", "content": "How many threads are in a warp?"}]
SOURCES = "\n\nSources:\n[1] Sample › Chapter › Section, page iii"
SAYS = f"A warp has 32 threads [1].{SOURCES}"


class Client(openai.OpenAI):
    """OpenAI's client of a server."""

    def __init__(self, live: Live, key: str = "none") -> None:
        super().__init__(base_url=f"{live.address}/v1", api_key=key, max_retries=2, timeout=PATIENCE_S)

    def ask(self, arm: str = "rag", messages: Any = MESSAGES, **wishes: Any) -> Any:
        return self.chat.completions.create(model=f"coalesce-{arm}", messages=messages, **wishes)


@pytest.fixture
def client(live: Live) -> Iterator[Client]:
    with Client(live) as made:
        yield made


def test_the_arms_that_can_answer_are_models_and_no_others(client: Client):
    assert [model.id for model in client.models.list()] == ["coalesce-base", "coalesce-rag"]
    assert client.models.retrieve("coalesce-rag").id == "coalesce-rag"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("coalesce-tuned")


def test_a_completion_and_its_stream_carry_citations_and_usage_beside_the_content(client: Client, live: Live):
    completion = client.ask()
    choice, usage = completion.choices[0], completion.usage
    assert (choice.message.content, choice.finish_reason, completion.model) == (SAYS, "stop", "coalesce-rag")
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens > 0
    assert usage.prompt_tokens_details.cached_tokens == 0
    (citation, *_) = choice.message.citations
    passage = choice.message.passages[citation["marker"] - 1]
    assert passage["text"][citation["char_start"] : citation["char_end"]] == citation["quote"]

    *chunks, last = client.ask(stream=True)
    deltas = [chunk.choices[0].delta for chunk in (*chunks, last)]
    assert ("".join(delta.content or "" for delta in deltas), deltas[0].role) == (SAYS, "assistant")
    assert {chunk.choices[0].finish_reason for chunk in chunks} == {None}
    assert (last.choices[0].finish_reason, deltas[-1].citations[0]["marker"]) == ("stop", 1)
    assert last.usage.completion_tokens > 0
    assert len({chunk.id for chunk in (*chunks, last)}) == 1
    *_, before, last = client.ask(stream=True, stream_options={"include_usage": True})
    assert (before.choices[0].finish_reason, last.choices, last.usage.total_tokens > 0) == ("stop", [], True)

    body = {"model": "coalesce-rag", "messages": MESSAGES, "stream": True}
    *_, data, done = filter(None, live.client.post("/v1/chat/completions", json=body).text.splitlines())
    assert done == "data: [DONE]"
    assert json.loads(data.removeprefix("data: "))["usage"]["total_tokens"] > 0


def test_written_sentences_that_hold_stand_above_the_books_own_in_the_content(live: Live, client: Client):
    holds = "The scheduler picks a ready warp in each cycle."
    live.shelf.put(SAMPLE_ID, f"{WARP} In each cycle the scheduler picks a ready warp.", source="sample", sample=True)
    live.generator.pieces = (holds,)
    wish = {"extra_body": {"answers": "both"}}
    message = client.ask(**wish).choices[0].message
    written, quotes = message.content.split("\n\n---\n\n")
    assert (written, message.written) == (f"{holds} [1]", True) and len(message.citations) > 1
    assert quotes.startswith("A warp is a group of 32 threads")
    chunks = list(client.ask(stream=True, **wish))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == message.content


def test_earlier_messages_become_turns_and_nothing_is_kept(live: Live, client: Client):
    parts = [{"type": "text", "text": text} for text in ("How many", "threads?")]
    earlier = [
        ("system", "Be brief."),
        ("user", "What is a warp?"),
        ("assistant", f"A group of threads.{SOURCES}"),
        ("user", parts),
    ]
    messages = [{"role": role, "content": content} for role, content in earlier]
    answer_id = client.ask(messages=messages).id.removeprefix("chatcmpl-")
    list(client.ask(messages=messages, stream=True))
    request = live.generator.requests[-1]
    assert (request.question, request.system) == ("How many\nthreads?", "Be brief.")
    assert [(turn.question, turn.answer) for turn in request.turns] == [("What is a warp?", "A group of threads.")]
    assert live.get("/v1/conversations") == {"conversations": [], "next_cursor": None}
    assert live.status("POST", "/v1/feedback", {"answer_id": answer_id, "rating": "up"}) == 404


@pytest.mark.parametrize(
    ("messages", "turns"),
    [
        ([("user", "a"), ("user", "b")], (("a", ""),)),
        ([("assistant", "hello"), ("user", "b")], ()),
        ([("user", "a"), ("assistant", "1"), ("assistant", "2"), ("user", "b")], (("a", "1\n\n2"),)),
        ([("user", "a"), ("user", "b"), ("assistant", "1"), ("user", "c")], (("a\n\nb", "1"),)),
    ],
)
def test_odd_sequences_of_messages_still_make_pairs(messages, turns):
    body = ChatIn(model="coalesce-rag", messages=[{"role": role, "content": text} for role, text in messages])
    assert question_of(body).turns == turns


def test_markers_count_from_one_in_the_order_of_the_text_and_the_list_names_their_pages(settings):
    builder = FakeBuilder(ScriptedGenerator(["Blocks [2], 3", " of them [2]", "[1], `a[1]`."]))
    with running(settings, builder) as live, Client(live) as client:
        live.shelf.put("second", "A warp of threads: how many threads a block has.", source="Second")
        message = client.ask().choices[0].message
        first, second = (" › ".join((each["title"], *each["section"])) for each in message.passages[:2])
        text, _, listed = message.content.partition("\n\nSources:\n")
        assert text == "Blocks [1], 3 of them [1][2], `a[1]`."
        assert [line.partition(", page")[0] for line in listed.splitlines()] == [f"[1] {first}", f"[2] {second}"]
        assert {citation["marker"] for citation in message.citations} == {1, 2}
        for citation in message.citations:
            assert citation["quote"] in message.passages[citation["marker"] - 1]["text"]
        chunks = [chunk.choices[0].delta for chunk in client.ask(stream=True)]
        assert "".join(delta.content or "" for delta in chunks) == message.content
        assert chunks[-1].citations == message.citations


def test_a_system_message_is_said_not_to_be_used_where_no_model_answers(settings):
    builder = FakeBuilder(ScriptedGenerator(["A warp has 32 threads [1]."], arms=("rag",)))
    told = [{"role": "system", "content": "Be brief."}, *MESSAGES]
    with running(settings, builder) as live, Client(live) as client:
        assert "system message" in client.ask(messages=told).choices[0].message.note
        *_, last = client.ask(messages=told, stream=True)
        assert "system message" in last.choices[0].delta.note
        assert client.ask().choices[0].message.note is None


TASK = """### Task:
Generate a concise, 3-5 word title with an emoji summarizing the chat history.
### Output:
JSON format: { "%s": %s }
### Chat History:
<chat_history>
USER: How many threads
are in a warp?
ASSISTANT: 32
</chat_history>"""


@pytest.mark.parametrize(
    ("name", "form", "reply"),
    [("title", '"your title"', "How many threads"), ("tags", '["tag1"]', []), ("follow_ups", '["Q?"]', [])],
)
def test_open_webuis_own_prompts_get_the_json_that_they_ask_for(shared: Live, name: str, form: str, reply: Any):
    asked = len(shared.generator.requests)
    with Client(shared) as client:
        messages = [{"role": "user", "content": TASK % (name, form)}]
        assert json.loads(client.ask(messages=messages).choices[0].message.content) == {name: reply}
        stream = client.ask(messages=messages, stream=True)
        assert json.loads("".join(chunk.choices[0].delta.content or "" for chunk in stream)) == {name: reply}
    assert len(shared.generator.requests) == asked


def test_an_arm_that_cannot_run_is_a_conflict_and_an_unknown_model_not_found(live: Live, client: Client):
    with pytest.raises(openai.ConflictError) as refused:
        client.ask("tuned")
    assert refused.value.code == "arm_unavailable"
    assert 'route="/v1/chat/completions",status="409"} 1.0' in live.client.get("/metrics").text, "it is not retried"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.ask("gpt")
    assert "coalesce-rag" in unknown.value.body["hint"]


def test_an_error_in_the_middle_of_a_stream_reaches_the_client(live: Live, client: Client):
    def fail(index: int) -> None:
        if index == 1:
            raise GenerationFailed("the model broke", hint="ask again")

    live.generator.before_piece = fail
    with pytest.raises(openai.APIError, match="the model broke"):
        list(client.ask(stream=True))


def test_an_answer_cut_by_the_clients_or_the_servers_bound_says_so(live: Live, client: Client, settings, tmp_path):
    assert client.ask(max_tokens=2).choices[0].finish_reason == "length"
    assert live.generator.requests[-1].max_tokens == 2
    bounded = settings.model_copy(update={"max_tokens": 2, "home": tmp_path / "other"})
    with running(bounded, FakeBuilder(ScriptedGenerator(["one ", "two"]))) as other, Client(other) as own:
        assert own.ask().choices[0].finish_reason == "length"


def test_sampling_settings_and_stop_strings_reach_the_generator(live: Live, client: Client):
    harmless = {"n": 1, "tools": [], "presence_penalty": 0.0, "logprobs": False, "response_format": {"type": "text"}}
    more = {"extra_body": {"top_k": 40}}
    completion = client.ask("base", temperature=0.7, top_p=0.9, seed=11, stop=["threads", "x"], **harmless, **more)
    request = live.generator.requests[-1]
    assert (request.temperature, request.sampling_top_p, request.sampling_top_k, request.seed) == (0.7, 0.9, 40, 11)
    assert request.stop == ("threads", "x")
    assert completion.choices[0].message.content == "A warp has 32 "
    stream = client.ask("base", stream=True, stop="32")
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "A warp has "


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 2), ("top_p", 0), ("stop", [""]), ("stop", ["x"] * 17), ("stop", ""), ("temperature", 3),
        ("tools", [{"type": "function"}]), ("max_tokens", 0), ("response_format", {"type": "json_object"}),
        ("logprobs", True), ("top_logprobs", 3), ("logit_bias", {"1": 5}), ("frequency_penalty", 0.5), ("top_k", "x"),
        ("functions", [{"name": "f"}]), ("audio", {"voice": "x"}), ("modalities", ["audio"]),
        *(("messages", messages) for messages in (
            [], [{"role": "user"}], [{"role": "assistant", "content": "x"}], [{"role": "wizard", "content": "x"}],
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "hello", [5],
        )),
    ],
)  # fmt: skip
def test_a_wish_that_cannot_be_met_is_refused_by_its_name(shared: Live, name: str, value: Any):
    body = {"model": "coalesce-rag", "messages": MESSAGES, name: value}
    reply = shared.client.post("/v1/chat/completions", json=body)
    assert reply.status_code in (400, 422), reply.text
    error = reply.json()["error"]
    assert name in error["message"] + error["hint"] or name == "messages"
    assert error["hint"]
