"""The library: what was added is found, what was removed is not, and nothing is ever half there."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fakes import HashEncoder, section
from postgres import database_on

from indexes import database, ingest, lexical
from indexes.errors import (
    Busy,
    Cancelled,
    EmbedderMismatch,
    IndexMissing,
    NotFound,
    StorageFull,
    UnreadableBook,
)
from indexes.library import Library, open_library
from indexes.settings import IndexSettings
from indexes.types import AddProgress, Filters, Section, StoredNode

WARPS = "# Warps\n\n## Size\n\nA warp has 32 threads.\n\n## Use\n\nCall `__syncthreads` in every warp.\n"
MEMORY = "# Memory\n\n## Kinds\n\nShared memory is fast.\n\n## Copies\n\n`cudaMemcpyAsync` copies.\n"


def write_book(folder: Path) -> Path:
    book = folder / "book"
    book.mkdir()
    (book / "1-warps.md").write_text(WARPS)
    (book / "2-memory.md").write_text(MEMORY)
    return book


def opened(place: Path | IndexSettings, encoder: HashEncoder | None = None) -> Library:
    settings = IndexSettings(place) if isinstance(place, Path) else place
    library = open_library(settings, embedder=encoder or HashEncoder())
    library.load()
    return library


STORES = ("files", "postgres")
ONLY_FILES = pytest.mark.parametrize("where", ["files"], indirect=True)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture(params=STORES)
def where(request: pytest.FixtureRequest, home: Path) -> IndexSettings:
    """A library that does not exist yet, in files and in PostgreSQL."""
    url = request.getfixturevalue("database_url") if request.param == "postgres" else None
    return IndexSettings(home, database_url=url)


@pytest.fixture
def book(tmp_path: Path) -> Path:
    return write_book(tmp_path)


@pytest.fixture
def library(where: IndexSettings) -> Iterator[Library]:
    library = opened(where)
    yield library
    library.close()


@pytest.fixture
def put(library: Library, tmp_path: Path) -> Callable[..., list[StoredNode]]:
    """Adds a book of Markdown and gives its nodes."""

    def put(text: str, name: str = "other.md") -> list[StoredNode]:
        (tmp_path / name).write_text(text)
        return library.nodes_of(library.add(tmp_path / name).document.document_id)

    return put


@pytest.fixture(scope="module", params=STORES)
def shelf(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Library, list[list[StoredNode]]]]:
    """A library that is only read: the book, and one of four parts; with the nodes of each."""
    folder, url = tmp_path_factory.mktemp("shelf"), None
    with ExitStack() as stack:
        if request.param == "postgres":
            url = stack.enter_context(database_on(request.getfixturevalue("postgres")))
        yield from shelf_in(folder, IndexSettings(folder / "home", database_url=url))


def shelf_in(folder: Path, settings: IndexSettings) -> Iterator[tuple[Library, list[list[StoredNode]]]]:
    library = opened(settings)
    (folder / "parts.md").write_text("# T\n\n" + "\n\n".join(f"## Part {n}\n\nText {n} of a warp." for n in range(4)))
    paths = (write_book(folder), folder / "parts.md")
    yield library, [library.nodes_of(library.add(path).document.document_id) for path in paths]
    library.close()


def state(library: Library) -> object:
    """Everything that can be seen of a library, but not when."""
    return [
        (document, library.chapters(document.document_id), library.nodes_of(document.document_id))
        for document in library.documents()
    ]


# --- adding and removing


def test_a_book_is_added_listed_and_found_and_the_same_again_changes_nothing(library: Library, book: Path) -> None:
    seen: list[AddProgress] = []
    result = library.add(book, progress=seen.append)
    assert (result.status, result.embedded_nodes) == ("added", 4)
    assert library.documents() == (result.document,)
    assert (result.document.title, result.document.format, result.document.nodes) == ("Book", "folder", 4)
    chapters = [(c.ordinal, c.title, c.nodes) for c in library.chapters(result.document.document_id)]
    assert chapters == [(1, "Warps", 2), (2, "Memory", 2)]
    assert library.dense("warp threads", 1)[0].node.heading_path == ("Warps", "Size")
    assert list(dict.fromkeys(step.stage for step in seen)) == ["reading", "embedding", "storing"]
    assert seen[-1].done == seen[-1].total == 4
    generation, again = library.generation, library.add(book)
    assert (again.status, again.embedded_nodes, again.document) == ("unchanged", 0, result.document)
    assert library.generation == generation


def test_an_edit_embeds_only_new_text_and_keeps_id_and_date(where: IndexSettings, book: Path) -> None:
    library = opened(where, encoder := HashEncoder())
    first = library.add(book).document
    before = {node.text: node.node_id for node in library.nodes_of(first.document_id)}
    (book / "1-warps.md").write_text(WARPS.replace("in every warp", "in each block"))
    encoder.encoded.clear()
    second = library.add(book)
    assert (second.status, second.embedded_nodes, len(encoder.encoded)) == ("updated", 1, 1)
    assert (second.document.document_id, second.document.added_at) == (first.document_id, first.added_at)
    after = {node.text: node.node_id for node in library.nodes_of(first.document_id)}
    assert len(before.items() & after.items()) == 3
    assert library.lexical("each block", 5) and not library.lexical("every", 5)


def test_a_removed_book_is_never_found_and_text_that_another_shares_stays(home: Path, book: Path) -> None:
    library = opened(home)
    (book.parent / "other").mkdir()
    (book.parent / "other" / "1.md").write_text(WARPS)
    gone, other = library.add(book).document, library.add(book.parent / "other")
    assert other.embedded_nodes == 0
    library.remove(gone.document_id)
    assert library.documents() == (other.document,)
    found = [*library.dense("warp", 50), *library.lexical("warp memory cudaMemcpyAsync", 50)]
    assert {hit.node.document_id for hit in found} == {other.document.document_id}
    assert [path.stem for path in (home / "locks").iterdir()] == [other.document.document_id]
    for act in (library.remove, library.nodes_of):
        with pytest.raises(NotFound):
            act(gone.document_id)
    with sqlite3.connect(home / "library.sqlite3") as rows:
        for table in ("nodes", "vectors", "lexical"):
            assert rows.execute(f"SELECT count(*) FROM {table}").fetchone() == (2,)


def test_a_book_is_added_though_one_with_the_same_text_is_removed_meanwhile(
    where: IndexSettings, tmp_path: Path
) -> None:
    for name, text in (("a", "Shared."), ("b", "Shared.\n\n## More\n\nOwn.")):
        (tmp_path / f"{name}.md").write_text(f"# Book\n\n## Same\n\n{text}")
    first = opened(where)
    removed = first.add(tmp_path / "a.md").document.document_id

    class Removing(HashEncoder):
        def encode(self, texts: Sequence[str], **options: Any) -> Any:
            if first.documents():
                first.remove(removed)
            return super().encode(texts, **options)

    result = opened(where, Removing()).add(tmp_path / "b.md")
    assert (result.document.nodes, result.embedded_nodes) == (2, 2)


def test_a_name_that_is_not_utf8_can_be_added(library: Library, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9.md")
    path.write_text("Text.")
    assert [library.add(path).status for _ in range(2)] == ["added", "unchanged"]


def test_an_upload_is_known_by_its_content_and_a_given_title_wins(library: Library, book: Path) -> None:
    for name in ("tmp1.md", "tmp2.md"):
        (book / name).write_text("Just words.")
    first, again = (library.add(book / name, source_name="notes.md") for name in ("tmp1.md", "tmp2.md"))
    assert (first.document.source, first.document.title) == ("notes.md", "Notes")
    assert (again.status, again.document) == ("unchanged", first.document)
    titled = [library.add(book, title="GPU Notes", sample=True) for _ in range(2)]
    assert [(one.status, one.document.title, one.document.sample) for one in titled] == [
        ("added", "GPU Notes", True),
        ("unchanged", "GPU Notes", True),
    ]
    assert library.dense("warp", 1)[0].node.title == "GPU Notes"


# --- books of earlier versions


def test_a_book_that_an_earlier_version_read_is_read_again_under_its_id_and_title(library, book, monkeypatch):
    monkeypatch.setattr(ingest, "READER_VERSION", ingest.READER_VERSION - 1)
    before = library.add(book, title="My shelf").document
    monkeypatch.undo()
    library.reindex()  # cuts again what the earlier reader read
    assert [(held.document_id, path) for held, path in library.outdated(lambda _: book)] == [(before.document_id, book)]
    renewed = library.renew(before, book).document
    assert (renewed.document_id, renewed.title, renewed.added_at) == (before.document_id, "My shelf", before.added_at)
    assert library.outdated(lambda _: book) == []


def test_a_book_whose_file_is_gone_or_changed_is_cut_again_from_what_is_stored(library, book, monkeypatch):
    monkeypatch.setattr(ingest, "CHUNKER_VERSION", ingest.CHUNKER_VERSION - 1)
    document = library.add(book).document
    texts = [node.text for node in library.nodes_of(document.document_id)]
    monkeypatch.undo()
    (book / "1-warps.md").write_text("# Warps\n\nOther words.\n")

    def refuse(path: Path) -> str:
        raise UnreadableBook(f"'{path}' cannot be read.", hint="check its permissions")

    with monkeypatch.context() as patch:
        patch.setattr(ingest, "content_digest", refuse)
        assert [path for _, path in library.outdated(lambda _: book)] == [None]
    assert [path for _, path in library.outdated(lambda _: book)] == [None]
    library.renew(document, None)
    assert [node.text for node in library.nodes_of(document.document_id)] == texts
    assert library.outdated(lambda _: None) == []
    assert library.add(book).status == "updated"


# --- searching


@pytest.mark.parametrize("query", ["cudaMemcpyAsync", "memcpy", "async", "CUDAMEMCPYASYNC", "copy", "kinds"])
def test_identifiers_are_found_whole_and_by_part_and_headings_count(query: str, shelf: Any) -> None:
    section = "Kinds" if query == "kinds" else "Copies"
    assert shelf[0].lexical(query, 3)[0].node.heading_path == ("Memory", section)


@pytest.mark.parametrize("query", ["", "   ", '"', "a OR b", "NEAR(", "*", "\x00", "何", "'; DROP TABLE nodes; --"])
def test_odd_queries_break_nothing(query: str, shelf: Any) -> None:
    shelf[0].lexical(query, 3)
    assert len(shelf[0].dense(query, 3)) == 3


@ONLY_FILES
def test_in_a_large_library_only_rows_of_rarer_terms_are_scored_but_by_all_terms(library, put, monkeypatch):
    said = [f"A kernel of part {number} runs{' with occupancy' * (number % 5 == 0)}." for number in range(40)]
    for name in ("a", "b"):
        put("\n\n".join(f"## S{number}\n\n{text} {name * number}" for number, text in enumerate(said)), f"{name}.md")
    query = "kernel occupancy of part 30"
    whole = [(hit.node.node_id, hit.score) for hit in library.lexical(query, 80)]
    assert len(whole) == 80
    monkeypatch.setattr(lexical, "SCORED_AT_LEAST", 20)
    assert [(hit.node.node_id, hit.score) for hit in library.lexical(query, 80)] == whole[:16]


def test_terms_are_counted_by_node_and_up_to_a_limit(shelf: Any) -> None:
    assert shelf[0].count_terms(["part", "kernal", 'a"b'], 3) == {"part": 3, "kernal": 0}
    assert shelf[0].count_terms(["part"]) == {"part": 4}


def test_filters_hold_in_both_searches(shelf: Any) -> None:
    library, (ours, _) = shelf
    book = (ours[0].document_id,)
    for search in (library.dense, library.lexical):
        assert {hit.node.document_id for hit in search("warp memory", 50, Filters(book))} == set(book)
        for chapters in ((2,), ("Memory",)):
            assert {hit.node.chapter for hit in search("warp memory", 50, Filters(book, chapters))} == {2}
        with pytest.raises(NotFound):
            search("warp", 5, Filters(document_ids=("nothing",)))
        for nowhere in (Filters(chapters=("No such chapter",)), Filters(pages=(1, 9))):
            assert search("warp", 5, nowhere) == []


def test_a_filter_of_pages_takes_the_nodes_that_touch_them(library_of: Callable[..., Library]) -> None:
    over_two_pages = Section(("A", "Two"), "A warp of two pages.", 1, ((0, 3), (8, 4)))
    library = library_of(
        section("A warp.", "A", "One", page=2), over_two_pages, section("A warp.", "A", "Last", page=6)
    )
    for pages, found in (((1, 2), ["One"]), ((1, 3), ["One", "Two"]), ((4, 5), ["Two"]), ((7, 9), [])):
        for search in (library.dense, library.lexical):
            assert sorted(hit.node.heading_path[-1] for hit in search("warp", 9, Filters(pages=pages))) == found


def test_nodes_come_in_the_order_asked_or_around_one_of_their_book(shelf: Any) -> None:
    library, (ours, parts) = shelf
    assert library.get_nodes([ours[2].node_id, parts[0].node_id]) == [ours[2], parts[0]]
    with pytest.raises(NotFound):
        library.get_nodes(["nothing"])
    assert library.around(parts[1], 1, 1) == parts[:3]
    assert library.around(parts[3], 1, 5) == parts[2:]
    assert library.around(parts[0], 5, 1) == parts[:2]


LIGHT = """
import sys
from pathlib import Path
from fakes import HashEncoder
from indexes.library import open_library
from indexes.settings import IndexSettings
library = open_library(IndexSettings(Path(sys.argv[1])), create=False, embedder=HashEncoder())
(document,) = library.documents()
assert library.document(document.document_id) == document
assert library.add(Path(sys.argv[2])).status == "unchanged"
print([chapter.title for chapter in library.chapters(document.document_id)], len(library.lexical("warp", 5)))
heavy = ("torch", "transformers", "sentence_transformers", "tokenizers", "faiss", "llama_index", "alembic")
print([name for name in heavy if name in sys.modules])
"""


@pytest.mark.integration
def test_what_is_stored_is_read_and_found_unchanged_without_anything_heavy(home: Path, book: Path) -> None:
    opened(home).add(book)
    paths = os.pathsep.join(str(Path(__file__).parents[levels]) for levels in (1, 2))
    arguments = [sys.executable, "-c", LIGHT, str(home), str(book)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": paths})
    assert done.stdout.splitlines() == ["['Warps', 'Memory'] 2", "[]"]


# --- several at once


def test_another_library_on_the_home_sees_every_change(where: IndexSettings, book: Path) -> None:
    server, command = opened(where), opened(where)
    document = command.add(book).document
    for search in (server.dense, server.lexical):
        assert search("warp", 1)[0].node.document_id == document.document_id
    command.remove(document.document_id)
    assert server.dense("warp", 1) == server.lexical("warp", 1) == []
    assert server.generation == 2


def test_one_book_added_twice_at_once_is_there_once(where: IndexSettings, book: Path) -> None:
    encoders = [HashEncoder() for _ in range(4)]
    libraries = [opened(where, encoder) for encoder in encoders]
    with ThreadPoolExecutor(4) as pool:
        statuses = list(pool.map(lambda library: library.add(book).status, libraries))
    assert sorted(statuses) == ["added", "unchanged", "unchanged", "unchanged"]
    assert sum(len(encoder.encoded) for encoder in encoders) == 4
    assert len(libraries[0].documents()) == 1


def test_searches_go_on_while_books_come_and_go(library: Library, book: Path, put: Any) -> None:
    library.add(book)
    stop = threading.Event()

    def search() -> bool:
        found = True
        while found and not stop.is_set():
            found = bool(library.dense("warp", 5) and library.lexical("warp", 5))
        return found

    with ThreadPoolExecutor(4) as pool:
        searches = [pool.submit(search) for _ in range(4)]
        try:
            for number in range(8):
                added = put(f"# Book {number}\n\nWords of book {number} on a warp.", f"{number}.md")
                if number % 2:
                    library.remove(added[0].document_id)
        finally:
            stop.set()
        assert all(one.result() for one in searches)


# --- what goes wrong


def test_a_cancelled_and_an_unreadable_book_keep_what_was_there(library: Library, book: Path, put: Any) -> None:
    put(WARPS)
    before, seen = state(library), list[AddProgress]()
    with pytest.raises(Cancelled):
        library.add(book, progress=seen.append, cancelled=lambda: any(step.stage == "embedding" for step in seen))
    (book.parent / "other.md").write_bytes(bytes(range(256)))
    with pytest.raises(UnreadableBook):
        library.add(book.parent / "other.md")
    assert state(library) == before
    assert library.add(book).status == "added"


def test_a_full_disk_keeps_what_was_there(home, book, tmp_path, monkeypatch):
    opened(home).add(book)
    configure = database._configure

    def cramped(connection: sqlite3.Connection, record: object) -> None:
        configure(connection, record)
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 4}")

    monkeypatch.setattr(database, "_configure", cramped)
    library = opened(home)
    before = state(library)
    (tmp_path / "big.txt").write_text("\n\n".join(f"Paragraph {n} has its own words. " * 20 for n in range(300)))
    with pytest.raises(StorageFull):
        library.add(tmp_path / "big.txt")
    assert state(library) == before
    assert library.dense("warp", 1)


def test_another_embedder_is_refused_until_everything_is_embedded_again(where: IndexSettings, book: Path) -> None:
    first = opened(where)
    first.add(book)
    other = open_library(where, embedder=HashEncoder("hash/2", max_text_tokens=40))
    for act in (other.load, lambda: other.add(book), lambda: other.dense("warp", 1)):
        with pytest.raises(EmbedderMismatch) as caught:
            act()
        assert "reindex" in caught.value.hint
    assert other.lexical("warp", 1) and len(other.documents()) == 1
    (book / "1-warps.md").unlink()  # the sources may be gone
    assert [result.status for result in other.reindex()] == ["updated"]
    assert other.dense("warp threads", 1)[0].node.heading_path == ("Warps", "Size")
    with pytest.raises(EmbedderMismatch):
        opened(where)
    other.remove(other.documents()[0].document_id)
    assert opened(where).add(book).status == "added", "an empty library takes any embedder"


def test_a_home_that_is_not_there_or_is_not_loaded_is_a_clear_error(home: Path) -> None:
    with pytest.raises(IndexMissing, match="no library"):
        open_library(IndexSettings(home), create=False)
    assert not home.exists()
    library = open_library(IndexSettings(home))
    for act in (lambda: library.dense("warp", 1), lambda: library.embed(["warp"])):
        with pytest.raises(Busy):
            act()


# --- the saved index


def test_a_saved_index_that_is_wrong_or_gone_is_rebuilt(home, book, monkeypatch):
    monkeypatch.setattr("indexes.vectors.SAVE_AT_LEAST", 1)
    library, file = opened(home), home / "vectors.faiss"
    library.add(book)
    best = [hit.node.node_id for hit in library.dense("warp threads", 4)]
    library.close()
    saved = file.read_bytes()
    for content in (saved, saved[:-40], b"", b"nonsense", None):
        file.unlink()
        if content is not None:
            file.write_bytes(content)
        again = opened(home)
        assert [hit.node.node_id for hit in again.dense("warp threads", 4)] == best
        again.close()


def test_an_index_saved_before_other_changes_is_brought_up_to_date(home, book, monkeypatch):
    monkeypatch.setattr("indexes.vectors.SAVE_AT_LEAST", 1)
    library = opened(home)
    first = library.add(book).document.document_id
    library.close()
    monkeypatch.setattr("indexes.vectors.SAVE_AT_LEAST", 10**9)
    library = opened(home)
    (book.parent / "other.md").write_text("# Other\n\nA warp elsewhere.")
    second = library.add(book.parent / "other.md").document.document_id
    library.remove(first)
    library.close()
    assert {hit.node.document_id for hit in opened(home).dense("warp", 50)} == {second}


def test_a_large_library_is_searched_by_inverted_lists(home: Path, book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("indexes.vectors.FLAT_LIMIT", 800)
    library = opened(home)
    text = "\n\n".join(f"## Part {n}\n\nThis part {n} tells of item{n} and kernel{n % 50}." for n in range(1000))
    (book.parent / "large.md").write_text(f"# Large\n\n{text}")
    library.add(book.parent / "large.md")
    library.close()
    again = opened(home)
    assert again._vectors is not None and again._vectors.index.kind == "ivf"
    document = again.add(book).document
    assert again.dense("warp threads", 1)[0].node.document_id == document.document_id
    again.remove(document.document_id)
    again.close()
    last = opened(home)
    assert last._vectors is not None and last._vectors.index.kind == "ivf"
    assert document.document_id not in {hit.node.document_id for hit in last.dense("warp threads", 50)}
    assert last.dense("item77 kernel27", 1)
