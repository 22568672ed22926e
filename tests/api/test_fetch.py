"""Books by URL: one page, nothing private, redirects checked, size and time bounded."""

from __future__ import annotations

import http.server
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from api_fakes import PATIENCE_S, Live, running
from waiting import wait_until

from api import fetch as fetching
from api.fetch import fetch, fetch_pages, listed_pages
from indexes.errors import InvalidInput, TooLarge

PAGE = b"<html><title>Tiles</title><p>A tile is staged in shared memory.</p></html>"


class _Web(http.server.BaseHTTPRequestHandler):
    """Pages, redirects, and site maps of two pages, one of which is missing."""

    def do_GET(self) -> None:
        site = f"http://{self.headers['Host']}"
        maps = {
            "/map.xml": [f"{site}/tiles?a=1&amp;b=2", f"{site}/gone", "http://elsewhere.example/x"],
            "/index.xml": [f"{site}/map.xml"],
            "/far.xml": ["http://elsewhere.example/tiles"],
        }
        moved = {"/round": "/round", "/away": "http://10.0.0.1/secret", "/moved": "/tiles.php"}
        moved["/old-map"] = f"http://127.0.0.1:{self.server.server_address[1]}/map.xml"
        kind, content = "text/html; charset=utf-8", PAGE
        if self.path in maps:
            root = "sitemapindex" if self.path == "/index.xml" else "urlset"
            listed = "".join(f"<url><loc> {one} </loc></url>" for one in maps[self.path])
            kind, content = "application/xml", f"<?xml version='1.0'?><{root} xmlns='x'>{listed}</{root}>".encode()
        where = moved.get(self.path)
        if self.path == "/drip":  # a byte of a header at a time, for ever
            self.wfile.write(b"HTTP/1.1 200 OK\r\n")
            with suppress(OSError):
                while True:
                    self.wfile.write(b"X: 1\r\n")
                    time.sleep(0.02)
            return
        self.send_response(302 if where else 404 if self.path == "/gone" else 200)
        self.send_header("Content-Type", kind)
        if where:
            self.send_header("Location", where)
        if self.path == "/packed":
            self.send_header("Content-Encoding", "gzip, gzip")
        self.end_headers()
        self.wfile.write(b"" if where else content)

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Web) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def _resolve(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[str]:
    """Lets any name resolve to these addresses, one look-up after another; the names that were looked up."""
    looked_up: list[str] = []

    def look_up(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        looked_up.append(host)
        address = host if host[0].isdigit() else addresses[min(looked_up.count(host), len(addresses)) - 1]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(fetching.socket, "getaddrinfo", look_up)
    return looked_up


def _listed(url: str) -> tuple[str, ...]:
    return listed_pages(fetch(url, 1000, private=True), private=True)


def test_a_page_is_fetched_through_its_redirects_and_named_by_its_type(web: str) -> None:
    page = fetch(f"{web}/moved", 1000, private=True)
    with page.content:
        assert (page.content.read(), page.name) == (PAGE, "tiles.html")


@pytest.mark.parametrize(
    ("path", "most_bytes", "error"),
    [("round", 1000, InvalidInput), ("gone", 1000, InvalidInput), ("tiles", 10, TooLarge),
     ("packed", 1000, InvalidInput), ("drip", 1000, InvalidInput)],
)  # fmt: skip
def test_what_gives_no_page_is_an_error_in_time(web, path, most_bytes, error, monkeypatch) -> None:
    monkeypatch.setattr(fetching, "TIME_LIMIT_S", 1.0)
    with pytest.raises(error):
        fetch(f"{web}/{path}", most_bytes, private=True)


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1/", "http://localhost:9/", "http://[::1]/", "http://10.1.2.3/", "http://169.254.169.254/latest",
     "http://[::ffff:127.0.0.1]/", "http://0.0.0.0/", "http://2130706433/", "http://[64:ff9b::7f00:1]/",
     "http://[64:ff9b:1::7f00:1]/", "http://[2002:7f00:1::]/", "http://[::127.0.0.1]/", "http://[ff02::1]/",
     "http://224.0.0.1/", "file:///etc/passwd", "ftp://x/", "http://",
     "//x"],
)  # fmt: skip
def test_private_addresses_and_other_schemes_are_never_asked(url: str) -> None:
    with pytest.raises(InvalidInput, match=r"this machine or its network|not an address of the web"):
        fetch(url, 1000)


@pytest.mark.parametrize(
    ("path", "kind", "name"),
    [
        ("pdf/2101.00190", "application/pdf", "2101.00190.pdf"),
        ("book.PDF", "application/pdf", "book.PDF"),
        ("get?id=4", "application/epub+zip", "get.epub"),
        ("tiles.cu", "text/plain", "tiles.cu"),
        ("", "text/plain", "papers.example.txt"),
    ],
)
def test_a_book_has_the_ending_of_its_type_and_a_text_that_of_its_address(path: str, kind: str, name: str) -> None:
    assert fetching._name(f"https://papers.example/{path}", kind) == name


