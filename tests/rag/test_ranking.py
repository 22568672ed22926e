"""Laws of ranking: fusion, the hybrid retriever, forms of listings and definitions, the reranker, explanations."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest
from fakes import make_node, section

from indexes.library import Library
from indexes.types import Filters, Hit
from rag.explanation import explain
from rag.forms import Listing, definition_share, rank_listings
from rag.query import understand
from rag.retrieval import CrossEncoderReranker, HybridRetriever, Retrieval, fuse
from rag.settings import RetrievalSettings

NODES = [make_node(text, place) for place, text in enumerate(("A warp.", "A bank of banks.", "A stream.", "A bank."))]
Search = Callable[..., Retrieval]


def hits(*ordinals: int) -> list[Hit]:
    return [Hit(NODES[ordinal], 1.0) for ordinal in ordinals]


def ordinals(ranked: Sequence[Hit]) -> list[int]:
    return [hit.node.ordinal for hit in ranked]


@pytest.fixture(scope="module")
def library(library_of: Callable[..., Library]) -> Library:
    """More nodes than a search takes: what is found by its form has to come from beyond."""
    return library_of(
        section("A warp is a group of 32 threads.", page=1),
        section("Shared memory has 32 banks; a bank conflict serialises.", page=2),
        section("A reduction kernel adds; kernels of a reduction are shown, a reduction kernel."),
        section("A kernel:\n\n```cuda\n__global__ void scan(int* x) {}\n```"),
        section("It follows:\n\n```cuda\n__global__ void reduceTree(float* x) {}\n```"),
        *(section(f"Threads of a block, block threads {number}.") for number in range(6)),
        section("Long ago nobody had one. A block is a group of threads that share memory and wait for all."),
        fruit=[section("Bananas are yellow, and no warp.")],
    )


@pytest.fixture(scope="module")
def search(library: Library) -> Search:
    def found(question: str, filters: Filters | None = None, candidates: int = 6, **how: str) -> Retrieval:
        retriever = HybridRetriever(library, RetrievalSettings(candidates=candidates))
        return retriever.search(understand(question, library, filters), **how)  # type: ignore[arg-type]

    return found


def test_fusion_by_hand() -> None:
    """RRF_CONSTANT is 10; a node first in both rankings would have 2 / 11, which is scaled to 1."""
    fused = fuse(hits(0, 1), hits(1, 2))
    assert [hit.score for hit in fused] == pytest.approx([11 / 24 + 1 / 2, 1 / 2, 11 / 24])
    assert ordinals(fused) == [1, 0, 2]


def test_the_right_node_comes_first_and_filters_hold(search: Search) -> None:
    found = search("What is a warp?")
    assert ordinals(found.hits)[0] == 0
    scores = [hit.score for hit in found.hits]
    assert scores == sorted(scores, reverse=True) and all(0.0 <= score <= 1.0 for score in scores)
    fruit = search("What is a warp?", Filters(document_ids=("fruit",))).hits
    assert {hit.node.document_id for hit in fruit} == {"fruit"}
    assert search("What is a warp?", Filters(pages=(7, 9))).hits == ()


@pytest.mark.parametrize("how", ["dense", "lexical"])
def test_one_search_alone_keeps_its_own_order(search: Search, how: str) -> None:
    found = search("threads of a block", searched=how)
    assert ordinals(found.hits) == ordinals(getattr(found, how)) != []
    assert () in (found.dense, found.lexical)


@pytest.mark.parametrize("flag", ["-a", "-E", "-g", "-L"])
def test_what_holds_a_name_with_its_sign_comes_first(library_of: Callable[..., Library], flag: str) -> None:
    texts = [f"The `{one}` flag is the {one[1]} of the flags, and does what a flag does." for one in ("-a", "-E", "-g")]
    library = library_of(*map(section, [*texts, "What does the flag do? The flag does it. `-L`, or `-l`."]))
    found = HybridRetriever(library, RetrievalSettings()).search(understand(f"What does the {flag} flag do?", library))
    assert f"`{flag}`" in found.hits[0].node.text
    assert [hit.score for hit in found.hits] == sorted((hit.score for hit in found.hits), reverse=True)


def test_where_code_is_asked_for_the_node_with_its_listing_comes_first(search: Search) -> None:
    assert ordinals(search("Show me a reduction kernel").hits)[0] == 4
    assert ordinals(search("What adds in a reduction kernel?").hits)[0] == 2


class Scores:
    """Stands for a cross-encoder with a score for each text; higher is better."""

    def __init__(self, *scores: float) -> None:
        self.scores = scores

    def predict(self, pairs: Sequence[tuple[str, str]], show_progress_bar: bool) -> Sequence[float]:
        return self.scores[: len(pairs)]


def reranker(*scores: float, depth: int = 30) -> CrossEncoderReranker:
    made = CrossEncoderReranker("none", depth=depth)
    made._encoder = Scores(*scores)
    return made


def test_a_reranker_reorders_its_depth_and_keeps_the_rest_behind() -> None:
    ranked = reranker(0.2, 0.9, depth=2).rerank("q", hits(0, 1, 2, 3))
    assert ordinals(ranked) == [1, 0, 2, 3]
    scores = [hit.score for hit in ranked]
    assert scores == sorted(scores, reverse=True)
    assert reranker().rerank("q", []) == []


def test_logits_keep_their_order_beside_values_that_look_like_probabilities() -> None:
    first, second, third = reranker(0.9, 1.2, -3.0).scores("q", ["a", "b", "c"])
    assert 1 > second > first > third > 0


def test_an_explanation_gives_the_ranks_of_a_pages_nodes(library: Library, search: Search) -> None:
    retrieval = search("What is a bank conflict?")
    (node,) = explain(retrieval, library, "book", page=2).nodes
    assert node.fused_rank == ordinals(retrieval.hits).index(1) + 1
    assert node.dense_rank == ordinals(retrieval.dense).index(1) + 1
    assert node.lexical_rank == 1 and "bank" in node.shared


@pytest.mark.integration
def test_another_process_gives_the_same_scores_to_the_last_digit(capsys: pytest.CaptureFixture[str]) -> None:
    """Sets are in another order in every process, and sums of floats depend on theirs."""
    code = (
        "from indexes.words import TermWeights\n"
        "words = [f'term{chr(97 + n)}{n}' for n in range(26)]\n"
        "weights = TermWeights([frozenset(words[n % 7 :: 1 + n % 5]) for n in range(30)])\n"
        "print(weights.share(frozenset(words), frozenset(words[3:20])))\n"
    )
    seeds = [os.environ | {"PYTHONHASHSEED": seed} for seed in ("1", "2")]
    printed = {subprocess.check_output([sys.executable, "-c", code], env=seed, text=True) for seed in seeds}
    exec(code, {})  # this process has a seed of its own
    assert printed == {capsys.readouterr().out}


# --- forms

REDUCTION = "```cuda\n__global__ void reduce(const float* in, float* out) {}\n```"
PLAIN, OUTPUT, HOST = "```c++\nx[i] += y[i];\n```", "```none\nreduce: 4950\n```", "```c++\nreduce(x, y);\n```"


@pytest.mark.parametrize(
    ("question", "best_first"),
    [
        ("code that reduces", [Listing(HOST, "Book"), Listing(PLAIN, "Book")]),
        ("code for a stencil", [Listing(PLAIN, "Book", "The stencil is:"), Listing(PLAIN, "Book")]),
        ("code for a stencil", [Listing(PLAIN, "Stencils"), Listing(PLAIN, "Book")]),
        ("code that reduces", [Listing(HOST, "Book"), Listing(OUTPUT, "Book")]),
        ("write a kernel that reduces", [Listing(REDUCTION, "Book"), Listing(HOST, "Book")]),
    ],
    ids=["its own words", "sentence before it", "headings over it", "no output", "a kernel where one is asked for"],
)
def test_a_listing_is_found_by_what_is_in_it_and_around_it(question: str, best_first: list[Listing]) -> None:
    scores = rank_listings(question, best_first)
    assert scores == sorted(scores, reverse=True) and len(set(scores)) == len(scores)


@pytest.mark.parametrize(
    ("subject", "sentence", "share"),
    [
        ("warp", "A *warp* is a group of 32 threads of a block.", 1),
        ("warps", "Threads come in units of 32, called warps, that run in lockstep.", 1),
        ("warp", "**Warp**: 32 threads that run in lockstep.", 1),
        ("occupancy", "The occupancy (of an SM) is the share of its warps that are resident.", 1),
        ("default stream", "The default stream, also called null stream, is a stream of its own kind.", 1),
        ("race condition", "Such an error is known as a race condition.", 1),
        ("grid", "Thread blocks are organized into a *grid*.", 1),
        ("SM", "It has 132 streaming multiprocessors, SMs for short.", 1),
        ("SMs", "A team runs on a streaming multiprocessor (SM).", 1),
        ("occupancy", "Occupancy is a means of hiding latency.", 0.5),
        ("grid", "Grids are far larger.", 0.5),
        ("__syncthreads", "A `__syncthreads()` is slow.", 0.5),
        ("warp", "A warp is not a block.", 0),
        ("warp", "With a stride of two floats the warp touches 8 sectors.", 0),
        ("warp", "The warp is executed by one scheduler.", 0),
        ("CUDA", "CUDA graphs are a way to launch many kernels.", 0),
        ("warp", "Warp divergence is a cost.", 0),
        ("?", "Anything is something.", 0),
    ],
)
def test_a_definition_is_known_by_its_form_and_what_says_more_defines_more(
    subject: str, sentence: str, share: float
) -> None:
    assert definition_share(subject, sentence) == share
