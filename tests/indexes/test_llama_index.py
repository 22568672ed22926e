"""Our parts stand in other people's llama-index programs."""

from pathlib import Path

import pytest
from fakes import DIM, HashEncoder, hash_embed
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters, VectorStoreQuery

from indexes.errors import Conflict, InvalidInput, NotFound
from indexes.library import open_library
from indexes.library_store import LibraryVectorStore
from indexes.node_parser import BookNodeParser
from indexes.settings import IndexSettings
from indexes.vector_store import FaissVectorStore

BOOK = "# Warps\n\n## Size\n\nA warp has 32 threads.\n\n## Memory\n\nShared memory is fast.\n"


class HashEmbedding(BaseEmbedding):
    """The hash embedder as llama-index knows embedders."""

    def _get_query_embedding(self, query: str) -> list[float]:
        return [float(x) for x in hash_embed([query])[0]]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_query_embedding(text)


def test_parser_and_store_serve_a_vector_store_index() -> None:
    parser = BookNodeParser(HashEncoder().token_starts, limit_tokens=40)
    nodes = parser.get_nodes_from_documents([Document(text=BOOK, id_="book", metadata={"file_name": "w.md"})])
    assert [(node.metadata["section"], node.get_content()) for node in nodes] == [
        ("Size", "A warp has 32 threads."), ("Memory", "Shared memory is fast."),
    ]  # fmt: skip
    store = FaissVectorStore()
    embedding = HashEmbedding()
    for node in nodes:
        node.embedding = embedding.get_text_embedding(node.get_content())
    store.add(nodes)
    index = VectorStoreIndex.from_vector_store(store, embed_model=embedding)
    (best,) = index.as_retriever(similarity_top_k=1).retrieve("how many threads has a warp")
    assert best.node.get_content() == "A warp has 32 threads."
    index.delete_ref_doc("book")
    assert index.as_retriever().retrieve("threads") == []


def test_a_library_serves_a_vector_store_index(tmp_path: Path) -> None:
    (tmp_path / "w.md").write_text(BOOK)
    library = open_library(IndexSettings(tmp_path / "home"), embedder=HashEncoder())
    document = library.add(tmp_path / "w.md").document
    store = LibraryVectorStore(library)
    index = VectorStoreIndex.from_vector_store(store, embed_model=HashEmbedding())
    (best,) = index.as_retriever(similarity_top_k=1).retrieve("threads of a warp")
    assert best.node.metadata["section"] == "Size"
    assert best.node.metadata["document_id"] == document.document_id
    only = MetadataFilters(filters=[MetadataFilter(key="chapter", value=2)])
    (filtered,) = index.as_retriever(similarity_top_k=5, filters=only).retrieve("threads of a warp")
    assert filtered.node.metadata["section"] == "Memory"
    odd = MetadataFilters(filters=[MetadataFilter(key="chapter", value=2, operator=FilterOperator.GT)])
    with pytest.raises(InvalidInput):
        index.as_retriever(filters=odd).retrieve("warp")
    with pytest.raises(Conflict):
        store.add([])
    store.delete(document.document_id)
    assert library.documents() == ()


def test_a_librarys_books_move_to_another_store_with_their_vectors(tmp_path: Path) -> None:
    (tmp_path / "w.md").write_text(BOOK)
    library = open_library(IndexSettings(tmp_path / "home"), embedder=HashEncoder())
    document = library.add(tmp_path / "w.md").document
    library.load()
    other = FaissVectorStore()
    other.add(LibraryVectorStore(library).embedded_nodes(document.document_id))
    query = VectorStoreQuery(query_embedding=hash_embed(["threads of a warp"])[0].tolist(), similarity_top_k=5)
    here, there = LibraryVectorStore(library).query(query), other.query(query)
    assert there.ids == here.ids
    assert there.similarities == pytest.approx(here.similarities, abs=1e-6)
    with pytest.raises(NotFound):
        LibraryVectorStore(library).embedded_nodes("no such book")


def test_hash_vectors_are_of_unit_length() -> None:
    assert hash_embed(["a", "b"]).shape == (2, DIM)
