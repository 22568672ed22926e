"""Our parts in llama-index's programs, and llama-index's parts in ours."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from fakes import DIM, HashEncoder, hash_embed
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.readers.base import BaseReader
from llama_index.core.schema import BaseNode, MetadataMode, NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.simple import SimpleVectorStore
from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters, VectorStoreQuery

from indexes.errors import (
    Cancelled,
    Conflict,
    EmbedderCannotLoad,
    EmbedderMismatch,
    InvalidInput,
    NotFound,
    UnreadableBook,
    UnsupportedFormat,
)
from indexes.library import Library, open_library
from indexes.llama_index import (
    BookNodeParser,
    EncoderEmbedding,
    LibraryVectorStore,
    LlamaIndexEncoder,
    load_cutter,
    load_embedding,
    load_part,
)
from indexes.settings import IndexSettings

BOOK = "# Warps\n\n## Size\n\nA warp has 32 threads.\n\n## Memory\n\nShared memory is fast.\n"


@pytest.fixture
def library(tmp_path: Path) -> Library:
    opened = open_library(IndexSettings(tmp_path / "home"), embedder=HashEncoder())
    opened.load()
    return opened


@pytest.fixture
def book(library: Library, tmp_path: Path) -> str:
    (tmp_path / "w.md").write_text(BOOK)
    return library.add(tmp_path / "w.md").document.document_id


def only(**values: Any) -> MetadataFilters:
    return MetadataFilters(filters=[MetadataFilter(key=key, value=value) for key, value in values.items()])


# --- our parts for llama-index


def test_documents_are_cut_by_their_headings_and_embedded_as_the_library_embeds() -> None:
    parser = BookNodeParser(HashEncoder().token_starts, limit_tokens=40)
    nodes = parser.get_nodes_from_documents([Document(text=BOOK, id_="book", metadata={"file_name": "w.md"})])
    assert [(node.metadata["section"], node.get_content()) for node in nodes] == [
        ("Size", "A warp has 32 threads."), ("Memory", "Shared memory is fast."),
    ]  # fmt: skip
    assert nodes[0].get_content(MetadataMode.EMBED) == "Size\nA warp has 32 threads."
    assert nodes[0].ref_doc_id == "book"


def test_an_embedding_gives_the_encoders_vectors() -> None:
    embedding = EncoderEmbedding(HashEncoder())
    assert np.allclose(embedding.get_text_embedding_batch(["a warp", "a block"]), hash_embed(["a warp", "a block"]))
    assert np.allclose(embedding.get_query_embedding("a warp"), hash_embed(["a warp"])[0])


def test_a_library_serves_a_vector_store_index(library: Library, book: str) -> None:
    store = LibraryVectorStore(library)
    index = VectorStoreIndex.from_vector_store(store, embed_model=EncoderEmbedding(library.encoder))
    (best,) = index.as_retriever(similarity_top_k=1).retrieve("threads of a warp")
    assert (best.node.metadata["section"], best.node.metadata["document_id"]) == ("Size", book)
    (filtered,) = index.as_retriever(filters=only(chapter=2, document_id=book)).retrieve("threads of a warp")
    assert filtered.node.metadata["section"] == "Memory"
    odd = MetadataFilters(filters=[MetadataFilter(key="chapter", value=2, operator=FilterOperator.GT)])
    with pytest.raises(InvalidInput):
        index.as_retriever(filters=odd).retrieve("warp")
    with pytest.raises(NotFound):
        index.as_retriever(filters=only(document_id="no such book")).retrieve("warp")
    index.delete_ref_doc(book)
    assert library.documents() == ()


def test_a_pipeline_adds_books_with_the_librarys_own_vectors(library: Library, book: str, tmp_path: Path) -> None:
    store = LibraryVectorStore(library)
    parser = BookNodeParser(library.encoder.token_starts)
    pipeline = IngestionPipeline(transformations=[parser, MockEmbedding(1)], vector_store=store)
    notes = Document(text=BOOK.replace("32", "64"), id_="/notes/of mine.md", metadata={"title": "Notes"})
    pipeline.run(documents=[notes])
    (added,) = [one for one in library.documents() if one.title == "Notes"]
    assert (added.nodes, added.source) == (2, "/notes/of mine.md")
    assert library.chapters(added.document_id)[0].title == "Size"
    vectors = library.vectors_of(added.document_id)
    assert np.allclose(vectors[0], hash_embed(["Size\nA warp has 64 threads."])[0])
    store.delete("/notes/of mine.md")
    store.delete("/notes/of mine.md")
    assert [one.document_id for one in library.documents()] == [book]


def test_nodes_added_later_extend_their_book_and_none_is_added_twice(library: Library) -> None:
    store = LibraryVectorStore(library)
    source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id="talk")}
    nodes = [TextNode(text=text, relationships=source) for text in ("Warps diverge here.", "Blocks wait there.")]
    store.add(nodes[:1])
    store.add(nodes)
    store.add(nodes[1:])
    (added,) = library.documents()
    assert [node.text for node in library.nodes_of(added.document_id)] == [node.get_content() for node in nodes]
    assert store.get_nodes([library.nodes_of(added.document_id)[0].node_id])[0].get_content() == "Warps diverge here."


def test_nodes_cannot_spoil_a_book_that_was_read_from_a_file(library: Library, book: str) -> None:
    before = library.nodes_of(book)
    source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=book)}
    with pytest.raises(Conflict):
        LibraryVectorStore(library).add([TextNode(text="Another word.", relationships=source)])
    assert library.nodes_of(book) == before


def test_a_book_of_loose_nodes_survives_a_change_of_the_embedder(library: Library, tmp_path: Path) -> None:
    LibraryVectorStore(library).add([TextNode(text="A loose note on warps.", metadata={"section": "Notes > Loose"})])
    library.close()
    other = open_library(IndexSettings(tmp_path / "home"), embedder=HashEncoder("hash/2"))
    other.reindex()
    assert other.dense("loose note", 1)[0].node.heading_path == ("Notes", "Loose")


def test_a_librarys_books_move_to_another_store_with_their_vectors(library: Library, book: str) -> None:
    other = SimpleVectorStore()
    other.add(LibraryVectorStore(library).embedded_nodes(book))
    query = VectorStoreQuery(query_embedding=hash_embed(["threads of a warp"])[0].tolist(), similarity_top_k=5)
    here, there = LibraryVectorStore(library).query(query), other.query(query)
    assert there.ids == here.ids
    assert there.similarities == pytest.approx(here.similarities, abs=1e-6)
    with pytest.raises(NotFound):
        LibraryVectorStore(library).embedded_nodes("no such book")


# --- llama-index's parts for us


class WordEmbedding(BaseEmbedding):
    """The hash embedder as someone else's embedding, three times too long; it can fail."""

    down: bool = False

    def _get_query_embedding(self, query: str) -> list[float]:
        if self.down:
            raise ConnectionError("no route to the engine")
        return (3 * hash_embed([query])[0]).tolist()

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_query_embedding(text)


