"""What holds for every vector store, checked against brute force."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.simple import SimpleVectorStore
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
)

from indexes.errors import IndexCorrupt, IndexMissing, InvalidInput
from indexes.vector_store import FaissVectorStore
from indexes.vectors import VectorIndex, build_inverted, load_index

DIMENSION = 16


def unit(rng: np.random.Generator, count: int) -> np.ndarray:
    vectors = rng.standard_normal((count, DIMENSION)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def nodes(count: int, seed: int = 0) -> list[TextNode]:
    vectors = unit(np.random.default_rng(seed), count)
    return [
        TextNode(
            id_=f"n{number}",
            text=f"text {number}",
            embedding=vectors[number].tolist(),
            metadata={"chapter": number % 5},
            relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=f"book-{number % 3}")},
        )
        for number in range(count)
    ]


def brute_force(stored: list[TextNode], query: list[float], top_k: int) -> list[str]:
    scores = [(-float(np.dot(node.embedding or [], query)), node.node_id) for node in stored]
    return [node_id for _, node_id in sorted(scores)[:top_k]]


def milvus(folder: Path, *, fresh: bool = True) -> BasePydanticVectorStore:
    """Milvus in one process, spoken to as a cluster is: over gRPC, by its own client."""
    module = pytest.importorskip("llama_index.vector_stores.milvus", reason="the extra `milvus` is not installed")
    store: BasePydanticVectorStore = module.MilvusVectorStore(
        uri=str(folder / "milvus.db"),
        dim=DIMENSION,
        overwrite=fresh,
        similarity_metric="COSINE",
        upsert_mode=True,
        consistency_level="Strong",
    )
    return store


@pytest.fixture(
    params=[
        "faiss",
        "simple",
        pytest.param("milvus", marks=[pytest.mark.integration, pytest.mark.filterwarnings("ignore")]),
    ]
)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> BasePydanticVectorStore:
    """Ours; llama-index's own, as a check of the suite itself; and an engine of its own."""
    if request.param == "milvus":
        return milvus(tmp_path)
    return FaissVectorStore() if request.param == "faiss" else SimpleVectorStore()


def ids(store: BasePydanticVectorStore, query: list[float], top_k: int = 10, **fields: object) -> list[str]:
    return list(store.query(VectorStoreQuery(query_embedding=query, similarity_top_k=top_k, **fields)).ids or [])


QUERIES = unit(np.random.default_rng(99), 20).tolist()


@pytest.mark.parametrize("top_k", [1, 7, 60, 1000])
def test_finds_what_brute_force_finds(store: BasePydanticVectorStore, top_k: int) -> None:
    stored = nodes(60)
    store.add(stored)
    assert all(ids(store, query, top_k) == brute_force(stored, query, top_k) for query in QUERIES)


def test_scores_are_cosines_and_fall(store: BasePydanticVectorStore) -> None:
    stored = nodes(60)
    store.add(stored)
    result = store.query(VectorStoreQuery(query_embedding=QUERIES[0], similarity_top_k=60))
    by_id = {node.node_id: np.dot(node.embedding or [], QUERIES[0]) for node in stored}
    assert result.similarities == sorted(result.similarities or [], reverse=True)
    assert np.allclose(result.similarities, [by_id[node_id] for node_id in result.ids or []], atol=1e-5)


def test_an_empty_store_finds_nothing(store: BasePydanticVectorStore) -> None:
    assert ids(store, QUERIES[0]) == []


def test_deleted_documents_are_never_found(store: BasePydanticVectorStore) -> None:
    stored = nodes(60)
    store.add(stored)
    store.delete("book-1")
    rest = [node for node in stored if node.ref_doc_id != "book-1"]
    assert all(ids(store, query, 60) == brute_force(rest, query, 60) for query in QUERIES)
    store.delete("no such book")


def test_deleted_nodes_are_never_found(store: BasePydanticVectorStore) -> None:
    stored = nodes(30)
    store.add(stored)
    store.delete_nodes(["n3", "n4", "not there"])
    rest = [node for node in stored if node.node_id not in ("n3", "n4")]
    assert ids(store, QUERIES[0], 60) == brute_force(rest, QUERIES[0], 60)


def test_a_node_added_again_takes_the_place_of_the_old(store: BasePydanticVectorStore) -> None:
    store.add(nodes(30))
    store.add(nodes(10, seed=5))
    now = [*nodes(10, seed=5), *nodes(30)[10:]]
    assert all(ids(store, query, 60) == brute_force(now, query, 60) for query in QUERIES)


def test_filters_are_applied_before_ranking(store: BasePydanticVectorStore) -> None:
    stored = nodes(60)
    store.add(stored)
    for operator, value, passes in (
        (FilterOperator.EQ, 2, lambda chapter: chapter == 2),
        (FilterOperator.IN, [0, 4], lambda chapter: chapter in (0, 4)),
        (FilterOperator.GT, 1, lambda chapter: chapter > 1),
    ):
        filters = MetadataFilters(filters=[MetadataFilter(key="chapter", value=value, operator=operator)])
        rest = [node for node in stored if passes(node.metadata["chapter"])]
        assert ids(store, QUERIES[0], 8, filters=filters) == brute_force(rest, QUERIES[0], 8)


def test_documents_restrict() -> None:
    stored = nodes(60)
    store = FaissVectorStore()
    store.add(stored)
    rest = [node for node in stored if node.ref_doc_id == "book-2"]
    assert ids(store, QUERIES[0], 60, doc_ids=["book-2"]) == brute_force(rest, QUERIES[0], 60)


