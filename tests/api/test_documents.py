"""`/v1/documents` and `/v1/jobs`: uploads become jobs, the same content is the same book, removal leaves nothing."""

from __future__ import annotations

import json
import threading

import pytest
from api_fakes import PATIENCE_S, SAMPLE_ID, FakeBuilder, Live, running, wait_until

from indexes.types import BookHealth

DOCUMENT_FIELDS = {
    "id", "title", "source", "sample", "format", "pages", "sections", "nodes", "sha256", "added_at", "health",
}  # fmt: skip
JOB_FIELDS = {"id", "kind", "state", "done", "total", "message", "error"}
BOOK = b"Occupancy is the share of resident warps."


def upload(live: Live, data: bytes = BOOK, name: str = "occupancy.txt"):
    return live.client.post("/v1/documents", files={"file": (name, data)})


def kept_files(live: Live) -> list[str]:
    return [path.name for path in live.services.settings.home.glob("uploads/**/*") if path.is_file()]


def test_documents_have_exactly_the_contracts_fields(shared: Live):
    documents = shared.client.get("/v1/documents").json()["documents"]
    assert [set(document) for document in documents] == [DOCUMENT_FIELDS]
    assert documents[0]["sample"] is True
    assert shared.client.get(f"/v1/documents/{SAMPLE_ID}").json() == documents[0]
    assert set(documents[0]["health"]) == set(BookHealth.__dataclass_fields__)


def test_an_upload_is_a_job_that_adds_a_searchable_book(live: Live):
    reply = upload(live)
    assert reply.status_code == 202
    assert set(reply.json()) == {"job_id", "document_id"}
    job = live.ended(reply.json()["job_id"])
    assert set(job) >= JOB_FIELDS
    assert (job["kind"], job["state"], job["error"]) == ("add", "done", None)
    assert job["done"] == job["total"] > 0
    assert live.client.get(f"/v1/documents/{reply.json()['document_id']}").json()["source"] == "occupancy.txt"
    found = live.client.post("/v1/search", json={"query": "occupancy resident warps"}).json()["passages"]
    assert found[0]["document_id"] == reply.json()["document_id"]


def test_several_files_are_the_chapters_of_one_book(live: Live):
    def send(*parts: tuple[str, bytes]):
        return live.client.post("/v1/documents", files=[("file", part) for part in parts])

    chapters = (
        ("Kernels/1.md", b"# One\n\nA tile."),
        ("Kernels/part/2.md", b"# Two\n\nA warp."),
        ("Kernels/_toc.yml", b"- 1"),
    )
    first = send(*chapters)
    assert live.ended(first.json()["job_id"])["title"] == "Kernels"
    assert live.client.get(f"/v1/documents/{first.json()['document_id']}").json()["source"] == "Kernels"
    assert sorted(kept_files(live)) == ["1.md", "2.md", "_toc.yml"]
    again = send(*chapters)
    assert (again.status_code, again.json()["document_id"]) == (200, first.json()["document_id"])
    assert len(kept_files(live)) == 3
    assert send(("a/../../1.md", b"x"), ("b.md", b"y")).status_code == 400
    assert send(("1.md", b"x"), ("1.md", b"y")).status_code == 400
    assert send(("a.png", b"x"), ("b.png", b"y")).status_code == 415
    assert not list(live.services.settings.home.glob("uploads/.partial-*"))
    assert live.client.delete(f"/v1/documents/{first.json()['document_id']}").status_code == 204
    assert kept_files(live) == []


def test_the_same_content_again_is_a_200_with_the_same_id(live: Live):
    first = upload(live)
    live.ended(first.json()["job_id"])
    again = upload(live, name="another-name.txt")
    assert again.status_code == 200
    assert again.json()["document_id"] == first.json()["document_id"]
    assert len(live.shelf.documents()) == 2
    assert kept_files(live) == ["occupancy.txt"]