class UpperReader(BaseReader):
    """Reads a file in capitals."""

    def load_data(self, path: Path, **_: Any) -> list[Document]:  # type: ignore[override]
        text = path.read_text()
        if "broken" in text:
            raise ValueError("a bad byte")
        return [Document(text=f"# Shouted\n\n{line.upper()}") for line in text.splitlines() if line]


class Shouting(SentenceSplitter):
    """A node parser that changes the text."""

    def _parse_nodes(self, nodes: Sequence[BaseNode], *_: Any, **__: Any) -> list[BaseNode]:
        return [TextNode(text=node.get_content().upper()) for node in nodes]


@pytest.fixture(autouse=True)
def parts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of parts that settings can name."""
    module = ModuleType("parts_of_mine")
    for part in (WordEmbedding, UpperReader, Shouting):
        setattr(module, part.__name__, part)
    module.splitter = SentenceSplitter(chunk_size=20, chunk_overlap=0)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "parts_of_mine", module)
    return module


def test_a_named_embedding_makes_the_vectors(tmp_path: Path) -> None:
    settings = IndexSettings(tmp_path / "home", embedder="llama_index:parts_of_mine:WordEmbedding?model_name=words")
    library = open_library(settings)
    library.load()
    (tmp_path / "w.md").write_text(BOOK)
    document = library.add(tmp_path / "w.md").document
    assert library.encoder.fingerprint == f"llama_index:parts_of_mine:WordEmbedding/words/{DIM}"
    assert np.allclose(library.vectors_of(document.document_id)[0], hash_embed(["Size\nA warp has 32 threads."])[0])
    assert library.dense("threads of a warp", 1)[0].node.heading_path == ("Size",)
    with pytest.raises(EmbedderMismatch):
        open_library(settings, embedder=HashEncoder()).add(tmp_path / "w.md")


def test_a_named_embedding_reports_progress_and_stops_when_asked() -> None:
    encoder = LlamaIndexEncoder(WordEmbedding(embed_batch_size=4), "llama_index:x:y")
    seen: list[tuple[int, int]] = []
    assert encoder.encode(["word"] * 6, progress=lambda *step: seen.append(step)).shape == (6, DIM)
    assert seen == [(4, 6), (6, 6)]
    assert encoder.encode([]).shape == (0, DIM)
    with pytest.raises(Cancelled):
        encoder.encode(["word"], cancelled=lambda: True)
    assert encoder.token_starts(["a warp"]) == [[0, 2]]


def test_a_failing_embedding_is_a_clear_error() -> None:
    with pytest.raises(EmbedderCannotLoad, match="no route to the engine"):
        load_embedding("llama_index:parts_of_mine:WordEmbedding?down=true")


def test_a_named_node_parser_cuts_and_everything_stays_citable(tmp_path: Path) -> None:
    text = "Warps run in step. They diverge at branches. Blocks share memory, and wait at barriers. " * 4
    (tmp_path / "w.md").write_text(f"# Warps\n\n{text}")
    library = open_library(
        IndexSettings(tmp_path / "home", node_parser="llama_index:parts_of_mine:splitter"), embedder=HashEncoder()
    )
    document = library.add(tmp_path / "w.md").document
    (section,) = library.sections_of(document.document_id)
    nodes = library.nodes_of(document.document_id)
    splitter = SentenceSplitter(chunk_size=20, chunk_overlap=0)
    expected = [node.get_content() for node in splitter.get_nodes_from_documents([Document(text=section.text)])]
    assert [node.text for node in nodes] == expected
    assert all(node.text in section.text for node in nodes)
    assert library.add(tmp_path / "w.md").status == "unchanged"
    ours = open_library(IndexSettings(tmp_path / "home"), embedder=HashEncoder())
    assert ours.add(tmp_path / "w.md").status == "updated"


def test_a_parsers_long_node_is_cut_on_and_repeated_text_keeps_its_places() -> None:
    cut = load_cutter("llama_index:llama_index.core.node_parser:SentenceSplitter?chunk_size=1000")
    text = "One two three four. " * 30
    (starts,) = HashEncoder().token_starts([text])
    spans = cut(text, starts, 25, 0)
    assert max(sum(start <= place < end for place in starts) for start, end in spans) <= 25
    assert " ".join(text[start:end] for start, end in spans).split() == text.split()
    short = load_cutter("llama_index:llama_index.core.node_parser:SentenceSplitter?chunk_size=8&chunk_overlap=0")
    places = short(text, starts, 25, 0)
    assert len({start for start, _ in places}) == len(places) == 30


def test_a_parser_that_changes_the_text_is_refused() -> None:
    cut = load_cutter("llama_index:parts_of_mine:Shouting")
    with pytest.raises(InvalidInput, match="changes the text"):
        cut("Small letters.", [0, 6], 25, 0)


def test_a_named_reader_reads_files_of_its_ending(tmp_path: Path) -> None:
    settings = IndexSettings(tmp_path / "home", readers={".txt": "llama_index:parts_of_mine:UpperReader"})
    library = open_library(settings, embedder=HashEncoder())
    (tmp_path / "a.TXT").write_text("quiet words\n")
    document = library.add(tmp_path / "a.TXT").document
    assert document.title == "Shouted"
    assert [node.text for node in library.nodes_of(document.document_id)] == ["QUIET WORDS"]
    assert library.add(tmp_path / "a.TXT").status == "unchanged"
    (tmp_path / "b.md").write_text("ordinary words")
    assert library.nodes_of(library.add(tmp_path / "b.md").document.document_id)[0].text == "ordinary words"
    for content, said in (("broken", "a bad byte"), ("", "no text")):
        (tmp_path / "c.txt").write_text(content)
        with pytest.raises(UnreadableBook, match=said):
            library.add(tmp_path / "c.txt")


def test_a_named_reader_brings_a_new_ending(tmp_path: Path) -> None:
    settings = IndexSettings(tmp_path / "home", readers={".org": "llama_index:parts_of_mine:UpperReader"})
    library = open_library(settings, embedder=HashEncoder())
    for name in ("a.org", "b.md", "c.xyz"):
        (tmp_path / name).write_text("quiet words")
    assert library.find_books(tmp_path) == [tmp_path, tmp_path / "a.org"]
    assert library.find_books(tmp_path / "a.org") == [tmp_path / "a.org"]
    assert ".org" in library.readable_endings().split()
    document = library.add(tmp_path / "a.org", source_name="upload.org").document
    assert [node.text for node in library.nodes_of(document.document_id)] == ["QUIET WORDS"]
    with pytest.raises(UnsupportedFormat):
        library.find_books(tmp_path / "c.xyz")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("llama_index:no_such_module:Part", "No module named"),
        ("llama_index:parts_of_mine:NoSuchPart", "NoSuchPart"),
        ("llama_index:parts_of_mine:WordEmbedding?embed_batch_size=many", "embed_batch_size"),
        ("llama_index:parts_of_mine:splitter", "not a llama-index BaseEmbedding"),
        ("llama_index:parts_of_mine", "does not name a part"),
        ("parts_of_mine:WordEmbedding", "does not name a part"),
    ],
)
def test_a_part_that_cannot_be_used_is_a_clear_error(spec: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        load_part(spec, BaseEmbedding)  # type: ignore[type-abstract]


def test_the_arguments_of_a_part_are_not_shown(tmp_path: Path) -> None:
    spec = "llama_index:parts_of_mine:WordEmbedding?model_name=words&api_key=SECRET"
    library = open_library(IndexSettings(tmp_path / "home", embedder=spec))
    assert library.embedder_name == "llama_index:parts_of_mine:WordEmbedding"
    library.load()
    assert "SECRET" not in library.encoder.fingerprint
    with pytest.raises(InvalidInput) as caught:
        load_part(spec.replace("WordEmbedding", "NoPart"), BaseEmbedding)  # type: ignore[type-abstract]
    assert "SECRET" not in caught.value.message
