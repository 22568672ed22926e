"""A disk that fills up, two servers on one home, a home that only reads: what was said to be done is there."""

from __future__ import annotations

import random
import shutil
import subprocess
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from api_fakes import Live, running
from said import Said, add, ask, busy, examine, missing
from serving import COALESCE_SERVE, start, stop

from api.cli import run
from api.settings import CoalesceSettings
from indexes import database

FULL = 20
ROOMY = 1_000_000
WORK_S = 20.0


class Disk:
    """Lets each database grow by `room` pages in one transaction, and no further."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room = ROOMY
        self._begin = database._begin_on
        monkeypatch.setattr(database, "_begin_on", self.begin)

    def begin(self, cursor: Any, wait_s: float | None) -> None:
        self._begin(cursor, wait_s)
        (count,) = cursor.execute("PRAGMA page_count").fetchone()
        cursor.execute(f"PRAGMA max_page_count = {count + self.room}").fetchone()


def write(live: Live, number: int, done: dict[str, Any]) -> list[int]:
    """Adds a book, asks and takes an exam; notes what succeeded, and gives every status."""
    statuses = []

    def call(method: str, path: str, **sent: Any) -> httpx.Response:
        reply = live.client.request(method, path, **sent)
        statuses.append(reply.status_code)
        return reply

    text = f"# Book {number}\n\n" + f"Kernel {number} has {number} warps.\n\n" * 40
    taken = call("POST", "/v1/documents", files={"file": (f"{number}.md", text.encode())})
    if taken.status_code == 202 and live.ended(taken.json()["job_id"])["state"] == "done":
        done["books"].append(taken.json()["document_id"])
    answer = call("POST", "/v1/ask", json={"question": "How many threads are in a warp?"}).json()
    if answer.get("conversation_id"):
        done["answers"].append((answer["conversation_id"], answer["id"]))
    exam = call("POST", "/v1/exams", json={"count": 3}).json()
    if "id" in exam:
        marked = call("POST", f"/v1/exams/{exam['id']}/answers", json={"answers": {}})
        done["exams"].append((exam["id"], marked.status_code == 200))
    return statuses


@pytest.mark.slow
def test_a_disk_that_is_full_at_any_write_loses_nothing_that_was_said_to_be_kept(
    settings: CoalesceSettings, monkeypatch: pytest.MonkeyPatch, record_property: Any
) -> None:
    rng, done = random.Random(3), {"books": [], "answers": [], "exams": []}
    statuses: list[int] = []
    disk = Disk(monkeypatch)
    with running(settings) as live:
        for number in range(FULL):
            disk.room = rng.choice((0, 0, 1, 2, 3, 5, 8))
            statuses += write(live, number, done)
        disk.room = ROOMY
        assert write(live, FULL, done) == [202, 200, 201, 200]
        there = {document["id"] for document in live.get("/v1/documents")["documents"]}
        assert set(done["books"]) <= there
        for conversation, answer in done["answers"]:
            assert answer in [each["id"] for each in live.get(f"/v1/conversations/{conversation}")["answers"]]
        for exam, handed_in in done["exams"]:
            assert (live.get(f"/v1/exams/{exam}")["result"] is not None) or not handed_in
    assert 503 in statuses and set(statuses) <= {200, 201, 202, 503}, statuses
    assert min(len(kept) for kept in done.values()) >= 1
    record_property("tried", FULL)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_servers_on_one_home_lose_nothing_of_each_other(
    sample_home: Path, tmp_path: Path, record_property: Any
) -> None:
    home = Path(shutil.copytree(sample_home, tmp_path / "home"))
    servers, said, wrong = [start(home), start(home)], [Said(), Said()], list[BaseException]()
    workers = [
        threading.Thread(target=busy, args=(server, work, kept, wrong))
        for server, kept in zip(servers, said, strict=True)
        for work in (ask, examine)
    ]
    for worker in workers:
        worker.start()
    with httpx.Client(base_url=servers[0].address, timeout=60) as client:
        for _ in range(5):
            add(client, said[0])
    for server in servers:
        stop(server)
    for worker in workers:
        worker.join()
    assert wrong == []
    server = start(home)
    with closing(server.client):
        assert [list(missing(server.client, kept)) for kept in said] == [[], []]
        stop(server)
    assert run(["--home", str(home), "doctor"]) == 0
    assert min(len(kept.answers) for kept in said) >= 3
    record_property("tried", sum(len(kept.answers) + len(kept.exams) for kept in said) + len(said[0].books))


READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
"""Starts a command in a place of its own where a folder cannot be written, not by root either."""


@pytest.mark.slow
def test_a_home_that_only_reads_is_asked_and_searched(sample_home: Path, tmp_path: Path) -> None:
    home = Path(shutil.copytree(sample_home, tmp_path / "home"))
    before = ["unshare", "--mount", "--map-root-user", "sh", "-c", READ_ONLY, str(home)]
    if subprocess.run([*before, "true"], check=False, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    server = start(home, command=[*before, *COALESCE_SERVE])
    with closing(server.client):
        answer = server.client.post("/v1/ask", json={"question": "What is a warp?"}).json()
        assert answer["citations"] and "could not be kept" in answer["note"]
        assert server.client.post("/v1/search", json={"query": "warp"}).json()["passages"]
        for path in ("documents", "conversations", "exams", "cards/due", "progress", "jobs", "reports"):
            assert server.client.get(f"/v1/{path}").status_code == 200, path
        for path in ("exams", "conversations", "reports"):
            assert server.client.post(f"/v1/{path}", json={}).status_code == 503, path
        stop(server)
