"""One suite for whatever searches a library's vectors, against brute force; then what FAISS alone must do."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from fakes import HashEncoder, qdrant_store
from llama_index.core.vector_stores.simple import SimpleVectorStore

from indexes.catalog import open_catalog
from indexes.embedder import Matrix
from indexes.errors import IndexCorrupt, InvalidInput
from indexes.library import Library, open_library
from indexes.settings import IndexSettings
from indexes.types import Filters
from indexes.vectors import VectorIndex, build_inverted, load_index

DIMENSION = 16


def unit(rng: np.random.Generator, count: int) -> np.ndarray:
    vectors = rng.standard_normal((count, DIMENSION)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


class ScatteredEncoder(HashEncoder):
    """Random unit vectors, one for each text: no two scores are equal, so every ranking has one right order."""

    def __init__(self) -> None:
        super().__init__("scattered/1")
        self.dimension = DIMENSION

    def encode(self, texts: Sequence[str], **_: object) -> Matrix:
        return self.encode_queries(texts)

    def encode_queries(self, texts: Sequence[str]) -> Matrix:
        seeds = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") for text in texts]
        return np.concatenate(
            [np.zeros((0, DIMENSION), np.float32), *(unit(np.random.default_rng(s), 1) for s in seeds)]
        )


@pytest.fixture(params=["faiss", "postgres", "SimpleVectorStore", "Qdrant"])
def library(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    """Libraries over FAISS, in PostgreSQL, over llama-index's own store, and over Qdrant with its data in a folder."""
    module = ModuleType("stores_of_mine")
    store = qdrant_store(tmp_path) if request.param == "Qdrant" else SimpleVectorStore()
    module.store = store  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "stores_of_mine", module)
    name = "faiss" if request.param in ("faiss", "postgres") else "llama_index:stores_of_mine:store"
    url = None
    if request.param == "postgres":  # by the graph, however few they are
        monkeypatch.setattr("indexes.pgvector.EXACT_LIMIT", -1)
        url = f"{request.getfixturevalue('database_url')}%20-cenable_seqscan%3Doff"
    settings = IndexSettings(tmp_path / "home", vector_store=name, database_url=url)
    if url is not None:
        with closing(open_catalog(settings.catalog_path, create=True, database_url=url)) as catalog:
            assert catalog.build_graph(DIMENSION)
    opened = open_library(settings, embedder=ScatteredEncoder())
    opened.load()
    yield opened
    opened.close()
    if request.param == "Qdrant":
        store.client.close()


def write_book(folder: Path, name: str, edition: int = 0) -> Path:
    """A book of three chapters with five nodes each."""
    chapters = [
        f"# Chapter {chapter}\n\n"
        + "\n\n".join(f"## Part {part}\n\nText {name} {edition} {chapter} {part}." for part in range(5))
        for chapter in range(1, 4)
    ]
    path = folder / f"{name}.md"
    path.write_text("\n\n".join(chapters))
    return path


def brute_force(library: Library, query: np.ndarray, top_k: int, filters: Filters | None = None) -> list[str]:
    """The oracle: every vector of the catalog compared, filters applied in plain Python."""
    books, chapters = (filters.document_ids, filters.chapters) if filters else ((), ())
    scored: list[tuple[float, str]] = []
    for document in library.documents():
        vectors = library.vectors_of(document.document_id)
        for node, vector in zip(library.nodes_of(document.document_id), vectors, strict=True):
            in_chapter = {node.chapter, f"Chapter {node.chapter}"} & set(chapters) or not chapters
            if in_chapter and (not books or node.document_id in books):
                scored.append((-float(vector @ query), node.node_id))
    return [node_id for _, node_id in sorted(scored)[:top_k]]


def found(library: Library, query: np.ndarray, top_k: int, filters: Filters | None = None) -> list[str]:
    return [hit.node.node_id for hit in library.dense_by_vector(query, top_k, filters)]


QUERIES = unit(np.random.default_rng(99), 10)


def test_what_brute_force_finds_is_found_with_cosines_as_scores(library: Library, tmp_path: Path) -> None:
    assert found(library, QUERIES[0], 5) == []
    vectors = {}
    for name in ("a", "b"):
        book = library.add(write_book(tmp_path, name)).document.document_id
        nodes = (node.node_id for node in library.nodes_of(book))
        vectors |= dict(zip(nodes, library.vectors_of(book), strict=True))
    for top_k in (1, 7, 1000):
        assert all(found(library, query, top_k) == brute_force(library, query, top_k) for query in QUERIES)
    hits = library.dense_by_vector(QUERIES[0], 50)
    assert np.allclose([hit.score for hit in hits], [vectors[hit.node.node_id] @ QUERIES[0] for hit in hits], atol=1e-5)