def test_a_name_in_any_script_is_looked_up_once_and_the_checked_address_is_asked(web: str, monkeypatch: Any) -> None:
    port = web.rpartition(":")[2]
    looked_up = _resolve(monkeypatch, "127.0.0.1", "10.9.9.9")  # it points elsewhere the second time
    with fetch(f"http://b\u00fccher.example:{port}/tiles", 1000, private=True).content as content:
        assert content.read() == PAGE
    assert [name for name in looked_up if name.endswith("example")] == ["b\u00fccher.example"]


def test_a_redirect_to_a_private_address_is_refused(web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = fetching.ipaddress.ip_address
    _resolve(monkeypatch, "127.0.0.1")
    monkeypatch.setattr(
        fetching.ipaddress, "ip_address", lambda one: real("93.184.216.34") if one == "127.0.0.1" else real(one)
    )
    with pytest.raises(InvalidInput, match=r"10\.0\.0\.1"):
        fetch(f"{web}/away", 1000)


def test_a_url_becomes_a_book_over_rest_where_private_addresses_are_allowed(web, settings, monkeypatch):
    titles: list[str | None] = []
    gate = threading.Event()
    gate.set()
    with running(settings.model_copy(update={"private_urls": True})) as live:
        add = live.shelf.add
        monkeypatch.setattr(
            live.shelf, "add", lambda path, **more: (titles.append(more.get("title")), add(path, **more))[1]
        )
        live.shelf.before_step = lambda _: gate.wait(PATIENCE_S)

        def taken(path: str) -> tuple[str, dict[str, Any]]:
            """The id of a book from the web, and its job at its end."""
            reply = live.post("/v1/documents", url=f"{web}/{path}")
            return reply["document_id"], live.ended(reply["job_id"])

        assert taken("tiles")[1]["title"] == "tiles.html"
        gate.clear()
        first, second = (live.client.post("/v1/documents", json={"url": f"{web}/map.xml"}) for _ in range(2))
        gate.set()
        assert (first.status_code, second.status_code, first.json()) == (202, 200, second.json())
        assert live.ended(first.json()["job_id"])["message"].startswith("added")
        site, job = taken("map.xml")
        assert (site, job["message"].partition(":")[0]) == (first.json()["document_id"], "unchanged")
        assert live.get(f"/v1/documents/{site}")["source"] == "127.0.0.1"
        twin, _ = taken("index.xml")
        assert len(live.get("/v1/documents")["documents"]) == 4
        for document_id, files in ((site, 2), (twin, 0)):  # the twin keeps its pages
            live.client.delete(f"/v1/documents/{document_id}")
            assert len(list((settings.home / "uploads").glob("*/127.0.0.1/*"))) == files
        assert titles == [None, "127.0.0.1", "127.0.0.1"], "a site is called by its name"


@pytest.mark.parametrize("path", ["/map.xml", "/index.xml", "/old-map"])
def test_a_sitemap_gives_the_pages_of_its_own_site_in_order_wherever_it_moved(web: str, path: str) -> None:
    listed = _listed((web.replace("127.0.0.1", "localhost") if path == "/old-map" else web) + path)
    first, second = fetch_pages(listed, 1000, private=True)
    with first.content, second.content:
        assert (first.name, first.content.read()) == ("001-tiles.html", PAGE)
        assert (second.name, second.content.read()) == ("002-gone.html", b""), "a missing page is empty"


def test_a_sitemap_of_another_site_or_of_too_many_pages_is_refused(web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match="lists 0 pages"):
        _listed(f"{web}/far.xml")
    monkeypatch.setattr(fetching, "MOST_PAGES", 1)
    with pytest.raises(InvalidInput, match="lists 2 pages"):
        _listed(f"{web}/map.xml")


def test_silent_hosts_leave_threads_to_others(web: str, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "TIME_LIMIT_S", 3.0)
    with running(settings.model_copy(update={"private_urls": True})) as live, ThreadPoolExecutor(45) as threads:
        adds = [threads.submit(live.refusal, "POST", "/v1/documents", {"url": f"{web}/drip"}) for _ in range(45)]
        wait_until(lambda: sum(add.done() for add in adds) >= 30, "the adds beyond a few are sent away")
        assert not all(add.done() for add in adds)
        assert live.status("POST", "/v1/exams", {"count": 1}) == 201
        assert {add.result() for add in adds} == {(400, "invalid_input"), (503, "busy")}


def test_a_private_url_or_none_is_refused_over_rest(shared: Live, web: str) -> None:
    for body, status in (({"url": web}, 400), ({"uri": web}, 422), ({"url": "http://93.184.216.34/\x7f"}, 400)):
        assert shared.status("POST", "/v1/documents", body) == status
