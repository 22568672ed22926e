"""Stores go into a shared database and back, and are then what they were."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from fakes import HashEncoder, make_answer

from indexes.catalog import CATALOG, derive_indexes
from indexes.database import Database, Store
from indexes.errors import Conflict
from indexes.library import open_library
from indexes.moving import move_store
from indexes.postgres import store_at
from indexes.settings import IndexSettings
from rag.conversations import CONVERSATIONS, ConversationStore
from rag.types import Answer

BOOK = "# Warps\n\n## Size\n\nA warp has 32 threads.\n\n## Use\n\nCall `__syncthreads` in every warp.\n"


def library_seen(settings: IndexSettings) -> object:
    """What a reader sees of a library."""
    library = open_library(settings, embedder=HashEncoder())
    library.load()
    found = [
        [(hit.node, round(hit.score, 3)) for hit in search("threads of a warp", 3)]
        for search in (library.dense, library.lexical)
    ]
    books = [
        (book, library.nodes_of(book.document_id), library.sections_of(book.document_id))
        for book in library.documents()
    ]
    library.close()
    return books, found


def test_a_library_goes_there_and_back_and_grows_on(tmp_path: Path, database_url: str) -> None:
    home, there, back = (IndexSettings(tmp_path / "a"), IndexSettings(tmp_path / "b", database_url=database_url),
                         IndexSettings(tmp_path / "c"))  # fmt: skip
    for name in ("first", "second"):
        (tmp_path / f"{name}.md").write_text(BOOK.replace("every", name))
    library = open_library(home, embedder=HashEncoder())
    library.add(tmp_path / "first.md")
    library.close()
    seen = library_seen(home)
    places = [store_at(place, CATALOG) for place in (home.catalog_path, database_url, back.catalog_path)]
    counts = move_store(places[0], places[1], CATALOG, derive_indexes)
    assert counts["nodes"] == 2
    assert move_store(places[0], places[1], CATALOG, derive_indexes) == counts, "again changes nothing"
    assert library_seen(there) == seen
    move_store(places[1], places[2], CATALOG, derive_indexes)
    assert library_seen(back) == seen
    for settings in (there, back):
        grown = open_library(settings, embedder=HashEncoder())
        assert grown.add(tmp_path / "second.md").status == "added"
        assert "second" in grown.lexical("second", 1)[0].node.text
        grown.close()
    with pytest.raises(Conflict, match="already"):
        move_store(places[2], places[0], CATALOG, derive_indexes)


def test_what_readers_kept_goes_there_and_back(tmp_path: Path, database_url: str) -> None:
    paths = tmp_path / "a.sqlite3", database_url, tmp_path / "b.sqlite3"
    kept = ConversationStore(paths[0])

    def answered(name: str) -> Answer:
        return make_answer(name, id=name, conversation_id=kept.create().id)

    answers = [answered("one"), answered("two")]
    for answer in answers:
        kept.append(answer)
    kept.give_feedback("two", "up")
    kept.vote(answers, "", blind=True)
    stores: list[Store] = [store_at(path, CONVERSATIONS) for path in paths]
    for source, target in pairwise(stores):
        move_store(source, target, CONVERSATIONS)
    for path in paths[1:]:
        moved = ConversationStore(path)
        assert (moved.list(), moved.feedback(), moved.votes()) == (kept.list(), kept.feedback(), kept.votes())
        moved.vote(answers, "", blind=True)
        assert len(moved.votes()) == 2


def test_a_move_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    stores = [Database(tmp_path / name, CONVERSATIONS) for name in ("a.sqlite3", "b.sqlite3")]
    ConversationStore(tmp_path / "a.sqlite3").create("Kept")

    def breaks(_: object) -> None:
        raise RuntimeError("the power failed")

    with pytest.raises(RuntimeError):
        move_store(*stores, CONVERSATIONS, breaks)
    assert ConversationStore(tmp_path / "b.sqlite3").list() == ()
    move_store(*stores, CONVERSATIONS)
    assert [each.title for each in ConversationStore(tmp_path / "b.sqlite3").list()] == ["Kept"]
