"""Laws of ranking: fusion, the hybrid retriever and the reranker's seam."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from fakes import FakeLibrary, make_node

from indexes.types import Filters, Hit
from rag.explanation import explain
from rag.retrieval import (
    CrossEncoderReranker,
    HybridRetriever,
    fuse,
    in_change_log,
    prepare_query,
    proximity,
    rescore,
)
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
    """RRF_CONSTANT is 10; a node first in both rankings would have 2 / 11, which is scaled to 1."""
    fused = fuse(hits(0, 1), hits(1, 2))
    scores = {hit.node.node_id: hit.score for hit in fused}
    assert scores == pytest.approx({"book-0": 1 / 2, "book-1": 11 / 24 + 1 / 2, "book-2": 11 / 24})
    assert [hit.node.ordinal for hit in fused] == [1, 0, 2]


def test_terms_that_stand_together_count_more_than_far_apart() -> None:
    apart = "warp " + "filler " * 60 + "divergence"
    together, far, none = proximity("warp divergence", ["warp divergence costs time", apart, "bananas"])
    assert together > far > none == 0.0


def test_proximity_finds_other_forms_of_a_word_but_not_its_inside() -> None:
    assert proximity("synchronize", ["It synchronizes all", "desynchronize"]) == [1.0, 0.0]


def test_a_node_whose_terms_are_close_together_moves_up() -> None:
    together = make_node("In a warp divergence costs time.", 1)
    fused = [Hit(make_node("A warp. " + "Filler. " * 60 + "Divergence.", 0), 0.9), Hit(together, 0.88)]
    ranked = rescore("warp divergence", fused)
    assert ranked[0].node == together
    assert all(0.0 <= hit.score <= 1.0 for hit in ranked)


def test_of_two_equal_hits_the_longer_node_comes_first() -> None:
    short, long = make_node("A warp.", 0), make_node("A warp. " + "It runs. " * 60, 1)
    assert [hit.node for hit in rescore("warp", [Hit(short, 0.5), Hit(long, 0.5)])] == [long, short]


def test_scores_fall_and_stay_between_0_and_1() -> None:
    ranked = fuse(hits(0, 1, 2), hits(1, 0, 3))
    scores = [hit.score for hit in ranked]
    assert scores == sorted(scores, reverse=True)
    assert all(0.0 <= score <= 1.0 for score in scores)
    assert len(ranked) == 4


def test_the_right_node_comes_first_and_filters_hold() -> None:
    assert RETRIEVER.search("What is a warp?", Filters()).hits[0].node.ordinal == 0
    found = RETRIEVER.search("What is a warp?", Filters(document_ids=("fruit",))).hits
    assert {hit.node.document_id for hit in found} == {"fruit"}


class WordCountEncoder:
    """Stands for a cross-encoder: the more often the text says 'bank', the better."""

    def predict(self, pairs, show_progress_bar):
        return [text.lower().count("bank") - 0.5 for _, text in pairs]


def test_what_changed_between_versions_answers_only_who_asks_for_it() -> None:
    changed = make_node("Kernels: kernels that transform are now called transformations.", 0, heading_path=("Changes",))
    told = make_node("A transformation is called by the kernel for each value that it loads.", 1)
    retriever = HybridRetriever(FakeLibrary([changed, told]), RetrievalSettings(candidates=10))
    ask = [node.node.ordinal for node in retriever.search("transformations kernels called", Filters()).hits]
    assert ask == [1, 0]
    asked = retriever.search("which kernels are now called transformations since version 2", Filters()).hits
    assert asked[0].node.ordinal == 0


@pytest.mark.parametrize(
    ("heading", "is_one"),
    [
        ("Changelog", True),
        ("Change log for 2.1", True),
        ("User-visible Changes", True),
        ("Changes in version 3.0", True),
        ("Release history", True),
        ("Changes of clock frequency", False),
        ("State changes", False),
        ("Versions of the occupancy calculator", False),
    ],
)
def test_a_change_log_is_known_by_a_heading_over_it(heading: str, is_one: bool) -> None:
    assert in_change_log(make_node("Any text.", 0, heading_path=("Misc", heading, "0.7"))) is is_one


def test_a_reranker_reorders_its_depth_and_keeps_the_rest_behind() -> None:
    reranker = CrossEncoderReranker(model="none", depth=2)
    reranker._encoder = WordCountEncoder()
    ranked = reranker.rerank("q", hits(0, 1, 2, 3))
    assert [hit.node.node_id for hit in ranked] == ["book-1", "book-0", "book-2", "fruit-0"]
    scores = [hit.score for hit in ranked]
    assert scores == sorted(scores, reverse=True)
    assert reranker.rerank("q", []) == []


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


@pytest.mark.integration
def test_another_process_gives_the_same_scores_to_the_last_digit(capsys: pytest.CaptureFixture[str]) -> None:
    """Sets are in another order in every process, and sums of floats depend on theirs."""
    code = (
        "from indexes.words import TermWeights\nfrom rag.retrieval import proximity\n"
        "words = [f'term{chr(97 + n)}{n}' for n in range(26)]\n"
        "texts = [' '.join(words[n % 7 :: 1 + n % 5]) for n in range(30)]\n"
        "weights = TermWeights([frozenset(text.split()) for text in texts])\n"
        "print(proximity(' '.join(words[:12]), texts), weights.share(frozenset(words), frozenset(words[3:20])))\n"
    )
    seeds = [os.environ | {"PYTHONHASHSEED": seed} for seed in ("1", "2")]
    printed = {subprocess.check_output([sys.executable, "-c", code], env=seed, text=True) for seed in seeds}
    exec(code, {})  # this process has a seed of its own
    assert printed == {capsys.readouterr().out}


def test_where_code_is_asked_for_the_node_with_its_listing_comes_first() -> None:
    prose = make_node("A reduction kernel adds; kernels of a reduction are shown, a reduction kernel.", 0)
    other = make_node("A kernel:\n\n```cuda\n__global__ void scan(int* x) {}\n```", 1)
    listing = make_node("It follows:\n\n```cuda\n__global__ void reduceTree(float* x) {}\n```", 2)
    retriever = HybridRetriever(FakeLibrary([prose, other, listing]), RetrievalSettings(candidates=10))
    assert retriever.search("Show me a reduction kernel", Filters()).hits[0].node == listing
    assert retriever.search("What is a reduction kernel?", Filters()).hits[0].node == prose


def test_the_best_definition_and_the_best_number_are_among_the_first_three() -> None:
    near = [make_node(f"Threads of a block, block threads {i}.", i) for i in range(6)]
    number = make_node("Launches begin here. Each block may have at most 1024 threads, whatever else is true.", 6)
    definition = make_node("Long ago nobody had one. A block is a group of threads that share memory and wait.", 7)
    retriever = HybridRetriever(FakeLibrary([*near, number, definition]), RetrievalSettings(candidates=4))
    for question, node in (("How many threads can a block have?", number), ("What is a block?", definition)):
        assert node in [hit.node for hit in retriever.search(question, Filters()).hits[:3]]


def test_a_definition_or_a_difference_asked_for_in_chinese_is_known_as_one() -> None:
    assert prepare_query("什么是占用率?").english == prepare_query("占用率是什么？").english == "what is occupancy"
    assert prepare_query("CPU和GPU的区别是什么？").english == "difference between CPU GPU"
