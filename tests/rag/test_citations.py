"""Laws of markers, quotes and verdicts."""

from __future__ import annotations

import pytest
from fakes import make_passage
from hypothesis import example, given
from hypothesis import strategies as st

from rag.citations import MarkerFilter, best_quote, find_markers, resolve, support_of, without_markers
from rag.types import PassagePart

WARP = make_passage(
    "A warp holds 32 threads.\n\nAll of them execute the same instruction. Divergence makes both paths run in turn."
)
COPY = make_passage("Call `cudaMemcpyAsync` with pinned memory.\n\n```cuda\ncudaMallocHost(&p, n);\n```\n\nIt returns.")


def filtered(text: str, num_passages: int, size: int = 1000) -> str:
    """What is shown of a text that comes in pieces of some characters."""
    markers = MarkerFilter(num_passages)
    pieces = (text[place : place + size] for place in range(0, len(text), size))
    return "".join([*map(markers.feed, pieces), markers.finish()])


def claims(answer: str) -> list[tuple[int, str]]:
    return [(marked.number, marked.claim) for marked in find_markers(answer)]


def test_every_marker_gets_a_quote_that_is_verbatim_in_its_passage() -> None:
    answer = (
        "A warp holds 32 threads [1]. Use `cudaMemcpyAsync` with pinned memory. [2] Both paths run in turn. [1]"
        "\n\n```cuda\ncudaMallocHost(&p, n);\n```\n\n[2]"
    )
    citations = resolve(answer, [WARP, COPY])
    assert [citation.marker for citation in citations] == [1, 2, 1, 2]
    for citation in citations:
        text = (WARP, COPY)[citation.marker - 1].text
        assert text[citation.char_start : citation.char_end] == citation.quote
    assert citations[0].quote == "A warp holds 32 threads."
    assert "both paths" in citations[2].quote and "cudaMallocHost" in citations[3].quote
    assert citations[3].verdict == "supported"


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ("A warp holds 32 threads.", "supported"),
        ("Warps hold 32 threads.", "supported"),
        ("A warp holds 64 threads.", "partial"),
        ("The `cudaFooBar` call makes a warp hold threads.", "partial"),
        ("Bananas grow on tall plants in warm countries.", "unsupported"),
    ],
)
def test_numbers_and_identifiers_decide_the_verdict(claim: str, verdict: str) -> None:
    (citation,) = resolve(f"{claim} [1]", [WARP])
    assert citation.verdict == verdict


def test_support_names_what_is_missing() -> None:
    assert support_of("`cudaFoo` copies 64 bytes", "cudaBar copies 32 bytes").missing == {"cudafoo", "64"}
    assert support_of("It has 65,536 registers", "65536 registers").missing == frozenset()


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("A. [1] B [2][3].", [(1, "A."), (2, "B"), (3, "B")]),
        ("[1] Ah.\n[2] Be. Ce.", [(1, "Ah."), (2, "Be.")]),
        ("- [1] A. [2][3] B. [4]", [(1, "A."), (2, "B."), (3, "B."), (4, "B.")]),
        ("[1]", [(1, "")]),
        ("", []),
    ],
)
def test_a_marker_belongs_to_the_sentence_before_it_or_behind_it_where_they_come_first(
    answer: str, found: list[tuple[int, str]]
) -> None:
    assert claims(answer) == found


@pytest.mark.parametrize(
    ("written", "num_passages", "shown"),
    [
        ("It is so [7]. And so [1, 9]. Not [0].", 1, "It is so. And so [1]. Not."),
        ("Both say so [1, 2].", 2, "Both say so [1][2]."),
        ("It is so [7] and [2] so.", 2, "It is so and [2] so."),
        ("It is so [8][9]. And so [8][9]", 5, "It is so. And so"),
        ("Declare it as [32][33] because [1] says so.", 5, "Declare it as `[32][33]` because [1] says so."),
        *((code, 1, code) for code in ("Write a[1] = b[2]; or `x [3]` and", "```\ny [4];\n```\nend [1].")),
    ],
)
def test_only_markers_of_passages_and_code_are_shown(written: str, num_passages: int, shown: str) -> None:
    assert {filtered(written, num_passages, size) for size in (1, 3, 100)} == {shown}
    assert {number for number, _ in claims(shown)} <= {1, 2}


@example("a [3][4] b", 4)
@given(st.text(alphabet=st.sampled_from("ab [12,]`.\n9"), max_size=60), st.integers(1, 7))
def test_cutting_an_answer_into_pieces_changes_nothing_and_no_marker_dangles(text: str, size: int) -> None:
    shown = filtered(text, 2, size)
    assert shown == filtered(text, 2)
    assert all(1 <= marked.number <= 2 for marked in find_markers(shown))


def test_references_of_the_book_itself_do_not_become_markers() -> None:
    said = without_markers("Amdahl showed it [12] and others [1][2] long ago, see a[3].")
    assert said == "Amdahl showed it and others long ago, see a[3]."


def test_a_quote_has_its_own_pages_and_section() -> None:
    text = "First page says this.\n\nSecond page says that about warps. A sentence goes on over the end."
    passage = make_passage(
        text,
        page_start=7,
        page_end=9,
        page_label="v",
        page_marks=((0, 7), (23, 8), (80, 9)),
        page_labels=("v", "1", "2"),
        parts=(PassagePart(0, 21, "n0", ("One",)), PassagePart(23, len(text), "n1", ("Two",))),
    )
    second, over = resolve("Second page says that about warps. [1] A sentence goes on over the end. [1]", [passage])
    assert (second.page_start, second.page_end, second.page_label) == (8, 8, "1")
    assert (over.page_start, over.page_end) == (8, 9)
    assert second.section == ("Two",) and second.node_id == passage.node_id, "a client finds the passage by it"


def test_a_claim_of_two_sentences_takes_a_quote_of_two() -> None:
    text = "Shared memory has 32 banks. Registers are private to a thread. Nothing else matters here."
    start, end = best_quote("Shared memory has 32 banks and registers are private to a thread", text)
    assert text[start:end] == "Shared memory has 32 banks. Registers are private to a thread."
