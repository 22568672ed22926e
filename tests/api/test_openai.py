"""The OpenAI-compatible calls, driven by OpenAI's own client over real HTTP."""

from __future__ import annotations

import json

import openai
import pytest
from api_fakes import PATIENCE_S, FakeBuilder, Live, running
from fakes import ScriptedGenerator

from api.routes.openai import question_of
from api.schemas.openai import ChatIn
from api.settings import load_settings
from rag.errors import GenerationFailed

MESSAGES = [{"role": "user", "content": "How many threads are in a warp?"}]


def client_of(live: Live, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{live.address}/v1", api_key=key, max_retries=2, timeout=PATIENCE_S)


@pytest.fixture
def client(live: Live):
    with client_of(live) as made:
        yield made


def test_every_arm_is_a_model_and_says_whether_it_can_run(client):
    models = {model.id: model.available for model in client.models.list()}
    assert models == {"coalesce-base": True, "coalesce-tuned": False, "coalesce-rag": True, "coalesce-rag+tuned": False}
    assert client.models.retrieve("coalesce-rag").id == "coalesce-rag"


def test_a_completion_carries_citations_beside_its_content(client):
    completion = client.chat.completions.create(model="coalesce-rag", messages=MESSAGES)
    message = completion.choices[0].message
    assert message.content == "A warp has 32 threads [1]."
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens > 0
    assert completion.usage.prompt_tokens_details.cached_tokens == 0
    citation, passage = message.citations[0], message.passages[message.citations[0]["marker"] - 1]
    assert passage["text"][citation["char_start"] : citation["char_end"]] == citation["quote"]
    assert completion.model == "coalesce-rag"


def test_a_stream_joins_to_the_same_content_and_ends_with_citations_and_usage(client):
    chunks = list(client.chat.completions.create(model="coalesce-rag", messages=MESSAGES, stream=True))
    assert all(chunk.choices for chunk in chunks)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "A warp has 32 threads [1]."
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert chunks[-1].choices[0].delta.citations[0]["marker"] == 1
    assert chunks[-1].usage.completion_tokens > 0
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_usage_only_chunk_comes_last_when_it_is_asked_for(client):
    stream = client.chat.completions.create(
        model="coalesce-rag", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[-1].choices == []
    assert chunks[-1].usage.total_tokens > 0
    assert chunks[-2].choices[0].finish_reason == "stop"


def test_a_stream_ends_with_done_on_the_wire(live: Live):
    body = {"model": "coalesce-rag", "messages": MESSAGES, "stream": True}
    lines = [line for line in live.client.post("/v1/chat/completions", json=body).text.splitlines() if line]
    assert lines[-1] == "data: [DONE]"
    last = json.loads(lines[-2].removeprefix("data: "))
    assert last["usage"]["total_tokens"] > 0


def test_earlier_messages_become_turns_and_nothing_is_kept(live: Live, client):
    client.chat.completions.create(
        model="coalesce-rag",
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is a warp?"},
            {"role": "assistant", "content": "A group of threads."},
            {"role": "user", "content": [{"type": "text", "text": "How many"}, {"type": "text", "text": "threads?"}]},
        ],
    )
    request = live.generator.requests[-1]
    assert request.question == "How many\nthreads?"
    assert [(turn.question, turn.answer) for turn in request.turns] == [("What is a warp?", "A group of threads.")]
    assert live.client.get("/v1/conversations").json() == {"conversations": []}


def test_an_arm_that_cannot_run_is_a_conflict_that_the_client_does_not_retry(live: Live, client):
    with pytest.raises(openai.ConflictError) as refused:
        client.chat.completions.create(model="coalesce-tuned", messages=MESSAGES)
    assert refused.value.code == "arm_unavailable"
    assert "LoRA adapter" in str(refused.value)
    assert 'route="/v1/chat/completions",status="409"} 1.0' in live.client.get("/metrics").text


def test_an_unknown_model_is_not_found_and_the_known_ones_are_named(client):
    with pytest.raises(openai.NotFoundError) as refused:
        client.chat.completions.create(model="gpt-4", messages=MESSAGES)
    assert "coalesce-rag" in refused.value.body["hint"]


def test_bad_messages_are_a_bad_request(client):
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="coalesce-rag", messages=[{"role": "assistant", "content": "x"}])


def test_keys_are_checked_as_openais_are(tmp_path):
    with running(load_settings({"home": tmp_path / "home", "api_keys": "k"})) as live:
        with client_of(live) as wrong, pytest.raises(openai.AuthenticationError):
            wrong.models.list()
        with client_of(live, "k") as right:
            assert len(right.models.list().data) == 4


def test_an_error_in_the_middle_of_a_stream_reaches_the_client(settings):
    def fail(index: int) -> None:
        if index == 1:
            raise GenerationFailed("the model broke", hint="ask again")

    builder = FakeBuilder(ScriptedGenerator(["one ", "two"], before_piece=fail))
    with running(settings, builder) as live, client_of(live) as client:
        stream = client.chat.completions.create(model="coalesce-rag", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match="the model broke"):
            list(stream)


def test_an_answer_cut_by_its_bound_says_so(live: Live, client):
    completion = client.chat.completions.create(model="coalesce-rag", messages=MESSAGES, max_tokens=2)
    assert completion.choices[0].finish_reason == "length"
    assert live.generator.requests[-1].max_tokens == 2


def test_an_answer_cut_by_the_server_s_own_bound_says_so_too(settings):
    bounded = settings.model_copy(update={"max_tokens": 2})
    with running(bounded, FakeBuilder(ScriptedGenerator(["one ", "two"]))) as live, client_of(live) as client:
        completion = client.chat.completions.create(model="coalesce-rag", messages=MESSAGES)
        assert completion.choices[0].finish_reason == "length"


def test_sampling_settings_and_stop_strings_reach_the_generator(live: Live, client):
    completion = client.chat.completions.create(
        model="coalesce-base", messages=MESSAGES, temperature=0.7, top_p=0.9, seed=11, stop=["threads", "x"]
    )
    request = live.generator.requests[-1]
    assert (request.temperature, request.sampling_top_p, request.seed) == (0.7, 0.9, 11)
    assert request.stop == ("threads", "x")
    assert completion.choices[0].message.content == "A warp has 32 "
    stream = client.chat.completions.create(model="coalesce-base", messages=MESSAGES, stream=True, stop="32")
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "A warp has "


@pytest.mark.parametrize(
    "wish", [{"n": 2}, {"top_p": 0}, {"stop": [""]}, {"stop": ["x"] * 17}, {"stop": "", "n": 1}, {"temperature": 3}]
)
def test_a_wish_that_cannot_be_met_is_refused_by_its_name(client, wish):
    with pytest.raises((openai.BadRequestError, openai.UnprocessableEntityError)) as refused:
        client.chat.completions.create(model="coalesce-rag", messages=MESSAGES, **wish)
    assert next(iter(wish)) in refused.value.body["message"]
    assert refused.value.body["hint"]


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


def test_a_follow_up_is_read_with_the_conversation_that_the_client_brings(client):
    asked = [*MESSAGES, {"role": "assistant", "content": "A warp has 32 threads [1]. It runs in lockstep."}]
    last = {"role": "user", "content": "and why?"}
    completion = client.chat.completions.create(model="coalesce-rag", messages=[*asked, last])
    assert "How many threads are in a warp?" in completion.choices[0].message.note
