"""Nothing a client can send makes a 500, and every error has the contract's form."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

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
JSON_TYPE = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("text", "statuses"),
    [
        *((text, (400, 422)) for text in ("", "   \n\t ", "\u200b")),
        *((f"what is{character} a warp?", (400, 422)) for character in "\x00\x07\x1b\x7f\x85\ud800"),
        ("warp " * 20_000, (413,)),
    ],
    ids=lambda value: ascii(value)[:20],
)
@pytest.mark.parametrize("path", TEXTS)
def test_a_text_without_words_with_control_characters_or_too_long_is_refused(path, text, statuses, shared: Live):
    reply = shared.client.post(path, content=json.dumps({TEXTS[path]: text}), headers=JSON_TYPE)
    assert_error(reply, *statuses)


@pytest.mark.parametrize(
    ("path", "name", "values"),
    [
        ("/v1/ask", "question", [5, None, ["a"]]),
        ("/v1/ask", "arm", ["both"]),
        ("/v1/ask", "top_k", [0, 10**30, "5", 2.5, True]),
        ("/v1/ask", "stream", ["yes"]),
        ("/v1/ask", "max_tokens", [-1]),
        ("/v1/ask", "filters", [
            [], {"pages": [5, 2]}, {"pages": [1]}, {"pages": [0, 1]}, {"chapters": [0]}, {"chapters": [[1]]},
            {"document_ids": "sample"}, {"page": [1, 2]},
        ]),
        ("/v1/ask", "topk", [5]),
        ("/v1/compare", "arms", [[], "rag", ["rag"] * 9]),
        ("/v1/feedback", "rating", ["sideways"]),
        ("/v1/conversations", "title", [5]),
    ],
)  # fmt: skip
def test_wrong_types_and_values_are_a_422_that_names_the_field(path, name, values, shared: Live):
    for value in values:
        assert name in assert_error(shared.client.post(path, json=POSTS[path] | {name: value}), 422)["message"]


@pytest.mark.parametrize("path", POSTS)
def test_a_body_that_is_not_an_object_is_bad_input(path, shared: Live):
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert_error(shared.client.post(path, content=b"question=x", headers=form), 400, 415, 422)
    no_json = (b"{", b"\xff\xfe", b"[" * 100_000, b'{"question": 1e999}')
    for body in (*no_json, b"[]", b'"text"', b"1" * 5000, b"", b"null"):
        reply = shared.client.post(path, content=body, headers=JSON_TYPE)
        if path == "/v1/conversations" and body in (b"", b"null"):
            assert reply.status_code == 201
        else:
            assert_error(reply, 400, 422)


@pytest.mark.parametrize(
    ("status", "method", "path", "body"),
    [
        *((404, method, f"/v1/{path}", None) for method, path in [
            ("GET", "documents/nobody"), ("DELETE", "documents/nobody"), ("GET", "documents/nobody/chapters"),
            ("GET", "jobs/nobody"), ("DELETE", "jobs/nobody"), ("GET", "jobs/nobody/events"),
            ("GET", "conversations/nobody"), ("DELETE", "conversations/nobody"), ("GET", "models/coalesce-nothing"),
            ("GET", "nothing"), ("GET", "../v2/ask"), ("GET", "documents/%00%ff%2e%2e%2f"),
            ("GET", "jobs/" + "x" * 5000),
        ]),
        (400, "POST", "/v1/ask", {"question": "?!?"}),
        (404, "POST", "/v1/ask", POSTS["/v1/ask"] | {"conversation_id": "nobody"}),
        (404, "POST", "/v1/feedback", POSTS["/v1/feedback"]),
        (404, "POST", "/v1/chat/completions", POSTS["/v1/chat/completions"] | {"model": "gpt"}),
        (405, "GET", "/v1/ask", None), (405, "PUT", "/v1/documents", None), (405, "POST", "/healthz", None),
    ],
)  # fmt: skip
def test_no_words_are_a_400_unknown_ids_and_paths_a_404_and_a_wrong_method_a_405(status, method, path, body, shared):
    reply = shared.client.request(method, path, json=body)
    assert_error(reply, status)
    assert bool(reply.headers.get("allow")) is (status == 405)


def test_a_body_above_the_limit_is_a_413_declared_or_not(shared: Live):
    body = json.dumps({"question": "x" * (3 * 1024**2)}).encode()
    for content in (body, iter([body])):
        assert_error(shared.client.post("/v1/ask", content=content, headers=JSON_TYPE), 413)


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
    reply = shared.client.post(path, content=body, headers=JSON_TYPE)
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
    reply = shared.client.request(method, path.format(quote(identifier, safe="")), json={"title": "t"})
    assert reply.status_code < 500, reply.text
