"""The library: what was added is found, what was removed is not, and nothing is ever half there."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes import HashEncoder
from pdf_maker import make_book

from indexes import database, ingest, lexical
from indexes.errors import (
    Busy,
    Cancelled,
    EmbedderMismatch,
    HomeNotWritable,
    IndexCorrupt,
    IndexMissing,
    NotFound,
    StorageFull,
    UnreadableBook,
)
from indexes.library import Library, open_library
from indexes.settings import IndexSettings
from indexes.types import AddProgress, Filters, page_at

WARPS = "# Warps\n\n## Size\n\nA warp has 32 threads.\n\n## Use\n\nCall `__syncthreads` in every warp.\n"
MEMORY = "# Memory\n\n## Kinds\n\nShared memory is fast.\n\n## Copies\n\n`cudaMemcpyAsync` copies.\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def book(tmp_path: Path) -> Path:
    folder = tmp_path / "book"
    folder.mkdir()
    (folder / "1-warps.md").write_text(WARPS)
    (folder / "2-memory.md").write_text(MEMORY)
    return folder


def opened(home: Path, encoder: HashEncoder | None = None) -> Library:
    library = open_library(IndexSettings(home), embedder=encoder or HashEncoder())
    library.load()
    return library


@pytest.fixture
def library(home: Path) -> Iterator[Library]:
    library = opened(home)
    yield library
    library.close()


def state(library: Library) -> object:
    """Everything that can be seen of a library, but not when."""
    return [
        (document, library.chapters(document.document_id), library.nodes_of(document.document_id))
        for document in library.documents()
    ]


def test_a_book_is_added_listed_and_found(library: Library, book: Path) -> None:
    seen: list[AddProgress] = []
    result = library.add(book, progress=seen.append)
    assert (result.status, result.embedded_nodes) == ("added", 4)
    assert library.documents() == (result.document,)
    assert (result.document.title, result.document.format, result.document.nodes) == ("Book", "folder", 4)
    assert [(c.ordinal, c.title, c.nodes) for c in library.chapters(result.document.document_id)] == [
        (1, "Warps", 2), (2, "Memory", 2),
    ]  # fmt: skip
    assert library.dense("warp threads", 1)[0].node.heading_path == ("Warps", "Size")
    assert list(dict.fromkeys(step.stage for step in seen)) == ["reading", "embedding", "storing"]
    assert seen[-1].done == seen[-1].total == 4


def test_a_book_is_added_though_one_with_the_same_text_is_removed_meanwhile(home: Path, tmp_path: Path) -> None:
    for name, text in (("a", "Shared."), ("b", "Shared.\n\n## More\n\nOwn.")):
        (tmp_path / f"{name}.md").write_text(f"# Book\n\n## Same\n\n{text}")
    first = opened(home)
    removed = first.add(tmp_path / "a.md").document.document_id

    class Removing(HashEncoder):
        def encode(self, texts: Sequence[str], **options: Any) -> Any:
            if first.documents():
                first.remove(removed)
            return super().encode(texts, **options)

    result = opened(home, Removing()).add(tmp_path / "b.md")
    assert (result.document.nodes, result.embedded_nodes) == (2, 2)


def test_a_name_that_is_not_utf8_can_be_added(library: Library, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9.md")
    path.write_text("Text.")
    assert library.add(path).status == "added"
    assert library.add(path).status == "unchanged"
    assert library.documents()[0].nodes == 1


@pytest.mark.parametrize("query", ["cudaMemcpyAsync", "memcpy", "async", "CUDAMEMCPYASYNC", "copy", "kinds"])
def test_identifiers_are_found_whole_and_by_part_and_headings_count(query: str, library: Library, book: Path) -> None:
    library.add(book)
    section = "Kinds" if query == "kinds" else "Copies"
    assert library.lexical(query, 3)[0].node.heading_path == ("Memory", section)


def test_in_a_large_library_only_rows_of_rarer_terms_are_scored_but_by_all_terms(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paragraphs = [f"A kernel of part {number} runs{' with occupancy' * (number % 5 == 0)}." for number in range(40)]
    for name in ("a", "b"):
        sections = [f"## S{number}\n\n{text} {name * number}" for number, text in enumerate(paragraphs)]
        (tmp_path / f"{name}.md").write_text("# Book\n\n" + "\n\n".join(sections))
    books = [library.add(tmp_path / f"{name}.md").document.document_id for name in ("a", "b")]
    query = "kernel occupancy of part 30"
    whole = library.lexical(query, 80)
    in_one = library.lexical(query, 80, Filters((books[1],)))
    monkeypatch.setattr(lexical, "SCORED_AT_LEAST", 20)
    few = library.lexical(query, 80)
    assert len(whole) == 80
    assert len(few) == 16
    assert [(hit.node.node_id, hit.score) for hit in few] == [(hit.node.node_id, hit.score) for hit in whole[:16]]
    assert [hit.node.document_id for hit in in_one] == [books[1]] * 40


def test_terms_are_counted_by_node_and_up_to_a_limit(library: Library, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# Book\n\n" + "\n\n".join(f"## S{n}\n\nA kernel of {n}." for n in range(5)))
    library.add(tmp_path / "a.md")
    assert library.count_terms(["kernel", "kernal", 'a"b'], 3) == {"kernel": 3, "kernal": 0}
    assert library.count_terms(["kernel"]) == {"kernel": 5}


@pytest.mark.parametrize("query", ["", "   ", '"', "a OR b", "NEAR(", "*", "\x00", "何", "'; DROP TABLE nodes; --"])
def test_odd_queries_find_little_and_break_nothing(query: str, library: Library, book: Path) -> None:
    library.add(book)
    assert isinstance(library.lexical(query, 3), list)
    assert len(library.dense(query, 3)) == 3


def test_the_same_book_again_changes_nothing(library: Library, book: Path) -> None:
    first = library.add(book)
    generation = library.generation
    again = library.add(book)
    assert (again.status, again.embedded_nodes, again.document) == ("unchanged", 0, first.document)
    assert library.generation == generation


def test_a_book_read_by_an_earlier_reader_is_read_again(
    library: Library, book: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.add(book)
    monkeypatch.setattr(ingest, "READER_VERSION", ingest.READER_VERSION + 1)
    library.reindex()  # cut anew from what the earlier reader read
    assert library.add(book).status == "updated"
    assert library.add(book).status == "unchanged"


def test_an_edit_embeds_only_new_text_and_keeps_id_and_date(home: Path, book: Path) -> None:
    encoder = HashEncoder()
    library = opened(home, encoder)
    first = library.add(book)
    before = {node.text: node.node_id for node in library.nodes_of(first.document.document_id)}
    (book / "1-warps.md").write_text(WARPS.replace("in every warp", "in each block"))
    encoder.encoded.clear()
    second = library.add(book)
    assert (second.status, second.embedded_nodes) == ("updated", 1)
    assert len(encoder.encoded) == 1
    assert second.document.document_id == first.document.document_id
    assert second.document.added_at == first.document.added_at
    after = {node.text: node.node_id for node in library.nodes_of(first.document.document_id)}
    assert all(after[text] == node_id for text, node_id in before.items() if text in after)
    assert not library.lexical("every", 5)
    assert library.lexical("each block", 5)


def test_a_removed_book_is_never_found(home: Path, book: Path, tmp_path: Path) -> None:
    library = opened(home)
    (tmp_path / "other.md").write_text("# Other\n\nWords of another book about a warp.")
    other = library.add(tmp_path / "other.md").document
    gone = library.add(book).document
    library.remove(gone.document_id)
    assert library.documents() == (other,)
    found = [*library.dense("warp", 50), *library.lexical("warp memory cudaMemcpyAsync", 50)]
    assert {hit.node.document_id for hit in found} == {other.document_id}
    with pytest.raises(NotFound):
        library.remove(gone.document_id)
    with pytest.raises(NotFound):
        library.nodes_of(gone.document_id)
    with sqlite3.connect(home / "library.sqlite3") as rows:
        for table in ("nodes", "vectors", "lexical"):
            assert rows.execute(f"SELECT count(*) FROM {table}").fetchone() == (1,)


def test_text_that_two_books_share_survives_the_removal_of_one(library: Library, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.md").write_text(WARPS)
    first = library.add(tmp_path / "a.md")
    second = library.add(tmp_path / "b.md")
    assert (first.embedded_nodes, second.embedded_nodes) == (2, 0)
    library.remove(first.document.document_id)
    assert len(library.dense("warp", 10)) == 2


def test_an_upload_is_known_by_its_content(library: Library, tmp_path: Path) -> None:
    for name in ("tmp1.md", "tmp2.md"):
        (tmp_path / name).write_text("Just words.")
    first = library.add(tmp_path / "tmp1.md", source_name="notes.md")
    again = library.add(tmp_path / "tmp2.md", source_name="notes.md")
    assert (first.document.source, first.document.title) == ("notes.md", "Notes")
    assert again.status == "unchanged"
    assert again.document == first.document


def test_a_given_title_wins(library: Library, book: Path) -> None:
    assert library.add(book, title="GPU Notes", sample=True).document.title == "GPU Notes"
    assert library.documents()[0].sample
    assert library.add(book, title="GPU Notes", sample=True).status == "unchanged"
    assert library.dense("warp", 1)[0].node.title == "GPU Notes"


# --- filters


def test_filters_hold_in_both_searches(library: Library, book: Path, tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Other\n\nA warp elsewhere.")
    ours = library.add(book).document.document_id
    library.add(tmp_path / "other.md")
    for search in (library.dense, library.lexical):
        assert {hit.node.document_id for hit in search("warp memory", 50, Filters((ours,)))} == {ours}
        for chapters in ((2,), ("Memory",)):
            assert {hit.node.chapter for hit in search("warp memory", 50, Filters((ours,), chapters))} == {2}
        with pytest.raises(NotFound):
            search("warp", 5, Filters(document_ids=("nothing",)))
        assert search("warp", 5, Filters(chapters=("No such chapter",))) == []
        assert search("warp", 5, Filters(pages=(1, 9))) == []


def test_page_filters_take_nodes_that_touch_the_pages(library: Library, tmp_path: Path) -> None:
    make_book(tmp_path / "a.pdf", chapters=2)
    document = library.add(tmp_path / "a.pdf").document
    nodes = library.nodes_of(document.document_id)
    touching = {node.node_id for node in nodes if (node.page_start or 0) <= 5 and (node.page_end or 0) >= 4}
    assert 0 < len(touching) < len(nodes)
    assert {hit.node.node_id for hit in library.dense("warp", 500, Filters(pages=(4, 5)))} == touching


def test_sentences_keep_their_pages_and_labels_in_nodes(library: Library, tmp_path: Path) -> None:
    maker = make_book(tmp_path / "a.pdf")
    nodes = library.nodes_of(library.add(tmp_path / "a.pdf").document.document_id)
    exact = 0
    for placed in maker.placed:
        for node in nodes:
            at = node.text.find(placed.text)
            if at >= 0:
                start, end = page_at(node.page_marks, at), page_at(node.page_marks, at + len(placed.text) - 1)
                label = node.page_labels[(start or 0) - (node.page_start or 0)]
                exact += (start, end, label) == (placed.page_start, placed.page_end, placed.label)
                break
    assert exact >= 0.98 * len(maker.placed)


# --- nodes by place and by id


def test_nodes_around_a_node_are_those_of_its_book(library: Library, tmp_path: Path) -> None:
    for name in ("a", "b"):
        text = "\n\n".join(f"## Part {number}\n\nText {number} of {name}." for number in range(4))
        (tmp_path / f"{name}.md").write_text(f"# T\n\n{text}")
    nodes = [library.nodes_of(library.add(tmp_path / f"{name}.md").document.document_id) for name in ("a", "b")]
    assert library.around(nodes[0][1], 1, 1) == nodes[0][:3]
    assert library.around(nodes[0][3], 1, 5) == nodes[0][2:]
    assert library.around(nodes[1][0], 5, 1) == nodes[1][:2]


def test_nodes_come_in_the_order_asked(library: Library, book: Path) -> None:
    nodes = library.nodes_of(library.add(book).document.document_id)
    assert library.get_nodes([nodes[2].node_id, nodes[0].node_id]) == [nodes[2], nodes[0]]
    with pytest.raises(NotFound):
        library.get_nodes(["nothing"])


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


def test_another_library_on_the_home_sees_every_change(home: Path, book: Path) -> None:
    server, command = opened(home), opened(home)
    document = command.add(book).document
    assert server.dense("warp", 1)[0].node.document_id == document.document_id
    assert server.lexical("warp", 1)
    command.remove(document.document_id)
    assert server.dense("warp", 1) == []
    assert server.lexical("warp", 1) == []
    assert server.generation == 2


def test_one_book_added_twice_at_once_is_there_once(home: Path, book: Path) -> None:
    encoders = [HashEncoder() for _ in range(4)]
    libraries = [opened(home, encoder) for encoder in encoders]
    statuses: list[str] = []
    threads = [
        threading.Thread(target=lambda library=library: statuses.append(library.add(book).status))
        for library in libraries
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == ["added", "unchanged", "unchanged", "unchanged"]
    assert sum(len(encoder.encoded) for encoder in encoders) == 4
    assert len(libraries[0].documents()) == 1


def test_searches_go_on_while_books_come_and_go(library: Library, book: Path, tmp_path: Path) -> None:
    library.add(book)
    failures: list[Exception] = []
    stop = threading.Event()

    def search() -> None:
        while not stop.is_set():
            try:
                assert library.dense("warp", 5)
                assert library.lexical("warp", 5)
            except Exception as error:  # noqa: BLE001  # whatever it is, the test shows it
                failures.append(error)
                return

    threads = [threading.Thread(target=search) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(8):
        (tmp_path / f"{number}.md").write_text(f"# Book {number}\n\nWords of book {number} on a warp.")
        added = library.add(tmp_path / f"{number}.md").document
        if number % 2:
            library.remove(added.document_id)
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []


# --- what goes wrong


def test_cancelling_keeps_nothing(library: Library, book: Path) -> None:
    seen: list[AddProgress] = []
    with pytest.raises(Cancelled):
        library.add(book, progress=seen.append, cancelled=lambda: any(step.stage == "embedding" for step in seen))
    assert library.documents() == ()
    assert library.dense("warp", 5) == []
    assert library.add(book).status == "added"


def test_an_unreadable_book_keeps_what_was_there(library: Library, tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_text(WARPS)
    library.add(path)
    before = state(library)
    path.write_bytes(bytes(range(256)))
    with pytest.raises(UnreadableBook):
        library.add(path)
    assert state(library) == before


def test_a_full_disk_keeps_what_was_there(
    home: Path, book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_another_embedder_is_refused_until_everything_is_embedded_again(home: Path, book: Path, tmp_path: Path) -> None:
    opened(home).add(book)
    other = open_library(IndexSettings(home), embedder=HashEncoder("hash/2", max_text_tokens=40))
    with pytest.raises(EmbedderMismatch) as caught:
        other.load()
    assert "reindex" in caught.value.hint
    with pytest.raises(EmbedderMismatch):
        other.add(book)
    with pytest.raises(EmbedderMismatch):
        other.dense("warp", 1)
    assert other.lexical("warp", 1)
    assert len(other.documents()) == 1
    (book / "1-warps.md").unlink()  # the sources may be gone
    results = other.reindex()
    assert [result.status for result in results] == ["updated"]
    assert other.dense("warp threads", 1)[0].node.heading_path == ("Warps", "Size")
    with pytest.raises(EmbedderMismatch):
        opened(home)


def test_an_empty_library_takes_any_embedder(home: Path, book: Path) -> None:
    library = opened(home)
    library.remove(library.add(book).document.document_id)
    assert opened(home, HashEncoder("hash/2")).add(book).status == "added"


def test_a_library_that_is_not_there_is_a_clear_error(home: Path) -> None:
    with pytest.raises(IndexMissing, match="no library"):
        open_library(IndexSettings(home), create=False)
    assert not home.exists()


def of_another_program(catalog: Path) -> None:
    catalog.unlink()
    with sqlite3.connect(catalog) as rows:
        rows.execute("CREATE TABLE theirs (x)")


def of_a_later_version(catalog: Path) -> None:
    with sqlite3.connect(catalog) as rows:
        rows.execute("UPDATE alembic_version SET version_num = 'catalog_99'")


def of_no_database(catalog: Path) -> None:
    catalog.write_bytes(b"not a database at all, but text" * 100)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (of_another_program, "another program"),
        (of_a_later_version, "version 'catalog_99'"),
        (of_no_database, "library.sqlite3"),
    ],
)
def test_a_catalog_that_is_not_ours_is_a_clear_error(spoil: Callable[[Path], None], said: str, home: Path) -> None:
    open_library(IndexSettings(home)).close()
    for file in home.glob("library.sqlite3-*"):
        file.unlink()
    spoil(home / "library.sqlite3")
    with pytest.raises(IndexCorrupt, match=said):
        open_library(IndexSettings(home))


def test_a_home_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(HomeNotWritable):
        open_library(IndexSettings(tmp_path / "file" / "home"))


def test_search_before_load_says_so(home: Path) -> None:
    library = open_library(IndexSettings(home))
    with pytest.raises(Busy):
        library.dense("warp", 1)
    with pytest.raises(Busy):
        library.embed(["warp"])


# --- the saved index


def test_a_saved_index_is_used_and_a_wrong_one_is_rebuilt(
    home: Path, book: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indexes.vectors.SAVE_AT_LEAST", 1)
    library = opened(home)
    library.add(book)
    best = [hit.node.node_id for hit in library.dense("warp threads", 4)]
    library.close()
    saved = (home / "vectors.faiss").read_bytes()
    for content in (saved, saved[:-40], b"", b"nonsense", None):
        if content is None:
            (home / "vectors.faiss").unlink()
        else:
            (home / "vectors.faiss").write_bytes(content)
        again = opened(home)
        assert [hit.node.node_id for hit in again.dense("warp threads", 4)] == best
        again._catalog.close()


def test_an_index_saved_before_other_changes_is_brought_up_to_date(
    home: Path, book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indexes.vectors.SAVE_AT_LEAST", 1)
    library = opened(home)
    first = library.add(book).document.document_id
    library.close()
    monkeypatch.setattr("indexes.vectors.SAVE_AT_LEAST", 10**9)
    library = opened(home)
    (tmp_path / "other.md").write_text("# Other\n\nA warp elsewhere.")
    second = library.add(tmp_path / "other.md").document.document_id
    library.remove(first)
    library.close()
    again = opened(home)
    assert {hit.node.document_id for hit in again.dense("warp", 50)} == {second}


def test_a_large_library_is_searched_by_inverted_lists(
    home: Path, book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indexes.vectors.FLAT_LIMIT", 800)
    library = opened(home)
    text = "\n\n".join(f"## Part {n}\n\nThis part {n} tells of item{n} and kernel{n % 50}." for n in range(1000))
    (tmp_path / "large.md").write_text(f"# Large\n\n{text}")
    library.add(tmp_path / "large.md")
    library.close()
    again = opened(home)
    assert again._vectors is not None
    assert again._vectors.index.kind == "ivf"
    document = again.add(book).document
    assert again.dense("warp threads", 1)[0].node.document_id == document.document_id
    again.remove(document.document_id)
    assert all(hit.node.document_id != document.document_id for hit in again.dense("warp threads", 50))
    again.close()
    last = opened(home)
    assert last._vectors is not None
    assert last._vectors.index.kind == "ivf"
    assert last.dense("item77 kernel27", 1)


def test_a_book_that_an_earlier_version_read_is_read_again_under_its_id_and_title(
    library: Library, book: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "READER_VERSION", ingest.READER_VERSION - 1)
    before = library.add(book, title="My shelf").document
    monkeypatch.undo()
    assert [(document.document_id, path) for document, path in library.outdated(lambda _: book)] == [
        (before.document_id, book)
    ]
    renewed = library.renew(before, book).document
    assert (renewed.document_id, renewed.title, renewed.added_at) == (before.document_id, "My shelf", before.added_at)
    assert library.outdated(lambda _: book) == []


def test_a_book_whose_file_is_gone_or_changed_is_cut_again_from_what_is_stored(
    library: Library, book: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "CHUNKER_VERSION", ingest.CHUNKER_VERSION - 1)
    before = library.add(book).document
    nodes = library.nodes_of(before.document_id)
    monkeypatch.undo()
    (book / "1-warps.md").write_text("# Warps\n\nOther words.\n")
    ((document, path),) = library.outdated(lambda _: book)
    assert path is None

    def refuse(path: Path) -> str:
        raise UnreadableBook(f"'{path}' cannot be read.", hint="check its permissions")

    with monkeypatch.context() as patch:
        patch.setattr(ingest, "content_digest", refuse)
        assert library.outdated(lambda _: book) == [(document, None)]
    library.renew(document, path)
    assert [node.text for node in library.nodes_of(before.document_id)] == [node.text for node in nodes]
    assert library.outdated(lambda _: None) == []
    assert library.add(book).status == "updated"
