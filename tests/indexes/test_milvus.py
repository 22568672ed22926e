"""Vectors in Milvus: what is sent, lost, sent again, and what a failing engine does; what is found: test_vectors."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from fakes import HashEncoder
from llama_index.core.vector_stores.simple import SimpleVectorStore

from indexes import milvus
from indexes.errors import InvalidInput, VectorStoreUnavailable
from indexes.library import Library, open_library
from indexes.settings import IndexSettings
from indexes.types import Filters

QUERIES = ("warps diverge", "shared memory banks", "streams overlap copies", "nothing of the kind")


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


Open = Callable[[], Library]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Recording:
    store = Recording()
    monkeypatch.setattr(milvus, "_connect", lambda *_: store)
    return store


@pytest.fixture
def books(tmp_path: Path) -> list[Path]:
    texts = {
        "one": "# Execution\n\nWarps diverge when threads of a warp branch apart.\n\n"
        "# Memory\n\nShared memory has banks; conflicts serialise.\n",
        "two": "# Streams\n\nStreams overlap copies with kernels.\n\n# Memory\n\nConstant memory is cached.\n",
    }
    paths = [tmp_path / f"{name}.md" for name in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        path.write_text(text, encoding="utf-8")
    return paths


def opened(home: Path, store: str = "milvus") -> Library:
    library = open_library(IndexSettings(home=home, vector_store=store), embedder=HashEncoder())
    library.load()
    return library


def found(library: Library, filters: Filters | None = None) -> list[list[tuple[str, float]]]:
    hits = [library.dense(query, 3, filters) for query in QUERIES]
    return [sorted((hit.node.node_id, round(hit.score, 4)) for hit in one) for one in hits]


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore")
def test_a_collection_that_milvus_has_let_go_is_searched_again(books: list[Path], tmp_path: Path) -> None:
    pymilvus = pytest.importorskip("pymilvus", reason="the extra `milvus` is not installed")
    library = opened(tmp_path)
    library.add(books[0])
    before = found(library)
    library.close()
    client = pymilvus.MilvusClient(str(tmp_path / "milvus.db"))
    for collection in client.list_collections():
        client.release_collection(collection)
    assert found(opened(tmp_path)) == before


def test_an_engine_opened_again_is_sent_only_what_changed(engine: Recording, books: list[Path], tmp_path: Path) -> None:
    library = opened(tmp_path)
    first = library.add(books[0]).document.document_id
    library.close()
    engine._sent.clear()
    library = opened(tmp_path)
    second = library.add(books[1]).document.document_id
    assert set(engine._sent) == {second}
    assert {hit.node.document_id for hit in library.dense("memory", 10)} == {first, second}


def test_another_process_of_the_home_is_followed(engine: Recording, books: list[Path], tmp_path: Path) -> None:
    here, there = opened(tmp_path), opened(tmp_path)
    document_id = here.add(books[0]).document.document_id
    assert {hit.node.document_id for hit in there.dense("warps", 5)} == {document_id}
    there.remove(document_id)
    assert here.dense("warps", 5) == []


def test_an_engine_that_lost_its_data_is_filled_again(engine: Recording, books: list[Path], tmp_path: Path) -> None:
    library = opened(tmp_path)
    for book in books:
        library.add(book)
    before = found(library)
    library.close()
    for document in library_documents(tmp_path):
        engine.delete(document)
    assert found(opened(tmp_path)) == before


def library_documents(home: Path) -> list[str]:
    library = open_library(IndexSettings(home=home), embedder=HashEncoder())
    try:
        return [document.document_id for document in library.documents()]
    finally:
        library.close()


def test_an_engine_that_is_down_is_a_clear_error_and_loses_nothing(
    engine: Recording, books: list[Path], tmp_path: Path
) -> None:
    library = opened(tmp_path)
    library.add(books[0])
    engine._down = True
    with pytest.raises(VectorStoreUnavailable, match="no route to engine"):
        library.dense("warps", 3)
    assert library.lexical("warps", 3)
    engine._down = False
    assert library.dense("warps", 3)


def test_an_unknown_engine_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="chroma"):
        opened(tmp_path, "chroma:http://localhost:1")


@pytest.mark.skipif(find_spec("pymilvus") is not None, reason="the extra `milvus` is installed")
def test_an_engine_without_its_client_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="not installed") as caught:
        opened(tmp_path)
    assert "coalesce-rag[milvus]" in caught.value.hint
