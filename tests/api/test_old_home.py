"""A home that version 0.1 wrote opens with everything in it: `tests/fixtures/home-0.1/README.md`."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
from api_fakes import wait_until

from api.jobs import JobStore
from api.services import Services
from api.settings import load_settings
from evals.study_store import StudyStore
from indexes.library import Library, open_library
from indexes.settings import IndexSettings
from indexes.types import Filters
from rag.conversations import ConversationStore

OLD_HOME = Path(__file__).parents[1] / "fixtures" / "home-0.1"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLD_HOME, tmp_path / "home"))


@pytest.fixture
def library(home: Path) -> Library:
    return open_library(IndexSettings(home), create=False)


def test_its_books_are_listed_and_found_by_their_words(library: Library) -> None:
    warps, reductions, notes = library.documents()
    assert [book.title for book in (warps, reductions, notes)] == ["Warps", "Reductions by Hand", "Notes on occupancy"]
    assert (warps.source, reductions.pages, notes.sha256[:8]) == ("/books/warps", 2, "e2573feb")
    assert [chapter.title for chapter in library.chapters(warps.document_id)] == ["Warps", "Memory"]
    assert [hit.node.rowid for hit in library.lexical("bank conflicts of a scan", 3)] == [510, 509, 506]
    assert [hit.node.rowid for hit in library.lexical("bank conflicts", 3, Filters((warps.document_id,)))] == [506]
    assert library.lexical("sequential addressing", 1)[0].node.page_labels == ("1",)


@pytest.mark.integration
def test_its_books_are_found_by_meaning_and_take_new_ones(library: Library, tmp_path: Path) -> None:
    library.load()
    assert [hit.node.rowid for hit in library.dense("How many threads does a warp hold?", 3)] == [503, 504, 508]
    (tmp_path / "new.md").write_text("# Streams\n\nWork in one stream runs in order.")
    new = library.add(tmp_path / "new.md").document
    assert [node.rowid for node in library.nodes_of(new.document_id)] == [512]
    assert library.dense("In which order does the work of a stream run?", 1)[0].node.rowid == 512


def test_its_conversations_feedback_and_votes_are_there(home: Path) -> None:
    store = ConversationStore(home / "conversations.sqlite3")
    newest, addressing, warps = store.list()
    assert (newest.num_answers, addressing.num_answers, warps.num_answers) == (1, 1, 2)
    assert warps.title == "Warps, renamed"
    first, follow_up = store.answers(warps.id)
    assert first.answer.startswith("A warp holds 32 threads") and first.citations[0].title == "Warps"
    assert follow_up.question == "Why do they diverge?"
    assert store.ratings(warps.id) == {first.id: "up"}
    assert [(feedback.rating, feedback.comment) for feedback, _ in store.feedback()] == [("up", "good"), ("down", "")]
    (vote,) = store.votes()
    assert (vote.winner, vote.blind, [answer.arm for answer in vote.answers]) == ("rag", True, ["rag", "base"])
    assert [(row.name, row.won, row.shown) for row in store.wins().wins] == [("rag", 1, 1), ("base", 0, 1)]


def test_its_exams_and_cards_are_there_and_the_open_exam_takes_a_draft(home: Path) -> None:
    store = StudyStore(home / "study.sqlite3")
    open_exam, closed_exam = store.exams("default", 10)
    assert closed_exam.result is not None and closed_exam.result.score == 0.0
    assert (open_exam.result, open_exam.handed_in_at, len(open_exam.questions)) == (None, None, 2)
    assert [card.question_id for card in store.cards("default")] == ["13-027", "09-024", "07-004"]
    assert {attempt.question_id: attempt.score for attempt in store.latest_attempts("default")} == {
        "13-027": 0.0,
        "07-004": 1.0,
        "09-024": 0.0,
    }
    now = datetime.now(UTC)
    answers = {open_exam.questions[0].id: 2}
    store.keep_draft(open_exam.id, answers, now)
    assert store.draft(open_exam.id) == answers


def test_its_jobs_are_there(home: Path) -> None:
    (job,) = JobStore(home / "jobs.sqlite3").list()
    assert (job.kind, job.state, job.error) == ("add", "done", None)
    assert job.message.startswith("added: Notes on occupancy")


@pytest.mark.integration
def test_a_server_reads_its_books_again_in_a_job_and_keeps_the_rest(home: Path) -> None:
    services = Services(load_settings({"home": home}))
    services.start()
    try:
        wait_until(lambda: services.preparation.ready, "the server is ready")
        wait_until(lambda: services.jobs.list()[0].kind == "renew" and services.jobs.list()[0].final, "renewed")
        assert services.jobs.list()[0].state == "done"
        titles = [document.title for document in services.library.documents()]
        assert titles == ["Warps", "Reductions by Hand", "Notes on occupancy"]
        assert services.library.outdated(lambda _: None) == []
        assert services.library.lexical("bank conflicts", 1)
        assert len(services.conversations(None).list()) == 3
        assert len(services.study.cards()) == 3
    finally:
        services.close()
