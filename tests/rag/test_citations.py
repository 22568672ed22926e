"""Laws of markers, quotes and verdicts."""

from __future__ import annotations

import pytest
from fakes import make_passage
from hypothesis import given
from hypothesis import strategies as st

from rag.citations import MarkerFilter, best_quote, find_markers, resolve, without_markers
from rag.types import PassagePart

WARP = make_passage(
    "A warp holds 32 threads.\n\nAll of them execute the same instruction. Divergence makes both paths run in turn."
)
COPY = make_passage("Call `cudaMemcpyAsync` with pinned memory.\n\n```cuda\ncudaMallocHost(&p, n);\n```\n\nIt returns.")


def filtered(pieces: list[str], num_passages: int) -> str:
    markers = MarkerFilter(range(1, num_passages + 1))
    return "".join([*(markers.feed(piece) for piece in pieces), markers.finish()])


def test_every_marker_gets_a_quote_that_is_verbatim_in_its_passage() -> None:
    answer = "A warp holds 32 threads [1]. Use `cudaMemcpyAsync` with pinned memory. [2] Both paths run in turn. [1]"
    citations = resolve(answer, [WARP, COPY])
    assert [citation.marker for citation in citations] == [1, 2, 1]
    for citation in citations:
        text = (WARP, COPY)[citation.marker - 1].text
        assert text[citation.char_start : citation.char_end] == citation.quote
        assert f"[{citation.marker}]" in answer
    assert citations[0].quote == "A warp holds 32 threads."
    assert "both paths" in citations[2].quote


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ("A warp holds 32 threads.", "supported"),
        ("A warp holds 64 threads.", "partial"),
        ("The `cudaFooBar` call makes a warp hold threads.", "partial"),
        ("Bananas grow on tall plants in warm countries.", "unsupported"),
    ],
)
def test_numbers_and_identifiers_decide_the_verdict(claim: str, verdict: str) -> None:
    (citation,) = resolve(f"{claim} [1]", [WARP])
    assert citation.verdict == verdict


def test_a_listing_can_be_cited() -> None:
    (citation,) = resolve("```cuda\ncudaMallocHost(&p, n);\n```\n\n[1]", [COPY])
    assert "cudaMallocHost" in citation.quote
    assert citation.verdict == "supported"


def test_dangling_markers_neither_cite_nor_stand() -> None:
    shown = filtered(["It is so [7]. ", "And so [1, 9]. Not [0]."], 1)
    assert shown == "It is so. And so [1]. Not."
    assert [citation.marker for citation in resolve(shown, [WARP])] == [1]


def test_brackets_of_code_are_not_markers() -> None:
    text = "Write a[1] = b[2]; or `x [3]` and\n```\ny [4];\n```\nend [1]."
    assert filtered([text], 1) == text
    assert [marked.number for marked in find_markers(text)] == [1]


def test_a_group_of_markers_is_taken_apart() -> None:
    assert filtered(["Both say so [1, 2]."], 2) == "Both say so [1][2]."


@given(st.text(alphabet=st.sampled_from("ab [12,]`.\n"), max_size=60), st.integers(1, 7))
def test_cutting_an_answer_into_pieces_changes_nothing(text: str, size: int) -> None:
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    assert filtered(pieces, 2) == filtered([text], 2)


@given(st.text(alphabet=st.sampled_from("ab [12,]`.\n9"), max_size=60))
def test_what_is_shown_names_only_passages_that_exist(text: str) -> None:
    assert all(1 <= marked.number <= 2 for marked in find_markers(filtered([text], 2)))


def test_references_of_the_book_itself_do_not_become_markers() -> None:
    assert without_markers("Amdahl showed it [12] long ago, see a[3].") == "Amdahl showed it long ago, see a[3]."


def test_a_quote_has_its_own_page_and_section() -> None:
    text = "First page says this.\n\nSecond page says that about warps."
    passage = make_passage(
        text,
        page_start=7,
        page_end=8,
        page_label="v",
        page_marks=((0, 7), (23, 8)),
        page_labels=("v", "1"),
        parts=(PassagePart(0, 21, "n0", ("One",)), PassagePart(23, len(text), "n1", ("Two",))),
    )
    (citation,) = resolve("Second page says that about warps. [1]", [passage])
    assert (citation.page_start, citation.page_end, citation.page_label) == (8, 8, "1")
    assert citation.section == ("Two",)
    assert citation.node_id == passage.node_id, "a client finds the passage by it"


def test_a_quote_across_a_page_names_both_pages() -> None:
    passage = make_passage(
        "A sentence that goes on over the page end.", page_start=3, page_end=4, page_marks=((0, 3), (20, 4))
    )
    (citation,) = resolve("A sentence that goes on over the page end. [1]", [passage])
    assert (citation.page_start, citation.page_end) == (3, 4)


def test_a_claim_of_two_sentences_takes_a_quote_of_two() -> None:
    text = "Shared memory has 32 banks. Registers are private to a thread. Nothing else matters here."
    start, end = best_quote("Shared memory has 32 banks and registers are private to a thread", text)
    assert text[start:end] == "Shared memory has 32 banks. Registers are private to a thread."
