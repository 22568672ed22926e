"""`/v1/documents` and `/v1/jobs`: uploads become jobs, the same content is the same book, removal leaves nothing."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import psutil
import pytest
import strangers
from api_fakes import PATIENCE_S, SAMPLE_ID, FakeBuilder, Live, running, wait_until

from api import uploads
from api.routes import books
from indexes.types import BookHealth

DOCUMENT_FIELDS = set("id title source sample format pages sections nodes sha256 added_at health questions".split())
BOOK = b"Occupancy is the share of resident warps."


class Held(FakeBuilder):
    """Adds nothing before `go_on` is set; `begun` is set when it tries to."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.shelf.before_step = self._hold

    def _hold(self, _: int) -> None:
        self.begun.set()
        self.go_on.wait(PATIENCE_S)


@pytest.fixture
def held(settings) -> Iterator[tuple[Live, Held]]:
    builder = Held()
    with running(settings, builder) as live:
        yield live, builder
        builder.go_on.set()


def added(live: Live, data: bytes = BOOK, name: str = "occupancy.txt") -> str:
    """The id of a book whose upload has ended."""
    taken = live.upload(data, name)
    assert taken.status_code == 202, taken.text
    assert live.ended(taken.json()["job_id"])["state"] == "done"
    document_id: str = taken.json()["document_id"]
    return document_id


def found(live: Live) -> set[str]:
    passages = live.post("/v1/search", query="occupancy resident warps", top_k=50)["passages"]
    return {passage["document_id"] for passage in passages}


def kept_files(live: Live) -> list[str]:
    return sorted(path.name for path in live.services.settings.home.glob("uploads/**/*") if path.is_file())


def test_documents_have_exactly_the_contracts_fields(shared: Live):
    (document,) = shared.get("/v1/documents")["documents"]
    assert (set(document), document["sample"]) == (DOCUMENT_FIELDS, True)
    assert shared.get(f"/v1/documents/{SAMPLE_ID}") == document
    assert set(document["health"]) == set(BookHealth.__dataclass_fields__)


def test_formats_are_offered_only_where_their_package_is_installed(shared: Live, monkeypatch: pytest.MonkeyPatch):
    offered = shared.get("/v1/formats")
    assert ".md" in offered["chapters"] and {".pdf", ".docx"} <= set(offered["books"])
    assert offered["missing"] == {}
    monkeypatch.setattr(books, "find_spec", lambda name: None)
    without = shared.get("/v1/formats")
    assert set(offered["books"]) - set(without["books"]) == set(without["missing"]) == {".docx", ".pptx"}
    assert "office" in without["missing"][".docx"]


def test_an_upload_is_a_job_that_adds_a_book_once_until_it_is_removed(live: Live):
    reply = live.upload(BOOK, "occupancy.txt")
    assert (reply.status_code, set(reply.json())) == (202, {"job_id", "document_id"})
    job, document_id = live.ended(reply.json()["job_id"]), reply.json()["document_id"]
    assert set(job) >= {"id", "kind", "state", "done", "total", "message", "error"}
    assert (job["kind"], job["state"], job["error"]) == ("add", "done", None)
    assert job["done"] == job["total"] > 0
    assert live.status("DELETE", f"/v1/jobs/{job['id']}") == 409
    address = f"/v1/documents/{document_id}"
    assert live.get(address)["source"] == "occupancy.txt"
    assert document_id in found(live)
    again = live.upload(BOOK, "another-name.txt")
    assert (again.status_code, again.json()["document_id"]) == (200, document_id)
    assert (len(live.shelf.documents()), kept_files(live)) == (2, ["occupancy.txt"])
    assert [live.status(method, address) for method in ("DELETE", "GET", "DELETE")] == [204, 404, 404]
    assert document_id not in found(live)
    assert kept_files(live) == []
    assert added(live) == document_id


