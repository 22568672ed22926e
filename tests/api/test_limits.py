"""How much at once: sixteen clients without an error, a full queue and a hasty client learn when to come back."""

from __future__ import annotations

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import psutil
import pytest
from api_fakes import PATIENCE_S, FakeBuilder, running, wait_until
from fakes import ScriptedGenerator

from api import server, uploads
from api.answering import RateLimit
from api.errors import RateLimited
from api.jobs import JobHandle
from evals.bench.clients import bench_server
from indexes.errors import Cancelled

QUESTION = {"question": "What is a warp?"}


def test_a_full_server_says_when_to_come_back_and_goes_on(settings):
    go_on = threading.Event()
    generator = ScriptedGenerator(before_piece=lambda index: go_on.wait(PATIENCE_S) and None)
    small = settings.model_copy(update={"answer_threads": 1, "max_waiting_asks": 1})
    with running(small, FakeBuilder(generator)) as live, ThreadPoolExecutor(2) as pool:
        first = [pool.submit(httpx.post, f"{live.address}/v1/ask", json=QUESTION, timeout=PATIENCE_S) for _ in range(2)]
        wait_until(lambda: "coalesce_answers_inside 2.0" in live.client.get("/metrics").text, "two are inside")
        for path, body in (
            ("/v1/ask", QUESTION),
            ("/v1/search", {"query": "warp"}),
            ("/v1/ask", QUESTION | {"stream": True}),
        ):
            reply = live.client.post(path, json=body)
            assert (reply.status_code, reply.json()["error"]["type"]) == (503, "busy")
            assert int(reply.headers["retry-after"]) >= 1
        assert 'coalesce_http_refused_total{reason="busy"} 3.0' in live.client.get("/metrics").text
        go_on.set()
        assert [one.result().status_code for one in first] == [200, 200]
        assert live.client.post("/v1/ask", json=QUESTION).status_code == 200


def test_many_at_once_are_each_answered_their_own_question_or_told_when_to_come_back(settings):
    small = settings.model_copy(update={"answer_threads": 1, "max_waiting_asks": 1})
    slow = ScriptedGenerator(before_piece=lambda _: time.sleep(0.1))
    with running(settings, FakeBuilder(slow)) as live:
        found = bench_server(live.address, clients=16, alone=2)
    assert (found["answered"], found["with_their_question"], found["same_as_alone"]) == (16, 16, 2)
    assert found["refused_by_the_server"] == [] and found["class_s"] > 0 < found["one_s"]
    with running(small, FakeBuilder(slow)) as live:
        found = bench_server(live.address, clients=12, alone=1)
    assert found["answered"] == found["with_their_question"] == 12 - len(found["refused_by_the_server"]) < 12
    assert {(status, int(wait) > 0) for status, wait in found["refused_by_the_server"]} == {(503, True)}


def test_places_are_given_back_after_errors_and_leaving_clients(settings):
    small = settings.model_copy(update={"answer_threads": 1, "max_waiting_asks": 0})
    with running(small) as live:
        for _ in range(3):
            assert live.client.post("/v1/ask", json=QUESTION | {"arm": "tuned"}).status_code == 409
            assert live.client.post("/v1/compare", json=QUESTION | {"arms": ["tuned"]}).status_code == 409
        wait_until(lambda: live.client.post("/v1/ask", json=QUESTION).status_code == 200, "a place is free")


@pytest.mark.parametrize("keys", [[""] * 3, ["x1", "x2", "x3"]], ids=["no key", "made up keys"])
def test_a_client_that_asks_too_often_is_a_429_that_says_when(settings, keys):
    with running(settings.model_copy(update={"rate_limit_per_minute": 2})) as live:
        bearers = [{"authorization": f"Bearer {key}"} if key else {} for key in keys]
        *taken, last = [live.client.post("/v1/ask", json=QUESTION, headers=bearer) for bearer in bearers]
        assert [reply.status_code for reply in taken] == [200, 200]
        assert (last.status_code, last.json()["error"]["type"]) == (429, "rate_limited")
        assert 'coalesce_http_refused_total{reason="rate_limited"} 1.0' in live.client.get("/metrics").text
        assert 1 <= int(last.headers["retry-after"]) <= 30
        assert live.status("POST", "/v1/search", {"query": "warp"}) == 429
        assert live.status("GET", "/v1/documents") == 200


def test_a_bucket_holds_a_minutes_worth_and_fills_steadily():
    now = [0.0]
    limit = RateLimit(60, clock=lambda: now[0])
    for _ in range(60):
        limit.take("a")
    for later_s, again in ((0.0, 0), (2.0, 2)):
        now[0] = later_s
        for _ in range(again):
            limit.take("a")
        with pytest.raises(RateLimited) as refused:
            limit.take("a")
        assert refused.value.retry_after_s == pytest.approx(1.0)
    limit.take("b")


def test_clients_of_long_ago_are_forgotten_by_a_limit_that_no_other_server_hears_of(monkeypatch):
    monkeypatch.setattr("api.answering.MAX_CLIENTS_REMEMBERED", 3)
    limit, heard = RateLimit(60), []
    for client in range(5):
        limit.take(str(client))
    limit.share(lambda here: heard.append(dict(here)) or {})
    assert len(limit._buckets) == len(heard[0]) == 3


