"""Who may come in: the bind, keys, other sites' pages."""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from api_fakes import Live, running

from api import security
from api.errors import UnsafeBind
from api.security import COOKIE, check_bind, cookie_value
from api.settings import CoalesceSettings, load_settings

KEYS = {"api_keys": "right-key, second-kéy"}
WRONG = [None, b"Bearer \xff\xfe", "Bearer wrong", "Bearer", "Basic right-key", "right-key", "Bearer right-key2"]
REBOUND = ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example"]
LOOPBACK = ("127.0.0.1", "127.8.9.1", "localhost", "::1")
OWN = ["localhost", "localhost:9", "127.0.0.1:8000", "[::1]:8000", "192.168.1.5:8000"]
CLOSED = ("/v1/documents", "/v1/models", "/metrics", "/docs", "/openapi.json", "/v1/conversations", "/v1/nothing")
OPEN = ("/", "/healthz", "/readyz", "/login", "/c/1", "/study/cards", "/favicon.ico")


@pytest.fixture(scope="module")
def locked(tmp_path_factory):
    with running(load_settings({"home": tmp_path_factory.mktemp("home"), **KEYS})) as server:
        yield server


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.org"])
def test_a_bind_that_others_reach_needs_a_key_or_the_word_insecure(host, tmp_path):
    def settings(**more) -> CoalesceSettings:
        return load_settings({"home": tmp_path, "host": host} | more)

    for keys in ({}, {"api_keys": " , "}):
        with pytest.raises(UnsafeBind, match=host) as refused:
            check_bind(settings(**keys))
        assert "COALESCE_API_KEYS" in refused.value.hint
    for harmless in ({"api_keys": "k"}, {"insecure": True}, *({"host": own} for own in LOOPBACK)):
        check_bind(settings(**harmless))


@pytest.mark.parametrize("header", WRONG)
def test_with_keys_every_call_needs_one(header, locked: Live):
    headers = {"authorization": header} if header else {}
    for path in CLOSED:
        reply = locked.client.get(path, headers=headers)
        assert (reply.status_code, reply.json()["error"]["type"]) == (401, "no_key"), path
        assert reply.json()["error"]["hint"]
        assert reply.headers["www-authenticate"] == "Bearer"


def test_a_known_key_opens_and_probes_need_none(locked: Live):
    for key in ("right-key", "second-kéy"):
        headers = {b"authorization": f"Bearer {key}".encode()}
        assert locked.client.get("/v1/documents", headers=headers).status_code == 200
    for path in OPEN:
        assert locked.client.get(path).status_code == 200


def test_a_browser_logs_in_and_its_cookie_does_not_hold_the_key(locked: Live):
    assert locked.client.get("/docs", headers={"accept": "text/html"}).headers["location"] == "/login?next=%2Fdocs"
    assert locked.client.post("/v1/session", json={"key": "wrong"}).status_code == 401
    reply = locked.client.post("/v1/session", json={"key": "right-key"})
    cookie = reply.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert "right-key" not in cookie
    assert locked.client.get("/docs").status_code == 200
    locked.client.cookies.set(COOKIE, "0" * 64)
    locked.client.cookies.delete(COOKIE, domain="127.0.0.1")
    assert locked.client.get("/docs").status_code == 401


def test_a_page_signs_in_and_out_by_calls(locked: Live):
    with httpx.Client(base_url=locked.address) as client:

        def session(method: str, body: Any = None, **headers: str) -> int:
            content = None if body is None else json.dumps(body)
            headers["content-type"] = "application/json"
            return client.request(method, "/v1/session", content=content, headers=headers).status_code

        assert session("GET") == 401
        assert [session("POST", {"key": key}) for key in ("wrong", "", "\ud800", "x" * 1001)] == [401, 422, 422, 422]
        assert session("POST", {"key": "right-key"}, origin="http://evil.example") == 403
        assert session("POST", {"key": " right-key "}) == 200
        told = client.get("/v1/session").json()
        assert (told["learner"], told["asks_for_keys"], told["learners"]) == (None, True, [])
        assert session("DELETE") == 204
        assert session("GET") == 401


@pytest.mark.parametrize("key", ["", "Bearer right-key"])
def test_no_header_of_a_stranger_keeps_the_server_busy(key, locked: Live):
    repeated = " needs a in a once it is converted; a" * 640
    headers = {"origin": f"http://x{repeated}", "authorization": key}
    begun = time.perf_counter()
    reply = locked.client.post("/v1/ask", headers=headers, json={})
    assert (reply.status_code, reply.json()["error"]["type"]) == (403, "foreign_origin")
    assert len(reply.text) < 1000
    path = f"/v1/{quote(repeated[:10_000])}"
    shown = locked.client.get(path, headers={"authorization": key})
    assert shown.status_code == (404 if key else 401)
    assert time.perf_counter() - begun < 5