def test_several_files_are_the_chapters_of_one_book(live: Live):
    def send(*parts: tuple[str, bytes]) -> httpx.Response:
        return live.client.post("/v1/documents", files=[("file", part) for part in parts])

    chapters = [("Kernels/1.md", b"# One\n\nA tile."), ("Kernels/part/2.md", b"# Two\n\nA warp.")]
    chapters += [("Kernels/_toc.yml", b"- 1")]
    first = send(*chapters).json()
    assert live.ended(first["job_id"])["title"] == "Kernels"
    assert live.get(f"/v1/documents/{first['document_id']}")["source"] == "Kernels"
    again = send(*chapters)
    assert (again.status_code, again.json()["document_id"]) == (200, first["document_id"])
    assert kept_files(live) == ["1.md", "2.md", "_toc.yml"]
    for names, status in ((("a/../../1.md", "b.md"), 400), (("1.md", "1.md"), 400), (("a.png", "b.png"), 415)):
        assert send(*((name, b"x") for name in names)).status_code == status
    assert not list(live.services.settings.home.glob("uploads/.partial-*"))
    assert live.status("DELETE", f"/v1/documents/{first['document_id']}") == 204
    assert kept_files(live) == []


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("lies.txt", b"\x7fELF\0\0\0"), ("cut.pdf", b"%PDF-1.7\n1 0 obj\n<<"),
    ],
)  # fmt: skip
def test_a_file_that_lies_is_a_failed_job_that_says_why_and_can_be_sent_again(shared: Live, name: str, data: bytes):
    for _ in range(2):
        taken = shared.upload(data, name)
        job = shared.ended(taken.json()["job_id"])
        assert (taken.status_code, job["state"]) == (202, "failed")
        error = job["error"]
        parts = error["message_parts"]
        assert parts["key"].format(*parts["arguments"]) == error["message"] == job["message"]
        assert job["message_parts"] == parts
        assert job["error"]["type"] == "unreadable_book" and name in job["message"]
        wait_until(lambda: kept_files(shared) == [], "nothing is kept")


@pytest.mark.parametrize("name", ["book.exe", "book", "book.pdf.zip", ".txt"])
def test_a_format_that_is_not_supported_is_a_415(name, shared: Live):
    reply = shared.upload(BOOK, name)
    assert (reply.status_code, ".pdf" in reply.json()["error"]["hint"], kept_files(shared)) == (415, True, [])


@pytest.mark.parametrize(
    ("name", "source"),
    [("../../etc/passwd.txt", "passwd.txt"), ("C:\\books\\gpu.md", "gpu.md"), ("a\x1b[31mb.txt", "a[31mb.txt"),
     ("图书.txt", "图书.txt"), ("x" * 400 + ".txt", "x" * 196 + ".txt")],
)  # fmt: skip
def test_a_name_is_only_a_name(name, source, shared: Live):
    document_id = added(shared, name.encode(), name)
    assert shared.get(f"/v1/documents/{document_id}")["source"] == source
    assert kept_files(shared) == [source]
    shared.status("DELETE", f"/v1/documents/{document_id}")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ({"files": {"file": ("a.txt", b"")}}, 400), ({}, 422), ({"files": {"book": ("a.txt", BOOK)}}, 422),
        ({"data": {"file": "text"}}, 422),
        ({"content": b"nonsense", "headers": {"content-type": "multipart/form-data; boundary=x"}}, 422),
    ],
)  # fmt: skip
def test_empty_and_missing_files_are_bad_input(shared: Live, sent: dict[str, Any], status: int):
    assert shared.client.post("/v1/documents", **sent).status_code in (status, 400)


def test_a_file_above_the_limit_is_a_413(settings):
    with running(settings.model_copy(update={"max_upload_bytes": 10_000})) as live:
        reply = live.upload(b"x" * 20_000, "a.txt")
        assert (reply.status_code, reply.json()["error"]["type"]) == (413, "too_large")
        assert live.upload(b"x" * 5_000, "a.txt").status_code == 202


def test_the_same_content_while_it_is_on_its_way_is_the_same_job_which_another_server_leaves_alone(held, settings):
    live, builder = held
    first, again = live.upload(BOOK, "a.txt"), live.upload(BOOK, "a.txt")
    assert (first.status_code, again.status_code, first.json()) == (202, 200, again.json())
    job = f"/v1/jobs/{first.json()['job_id']}"
    wait_until(lambda: live.get(job)["state"] == "running", "the job runs")
    with running(settings, FakeBuilder()) as second:
        assert second.get(job)["state"] in ("queued", "running")
    builder.go_on.set()
    assert live.ended(first.json()["job_id"])["state"] == "done"


def test_a_job_is_cancelled_while_it_waits_and_while_it_runs_and_nothing_is_kept(held):
    live, builder = held
    taken = live.upload(BOOK, "a.txt").json()
    builder.begun.wait(PATIENCE_S)
    live.upload(b"A book beside it.", "beside.txt")  # two run at once
    waiting = f"/v1/jobs/{live.upload(b'Another book.', 'other.txt').json()['job_id']}"
    assert live.client.delete(waiting).json()["state"] == "cancelled"
    assert live.status("DELETE", f"/v1/jobs/{taken['job_id']}") == 200
    builder.go_on.set()
    assert live.ended(taken["job_id"])["state"] == "cancelled"
    assert live.client.delete(f"/v1/jobs/{taken['job_id']}").json()["state"] == "cancelled"
    wait_until(lambda: len(live.shelf.documents()) == 2, "the other is added")
    wait_until(lambda: kept_files(live) == ["beside.txt"], "nothing else is kept")