def test_a_full_server_says_so_before_it_reads_the_body(settings):
    one_at_once = settings.model_copy(update={"answer_threads": 1, "max_waiting_asks": 0})
    with running(one_at_once) as live, ThreadPoolExecutor(1) as threads:
        gate = threading.Event()
        live.generator.before_piece = lambda _: gate.wait(PATIENCE_S)
        first = threads.submit(live.post, "/v1/ask", question="How many threads are in a warp?")
        wait_until(lambda: live.services.answering.limit.inside == 1, "the first is being answered")
        host, port = live.address.removeprefix("http://").split(":")
        for path in ("/v1/ask", "/v1/chat/completions", "/v1/search", "/v1/compare", "/v1/choose", "/v1/explain"):
            with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as client:
                client.sendall(f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 900\r\n\r\n{{".encode())
                reply = client.recv(4096).decode().lower()
            assert reply.startswith("http/1.1 503") and "retry-after: " in reply, reply
        gate.set()
        assert first.result()["refused"] is False


def is_connected(client: tuple[str, int]) -> bool:
    """Whether this process, which serves, has a connection from there."""
    return client in {one.raddr for one in psutil.Process().net_connections("tcp4")}


def test_who_sends_a_body_or_reads_a_reply_too_slowly_is_left(settings, monkeypatch):
    monkeypatch.setattr(uploads, "BODY_S", 0.5)
    monkeypatch.setattr(uploads, "READING_S", 0.5)
    monkeypatch.setattr(server, "READING_S", 0.5)
    monkeypatch.setattr(server, "HEAD_S", 0.5)
    head = "POST /v1/ask HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    long = ScriptedGenerator(["word " * 20_000] * 20)
    with running(settings, FakeBuilder(long)) as live:
        place = ("127.0.0.1", int(live.address.rpartition(":")[2]))
        for length, status in ((40, b"408"), (10**9, b"413")):
            with socket.create_connection(place, timeout=PATIENCE_S) as silent:
                silent.sendall(f"{head}Content-Length: {length}\r\n\r\n{{".encode())
                assert silent.recv(4096).startswith(b"HTTP/1.1 " + status)
        for stream in (True, False):  # in many pieces, and in one
            body = json.dumps(QUESTION | {"stream": stream, "arm": "base"}).encode()
            with socket.create_connection(place, timeout=PATIENCE_S) as deaf:
                deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                deaf.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                ours = deaf.getsockname()
                for there in (True, False):
                    wait_until(lambda ours=ours, there=there: is_connected(ours) is there, "it is left")
        long.pieces = ("word",)
        assert live.client.post("/v1/ask", json=QUESTION | {"arm": "base"}).status_code == 200


TRAILED = b"POST /v1/ask HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: "


@pytest.mark.parametrize(
    ("head", "more", "left"),
    [
        (b"", b"", b""),
        (b"GET /healthz HTTP/1.1\r\nHost: 12", b"", b"HTTP/1.1 408"),
        (b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"\r\n", b"HTTP/1.1 200"),
        (b"GET /healthz HTTP/1.1\r\nA: ", b"a" * 2**19, b"HTTP/1.1 431"),
        (TRAILED, b"a" * 2**19, b"HTTP/1.1 431"),
        (b"\0\r\n\r\n", b"", b"HTTP/1.1 400"),
    ],
    ids=["no call", "half its headers", "half the next", "no end of headers", "no end of trailers", "no HTTP"],
)
def test_who_sends_no_whole_headers_is_left(shared, monkeypatch, head, more, left):
    monkeypatch.setattr(server, "HEAD_S", 0.3)
    with socket.create_connection(("127.0.0.1", int(shared.address.rpartition(":")[2])), PATIENCE_S) as client:
        client.sendall(head)
        reply = client.recv(4096) if left.endswith(b"200") else b""
        with suppress(OSError):
            client.sendall(more)
        with suppress(ConnectionResetError):
            while piece := client.recv(4096):
                reply += piece
    assert reply.startswith(left)


def test_a_server_that_stops_lets_answers_end_and_says_so_of_those_that_do_not(settings, monkeypatch):
    monkeypatch.setattr(server, "ANSWERS_END_S", 0.5)
    go_on, held = threading.Event(), threading.Event()

    def work(handle: JobHandle) -> str:
        wait_until(handle.cancelled, "the job stops")
        raise Cancelled("as asked")

    generator = ScriptedGenerator(before_piece=lambda index: held.set() or (go_on.wait(PATIENCE_S) and None))
    one_at_once = settings.model_copy(update={"answer_threads": 1})
    with ThreadPoolExecutor(3) as pool:
        with running(one_at_once, FakeBuilder(generator)) as live:
            job = live.services.jobs.submit("add", work)
            asked = [pool.submit(httpx.post, f"{live.address}/v1/ask", json=QUESTION | {"stream": True}, timeout=60)]
            held.wait(PATIENCE_S)
            asked += [pool.submit(httpx.post, f"{live.address}/v1/ask", json=QUESTION, timeout=60) for _ in range(2)]
            wait_until(lambda: live.services.answering.limit.inside == 3, "three are inside")
        go_on.set()
        stream, *waiting = [each.result() for each in asked]
    assert stream.text.count("event: error") == 1 and "is stopping" in stream.text
    assert [(reply.status_code, "retry-after" in reply.headers) for reply in waiting] == [(503, True)] * 2
    assert live.services.jobs.get(job.id).error["type"] == "interrupted"
