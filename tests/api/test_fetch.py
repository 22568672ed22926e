"""Books by URL: one page, nothing private, redirects checked, size and time bounded."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from api_fakes import PATIENCE_S, Live, running, wait_until

from api import fetch as fetching
from api.fetch import fetch, fetch_pages, listed_pages
from api.settings import CoalesceSettings
from indexes.errors import InvalidInput, TooLarge

PAGE = b"<html><title>Tiles</title><p>A tile is staged in shared memory.</p></html>"


class _Web(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path.endswith(".xml"):
            self._send_map()
            return
        where = {"/round": "/round", "/away": "http://10.0.0.1/secret", "/moved": "/tiles.php"}.get(self.path)
        where = f"http://127.0.0.1:{self.server.server_address[1]}/map.xml" if self.path == "/old-map" else where
        self.send_response(302 if where else 404 if self.path == "/gone" else 200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        if where:
            self.send_header("Location", where)
        self.end_headers()
        if not where:
            self.wfile.write(PAGE)

    def _send_map(self) -> None:
        site = f"http://{self.headers['Host']}"
        pages = {"/index.xml": [f"{site}/map.xml"], "/far.xml": ["http://elsewhere.example/tiles"]}
        found = pages.get(self.path, [f"{site}/tiles?a=1&amp;b=2", f"{site}/gone", "http://elsewhere.example/x"])
        kind = "sitemapindex" if self.path == "/index.xml" else "urlset"
        self.send_response(200)
        self.send_header("Content-Type", "application/xml")
        self.end_headers()
        text = "".join(f"<url><loc> {one} </loc></url>" for one in found)
        self.wfile.write(f"<?xml version='1.0'?><{kind} xmlns='x'>{text}</{kind}>".encode())

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Web) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_a_page_is_fetched_through_its_redirects_and_named_by_its_type(web: str) -> None:
    page = fetch(f"{web}/moved", 1000, private=True)
    with page.content:
        assert (page.content.read(), page.name) == (PAGE, "tiles.html")


@pytest.mark.parametrize("path", ["/round", "/gone"])
def test_what_gives_no_page_is_an_error(web: str, path: str) -> None:
    with pytest.raises(InvalidInput):
        fetch(web + path, 1000, private=True)
    with pytest.raises(TooLarge):
        fetch(f"{web}/tiles", 10, private=True)


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1/", "http://localhost:9/", "http://[::1]/", "http://10.1.2.3/", "http://169.254.169.254/latest",
     "http://[::ffff:127.0.0.1]/", "http://0.0.0.0/", "http://2130706433/",
     "file:///etc/passwd", "ftp://x/", "http://", "//x"],
)  # fmt: skip
def test_private_addresses_and_other_schemes_are_never_asked(url: str) -> None:
    with pytest.raises(InvalidInput):
        fetch(url, 1000)


@pytest.mark.parametrize(
    ("url", "kind", "name"),
    [
        ("https://papers.example/pdf/2101.00190", "application/pdf", "2101.00190.pdf"),
        ("https://papers.example/book.PDF", "application/pdf", "book.PDF"),
        ("https://papers.example/get?id=4", "application/epub+zip", "get.epub"),
        ("https://papers.example/tiles.cu", "text/plain", "tiles.cu"),
        ("https://papers.example/", "text/plain", "papers.example.txt"),
    ],
)
def test_a_book_has_the_ending_of_its_type_and_a_text_that_of_its_address(url: str, kind: str, name: str) -> None:
    assert fetching._name(url, kind) == name


def test_a_host_in_any_script_is_asked_by_its_registered_name(web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(_: str, port: int, *__: Any, **___: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(fetching.socket, "getaddrinfo", look_up)
    with fetch(f"http://b\u00fccher.example:{web.rpartition(':')[2]}/tiles", 1000, private=True).content as content:
        assert content.read() == PAGE


def test_a_redirect_to_a_private_address_is_refused_and_the_checked_address_is_the_one_asked(web, monkeypatch):
    port = int(web.rpartition(":")[2])
    looked_up: list[str] = []

    def look_up(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        looked_up.append(host)
        address = (
            "127.0.0.1" if looked_up.count(host) == 1 else "10.9.9.9"
        )  # a name that points elsewhere the second time
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host if host[0].isdigit() else address, port))]

    monkeypatch.setattr(fetching.socket, "getaddrinfo", look_up)
    with fetch(f"http://books.example:{port}/tiles", 1000, private=True).content as content:
        assert content.read() == PAGE
    assert looked_up.count("books.example") == 1
    real = fetching.ipaddress.ip_address
    monkeypatch.setattr(
        fetching.ipaddress, "ip_address", lambda one: real("93.184.216.34") if one == "127.0.0.1" else real(one)
    )
    with pytest.raises(InvalidInput, match=r"10\.0\.0\.1"):
        fetch(f"{web}/away", 1000)


def test_a_url_becomes_a_book_over_rest_where_private_addresses_are_allowed(web, settings, monkeypatch):
    titles: list[str | None] = []
    with running(settings.model_copy(update={"private_urls": True})) as live:
        add = live.shelf.add
        monkeypatch.setattr(
            live.shelf, "add", lambda path, **more: (titles.append(more.get("title")), add(path, **more))[1]
        )
        reply = live.client.post("/v1/documents", json={"url": f"{web}/tiles"})
        assert reply.status_code == 202
        wait_until(lambda: len(live.client.get("/v1/documents").json()["documents"]) == 2, "the page is added")
        job = live.client.get(f"/v1/jobs/{reply.json()['job_id']}").json()
        assert job["title"] == "tiles.html"
        for said in ("added", "unchanged"):  # the same address is the same book
            reply = live.client.post("/v1/documents", json={"url": f"{web}/map.xml"}).json()
            job = f"/v1/jobs/{reply['job_id']}"
            wait_until(lambda job=job: live.client.get(job).json()["state"] == "done", "the site is added")
            assert live.client.get(job).json()["message"].startswith(said)
            assert live.client.get(f"/v1/documents/{reply['document_id']}").json()["source"] == "127.0.0.1"
        assert len(live.client.get("/v1/documents").json()["documents"]) == 3
        kept = settings.home / "uploads"
        twin = live.client.post("/v1/documents", json={"url": f"{web}/index.xml"}).json()
        wait_until(lambda: len(live.client.get("/v1/documents").json()["documents"]) == 4, "the same pages are added")
        for document_id, files in ((reply["document_id"], 2), (twin["document_id"], 0)):  # the twin keeps its pages
            live.client.delete(f"/v1/documents/{document_id}")
            assert len(list(kept.glob("*/127.0.0.1/*"))) == files
        assert titles == [None, "127.0.0.1", "127.0.0.1"], "a site is called by its name"


@pytest.mark.parametrize("path", ["/map.xml", "/index.xml"])
def test_a_sitemap_gives_the_pages_of_its_own_site_in_order(web: str, path: str) -> None:
    listed = _listed(web + path)
    first, second = fetch_pages(listed, 1000, private=True)
    with first.content, second.content:
        assert (first.name, first.content.read()) == ("001-tiles.html", PAGE)
        assert (second.name, second.content.read()) == ("002-gone.html", b""), "a missing page is empty"


def test_a_sitemap_that_moved_lists_the_pages_of_where_it_is_now(web: str) -> None:
    assert len(_listed(f"{web.replace('127.0.0.1', 'localhost')}/old-map")) == 2


def test_a_sitemap_of_another_site_or_of_too_many_pages_is_refused(web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match="lists 0 pages"):
        _listed(f"{web}/far.xml")
    monkeypatch.setattr(fetching, "MOST_PAGES", 1)
    with pytest.raises(InvalidInput, match="lists 2 pages"):
        _listed(f"{web}/map.xml")


def _listed(url: str) -> tuple[str, ...]:
    return listed_pages(fetch(url, 1000, private=True), private=True)


def test_a_private_url_or_none_is_refused_over_rest(shared: Live, web: str) -> None:
    assert shared.client.post("/v1/documents", json={"url": web}).status_code == 400
    assert shared.client.post("/v1/documents", json={"uri": web}).status_code == 422
    assert shared.client.post("/v1/documents", json={"url": "http://93.184.216.34/\x7f"}).status_code == 400
    assert shared.client.post("/v1/documents").status_code == 422


def test_a_sitemap_that_is_still_being_added_is_the_same_job(web: str, settings: CoalesceSettings) -> None:
    gate = threading.Event()
    with running(settings.model_copy(update={"private_urls": True})) as live:
        live.shelf.before_step = lambda _: gate.wait(PATIENCE_S)
        first, second = (live.client.post("/v1/documents", json={"url": f"{web}/map.xml"}) for _ in range(2))
        gate.set()
        assert (first.status_code, second.status_code) == (202, 200)
        assert first.json() == second.json()
