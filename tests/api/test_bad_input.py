"""Nothing a client can send makes a 500, and every error has the contract's form."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from api_fakes import Live
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st


def assert_error(reply: httpx.Response, *statuses: int) -> dict[str, str]:
    assert reply.status_code in statuses, (reply.status_code, reply.text[:300])
    error = reply.json()["error"]
    assert {"type", "message", "hint"} <= set(error)
    assert all(isinstance(error[name], str) for name in ("type", "message", "hint"))
    assert error["message"] and error["hint"]
    return error


POSTS = {
    "/v1/ask": {"question": "What is a warp?"},
    "/v1/search": {"query": "warp"},
    "/v1/compare": {"question": "What is a warp?"},
    "/v1/chat/completions": {"model": "coalesce-rag", "messages": [{"role": "user", "content": "What is a warp?"}]},
    "/v1/feedback": {"answer_id": "x", "rating": "up"},
    "/v1/conversations": {"title": "Exam"},
}
TEXTS = {"/v1/ask": "question", "/v1/search": "query", "/v1/compare": "question"}


@pytest.mark.parametrize("text", ["", "   \n\t ", "\u200b"])
@pytest.mark.parametrize("path", TEXTS)
def test_empty_text_is_refused(path, text, shared: Live):
    assert_error(shared.client.post(path, json={TEXTS[path]: text}), 400, 422)


@pytest.mark.parametrize("path", TEXTS)
def test_a_hundred_thousand_characters_are_a_413(path, shared: Live):
    error = assert_error(shared.client.post(path, json={TEXTS[path]: "warp " * 20_000}), 413)
    assert "99,999" in error["message"] or "100,000" in error["message"]


@pytest.mark.parametrize("character", ["\x00", "\x07", "\x1b", "\x7f", "\x85", "\ud800"])
@pytest.mark.parametrize("path", TEXTS)
def test_control_characters_are_refused_and_named(path, character, shared: Live):
    body = json.dumps({TEXTS[path]: f"what is{character} a warp?"})
    reply = shared.client.post(path, content=body, headers={"content-type": "application/json"})
    assert_error(reply, 400, 422)


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("/v1/ask", {"question": 5}),
        ("/v1/ask", {"question": None}),
        ("/v1/ask", {"question": ["a"]}),
        ("/v1/ask", {"arm": "both"}),
        ("/v1/ask", {"top_k": 0}),
        ("/v1/ask", {"top_k": 10**30}),
        ("/v1/ask", {"top_k": "5"}),
        ("/v1/ask", {"top_k": 2.5}),
        ("/v1/ask", {"top_k": True}),
        ("/v1/ask", {"stream": "yes"}),
        ("/v1/ask", {"max_tokens": -1}),
        ("/v1/ask", {"filters": []}),
        ("/v1/ask", {"filters": {"pages": [5, 2]}}),
        ("/v1/ask", {"filters": {"pages": [1]}}),
        ("/v1/ask", {"filters": {"pages": [0, 1]}}),
        ("/v1/ask", {"filters": {"chapters": [0]}}),
        ("/v1/ask", {"filters": {"chapters": [[1]]}}),
        ("/v1/ask", {"filters": {"document_ids": "sample"}}),
        ("/v1/ask", {"filters": {"page": [1, 2]}}),
        ("/v1/ask", {"topk": 5}),
        ("/v1/compare", {"arms": []}),
        ("/v1/compare", {"arms": "rag"}),
        ("/v1/compare", {"arms": ["rag"] * 9}),
        ("/v1/feedback", {"rating": "sideways"}),
        ("/v1/conversations", {"title": 5}),
    ],
)
def test_wrong_types_and_values_are_a_422_that_names_the_field(path, change, shared: Live):
    error = assert_error(shared.client.post(path, json=POSTS[path] | change), 422)
    name = next(iter(change))
    assert name in error["message"]


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"question": 1e999}', b"null", b"[]", b'"text"', b"1" * 5000]
)
def test_a_body_that_is_not_an_object_is_bad_input(path, body, shared: Live):
    reply = shared.client.post(path, content=body, headers={"content-type": "application/json"})
    if path == "/v1/conversations" and body in (b"", b"null"):
        assert reply.status_code == 201
    else:
        assert_error(reply, 400, 422)


@pytest.mark.parametrize("path", POSTS)
def test_a_body_of_another_kind_is_a_bad_input(path, shared: Live):
    reply = shared.client.post(
        path, content=b"question=x", headers={"content-type": "application/x-www-form-urlencoded"}
    )
    assert_error(reply, 400, 415, 422)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/documents/nobody"),
        ("DELETE", "/v1/documents/nobody"),
        ("GET", "/v1/documents/nobody/chapters"),
        ("GET", "/v1/jobs/nobody"),
        ("DELETE", "/v1/jobs/nobody"),
        ("GET", "/v1/jobs/nobody/events"),
        ("GET", "/v1/conversations/nobody"),
        ("DELETE", "/v1/conversations/nobody"),
        ("GET", "/v1/models/coalesce-nothing"),
        ("GET", "/v1/nothing"),
        ("GET", "/v2/ask"),
        ("GET", "/v1/documents/%00%ff%2e%2e%2f"),
        ("GET", "/v1/jobs/" + "x" * 5000),
    ],
)
def test_unknown_ids_and_paths_are_a_404(method, path, shared: Live):
    assert_error(shared.client.request(method, path), 404)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/ask", POSTS["/v1/ask"] | {"conversation_id": "nobody"}),
        ("/v1/feedback", POSTS["/v1/feedback"]),
        ("/v1/chat/completions", POSTS["/v1/chat/completions"] | {"model": "gpt"}),
    ],
)
def test_unknown_ids_in_a_body_are_a_404(path, body, shared: Live):
    assert_error(shared.client.post(path, json=body), 404)


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/ask"), ("PUT", "/v1/documents"), ("POST", "/healthz")])
def test_a_wrong_method_is_a_405(method, path, shared: Live):
    reply = shared.client.request(method, path)
    assert_error(reply, 405)
    assert reply.headers["allow"]


def test_a_body_above_the_limit_is_a_413_declared_or_not(shared: Live):
    body = json.dumps({"question": "x" * (3 * 1024**2)}).encode()
    headers = {"content-type": "application/json"}
    assert_error(shared.client.post("/v1/ask", content=body, headers=headers), 413)
    assert_error(shared.client.post("/v1/ask", content=iter([body]), headers=headers), 413)


@pytest.mark.parametrize("messages", [
    [], [{"role": "user"}], [{"role": "assistant", "content": "x"}], [{"role": "wizard", "content": "x"}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "hello", [5],
])  # fmt: skip
def test_messages_without_a_question_are_a_bad_input(messages, shared: Live):
    body = {"model": "coalesce-rag", "messages": messages}
    assert_error(shared.client.post("/v1/chat/completions", json=body), 400, 422)


@pytest.mark.parametrize("change", [{"n": 2}, {"tools": [{"type": "function"}]}, {"temperature": 9}, {"max_tokens": 0}])
def test_wishes_of_openai_clients_that_cannot_be_met_are_a_bad_input(change, shared: Live):
    assert_error(shared.client.post("/v1/chat/completions", json=POSTS["/v1/chat/completions"] | change), 400, 422)


# Any JSON at all, and any JSON in the place of any known field.
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
FIELDS = sorted({
    "question", "query", "arm", "arms", "adapter", "top_k", "filters", "conversation_id", "max_tokens", "temperature",
    "seed", "stream", "answer_id", "rating", "comment", "title", "model", "messages", "n", "tools", "stream_options",
})  # fmt: skip


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(path=st.sampled_from(sorted(POSTS)), change=st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3))
def test_no_value_in_any_field_makes_a_500(path: str, change: dict[str, Any], shared: Live):
    body = json.dumps(POSTS[path] | change)
    reply = shared.client.post(path, content=body, headers={"content-type": "application/json"})
    assert reply.status_code < 500, reply.text
    if reply.status_code >= 400:
        assert_error(reply, reply.status_code)


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    path=st.sampled_from(["/v1/documents/{}", "/v1/jobs/{}", "/v1/conversations/{}", "/v1/models/{}"]),
    method=st.sampled_from(["GET", "DELETE", "PATCH", "PUT"]),
    identifier=st.text(min_size=1, max_size=40).filter(lambda text: text.isprintable() and max(text) < "\ud800"),
)
def test_no_id_makes_a_500(path: str, method: str, identifier: str, shared: Live):
    from urllib.parse import quote

    reply = shared.client.request(method, path.format(quote(identifier, safe="")), json={"title": "t"})
    assert reply.status_code < 500, reply.text