@pytest.mark.parametrize("stops", [True, False], ids=["that stops in time", "that does not"])
def test_a_book_removed_while_it_is_added_is_not_added(stops: bool, held, monkeypatch):
    live, builder = held
    monkeypatch.setattr(uploads, "STOP_S", PATIENCE_S if stops else 0.1)
    taken = live.upload(BOOK, "a.txt").json()
    builder.begun.wait(PATIENCE_S)
    if stops:
        threading.Timer(0.1, builder.go_on.set).start()
    assert live.status("DELETE", f"/v1/documents/{taken['document_id']}") == (204 if stops else 409)
    builder.go_on.set()
    assert live.ended(taken["job_id"])["state"] == "cancelled"
    assert live.status("GET", f"/v1/documents/{taken['document_id']}") == 404
    assert kept_files(live) == []


@pytest.mark.integration
def test_a_book_that_takes_long_keeps_nothing_else_waiting_and_is_gone_at_once_when_it_is_cancelled(live: Live):
    before = set(psutil.Process().children())
    slow = f"/v1/jobs/{live.upload(strangers.pdf_of(b'q Q ', 40), 'slow.pdf').json()['job_id']}"
    wait_until(lambda: live.get(slow)["state"] == "running", "it is read")
    added(live)
    assert live.get(slow)["state"] == "running"
    readers = set(psutil.Process().children()) - before
    busy = {reader for reader in readers if reader.cpu_percent(0.1) > 10}
    started = time.monotonic()
    live.client.delete(slow)
    wait_until(lambda: live.get(slow)["state"] == "cancelled", "it is cancelled")
    wait_until(lambda: not any(reader.is_running() for reader in busy), "its reader is gone")
    assert time.monotonic() - started < 1 and len(busy) == 1
    assert kept_files(live) == ["occupancy.txt"]
    added(live, b"The next book is read in a new process.", "next.txt")


def test_watching_a_job_shows_its_progress_up_to_its_end(settings):
    builder = FakeBuilder()
    steps = [threading.Event() for _ in range(4)]
    builder.shelf.before_step = lambda step: steps[step].wait(PATIENCE_S) and None
    with running(settings, builder) as live:
        sections = "\n".join(f"# {n}\n\nWarp {n}." for n in range(12))
        job_id = live.upload(sections.encode(), "warps.md").json()["job_id"]
        seen: list[tuple[str, dict[str, Any]]] = []
        with live.client.stream("GET", f"/v1/jobs/{job_id}/events") as response:
            name = ""
            for line in response.iter_lines():
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    seen.append((name, json.loads(line.removeprefix("data: "))))
                    steps[min(len(seen) - 1, 3)].set()
    assert [name for name, _ in seen] == ["progress"] * (len(seen) - 1) + ["done"]
    assert any(job["state"] == "running" and 0 < job["done"] < job["total"] for _, job in seen)
    assert seen[-1][1]["state"] == "done"


def test_jobs_that_a_restart_interrupted_are_failed_and_their_ends_are_kept(settings):
    builder = FakeBuilder()
    with running(settings, builder) as live:
        job_id = live.upload(BOOK, "a.txt").json()["job_id"]
        live.ended(job_id)
        # A server that is killed leaves the row as it is: written here as that server would have left it.
        job = live.services.jobs.get(job_id).changed(state="running", message="embedding", error=None)
        live.services.jobs._store.save(replace(job, id="interrupted"))
    with running(settings, builder) as live:
        assert live.get(f"/v1/jobs/{job_id}")["state"] == "done"
        job = live.get("/v1/jobs/interrupted")
        assert (job["state"], job["error"]["type"]) == ("failed", "interrupted")
        assert [job["id"] for job in live.get("/v1/jobs")["jobs"]].count("interrupted") == 1


def test_a_book_is_read_on_over_rest(shared: Live) -> None:
    (part,) = shared.get(f"/v1/documents/{SAMPLE_ID}/contents")["parts"]
    assert (part["number"], part["sections"][0]["section"]) == (1, ["Chapter", "Section"])
    text = shared.get(f"/v1/documents/{SAMPLE_ID}/parts/1")["sections"][0]["text"]
    answer = shared.post("/v1/ask", question="How many threads are in a warp?")
    citation = answer["citations"][0]
    asked = {"node_id": citation["node_id"], "quote": citation["quote"]}
    place = shared.get(f"/v1/documents/{SAMPLE_ID}/place", **asked)
    assert text[place["char_start"] : place["char_end"]] == citation["quote"]
    assert shared.get("/v1/suggestions", answer_id=answer["id"]) == {"suggestions": []}
    for path in (f"/v1/documents/{SAMPLE_ID}/parts/2", "/v1/documents/nope/contents", "/v1/suggestions?answer_id=x"):
        assert shared.status("GET", path) == 404
