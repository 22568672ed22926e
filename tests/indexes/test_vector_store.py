"""A llama-index vector store: what is sent, lost and sent again, and how it fails; what is found: test_vectors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fakes import HashEncoder
from llama_index.core.vector_stores.simple import SimpleVectorStore

from indexes.errors import InvalidInput, VectorStoreUnavailable
from indexes.library import Library, open_library
from indexes.settings import IndexSettings

TEXTS = {
    "one": "# Execution\n\nWarps diverge when threads of a warp branch apart.\n\n"
    "# Memory\n\nShared memory has banks; conflicts serialise.\n",
    "two": "# Streams\n\nStreams overlap copies with kernels.\n\n# Memory\n\nConstant memory is cached.\n",
}


class Recording(SimpleVectorStore):
    """llama-index's own store, standing for an engine; it tells what it was sent, and can be down."""

    def __init__(self) -> None:
        super().__init__()
        self._sent: list[str] = []
        self._down = False

    def add(self, nodes: Any, **kwargs: Any) -> list[str]:
        self._sent.extend(node.ref_doc_id for node in nodes)
        return super().add(nodes, **kwargs)

    def query(self, query: Any, **kwargs: Any) -> Any:
        if self._down:
            raise ConnectionError("no route to engine")
        return super().query(query, **kwargs)


class Numbering(Recording):
    """Gives ids of its own, as the FAISS store of llama-index does."""

    def query(self, query: Any, **kwargs: Any) -> Any:
        found = super().query(query, **kwargs)
        found.ids = [str(number) for number, _ in enumerate(found.ids)]
        return found


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of stores that settings can name."""
    module = ModuleType("stores_of_mine")
    module.engine = Recording()  # type: ignore[attr-defined]
    module.Recording = Recording  # type: ignore[attr-defined]
    module.open_engine = lambda **_: module.engine  # type: ignore[attr-defined]
    module.numbering = Numbering()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "stores_of_mine", module)
    return module


@pytest.fixture
def opened(tmp_path: Path, stores: ModuleType) -> Iterator[Callable[..., Library]]:
    """Opens the home's library, over the store of this name in the module."""
    libraries = []

    def open_it(name: str = "engine") -> Library:
        settings = IndexSettings(tmp_path / "home", vector_store=f"llama_index:stores_of_mine:{name}")
        libraries.append(open_library(settings, embedder=HashEncoder()))
        libraries[-1].load()
        return libraries[-1]

    yield open_it
    for library in libraries:
        library.close()


@pytest.fixture
def books(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{name}.md" for name in TEXTS]
    for path, text in zip(paths, TEXTS.values(), strict=True):
        path.write_text(text, encoding="utf-8")
    return paths


def found(library: Library) -> list[list[tuple[str, float]]]:
    queries = ("warps diverge", "shared memory banks", "streams overlap copies", "nothing of the kind")
    hits = [library.dense(query, 3) for query in queries]
    return [sorted((hit.node.node_id, round(hit.score, 4)) for hit in one) for one in hits]


def test_a_store_opened_again_is_sent_only_what_changed_and_the_other_process_sees_it(opened, stores, books):
    here = opened()
    first = here.add(books[0]).document.document_id
    stores.engine._sent.clear()
    there = opened()
    second = there.add(books[1]).document.document_id
    assert set(stores.engine._sent) == {second}
    assert {hit.node.document_id for hit in here.dense("memory", 10)} == {first, second}
    there.remove(first)
    assert {hit.node.document_id for hit in here.dense("memory", 10)} == {second}


@pytest.mark.parametrize("loses", ["a book", "everything"])
def test_a_store_that_lost_its_data_is_filled_again(opened, stores, books, loses):
    library = opened()
    ids = [library.add(book).document.document_id for book in books]
    before = found(library)
    for document_id in ids[: 1 if loses == "a book" else 2]:
        stores.engine.delete(document_id)
    assert found(opened()) == before


def test_a_store_that_is_down_or_gives_ids_it_was_not_sent_is_a_clear_error_that_shows_no_key(
    opened: Callable[..., Library], stores: ModuleType, books: list[Path], tmp_path: Path
) -> None:
    library = opened("open_engine?api_key=SECRET")
    library.add(books[0])
    stores.engine._down = True
    with pytest.raises(VectorStoreUnavailable, match="no route to engine") as caught:
        library.dense("warps", 3)
    assert library.lexical("warps", 3), "nothing else is lost"
    stores.engine._down = False
    assert library.dense("warps", 3)
    assert "SECRET" not in caught.value.message + caught.value.hint
    assert "SECRET" not in (tmp_path / "home" / "vector_store.json").read_text()
    assert "SECRET" not in repr(IndexSettings(tmp_path, vector_store="llama_index:a:b?api_key=SECRET"))
    with pytest.raises(VectorStoreUnavailable, match="not sent"):
        opened("numbering").dense("warps", 3)


@pytest.mark.parametrize("name", ["milvus", "milvus:http://engine:19530", "llama_index:no_such_module:Store"])
def test_what_is_no_store_is_a_clear_error(name: str, tmp_path: Path) -> None:
    library = open_library(IndexSettings(tmp_path, vector_store=name), embedder=HashEncoder())
    with pytest.raises(InvalidInput, match=name.partition(":")[0]):
        library.load()


def test_a_home_whose_vectors_were_elsewhere_is_filled_from_its_catalog(opened, books, tmp_path):
    document_id = opened().add(books[0]).document.document_id
    note = tmp_path / "home" / "vector_store.json"
    note.write_text(f'{{"identity": "http://engine:19530#coalesce_1", "ranges": {{"{document_id}": [1, 2]}}}}')
    for vector_store in ("llama_index:stores_of_mine:Recording", "faiss"):
        library = open_library(IndexSettings(tmp_path / "home", vector_store=vector_store), embedder=HashEncoder())
        library.load()
        assert library.dense("warps", 3)[0].node.document_id == document_id
        library.close()
