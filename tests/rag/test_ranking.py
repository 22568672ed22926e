"""Laws of ranking: fusion, closeness of wording, the hybrid retriever and the reranker's seam."""

from __future__ import annotations

import pytest
from fakes import FakeLibrary, make_node
from llama_index.core.schema import QueryBundle

from indexes.types import Filters, Hit
from rag.explanation import explain
from rag.retrieval.closeness import closeness
from rag.retrieval.fusion import reciprocal_rank_fusion
from rag.retrieval.hybrid import HybridRetriever, fuse, named_titles
from rag.retrieval.reranker import CrossEncoderReranker
from rag.settings import RetrievalSettings

NODES = [
    make_node("A warp is a group of 32 threads.", 0, page_marks=((0, 1),), page_labels=("1",)),
    make_node("Shared memory has 32 banks; a bank conflict serialises.", 1, page_marks=((0, 2),), page_labels=("2",)),
    make_node("Streams order commands.", 2, chapter=2, heading_path=("Streams",), page_marks=((0, 3),)),
    make_node("Bananas are yellow.", 0, document_id="fruit", title="Fruit"),
]
LIBRARY = FakeLibrary(NODES)
RETRIEVER = HybridRetriever(LIBRARY, RetrievalSettings(candidates=10))


def hits(*ordinals: int) -> list[Hit]:
    return [Hit(NODES[ordinal], 1.0) for ordinal in ordinals]


def test_fusion_by_hand() -> None:
    fused = reciprocal_rank_fusion([hits(0, 1), hits(1, 2)], [1.0, 2.0], constant=10)
    scores = {hit.node.node_id: hit.score for hit in fused}
    assert scores == pytest.approx({"book-0": 1 / 11, "book-1": 1 / 12 + 2 / 11, "book-2": 2 / 12})
    assert [hit.node.ordinal for hit in fused] == [1, 2, 0]


def test_fusion_refuses_a_weight_too_few() -> None:
    with pytest.raises(ValueError, match="1 weights for 2"):
        reciprocal_rank_fusion([hits(0), hits(1)], [1.0])


def test_wording_that_stands_together_is_closer_than_wording_far_apart() -> None:
    apart = "warp " + "filler " * 60 + "divergence"
    together, far, none = closeness("warp divergence", ["warp divergence costs time", apart, "bananas"])
    assert together > far > none == 0.0


def test_closeness_finds_other_forms_of_a_word_but_not_its_inside() -> None:
    assert closeness("synchronize", ["It synchronizes all", "desynchronize"])[1] == 0.0
    assert closeness("synchronize", ["It synchronizes all", "x"])[0] == 1.0


def test_scores_fall_and_stay_between_0_and_1() -> None:
    ranked = fuse("warp threads", hits(0, 1, 2), hits(1, 0, 3))
    scores = [hit.score for hit in ranked]
    assert scores == sorted(scores, reverse=True)
    assert all(0.0 <= score <= 1.0 for score in scores)
    assert len(ranked) == 4


TITLES = ("Numba Guide", "HIP Guide", "The OpenCL Guide", "Warps and Waves")


@pytest.mark.parametrize(
    ("question", "named"),
    [
        ("How are errors checked in HIP?", {"HIP Guide"}),
        ("Numba declare memory", {"Numba Guide"}),
        ("The kernel fails. What does a Guide say?", set()),
        ("What is a warp?", set()),
    ],
)
def test_a_book_is_named_by_a_name_that_few_titles_hold(question: str, named: set[str]) -> None:
    assert named_titles(question, TITLES) == named


def test_of_two_like_nodes_that_of_the_named_book_comes_first() -> None:
    nodes = [
        make_node("Shared memory is declared so.", i, title=title, document_id=title) for i, title in enumerate(TITLES)
    ]
    ranked = fuse("How is shared memory declared in OpenCL?", [Hit(node, 0.5) for node in nodes], [])
    assert ranked[0].node.title == "The OpenCL Guide"


def test_the_right_node_comes_first_and_filters_hold() -> None:
    assert RETRIEVER.search("What is a warp?", Filters()).hits[0].node.ordinal == 0
    found = RETRIEVER.search("What is a warp?", Filters(document_ids=("fruit",))).hits
    assert {hit.node.document_id for hit in found} == {"fruit"}


def test_it_is_a_llama_index_retriever() -> None:
    found = RETRIEVER.retrieve("bank conflict")
    assert found[0].node.node_id == "book-1"
    assert found[0].node.metadata["section"] == "Chapter > Section"


class WordCountEncoder:
    """Stands for a cross-encoder: the more often the text says 'bank', the better."""

    def predict(self, pairs, show_progress_bar):
        return [text.lower().count("bank") - 0.5 for _, text in pairs]


def test_a_reranker_reorders_its_depth_and_keeps_the_rest_behind() -> None:
    reranker = CrossEncoderReranker(model="none", depth=2)
    reranker._encoder = WordCountEncoder()
    ranked = reranker.rerank("q", hits(0, 1, 2, 3))
    assert [hit.node.node_id for hit in ranked] == ["book-1", "book-0", "book-2", "fruit-0"]
    scores = [hit.score for hit in ranked]
    assert scores == sorted(scores, reverse=True)
    assert reranker.postprocess_nodes([], QueryBundle("q")) == []


def test_logits_keep_their_order_beside_values_that_look_like_probabilities() -> None:
    class Logits:
        def predict(self, pairs, show_progress_bar):
            return [0.9, 1.2, -3.0]

    reranker = CrossEncoderReranker(model="none")
    reranker._encoder = Logits()
    scores = reranker.scores("q", ["a", "b", "c"])
    assert scores[1] > scores[0] > scores[2]


def test_an_explanation_gives_the_ranks_of_a_page() -> None:
    retrieval = RETRIEVER.search("What is a bank conflict?", Filters())
    explanation = explain(retrieval, LIBRARY, "book", page=2)
    (node,) = explanation.nodes
    assert (node.node_id, node.dense_rank, node.lexical_rank, node.fused_rank) == ("book-1", 1, 1, 1)
    assert "bank" in node.shared