@pytest.mark.parametrize(("hosts", "status"), [(REBOUND, 403), (OWN, 200)])
def test_this_machines_names_are_taken_and_a_name_that_is_rebound_to_it_is_not(hosts, status, shared: Live):
    for host in hosts:
        reply = shared.client.get("/v1/documents", headers={"host": host})
        assert reply.status_code == status, host
        assert status == 200 or reply.json()["error"]["type"] == "foreign_origin"


def test_a_page_of_this_server_or_of_a_name_that_the_settings_allow_may(tmp_path):
    with running(load_settings({"home": tmp_path / "home", "allowed_hosts": "books.example"})) as live:
        assert live.client.get("/healthz", headers={"host": "books.example"}).status_code == 200
        for origin in ("https://books.example", live.address):
            reply = live.client.post("/v1/search", json={"query": "warp"}, headers={"origin": origin})
            assert reply.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [{"origin": "https://evil.example"}, {"origin": "null"}, {"origin": "http://localhost:3000"},
     {"sec-fetch-site": "cross-site"}],
)  # fmt: skip
def test_a_page_of_another_site_cannot_change_anything(headers, shared: Live):
    for method, path in (("POST", "/v1/ask"), ("DELETE", "/v1/documents/sample"), ("PATCH", "/v1/conversations/x")):
        reply = shared.client.request(method, path, json={"question": "x"}, headers=headers)
        assert (reply.status_code, reply.json()["error"]["type"]) == (403, "foreign_origin")
    assert shared.client.get("/v1/documents/sample").status_code == 200


PAGES = ("app://obsidian.md", "https://chat.example", "http://localhost:3000")


def test_a_page_of_another_site_may_call_with_a_key_which_its_browser_asks_first(locked: Live):
    for origin in PAGES:
        asks = {"origin": origin, "access-control-request-method": "POST", "access-control-request-headers": "x-y"}
        first = locked.client.options("/v1/search", headers=asks)
        assert (first.status_code, first.headers["access-control-allow-origin"]) == (204, origin)
        for key, status in (("right-key", 200), ("wrong", 401)):
            headers = {"origin": origin, "authorization": f"Bearer {key}"}
            reply = locked.client.post("/v1/search", json={"query": "warp"}, headers=headers)
            assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (status, origin)
    headers = {"origin": PAGES[0], "authorization": "Bearer right-key"}
    for path in ("/v1/ask", "/v1/compare"):
        reply = locked.client.post(path, json={"question": "What is a warp?", "stream": True}, headers=headers)
        (names_it,) = (name for name in reply.headers if name.startswith("x-") and name.endswith("-id"))
        assert names_it in reply.headers["access-control-expose-headers"].lower()


def test_a_cookie_does_not_count_for_a_page_of_another_site(locked: Live):
    cookie = f"{COOKIE}={cookie_value('right-key')}"
    for more, status in (({}, 403), ({"authorization": "Bearer x"}, 401)):
        headers = {"origin": "https://evil.example", "cookie": cookie, **more}
        assert locked.client.post("/v1/search", json={"query": "warp"}, headers=headers).status_code == status
        assert "access-control-allow-credentials" not in locked.client.get("/v1/documents", headers=headers).headers


def test_without_keys_only_the_listed_pages_of_other_sites_may_call(tmp_path):
    with running(load_settings({"home": tmp_path, "allowed_origins": "app://obsidian.md"})) as live:
        for origin, status, asked in (("app://obsidian.md", 200, 204), ("https://evil.example", 403, 405)):
            headers = {"origin": origin, "access-control-request-method": "POST"}
            assert live.client.options("/v1/search", headers=headers).status_code == asked
            headers = {"origin": origin, "authorization": "Bearer none"}
            reply = live.client.post("/v1/search", json={"query": "warp"}, headers=headers)
            assert (reply.status_code, reply.headers.get("access-control-allow-origin")) == (
                status,
                origin if status == 200 else None,
            )


def test_who_guesses_keys_is_held_up_and_who_was_let_in_before_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(security, "MOST_GUESSES", 5)
    with running(load_settings({"home": tmp_path, **KEYS})) as live:

        def statuses(key: str, times: int, **headers: str) -> list[int]:
            headers["authorization"] = f"Bearer {key}"
            sent = {name.encode(): value.encode() for name, value in headers.items()}
            return [live.client.get("/v1/documents", headers=sent).status_code for _ in range(times)]

        assert statuses("right-key", 1) == [200]
        spoofed = [statuses(f"guess-{n}", 1, **{"X-Forwarded-For": f"10.0.0.{n}"})[0] for n in range(9)]
        assert spoofed == [401] * 5 + [429] * 4
        assert live.client.post("/v1/session", json={"key": "guess"}).status_code == 429
        cookies = [f"{COOKIE}={cookie_value(key)}" for key in ("guess", "second-kéy", "right-key")]
        made = [live.client.get("/v1/documents", headers={"cookie": one}).status_code for one in cookies]
        assert made == [429, 429, 200], "a guessed key makes its cookie too"
        assert statuses("second-kéy", 1) == [429], "not even the right one"
        assert statuses("right-key", 20) == [200] * 20
