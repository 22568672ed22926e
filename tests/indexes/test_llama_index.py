"""The pipeline that takes a book in, and llama-index's parts in place of ours."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from fakes import DIM, HashEncoder, hash_embed
from llama_index.core import Document
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.readers.base import BaseReader
from llama_index.core.schema import BaseNode

from indexes.errors import (
    Cancelled,
    EmbedderCannotLoad,
    EmbedderMismatch,
    InvalidInput,
    UnreadableBook,
    UnsupportedFormat,
)
from indexes.library import open_library
from indexes.llama_index import LlamaIndexEncoder, load_embedding, load_part
from indexes.settings import IndexSettings

BOOK = "# Warps\n\n## Size\n\nA warp has 32 threads.\n\n## Memory\n\nShared memory is fast.\n"


# --- the pipeline that takes a book in


def test_every_book_goes_through_the_pipeline_and_only_new_text_gets_a_vector(tmp_path, monkeypatch):
    ran: list[Sequence[BaseNode]] = []
    run = IngestionPipeline.run
    monkeypatch.setattr(IngestionPipeline, "run", lambda *one, **given: ran.append(run(*one, **given)) or ran[-1])
    library = open_library(IndexSettings(tmp_path / "home"), embedder=HashEncoder())
    for text in (BOOK, BOOK.replace("fast", "small")):
        (tmp_path / "w.md").write_text(text)
        document_id = library.add(tmp_path / "w.md").document.document_id
    assert [[node.embedding is not None for node in nodes] for nodes in ran] == [[True, True], [False, True]]
    assert np.allclose(ran[-1][-1].embedding, hash_embed(["Memory\nShared memory is small."])[0])
    assert [node.get_content() for node in ran[-1]] == [node.text for node in library.nodes_of(document_id)]
    library.reindex()
    assert len(ran) == 3


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


@pytest.fixture(autouse=True)
def parts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of parts that settings can name."""
    module = ModuleType("parts_of_mine")
    for part in (WordEmbedding, UpperReader):
        setattr(module, part.__name__, part)
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


def test_a_reader_of_llama_index_reads_a_format_that_we_lack(tmp_path: Path) -> None:
    file = tmp_path / "limits.json"
    file.write_text(json.dumps({"H100": {"registers": "65536 per SM"}}))
    (tmp_path / "b.md").write_text("ordinary words")
    bare = open_library(IndexSettings(tmp_path / "bare"), embedder=HashEncoder())
    for refuse in (bare.add, bare.find_books):
        with pytest.raises(UnsupportedFormat):
            refuse(file)
    readers = {".json": "llama_index:llama_index.core.readers.json:JSONReader?levels_back=0"}
    library = open_library(IndexSettings(tmp_path / "home", readers=readers), embedder=HashEncoder())
    assert library.find_books(tmp_path) == [tmp_path, file]
    assert ".json" in library.readable_endings().split()
    document = library.add(file, source_name="upload.json").document
    assert "H100 registers 65536 per SM" in library.nodes_of(document.document_id)[0].text


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("llama_index:no_such_module:Part", "No module named"),
        ("llama_index:parts_of_mine:NoSuchPart", "NoSuchPart"),
        ("llama_index:parts_of_mine:WordEmbedding?embed_batch_size=many", "embed_batch_size"),
        ("llama_index:parts_of_mine:UpperReader", "not a llama-index BaseEmbedding"),
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