def test_the_same_content_while_it_is_on_its_way_is_the_same_job(settings):
    builder = FakeBuilder()
    go_on = threading.Event()
    builder.shelf.before_step = lambda step: go_on.wait(PATIENCE_S) and None
    with running(settings, builder) as live:
        first = upload(live)
        again = upload(live)
        assert (first.status_code, again.status_code) == (202, 200)
        assert first.json() == again.json()
        go_on.set()
        assert live.ended(first.json()["job_id"])["state"] == "done"


def test_a_removed_book_is_found_no_more_and_can_come_again(live: Live):
    first = upload(live).json()
    live.ended(first["job_id"])
    assert live.client.delete(f"/v1/documents/{first['document_id']}").status_code == 204
    assert live.client.get(f"/v1/documents/{first['document_id']}").status_code == 404
    passages = live.client.post("/v1/search", json={"query": "occupancy resident warps", "top_k": 50}).json()[
        "passages"
    ]
    assert first["document_id"] not in {passage["document_id"] for passage in passages}
    assert kept_files(live) == []
    again = upload(live)
    assert (again.status_code, again.json()["document_id"]) == (202, first["document_id"])


def test_a_file_that_cannot_be_read_is_a_failed_job_that_says_why(live: Live):
    reply = upload(live, b"not \0 text", "lies.txt")
    job = live.ended(reply.json()["job_id"])
    assert job["state"] == "failed"
    assert set(job["error"]) == {"type", "message", "hint"}
    assert job["error"]["type"] == "unreadable_book"
    assert "lies.txt" in job["message"]
    assert kept_files(live) == []
    assert upload(live, b"not \0 text", "lies.txt").status_code == 202


@pytest.mark.parametrize("name", ["book.exe", "book", "book.pdf.zip", ".txt"])
def test_a_format_that_is_not_supported_is_a_415(name, live: Live):
    reply = upload(live, name=name)
    assert reply.status_code == 415
    assert ".pdf" in reply.json()["error"]["hint"]
    assert kept_files(live) == []


@pytest.mark.parametrize(
    ("name", "source"),
    [("../../etc/passwd.txt", "passwd.txt"), ("C:\\books\\gpu.md", "gpu.md"), ("a\x1b[31mb.txt", "a[31mb.txt"),
     ("图书.txt", "图书.txt"), ("x" * 400 + ".txt", "x" * 196 + ".txt")],
)  # fmt: skip
def test_a_name_is_only_a_name(name, source, live: Live):
    reply = upload(live, name=name)
    assert reply.status_code == 202, reply.text
    live.ended(reply.json()["job_id"])
    assert live.client.get(f"/v1/documents/{reply.json()['document_id']}").json()["source"] == source
    assert kept_files(live) == [source]


def test_empty_and_missing_files_are_bad_input(live: Live):
    assert upload(live, b"").status_code == 400
    assert live.client.post("/v1/documents").status_code == 422
    assert live.client.post("/v1/documents", files={"book": ("a.txt", BOOK)}).status_code == 422
    assert live.client.post("/v1/documents", data={"file": "text"}).status_code == 422
    broken = {"content-type": "multipart/form-data; boundary=x"}
    assert live.client.post("/v1/documents", content=b"nonsense", headers=broken).status_code in (400, 422)


def test_a_file_above_the_limit_is_a_413(settings):
    with running(settings.model_copy(update={"max_upload_bytes": 10_000})) as live:
        reply = upload(live, b"x" * 20_000)
        assert reply.status_code == 413
        assert reply.json()["error"]["type"] == "too_large"
        assert upload(live, b"x" * 5_000).status_code == 202