def test_node_ids_restrict(store: BasePydanticVectorStore) -> None:
    stored = nodes(60)
    store.add(stored)
    assert ids(store, QUERIES[0], 60, node_ids=["n5", "n1"]) == brute_force([stored[1], stored[5]], QUERIES[0], 60)


def test_random_changes_never_part_the_store_from_the_oracle(store: BasePydanticVectorStore) -> None:
    rng = random.Random(3)
    held: dict[str, TextNode] = {}
    for step in range(40):
        if rng.random() < 0.6 or not held:
            batch = rng.sample(nodes(40, seed=step), rng.randint(1, 12))
            store.add(batch)
            held.update({node.node_id: node for node in batch})
        else:
            book = f"book-{rng.randint(0, 2)}"
            store.delete(book)
            held = {name: node for name, node in held.items() if node.ref_doc_id != book}
        query = QUERIES[step % len(QUERIES)]
        assert ids(store, query, 15) == brute_force(list(held.values()), query, 15)


def test_several_filters_hold_together(store: BasePydanticVectorStore) -> None:
    stored = nodes(60)
    store.add(stored)
    both = MetadataFilters(
        filters=[
            MetadataFilter(key="chapter", value=1, operator=FilterOperator.GTE),
            MetadataFilter(key="chapter", value=2, operator=FilterOperator.LTE),
        ]
    )
    rest = [node for node in stored if node.metadata["chapter"] in (1, 2)]
    assert ids(store, QUERIES[0], 60, filters=both) == brute_force(rest, QUERIES[0], 60)


def test_nodes_come_back_whole(store: BasePydanticVectorStore) -> None:
    store.add(nodes(5))
    (found,) = store.query(VectorStoreQuery(query_embedding=nodes(5)[3].embedding, similarity_top_k=1)).nodes or [None]
    if isinstance(store, SimpleVectorStore):
        return  # it keeps no text; an index's docstore does
    assert found is not None
    assert (found.node_id, found.get_content(), found.metadata["chapter"]) == ("n3", "text 3", 3)
    assert found.ref_doc_id == "book-0"


def test_a_saved_store_goes_on_where_it_was(tmp_path: Path) -> None:
    stored = nodes(30)
    store = FaissVectorStore()
    store.add(stored)
    store.delete("book-1")
    store.persist(str(tmp_path / "deep" / "store.json"))
    again = FaissVectorStore.from_persist_path(str(tmp_path / "deep" / "store.json"))
    rest = [node for node in stored if node.ref_doc_id != "book-1"]
    assert all(ids(again, query, 60) == brute_force(rest, query, 60) for query in QUERIES)
    again.add(nodes(5, seed=7))
    now = [*nodes(5, seed=7), *(node for node in rest if int(node.node_id[1:]) >= 5)]
    assert ids(again, QUERIES[0], 60) == brute_force(now, QUERIES[0], 60)


def test_an_empty_store_can_be_saved(tmp_path: Path) -> None:
    FaissVectorStore().persist(str(tmp_path / "store.json"))
    assert ids(FaissVectorStore.from_persist_path(str(tmp_path / "store.json")), QUERIES[0]) == []


def test_a_damaged_save_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "store.json"
    with pytest.raises(IndexMissing):
        FaissVectorStore.from_persist_path(str(path))
    store = FaissVectorStore()
    store.add(nodes(10))
    store.persist(str(path))
    whole = path.read_text()
    for broken in (whole[:-20], "{}", "[]", whole.replace('"nodes": [[', '"nodes": [], "x": [[')):
        path.write_text(broken)
        with pytest.raises(IndexCorrupt):
            FaissVectorStore.from_persist_path(str(path))


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore")
def test_another_engine_keeps_what_it_was_given(tmp_path: Path) -> None:
    stored = nodes(30)
    store = milvus(tmp_path)
    store.add(stored)
    store.client.close()
    again = milvus(tmp_path, fresh=False)
    assert ids(again, QUERIES[0], 60) == brute_force(stored, QUERIES[0], 60)


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


@pytest.mark.parametrize("shape", [(DIMENSION + 1,), (DIMENSION - 1,), (0,)])
def test_a_query_of_another_dimension_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput, match="dimension"):
        index_of().search(np.ones(shape, np.float32), 3)
    with pytest.raises(InvalidInput, match="dimension"):
        index_of().add(np.arange(1), np.ones((1, *shape), np.float32))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_no_numbers_are_refused(value: float) -> None:
    query = np.ones(DIMENSION, np.float32)
    query[3] = value
    with pytest.raises(InvalidInput, match="no numbers"):
        index_of().search(query, 3)


def test_asking_for_more_than_there_is_gives_what_there_is() -> None:
    found, scores = index_of(5).search(np.ones(DIMENSION), 100)
    assert sorted(found.tolist()) == [0, 1, 2, 3, 4]
    assert len(scores) == 5
    assert index_of(5).search(np.ones(DIMENSION), 3, np.array([], dtype=np.int64))[0].tolist() == []
    assert index_of(5).search(np.ones(DIMENSION), 3, np.array([77, 2]))[0].tolist() == [2]


def test_a_file_cut_short_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "v.faiss"
    index_of().save(path)
    assert len(load_index(path, DIMENSION)) == 20
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(IndexCorrupt):
        load_index(path, DIMENSION)
    path.write_bytes(b"nonsense")
    with pytest.raises(IndexCorrupt):
        load_index(path, DIMENSION)


def test_a_file_of_another_dimension_is_a_clear_error(tmp_path: Path) -> None:
    index_of().save(tmp_path / "v.faiss")
    with pytest.raises(IndexCorrupt):
        load_index(tmp_path / "v.faiss", DIMENSION * 2)
