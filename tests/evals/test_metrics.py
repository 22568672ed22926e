"""Metrics, by hand and against public libraries, and the matching of texts that they rest on."""

from __future__ import annotations

import math

import ir_measures
import pytest

from evals.scoring import (
    citation_scores,
    cited_sentences,
    first_sentences,
    gold_citation_scores,
    holds,
    key_fact_recall,
    ndcg_at_k,
    prose_words,
    recall_at_k,
    reciprocal_rank,
    unsupported_term_rate,
)
from evals.text_match import fact_met

FOUND = [set[int](), {1}, set[int](), {2}, {1}]


def test_recall_counts_parts_once() -> None:
    assert recall_at_k(FOUND, {1, 2}, 3) == 0.5
    assert recall_at_k(FOUND, {1, 2}, 5) == 1.0
    assert recall_at_k([], {1}, 5) == 0.0


def test_rank_metrics_equal_ir_measures_when_each_part_is_one_passage() -> None:
    found = [set[int](), {1}, set[int](), {2}, {3}]
    qrels = [ir_measures.Qrel("q", f"d{number}", 1) for number in (1, 3, 4)]
    run = [ir_measures.ScoredDoc("q", f"d{rank}", 10.0 - rank) for rank in range(5)]
    expected = ir_measures.calc_aggregate([ir_measures.nDCG @ 5, ir_measures.RR, ir_measures.R @ 4], qrels, run)
    assert ndcg_at_k(found, {1, 2, 3}, 5) == pytest.approx(expected[ir_measures.nDCG @ 5])
    assert reciprocal_rank(found, {1, 2, 3}) == pytest.approx(expected[ir_measures.RR])
    assert recall_at_k(found, {1, 2, 3}, 4) == pytest.approx(expected[ir_measures.R @ 4])


def test_ndcg_gives_no_gain_for_the_same_part_again() -> None:
    assert ndcg_at_k([{1}, {1}, {2}], {1, 2}, 3) == pytest.approx((1 + 1 / math.log2(4)) / (1 + 1 / math.log2(3)))


def test_only_what_stands_in_the_first_two_sentences_counts_as_said_first() -> None:
    answer = "## Warps\n\nA warp, e.g. on Volta, has 32 threads. [1] They run together [2]. A block holds warps [1]."
    assert first_sentences(answer) == "## Warps\n\nA warp, e.g. on Volta, has 32 threads. They run together."
    assert first_sentences("One only [1].") == "One only."
    assert first_sentences("- first [1]\n- second [1]\n- third [1]").endswith("second")
    assert first_sentences("") == ""


def test_words_are_counted_without_listings_and_markers() -> None:
    assert prose_words("Call it so. [1]\n\n```c\nint main(void) { return 0; }\n``` [1]\n\nThen stop. [2]") == 5


def test_evidence_is_found_where_the_reader_took_markup_away() -> None:
    source = "This includes [SYCL](https://www.khronos.org/sycl/), which *enables* `code` for many processors."
    assert holds("Intro. This includes SYCL, which enables code for many processors. More.", source)
    assert not holds("This includes SYCL, and then something else altogether about code.", source)
    assert holds("two words", "two words")
    assert not holds("two more words", "two words")


def test_key_fact_recall_is_unscored_without_facts() -> None:
    assert key_fact_recall([], "anything") is None
    assert key_fact_recall(["a fact", "b fact"], "a fact only") == 0.5
    assert key_fact_recall(["a fact"], "") == 0.0


def test_markers_after_the_full_stop_belong_to_the_sentence_before() -> None:
    answer = "A warp has 32 threads. [1][2] Blocks hold warps [3].\n\n```\na[1] = b[2];\n``` [2]"
    assert [numbers for _, numbers in cited_sentences(answer)] == [(1, 2), (3,), (2,)]


def test_citations_by_hand() -> None:
    passages = ["A warp has 32 threads.", "A block is a group of threads."]
    scores = citation_scores("A warp has 32 threads [1]. A warp has 64 threads [1]. It is fast.", passages)
    assert scores == pytest.approx((1 / 3, 1 / 2))
    assert citation_scores("A warp has 32 threads [1][2].", passages)[1] == pytest.approx(1 / 2)
    assert citation_scores("A warp has 32 threads [7].", passages)[0] == 0.0
    assert citation_scores("No citation here.", passages)[1] is None


def test_gold_citations_need_no_support_model() -> None:
    scores = gold_citation_scores(["a warp has 32 threads", "noise"], [["A warp has 32 threads."], ["other"]])
    assert scores == (0.5, 0.5)
    assert gold_citation_scores(["x"], []) == (None, None)


def test_a_made_up_identifier_or_number_is_caught() -> None:
    passage = "Call cudaMemcpyAsync with 32 streams."
    assert unsupported_term_rate("Use cudaMemcpyAsync on 32 streams [1].", passage) == 0.0
    assert unsupported_term_rate("Use cudaMemcpyMagic() on 32 streams [1].", passage) == 0.5
    assert unsupported_term_rate("No terms at all.", passage) is None


@pytest.mark.parametrize(
    ("fact", "text", "met"),
    [
        ("32 threads|thirty-two threads", "A warp has **32  threads**.", True),
        ("thirty-two threads", "thirty‑two threads", True),
        ("4194304 bytes", "It takes 4,194,304 bytes", True),
        ("2 threads", "32 threads", False),
        ("cudaMemcpy", "call `cudaMemcpyAsync`", False),
        ("__syncthreads()", "then `__syncthreads()` waits", True),
        ("3 x 10", "$3 \\times 10$", True),
        ("2*n*m values", "It holds 2\\*n\\*m values.", True),
        ("template<float>", "of template\\<float> type", True),
        ("costs 5 dollars", "It costs \\$5 dollars", True),
        ("C:\\temp", "in C:\\temp", True),
    ],
)
def test_a_fact_is_met_as_whole_words(fact: str, text: str, met: bool) -> None:
    assert fact_met(fact, text) is met
