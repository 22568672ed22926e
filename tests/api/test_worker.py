"""`coalesce worker` and `serve --no-worker`: what they need, and jobs of servers that answer done elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from api_fakes import FakeBuilder, Live, running
from waiting import wait_until

from api.settings import CoalesceSettings, load_settings

BOOK = b"# Barriers\n\n## Use\n\nA barrier makes the threads of a block wait for each other.\n"


def of(database_url: str, home: Path, *, worker: bool) -> CoalesceSettings:
    uploads = (home.parent / "uploads").as_uri()
    return load_settings({"home": home, "database_url": database_url, "uploads_url": uploads, "worker": worker})


@pytest.fixture
def started(database_url: str, tmp_path: Path) -> Iterator[dict[str, Live]]:
    """Two servers that leave jobs to a third process, over one database, each with a home of its own."""
    with ExitStack() as stack:
        found = {}
        for name in ("one", "other", "worker"):
            settings = of(database_url, tmp_path / name, worker=name == "worker")
            found[name] = stack.enter_context(
                running(settings, FakeBuilder(database_url=database_url), compare=_compare)
            )
        yield found


def _compare(*given: object) -> dict[str, object]:
    folder = given[3]
    assert isinstance(folder, Path)
    folder.mkdir(parents=True)
    (folder / "report.html").write_text("a page")
    (folder / "report.json").write_text("{}")
    return {}


@pytest.mark.integration
def test_a_book_uploaded_at_one_server_is_added_by_a_worker_watched_at_the_other_and_asked_about_at_both(
    started: dict[str, Live],
) -> None:
    one, other, _ = started.values()
    taken = one.upload(BOOK, "barriers.md").json()
    assert other.ended(taken["job_id"])["state"] == "done"
    for server in (one, other):
        asked = server.post("/v1/ask", question="What does a barrier make threads do?")
        assert any(passage["document_id"] == taken["document_id"] for passage in asked["passages"])
    report = other.ended(other.post("/v1/reports")["job_id"])
    assert report["state"] == "done" and one.get("/v1/reports") is not None
    assert (one.services.settings.reports_folder / report["message"] / "report.html").read_text() == "a page"
    assert other.status("DELETE", f"/v1/documents/{taken['document_id']}") == 204
    uploads = one.services.settings.uploads_folder
    wait_until(lambda: not [*uploads.glob("[!.]*")], "its file is gone")


@pytest.mark.parametrize("command", [["worker"], ["serve", "--no-worker"]])
def test_what_leaves_or_takes_jobs_needs_a_database_and_a_place_of_uploads(
    command: list[str], coalesce, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "COALESCE_DATABASE_URL" in coalesce.refuses(*command)
    monkeypatch.setenv("COALESCE_DATABASE_URL", "postgresql://127.0.0.1:9/x")
    assert "COALESCE_UPLOADS_URL" in coalesce.refuses(*command)