def test_a_running_job_is_cancelled_and_nothing_is_kept(settings):
    builder = FakeBuilder()
    started, go_on = threading.Event(), threading.Event()

    def hold(step: int) -> None:
        started.set()
        go_on.wait(PATIENCE_S)

    builder.shelf.before_step = hold
    with running(settings, builder) as live:
        taken = upload(live).json()
        started.wait(PATIENCE_S)
        waiting = upload(live, b"Another book.", "other.txt").json()
        assert live.client.delete(f"/v1/jobs/{waiting['job_id']}").json()["state"] == "cancelled"
        assert live.client.delete(f"/v1/jobs/{taken['job_id']}").status_code == 200
        go_on.set()
        assert live.ended(taken["job_id"])["state"] == "cancelled"
        assert live.client.delete(f"/v1/jobs/{taken['job_id']}").json()["state"] == "cancelled"
        assert len(live.shelf.documents()) == 1
        assert kept_files(live) == []


def test_a_job_that_is_done_cannot_be_cancelled(live: Live):
    job_id = upload(live).json()["job_id"]
    live.ended(job_id)
    assert live.client.delete(f"/v1/jobs/{job_id}").status_code == 409


def test_watching_a_job_shows_its_progress_up_to_its_end(settings):
    builder = FakeBuilder()
    steps = [threading.Event() for _ in range(4)]
    builder.shelf.before_step = lambda step: steps[step].wait(PATIENCE_S) and None
    with running(settings, builder) as live:
        sections = "\n".join(f"# {n}\n\nWarp {n}." for n in range(12))
        job_id = upload(live, sections.encode(), "warps.md").json()["job_id"]
        seen: list[tuple[str, dict]] = []
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
        done = upload(live).json()["job_id"]
        live.ended(done)
        # A server that is killed leaves the row as it is: written here as that server would have left it.
        job = live.services.jobs.get(done).changed(state="running", message="embedding", error=None)
        live.services.jobs._store.save(type(job)(**{**_fields(job), "id": "interrupted"}))
    with running(settings, builder) as live:
        assert live.client.get(f"/v1/jobs/{done}").json()["state"] == "done"
        job = live.client.get("/v1/jobs/interrupted").json()
        assert (job["state"], job["error"]["type"]) == ("failed", "interrupted")
        assert [job["id"] for job in live.client.get("/v1/jobs").json()["jobs"]].count("interrupted") == 1


def test_a_second_server_on_one_home_leaves_the_firsts_jobs_alone(settings):
    builder = FakeBuilder()
    go_on = threading.Event()
    builder.shelf.before_step = lambda step: go_on.wait(PATIENCE_S) and None
    with running(settings, builder) as first:
        job_id = upload(first).json()["job_id"]
        wait_until(lambda: first.client.get(f"/v1/jobs/{job_id}").json()["state"] == "running", "the job runs")
        with running(settings, FakeBuilder()) as second:
            assert second.client.get(f"/v1/jobs/{job_id}").json()["state"] in ("queued", "running")
        go_on.set()
        assert first.ended(job_id)["state"] == "done"


def _fields(job) -> dict:
    return {name: getattr(job, name) for name in type(job).__dataclass_fields__}


def test_a_book_is_read_on_over_rest(shared: Live) -> None:
    client = shared.client
    (part,) = client.get(f"/v1/documents/{SAMPLE_ID}/contents").json()["parts"]
    assert (part["number"], part["sections"][0]["section"]) == (1, ["Chapter", "Section"])
    text = client.get(f"/v1/documents/{SAMPLE_ID}/parts/1").json()["sections"][0]["text"]
    answer = client.post("/v1/ask", json={"question": "How many threads are in a warp?"}).json()
    citation = answer["citations"][0]
    asked = {"node_id": citation["node_id"], "quote": citation["quote"]}
    place = client.get(f"/v1/documents/{SAMPLE_ID}/place", params=asked).json()
    assert text[place["char_start"] : place["char_end"]] == citation["quote"]
    assert client.get("/v1/suggestions", params={"answer_id": answer["id"]}).json() == {"suggestions": []}
    for path in (f"/v1/documents/{SAMPLE_ID}/parts/2", "/v1/documents/nope/contents", "/v1/suggestions?answer_id=x"):
        assert client.get(path).status_code == 404
