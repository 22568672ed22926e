"""Who may come in: the bind, keys, other sites' pages."""

from __future__ import annotations

import time
from urllib.parse import quote

import pytest
from api_fakes import Live, running

from api.errors import UnsafeBind
from api.security import COOKIE, check_bind
from api.settings import CoalesceSettings, load_settings

KEYS = {"api_keys": "right-key, second-kéy"}
WRONG = [None, "Bearer wrong", "Bearer", "Basic right-key", "right-key", "Bearer right-key2"]
REBOUND = ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example"]
OPEN = ("/healthz", "/readyz", "/login")


@pytest.fixture(scope="module")
def locked(tmp_path_factory):
    with running(load_settings({"home": tmp_path_factory.mktemp("home"), **KEYS})) as server:
        yield server


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "example.org"])
def test_a_bind_that_others_reach_needs_a_key_or_the_word_insecure(host, tmp_path):
    def settings(**more) -> CoalesceSettings:
        return load_settings({"home": tmp_path, "host": host, **more})

    with pytest.raises(UnsafeBind, match=host) as refused:
        check_bind(settings())
    assert "COALESCE_API_KEYS" in refused.value.hint
    check_bind(settings(api_keys="k"))
    check_bind(settings(insecure=True))


def test_empty_keys_are_not_keys(tmp_path):
    with pytest.raises(UnsafeBind):
        check_bind(load_settings({"home": tmp_path, "host": "0.0.0.0", "api_keys": " , "}))


@pytest.mark.parametrize(
    "path", ["/v1/documents", "/v1/models", "/metrics", "/docs", "/openapi.json", "/v1/conversations", "/v1/nothing"]
)
@pytest.mark.parametrize("header", WRONG)
def test_with_keys_every_call_needs_one(path, header, locked: Live):
    headers = {"authorization": header} if header else {}
    reply = locked.client.get(path, headers=headers)
    assert reply.status_code == 401
    assert reply.json()["error"]["type"] == "no_key"
    assert reply.json()["error"]["hint"]
    assert reply.headers["www-authenticate"] == "Bearer"


def test_a_known_key_opens_and_probes_need_none(locked: Live):
    assert locked.client.get("/v1/documents", headers={"authorization": "Bearer right-key"}).status_code == 200
    second = "Bearer second-kéy".encode()
    assert locked.client.get("/v1/documents", headers={b"authorization": second}).status_code == 200
    for path in OPEN:
        assert locked.client.get(path).status_code == 200


def test_a_key_that_is_not_text_is_a_wrong_key(locked: Live):
    assert locked.client.get("/v1/documents", headers={b"authorization": b"Bearer \xff\xfe"}).status_code == 401


def test_a_browser_logs_in_and_its_cookie_does_not_hold_the_key(locked: Live):
    assert locked.client.get("/docs", headers={"accept": "text/html"}).headers["location"] == "/login?next=%2Fdocs"
    assert locked.client.post("/login", data={"key": "wrong"}).status_code == 401
    reply = locked.client.post("/login", data={"key": "right-key"})
    assert reply.status_code == 303
    cookie = reply.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert "right-key" not in cookie
    assert locked.client.get("/docs").status_code == 200
    locked.client.cookies.set(COOKIE, "0" * 64)
    locked.client.cookies.delete(COOKIE, domain="127.0.0.1")
    assert locked.client.get("/docs").status_code == 401


@pytest.mark.parametrize("key", ["", "Bearer right-key"])
def test_no_header_of_a_stranger_keeps_the_server_busy(key, locked: Live):
    repeated = " needs a in a once it is converted; a" * 640
    headers = {"origin": f"http://x{repeated}", "X-Coalesce-Language": "zh", "authorization": key}
    begun = time.perf_counter()
    reply = locked.client.post("/v1/ask", headers=headers, json={})
    assert (reply.status_code, reply.json()["error"]["type"]) == (403, "foreign_origin")
    assert len(reply.text) < 1000
    path = f"/v1/{quote(repeated[:10_000])}"
    shown = locked.client.get(path, headers={"authorization": key, "X-Coalesce-Language": "zh"})
    assert shown.status_code == (404 if key else 401)
    assert time.perf_counter() - begun < 5


@pytest.mark.parametrize("host", REBOUND)
def test_a_name_that_is_rebound_to_this_machine_is_refused(host, shared: Live):
    reply = shared.client.get("/v1/documents", headers={"host": host})
    assert (reply.status_code, reply.json()["error"]["type"]) == (403, "foreign_origin")


@pytest.mark.parametrize("host", ["localhost", "localhost:9", "127.0.0.1:8000", "[::1]:8000", "192.168.1.5:8000"])
def test_this_machines_names_and_plain_addresses_are_taken(host, shared: Live):
    assert shared.client.get("/v1/documents", headers={"host": host}).status_code == 200


def test_a_name_that_the_settings_allow_is_taken(tmp_path):
    with running(load_settings({"home": tmp_path / "home", "allowed_hosts": "books.example"})) as live:
        assert live.client.get("/healthz", headers={"host": "books.example"}).status_code == 200
        origin = {"origin": "https://books.example"}
        assert live.client.post("/v1/search", json={"query": "warp"}, headers=origin).status_code == 200


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


def test_this_servers_own_page_may(shared: Live):
    reply = shared.client.post("/v1/search", json={"query": "warp"}, headers={"origin": shared.address})
    assert reply.status_code == 200
