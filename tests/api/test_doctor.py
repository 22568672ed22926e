"""`coalesce doctor`: names what is damaged or lost in a home, with the command that mends it; `--repair` mends it."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from fakes import HashEncoder
from filelock import FileLock

from api import health_checks
from api.cli import run
from api.jobs import OWNER_LOCK, Job, JobStore, now
from api.settings import load_settings
from indexes.library import Library, open_library
from indexes.readers import content_digest, document_id_of
from indexes.settings import IndexSettings
from rag.conversations import ConversationStore

WARPS = "# Warps\n\n## Size\n\nA warp has 32 threads.\n"


def opened(settings: IndexSettings, *, create: bool = True, **_: object) -> Library:
    return open_library(settings, create=create, embedder=HashEncoder())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with an uploaded book and sixty conversations, to be copied."""
    home = tmp_path_factory.mktemp("made") / "home"
    draft = home / "warps.md"
    draft.parent.mkdir()
    draft.write_text(WARPS)
    upload = home / "uploads" / content_digest(draft) / "warps.md"
    upload.parent.mkdir(parents=True)
    draft.rename(upload)
    library = opened(load_settings({"home": home}).index)
    library.add(upload, source_name="warps.md")
    library.close()
    store = ConversationStore(home / "conversations.sqlite3")
    for number in range(60):
        store.create(f"{number} " * 40)
    store.close()
    return home


@pytest.fixture
def whole(made: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, where embedding is hashing, and nothing is asked about the machine."""
    for name in ("indexes.library", "indexes.integrity", "api.repair"):
        monkeypatch.setattr(f"{name}.open_library", opened)
    for check in ("_embedder", "_packages", "_disk"):
        monkeypatch.setattr(health_checks, check, named(check))
    return Path(shutil.copytree(made, home))


def named(name: str) -> Callable[..., object]:
    def check(_: object) -> object:
        return iter(())

    check.__name__ = name
    return check


def doctor(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[dict[str, str], list[str]]:
    """What failed, by its check, with its hint; and what was repaired."""
    status = run(["doctor", "--json", *options])
    said = json.loads(capsys.readouterr().out)
    failed = {each["name"]: f"{each['detail']} {each['hint']}" for each in said["checks"] if not each["ok"]}
    assert (status, said["ok"]) == (1 if failed else 0, not failed)
    return failed, said.get("repaired", [])


def books(home: Path) -> list[str]:
    library = opened(load_settings({"home": home}).index)
    found = [document.title for document in library.documents()]
    library.close()
    return found


def garbage(name: str) -> Callable[[Path], None]:
    return lambda home: (home / name).write_bytes(b"\x00garbage\xff" * 5000) and None


def one_page(home: Path) -> None:
    """Zeros in place of the page that holds the thirtieth conversation."""
    path = home / "conversations.sqlite3"
    content = path.read_bytes()
    first = content.index(b"30 30 30") // 4096 * 4096
    path.write_bytes(content[:first] + bytes(4096) + content[first + 4096 :])


def unreadable_value(home: Path) -> None:
    """JSON that is cut off, in a row and a page that are whole."""
    store = JobStore(home / "jobs.sqlite3")
    store.save(Job("j", "add", "failed", 0, 0, "", {"type": "busy"}, None, now(), now()))
    store.close()
    with closing(sqlite3.connect(home / "jobs.sqlite3")) as connection, connection:
        connection.execute("UPDATE jobs SET error = '{'")


def unreadable_book(home: Path) -> None:
    with closing(sqlite3.connect(home / "library.sqlite3")) as connection, connection:
        connection.execute("UPDATE documents SET health = '{'")


def killed_at_the_last_step(home: Path) -> None:
    """As a repair leaves a home that is killed when the new library is not in its place yet."""
    (home / ".rebuilt").mkdir()
    (home / "library.sqlite3").rename(home / ".rebuilt" / "library.sqlite3")


HARM = {
    "library": garbage("library.sqlite3"),
    "emptied": lambda home: (home / "library.sqlite3").write_bytes(b"") and None,
    "without books": lambda home: [
        (home / "library.sqlite3").unlink(),
        opened(load_settings({"home": home}).index).close(),
    ],
    "gone": lambda home: (home / "library.sqlite3").unlink(),
    "killed at the last step": killed_at_the_last_step,
    "conversations.sqlite3": one_page,
    "study.sqlite3": garbage("study.sqlite3"),
    "jobs.sqlite3": garbage("jobs.sqlite3"),
    "a value of a job": unreadable_value,
    "a value of a book": unreadable_book,
    "generator.json": garbage("generator.json"),
    "vectors.faiss": garbage("vectors.faiss"),
}


@pytest.mark.parametrize("what", HARM)
def test_a_damaged_or_lost_file_is_named_and_repaired(what: str, whole: Path, capsys) -> None:
    HARM[what](whole)
    failed, _ = doctor(capsys)
    assert len(failed) == 1 and "coalesce doctor --repair" in "".join(failed.values()), failed
    failed, repaired = doctor(capsys, "--repair")
    assert (failed, len(repaired)) == ({}, 1)
    assert books(whole) == ["Warps"]
    store = ConversationStore(whole / "conversations.sqlite3")
    assert len(store.list()) == 60 or (what == "conversations.sqlite3" and 30 < len(store.list()) < 60)
    store.close()
    damaged = [path.name for path in whole.glob("*.damaged-*")]
    assert len(damaged) == (what not in ("gone", "without books", "vectors.faiss"))


def test_what_an_interrupted_upload_left_is_no_fault_and_is_swept(whole: Path, capsys) -> None:
    left = [whole / "uploads" / ".partial-x", whole / "uploads" / ("0" * 64) / "tiles.md", whole / "locks" / "0.lock"]
    with_job = JobStore(whole / "jobs.sqlite3")
    with_job.save(Job("j", "add", "running", 0, 0, "", None, document_id_of("0" * 64), now(), now()))
    with_job.close()
    for path in left:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")
    assert doctor(capsys) == ({}, [])
    failed, _ = doctor(capsys, "--repair")
    assert failed == {} and not any(path.exists() for path in left) and books(whole) == ["Warps"]


def test_a_file_whose_book_was_removed_is_left_over_and_not_lost(whole: Path, capsys) -> None:
    library = opened(load_settings({"home": whole}).index)
    library.remove(library.documents()[0].document_id)  # and killed before the file went
    library.close()
    assert doctor(capsys) == ({}, [])
    failed, repaired = doctor(capsys, "--repair")
    assert (failed, len(repaired), books(whole), list(whole.glob("uploads/*"))) == ({}, 1, [], [])


def test_a_lost_file_of_a_book_is_named(whole: Path, capsys) -> None:
    shutil.rmtree(whole / "uploads")
    failed, _ = doctor(capsys)
    assert "Warps" in failed["uploads"]


def test_a_home_that_a_server_uses_is_not_repaired(whole: Path, coalesce) -> None:
    with FileLock(whole / OWNER_LOCK):
        assert "Stop it" in coalesce.refuses("doctor", "--repair")


def test_a_repair_of_one_book_is_no_repair(tmp_path: Path) -> None:
    assert run(["--home", str(tmp_path), "doctor", "--book", "any", "--repair"]) == 2
