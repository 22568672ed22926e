"""`coalesce add`: several books, books that cannot be read among them, and a folder that is watched."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import strangers
from fakes import HashEncoder

from api.cli import books, run
from indexes.errors import StorageFull
from indexes.library import Library, open_library
from indexes.settings import IndexSettings


@pytest.fixture(autouse=True)
def hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("indexes.library.open_library", partial(open_library, embedder=HashEncoder()))


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """Good books beside bad ones, on top and one folder down."""
    shelf = tmp_path / "shelf"
    (shelf / "deep").mkdir(parents=True)
    for name in ("bad.epub", "deep/bad.pdf", "deep/song.mp3"):
        (shelf / name).write_bytes(b"\0\0")
    (shelf / "notes.txt").write_text("Warps.")
    for name in ("a.docx", "deep/z.docx"):
        write_document(shelf / name)
    return shelf


def write_document(path: Path) -> None:
    import docx

    file = docx.Document()
    file.add_paragraph("A warp has 32 threads.")
    file.save(str(path))


def added(home: Path) -> list[str]:
    library = open_library(IndexSettings(home), embedder=HashEncoder())
    names = sorted(Path(document.source).name for document in library.documents())
    library.close()
    return names


def test_a_book_that_cannot_be_read_is_named_and_the_others_are_added(home, shelf, capsys):
    paths = [str(shelf), str(shelf.parent / "missing.pdf"), str(shelf / "deep" / "song.mp3"), "x" * 300]
    assert run(["add", "--json", *paths]) == 1
    streams = capsys.readouterr()
    result = json.loads(streams.out)
    assert {document["status"] for document in result["documents"]} == {"added"}
    assert {"id", "nodes", "seconds", "pages", "sections"} <= set(result["documents"][0])
    types = {Path(failure["path"]).name: failure["type"] for failure in result["failed"]}
    assert types == {
        "bad.epub": "unreadable_book", "bad.pdf": "unreadable_book", "missing.pdf": "unreadable_book",
        "song.mp3": "unsupported_format", "x" * 300: "unreadable_book",
    }  # fmt: skip
    assert "embedding" in streams.err
    assert added(home) == ["a.docx", "shelf", "z.docx"]


@pytest.mark.integration
def test_a_book_beyond_a_limit_is_named_with_the_setting_and_the_others_are_added(home, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COALESCE_READING_MEMORY_BYTES", str(256 * 2**20))
    (tmp_path / "a.pdf").write_bytes(strangers.pdf_of(b"q ", 10))
    (tmp_path / "b.txt").write_text("Warps.")
    assert run(["add", "--json", str(tmp_path / "a.pdf"), str(tmp_path / "b.txt")]) == 1
    result = json.loads(capsys.readouterr().out)
    (failed,) = result["failed"]
    assert failed["type"] == "too_large" and "'a.pdf'" in failed["message"] and "268,435,456" in failed["message"]
    assert "reading_memory_bytes" in failed["hint"]
    assert added(home) == ["b.txt"]


def fail_on(name: str, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    add = Library.add

    def wrong(self: Library, path: Path, **options: object) -> object:
        if path.name == name:
            raise error
        return add(self, path, **options)

    monkeypatch.setattr(Library, "add", wrong)


def test_a_book_on_which_the_program_fails_keeps_no_other_out(home, shelf, monkeypatch, capsys):
    fail_on("a.docx", TypeError("a fault of the program"), monkeypatch)
    assert run(["add", "--json", str(shelf)]) == 1
    streams = capsys.readouterr()
    failed = {Path(failure["path"]).name: failure["type"] for failure in json.loads(streams.out)["failed"]}
    assert failed == {"a.docx": "internal_error", "bad.epub": "unreadable_book", "bad.pdf": "unreadable_book"}
    assert added(home) == ["shelf", "z.docx"]
    assert "Traceback" not in streams.err
    assert "a fault of the program" in (home / "errors.log").read_text()


def test_what_would_fail_for_every_book_ends_the_run(home, shelf, monkeypatch, capsys):
    fail_on("a.docx", StorageFull("The disk is full."), monkeypatch)
    assert run(["add", "--json", str(shelf)]) == 1
    streams = capsys.readouterr()
    assert [document["title"] for document in json.loads(streams.out)["documents"]] == ["Shelf"]
    assert "disk is full" in streams.err


def looks(monkeypatch: pytest.MonkeyPatch, *changes: Callable[[], object]) -> None:
    """Each time the watch sleeps, the next change happens; after the last comes Ctrl-C."""

    def sleeps() -> Iterator[None]:
        for change in changes:
            change()
            yield
        raise KeyboardInterrupt

    steps = sleeps()
    monkeypatch.setattr(books.time, "sleep", lambda _: next(steps))


def nothing() -> None:
    return


@pytest.mark.parametrize("while_adding", [False, True])
def test_a_watched_book_is_added_again_once_it_has_changed_and_settled(
    home, tmp_path, monkeypatch, capsys, while_adding: bool
):
    book = tmp_path / "notes.txt"
    book.write_text("one")
    add = Library.add

    def slow_add(self: Library, path: Path, **options: object) -> object:
        result = add(self, path, **options)
        if while_adding and path.read_text() == "one":
            path.write_text("two, written meanwhile")
        return result

    monkeypatch.setattr(Library, "add", slow_add)
    looks(monkeypatch, nothing, nothing if while_adding else lambda: book.write_text("two"), nothing, nothing)
    assert run(["add", "--watch", "--json", str(book)]) == 0
    documents = json.loads(capsys.readouterr().out)["documents"]
    assert [document["status"] for document in documents] == ["added", "updated"]


def test_a_book_that_fails_ends_no_watch(home, tmp_path, monkeypatch, capsys):
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    (shelf / "bad.pdf").write_bytes(b"\0\0")
    write_document(shelf / "a.docx")
    fail_on("worse.docx", TypeError("a fault of the program"), monkeypatch)

    def arrive() -> None:
        for name in ("b.docx", "worse.docx", "z.docx"):
            write_document(shelf / name)

    looks(monkeypatch, arrive, nothing)
    assert run(["add", "--watch", str(shelf)]) == 1
    assert added(home) == ["a.docx", "b.docx", "z.docx"]
    errors = capsys.readouterr().err
    assert "bad.pdf" in errors and "worse.docx" in errors
