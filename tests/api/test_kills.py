"""A real server killed at random moments: what it had said to be done is there, nothing is half, and doctor agrees."""

from __future__ import annotations

import random
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import COMMAND, Process, environment, start
from waiting import PATIENCE_S, wait_until

from api.cli import run

KILLS = 20
MOST_S = 4.0


@dataclass
class Said:
    """What a server said to be done."""

    books: set[str] = field(default_factory=set)
    answers: dict[str, str] = field(default_factory=dict)
    exams: dict[str, float] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)

    @property
    def done(self) -> int:
        """How many books were added or removed."""
        return len(self.books) + 2 * len(self.removed)


NUMBERS = count()


def add(client: httpx.Client, said: Said) -> None:
    """Adds a book, and now and then removes one."""
    number = next(NUMBERS)
    text = f"# Book {number}\n\n## Part\n\n" + f"Kernel {number} has {number} warps and {number * 7} blocks.\n\n" * 20
    taken = client.post("/v1/documents", files={"file": (f"book-{number}.md", text)}).json()
    while (job := client.get(f"/v1/jobs/{taken['job_id']}").json())["state"] in ("queued", "running"):
        time.sleep(0.05)
    assert job["state"] == "done", job
    said.books.add(taken["document_id"])
    if number % 4 == 3:
        gone = min(said.books)
        said.books.discard(gone)  # whether it is still there is not known until the server answers
        if client.delete(f"/v1/documents/{gone}").status_code == 204:
            said.removed.add(gone)


def ask(client: httpx.Client, said: Said) -> None:
    answer = client.post("/v1/ask", json={"question": f"What is warp {next(NUMBERS)} of a block?"}).json()
    assert "could not be kept" not in (answer["note"] or ""), answer["note"]
    said.answers[answer["id"]] = answer["conversation_id"]


def examine(client: httpx.Client, said: Said) -> None:
    exam = client.post("/v1/exams", json={"count": 3, "types": ["choice"]}).json()
    answers = {question["id"]: 0 for question in exam["questions"]}
    client.put(f"/v1/exams/{exam['id']}/draft", json={"answers": answers}).raise_for_status()
    result = client.post(f"/v1/exams/{exam['id']}/answers", json={"answers": answers}).json()
    said.exams[exam["id"]] = result["score"]


def busy(server: Process, work: Callable[[httpx.Client, Said], None], said: Said, wrong: list[BaseException]) -> None:
    """Works until the server is gone."""
    with httpx.Client(base_url=server.address, timeout=30) as client:
        try:
            while True:
                work(client, said)
        except httpx.TransportError:
            return
        except BaseException as error:  # noqa: BLE001  the test shows it
            wrong.append(error)


def missing(client: httpx.Client, said: Said) -> Iterator[Any]:
    there = {document["id"] for document in client.get("/v1/documents").json()["documents"]}
    yield from said.books - there
    yield from said.removed & there
    for answer_id, conversation_id in said.answers.items():
        conversation = client.get(f"/v1/conversations/{conversation_id}").json()
        if answer_id not in [answer["id"] for answer in conversation.get("answers", ())]:
            yield answer_id
    for exam_id, score in said.exams.items():
        if client.get(f"/v1/exams/{exam_id}").json().get("result", {}).get("score") != score:
            yield exam_id


def check_backup(archive: Path, home: Path) -> int:
    """Restores a backup that was finished; one that was not is not there."""
    if not archive.exists():
        return 0
    shutil.rmtree(home, ignore_errors=True)
    for command in (["restore", str(archive)], ["doctor"]):
        assert run(["--home", str(home), *command]) == 0
    archive.unlink()
    return 1


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_server_killed_twenty_times_loses_nothing_that_it_said_was_done(sample_home: Path, tmp_path: Path) -> None:
    rng = random.Random(5)
    home, said = Path(shutil.copytree(sample_home, tmp_path / "home")), Said()
    archive, backups = tmp_path / "backup.zip", 0
    for kill in range(KILLS):
        server = start(home)
        assert list(missing(server.client, said)) == []
        wrong: list[BaseException] = []
        workers = [threading.Thread(target=busy, args=(server, work, said, wrong)) for work in (add, ask, examine)]
        for worker in workers:
            worker.start()
        before = said.done
        wait_until(lambda: bool(wrong) or said.done > before, "a book is added or removed", 5 * PATIENCE_S)  # noqa: B023
        backup = [*COMMAND, "backup", str(archive)]
        saving = subprocess.Popen(backup, env=environment(home), stdout=subprocess.DEVNULL) if kill % 3 == 0 else None
        time.sleep(rng.random() * MOST_S)
        server.popen.kill()
        server.popen.wait()
        server.client.close()
        if saving is not None:
            if kill % 2:
                saving.kill()
            saving.wait()
        for worker in workers:
            worker.join()
        assert wrong == []
        print(f"kill {kill}: {len(said.books)} books, {len(said.answers)} answers, {len(said.exams)} exams")
        backups += check_backup(archive, tmp_path / "restored")
        assert run(["--home", str(home), "doctor"]) == 0
    server = start(home)
    assert list(missing(server.client, said)) == []
    server.client.close()
    server.popen.kill()
    server.popen.wait()
    assert run(["--home", str(home), "doctor", "--repair"]) == 0
    assert not list(home.glob("uploads/.partial-*")) and not list(home.glob(".backup-*"))
    print(f"{backups} backups were whole")
    assert min(len(said.books), len(said.answers), len(said.exams), backups) >= 3
