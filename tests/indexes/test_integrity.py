"""A library that does not hold together is called so, and is made again with what it had."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fakes import HashEncoder

from indexes.integrity import library_faults, rebuild_library
from indexes.library import open_library
from indexes.settings import IndexSettings

OLD_HOME = Path(__file__).parents[1] / "fixtures" / "home-0.1"
WARPS = "# Warps\n\n## Size\n\nA warp has 32 threads.\n\n## Use\n\nCall `__syncthreads` in every warp.\n"
TILES = "# Tiles\n\n" + "".join(f"## Shape {n}\n\nTile {n} of {n} threads, by {n} warps.\n\n" * 3 for n in range(40))


def run(sql: str) -> Callable[[Path], None]:
    def harm(path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(sql)

    return harm


def write(begin: float, size: float, content: bytes | None = None) -> Callable[[Path], None]:
    """Random bytes, or these, over a part of a file."""

    def harm(path: Path) -> None:
        whole = path.read_bytes()
        first, count = int(begin * len(whole)), int(size * len(whole))
        new = random.Random(1).randbytes(count) if content is None else content
        path.write_bytes(whole[:first] + new + whole[first + count :])

    return harm


SMALL_HARM = {
    "a node's words": run("DELETE FROM lexical WHERE rowid = 2"),
    "a word of the index": run("UPDATE lexical_content SET c1 = 'other words' WHERE id = 1"),
    "a node": run("DELETE FROM nodes WHERE rowid = 2"),
    "a node's text": run("UPDATE nodes SET text = 'A warp has 64 threads.' WHERE rowid = 1"),
    "a vector": run("UPDATE vectors SET vector = zeroblob(length(vector)) WHERE vector_id = 1"),
    "a section": run("DELETE FROM sections WHERE section_id = 1"),
    "a mark of a page": run("UPDATE sections SET page_marks = '[[' WHERE section_id = 1"),
    "a heading": run("UPDATE sections SET heading_path = '[' WHERE section_id = 1"),
}
LARGE_HARM = {
    "random bytes in the middle": write(0.4, 0.2),
    "cut off": write(0.3, 0.7, b""),
    "emptied": write(0, 1, b""),
    "another file": write(0, 1, b"not a database at all " * 1000),
}


def held(home: Path) -> tuple[Any, ...]:
    """All that can be seen and found."""
    library = open_library(IndexSettings(home), embedder=HashEncoder(), create=False)
    library.load()
    documents = library.documents()
    nodes = [node for document in documents for node in library.nodes_of(document.document_id)]
    dense = {hit.node.node_id: round(hit.score, 3) for hit in library.dense("warp", 10_000)}
    words = {hit.node.node_id for hit in library.lexical("threads", 10_000)}
    library.close()
    seen = [(each.document_id, each.title, each.source, each.sha256, each.added_at, each.nodes) for each in documents]
    return sorted(seen), sorted((node.node_id, node.text) for node in nodes), dense, words


@pytest.fixture(scope="module")
def two_books(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with an uploaded book and one from a file, which share a text."""
    home = tmp_path_factory.mktemp("two") / "home"
    upload = home / "uploads" / "digest" / "warps.md"
    upload.parent.mkdir(parents=True)
    upload.write_text(WARPS)
    book = home.parent / "tiles.md"
    book.write_text(TILES)
    library = open_library(IndexSettings(home), embedder=HashEncoder())
    library.add(upload, source_name="warps.md")
    library.add(book, title="On tiles")
    library.close()
    return home


def rebuild(home: Path) -> tuple[str, ...]:
    """The titles of the books that were lost."""
    uploads = sorted(home.glob("uploads/*/*"))
    found = {"warps.md": uploads[0] if uploads else None}
    rebuilt = rebuild_library(
        IndexSettings(home), lambda book: found.get(book.source, Path(book.source)), uploads, embedder=HashEncoder()
    )
    assert library_faults(home / "library.sqlite3") == []
    return rebuilt.lost


@pytest.mark.parametrize("harm", SMALL_HARM.values(), ids=SMALL_HARM)
def test_a_small_fault_is_named_and_mended_whole(harm: Callable[[Path], None], two_books: Path, tmp_path: Path) -> None:
    home = Path(shutil.copytree(two_books, tmp_path / "home"))
    path = home / "library.sqlite3"
    before = held(home)
    assert library_faults(path) == []
    harm(path)
    assert len(library_faults(path)) >= 1
    damaged = path.read_bytes()
    assert rebuild(home) == () and held(home) == before
    assert [aside.read_bytes() for aside in home.glob("library.sqlite3.damaged-*")] == [damaged]


@pytest.mark.parametrize("harm", LARGE_HARM.values(), ids=LARGE_HARM)
def test_a_damaged_file_is_named_and_uploads_are_in_the_new_one(harm, two_books: Path, tmp_path: Path) -> None:
    home = Path(shutil.copytree(two_books, tmp_path / "home"))
    path = home / "library.sqlite3"
    harm(path)
    assert library_faults(path)
    rebuild(home)
    assert "A warp has 32 threads." in [text.splitlines()[-1] for _, text in held(home)[1]]


def test_an_uploaded_book_with_an_id_of_its_own_is_not_added_twice(tmp_path: Path) -> None:
    home = tmp_path / "home"
    upload = home / "uploads" / "digest" / "warps.md"
    upload.parent.mkdir(parents=True)
    upload.write_text(WARPS)
    library = open_library(IndexSettings(home), embedder=HashEncoder())
    library.add(upload, source_name="warps.md", document_id="site")
    library.close()
    before = held(home)
    run("DELETE FROM nodes WHERE rowid = 2")(home / "library.sqlite3")
    assert rebuild(home) == () and held(home) == before


def test_a_book_whose_file_is_gone_too_is_named_as_lost(two_books: Path, tmp_path: Path) -> None:
    home = Path(shutil.copytree(two_books, tmp_path / "home"))
    run("DROP TABLE sections")(home / "library.sqlite3")
    rebuilt = rebuild_library(IndexSettings(home), lambda _: None, embedder=HashEncoder())
    assert (rebuilt.kept, sorted(rebuilt.lost)) == ((), ["On tiles", "Warps"])


def test_a_library_of_the_first_version_is_whole(tmp_path: Path) -> None:
    home = Path(shutil.copytree(OLD_HOME, tmp_path / "home"))
    assert library_faults(home / "library.sqlite3") == []
