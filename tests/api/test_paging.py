"""Lists in pages: each item once, in the order of the whole list, also where one goes meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from api_fakes import Live, running

from api.running_server import RunningServer

LISTS = {
    "/v1/documents": "documents", "/v1/conversations": "conversations", "/v1/jobs": "jobs", "/v1/exams": "exams",
    "/v1/class-exams": "classes", "/v1/questions": "questions",
}  # fmt: skip
OF_FILE: dict[str, Any] = {"question_file": "five.jsonl"}
"""Where a list is of questions."""


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from api.settings import load_settings

    with running(load_settings({"home": tmp_path_factory.mktemp("home")})) as live:
        lines = [f'{{"id": "q{n}", "question": "What is {n}?", "answer": "{n}"}}' for n in range(5)]
        live.upload("\n".join(lines).encode(), "five.jsonl", "/v1/questions/files")
        for number in range(4):
            live.post("/v1/conversations", title=f"c{number}")
            live.post("/v1/exams", count=1)
            live.post("/v1/class-exams", count=1, learners=["ada"])
            live.ended(live.upload(f"A warp, number {number}.".encode(), f"b{number}.txt").json()["job_id"])
        yield live


def pages(live: Live, path: str, name: str, limit: int) -> list[list[str]]:
    found: list[list[str]] = []
    cursor = None
    while True:
        page = live.client.get(path, params=OF_FILE | {"limit": limit} | ({"cursor": cursor} if cursor else {})).json()
        found.append([item["id"] for item in page[name]])
        cursor = page["next_cursor"]
        if cursor is None:
            return found


@pytest.mark.parametrize("path", LISTS)
def test_the_pages_of_a_list_are_the_list(full: Live, path: str) -> None:
    name = LISTS[path]
    whole = [item["id"] for item in full.client.get(path, params=OF_FILE).json()[name]]
    assert len(whole) >= 4
    for limit in (1, 3, len(whole)):
        found = pages(full, path, name, limit)
        assert (
            [each for page in found for each in page] == whole
            and all(len(page) == limit for page in found[:-1])
            and found[-1]
        )
    for cursor in ("x", "!", "eA", "\u00fc"):
        assert full.client.get(path, params={"cursor": cursor}).status_code in (200, 400)


def test_a_command_reads_every_page(full: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    def get(_: RunningServer, path: str) -> Any:
        return full.client.get(f"{path}{'&' if '?' in path else '?'}limit=1").json()

    monkeypatch.setattr(RunningServer, "get", get)
    assert (
        RunningServer(full.address, None).every("/v1/documents", "documents")
        == (full.get("/v1/documents")["documents"])
        != []
    )


@pytest.mark.parametrize("gone", [0, 1])
def test_an_item_that_goes_meanwhile_moves_no_other(live: Live, gone: int) -> None:
    kept = [live.post("/v1/conversations", title=f"c{number}")["id"] for number in range(5)][::-1]
    first = live.get("/v1/conversations", limit=2)
    live.client.delete(f"/v1/conversations/{kept[gone]}")
    rest = live.get("/v1/conversations", limit=9, cursor=first["next_cursor"])
    assert [one["id"] for one in rest["conversations"]] == kept[2:]