def test_filters_are_applied_before_ranking(library: Library, tmp_path: Path) -> None:
    books = [library.add(write_book(tmp_path, name)).document.document_id for name in ("a", "b", "c")]
    for filters in (
        Filters(document_ids=(books[1],)),
        Filters(document_ids=(books[0], books[2])),
        Filters(chapters=(2,)),
        Filters(chapters=("Chapter 3", 1)),
        Filters(document_ids=(books[2],), chapters=(1,)),
    ):
        right = brute_force(library, QUERIES[0], 4, filters)
        assert len(right) == 4
        assert found(library, QUERIES[0], 4, filters) == right


def test_random_changes_never_part_the_store_from_the_oracle(library: Library, tmp_path: Path) -> None:
    rng = random.Random(3)
    for step in range(12):
        held = [document.document_id for document in library.documents()]
        if rng.random() < 0.6 or not held:
            library.add(write_book(tmp_path, rng.choice("abcd"), edition=step))
        else:
            library.remove(rng.choice(held))
        query = QUERIES[step % len(QUERIES)]
        assert found(library, query, 15) == brute_force(library, query, 15)


# --- above the limit of exact search


def clustered(count: int) -> np.ndarray:
    """Vectors in clusters, as those of texts are; random ones defeat every approximate index."""
    rng = np.random.default_rng(4)
    centres = unit(rng, 60)
    vectors = centres[rng.integers(0, 60, count)] + 0.15 * rng.standard_normal((count, DIMENSION)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_inverted_lists_find_what_the_exact_index_finds() -> None:
    vectors = clustered(8_000)
    ids_ = np.arange(8_000, dtype=np.int64) * 3 + 7
    flat, lists = VectorIndex(DIMENSION), build_inverted(ids_, vectors)
    flat.add(ids_, vectors)
    assert (flat.kind, lists.kind, len(lists)) == ("flat", "ivf", 8_000)
    probes = clustered(100)[::-1] + 0.05
    recall = [np.isin(flat.search(one, 10)[0], lists.search(one, 10)[0]).mean() for one in probes]
    assert np.mean(recall) >= 0.95


def test_inverted_lists_can_be_changed_filtered_and_saved(tmp_path: Path) -> None:
    vectors = clustered(4_000)
    index = build_inverted(np.arange(4_000), vectors)
    assert index.remove_range(0, 999) == 1_000
    index.add(np.arange(9_000, 9_010), vectors[:10])
    assert index.search(vectors[3], 1)[0].tolist() == [9_003]
    allowed = np.array([1_500, 2_500, 3_500])
    assert sorted(index.search(vectors[3], 10, allowed)[0].tolist()) == allowed.tolist()
    index.save(tmp_path / "v.faiss")
    again = load_index(tmp_path / "v.faiss", DIMENSION)
    assert (again.kind, len(again)) == ("ivf", 3_010)
    assert again.search(vectors[3], 5)[0].tolist() == index.search(vectors[3], 5)[0].tolist()


# --- what FAISS does not check


def index_of(count: int = 20) -> VectorIndex:
    index = VectorIndex(DIMENSION)
    index.add(np.arange(count), unit(np.random.default_rng(1), count))
    return index


@pytest.mark.parametrize(
    ("vector", "said"),
    [(np.ones(size), "dimension") for size in (0, DIMENSION - 1, DIMENSION + 1)]
    + [(np.full(DIMENSION, value), "NaN") for value in (np.nan, np.inf)],
)
def test_a_vector_of_another_dimension_or_without_numbers_is_refused(vector: np.ndarray, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        index_of().search(vector.astype(np.float32), 3)
    if said == "dimension":
        with pytest.raises(InvalidInput, match=said):
            index_of().add(np.arange(1), vector[np.newaxis].astype(np.float32))


def test_asking_for_more_than_there_is_gives_what_there_is() -> None:
    for top_k, allowed, there in ((100, None, [0, 1, 2, 3, 4]), (3, [], []), (3, [77, 2], [2])):
        ids = None if allowed is None else np.array(allowed, dtype=np.int64)
        found, scores = index_of(5).search(np.ones(DIMENSION), top_k, ids)
        assert (sorted(found.tolist()), len(scores)) == (there, len(there))


def test_a_file_cut_short_or_of_another_dimension_is_a_clear_error(tmp_path: Path) -> None:
    index_of().save(tmp_path / "whole")
    whole = (tmp_path / "whole").read_bytes()
    for content, dimension in ((whole[:-50], DIMENSION), (b"nonsense", DIMENSION), (whole, DIMENSION * 2)):
        (tmp_path / "v.faiss").write_bytes(content)
        with pytest.raises(IndexCorrupt):
            load_index(tmp_path / "v.faiss", dimension)
    assert len(load_index(tmp_path / "whole", DIMENSION)) == 20
