"""Works a real server until it is gone, and finds what it had said to be done and does not have."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import httpx
from serving import Process


@dataclass
class Said:
    """What a server said to be done."""

    books: set[str] = field(default_factory=set)
    answers: dict[str, str] = field(default_factory=dict)
    exams: dict[str, float] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    reviews: dict[str, str] = field(default_factory=dict)


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


def review(client: httpx.Client, said: Said) -> None:
    card = client.post("/v1/cards", json={"question": f"What is {next(NUMBERS)}?", "answer": "A number."}).json()
    said.reviews[card["id"]] = client.post(f"/v1/cards/{card['id']}/review", json={"rating": 3}).json()["due"]


def busy(server: Process, work: Callable[[httpx.Client, Said], None], said: Said, wrong: list[BaseException]) -> None:
    """Works until the server is gone, with breaks in which it does the others' work."""
    with httpx.Client(base_url=server.address, timeout=60) as client:
        try:
            while True:
                work(client, said)
                time.sleep(0.1)
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
    for card_id, due in said.reviews.items():
        if client.get(f"/v1/cards/{card_id}").json().get("card", {}).get("due") != due:
            yield card_id
