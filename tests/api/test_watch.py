"""`coalesce add`: several books, books that cannot be read among them, and a folder that is watched."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from api_fakes import ShelfLibrary

from api.cli import books, run


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ShelfLibrary:
    library = ShelfLibrary()
    monkeypatch.setattr("indexes.library.open_library", lambda *_, **__: library)
    monkeypatch.setenv("COALESCE_HOME", str(tmp_path / "home"))
    return library


def test_every_book_is_reported_and_one_that_cannot_be_read_keeps_no_other_out(shelf, tmp_path, capsys):
    (tmp_path / "good.txt").write_text("Warps.")
    (tmp_path / "bad.txt").write_bytes(b"\0\0")
    (tmp_path / "song.mp3").write_bytes(b"ID3")
    paths = [str(tmp_path / name) for name in ("bad.txt", "missing.pdf", "song.mp3", "good.txt")]
    assert run(["add", "--json", *paths]) == 1
    streams = capsys.readouterr()
    result = json.loads(streams.out)
    assert [document["status"] for document in result["documents"]] == ["added"]
    assert {"id", "nodes", "seconds", "pages", "sections"} <= set(result["documents"][0])
    types = {Path(failure["path"]).name: failure["type"] for failure in result["failed"]}
    assert types == {"bad.txt": "unreadable_book", "missing.pdf": "unreadable_book", "song.mp3": "unsupported_format"}
    assert "embedding" in streams.err
    assert shelf.closed


def test_people_read_a_line_a_book(shelf, tmp_path, capsys):
    (tmp_path / "good.txt").write_text("Warps.")
    assert run(["add", str(tmp_path / "good.txt")]) == 0
    line = capsys.readouterr().out.strip()
    assert line.startswith("added: ")
    assert "1 nodes" in line
    assert " s)" in line


def test_a_watched_book_is_added_again_when_it_has_changed_and_settled(shelf, tmp_path, monkeypatch, capsys):
    book = tmp_path / "notes.txt"
    book.write_text("one")
    looks = iter([lambda: None, lambda: book.write_text("two"), lambda: None, lambda: None, _interrupt])
    monkeypatch.setattr(books.time, "sleep", lambda _: next(looks)())
    assert run(["add", "--watch", "--json", str(book)]) == 0
    documents = json.loads(capsys.readouterr().out)["documents"]
    assert [document["status"] for document in documents] == ["added", "added"]
    assert shelf.nodes[-1].text == "two"


def test_what_changes_while_a_book_is_being_added_is_added_again(shelf, tmp_path, monkeypatch, capsys):
    book = tmp_path / "notes.txt"
    book.write_text("one")
    add = shelf.add

    def slow_add(path, **options):
        result = add(path, **options)
        if path.read_text() == "one":
            path.write_text("two, written meanwhile")
        return result

    monkeypatch.setattr(shelf, "add", slow_add)
    looks = iter([lambda: None, lambda: None, _interrupt])
    monkeypatch.setattr(books.time, "sleep", lambda _: next(looks)())
    assert run(["add", "--watch", str(book)]) == 0
    assert shelf.nodes[-1].text == "two, written meanwhile"


def test_watching_says_so_and_is_silent_about_what_has_not_changed(shelf, tmp_path, monkeypatch, capsys):
    for name in ("one", "two"):
        (tmp_path / f"{name}.txt").write_text(name)
    add = shelf.add
    known: set[str] = set()

    def add_once(path, **options):
        result = add(path, **options)
        first = path.read_text() not in known
        known.add(path.read_text())
        return result if first else replace(result, status="unchanged")

    monkeypatch.setattr(shelf, "add", add_once)
    change = (tmp_path / "two.txt").write_text
    looks = iter([lambda: change("three"), lambda: None, _interrupt])
    monkeypatch.setattr(books.time, "sleep", lambda _: next(looks)())
    assert run(["add", "--watch", str(tmp_path / "one.txt"), str(tmp_path / "two.txt")]) == 0
    streams = capsys.readouterr()
    assert [line.split(":")[0] for line in streams.out.splitlines()] == ["added"] * 3
    assert "watching" in streams.err


def _interrupt() -> None:
    raise KeyboardInterrupt
