"""A listing, a definition and a number are known by their form."""

from __future__ import annotations

import pytest

from indexes.types import StoredNode
from rag.answer_forms import (
    Listing,
    definition_share,
    gives_number,
    listings_in,
    rank_by_form,
    rank_listings,
    says_of_what,
)
from rag.question import question_kind, wants_steps
from rag.retrieval import prepare_query

REDUCTION = "```cuda\n__global__ void reduceTree(const float* in, float* out) {}\n```"
HISTOGRAM = "```cuda\n__global__ void histogram(const int* data, int* bins) {}\n```"
PRINTED = "```none\nreduce: 4950\n```"


def _node(text: str, *headings: str) -> StoredNode:
    return StoredNode(1, "n", "d", "A book", 0, 1, headings or ("Chapter",), text)


def test_a_listing_is_found_by_the_name_of_its_function() -> None:
    reduction, histogram = rank_listings(
        "Show me a reduction kernel", [Listing(REDUCTION, "Book"), Listing(HISTOGRAM, "Book")]
    )
    assert reduction > 1 > histogram == 0


def test_a_listing_is_found_by_its_heading_and_the_sentence_before_it() -> None:
    plain = "```c++\nx[i] += y[i];\n```"
    under, announced, neither = rank_listings(
        "code for a stencil",
        [Listing(plain, "Stencil kernels"), Listing(plain, "Book", "The stencil is:"), Listing(plain, "Book")],
    )
    assert announced > under > neither == 0


def test_an_output_counts_less_than_code() -> None:
    code, output = rank_listings("Show me a reduction kernel", [Listing(REDUCTION, "Book"), Listing(PRINTED, "Book")])
    assert code > 2 * output > 0


def test_fortran_comes_first_only_where_it_is_named() -> None:
    c, fortran = "```c++\n#pragma omp target\n```", "```fortranfree\n!$omp target\n```"
    listings = [Listing(c, "Target"), Listing(fortran, "Target")]
    in_c, in_fortran = rank_listings("openmp target example", listings)
    assert in_c > in_fortran
    in_c, in_fortran = rank_listings("openmp target example in Fortran", listings)
    assert in_fortran > in_c


def test_a_node_that_begins_inside_a_listing_gives_its_code_and_no_prose() -> None:
    node = _node("    sum += x[i];\n}\n```\n\nThe loop adds all elements.\n\n```c++\nint main() {}\n```")
    inside, whole = listings_in(node)
    assert inside.text == "    sum += x[i];\n}\n"
    assert whole.text == "```c++\nint main() {}\n```"
    assert whole.before == "The loop adds all elements."


@pytest.mark.parametrize(
    ("question", "better", "worse"),
    [
        (
            "How many threads can a block have?",
            "A block may contain at most 1024 threads.",
            "The total is the number of blocks times threads per block.",
        ),
        ("How many threads can a block have?", "A block has at most 1024 threads.", "A block of 256 threads is usual."),
        (
            "How many threads can a block have?",
            "A block of threads may not exceed 1024.",
            "Blocks run into the block limit: with 32 threads, 32 blocks make 32 warps.",
        ),
        ("How big is shared memory?", "An SM has 164 KB of shared memory.", "Larger tiles need more shared memory."),
        ("How fast is the memory of an A100?", "An A100 reads memory at 2.04 TB/s.", "An A100 has 80 GB of memory."),
        ("How many banks are there?", "There are 32 banks.", "The lane is the remainder by 32."),
        (
            "how big is constant memory",
            "A variable declared `__constant__` lives in device memory and may be at most 64 KB.",
            "The constant cache holds 8 KB per SM.",
        ),
    ],
)
def test_the_number_asked_for_has_its_unit_and_its_bound(question: str, better: str, worse: str) -> None:
    assert question_kind(question) == "number"
    assert gives_number(question, better) > gives_number(question, worse)


def test_a_number_in_code_counts_nothing() -> None:
    assert gives_number("How many blocks are launched?", "The blocks are `(n + 255) / 256`.") == 0


@pytest.mark.parametrize(
    ("subject", "full", "short"),
    [
        (
            "occupancy",
            "Occupancy is the number of warps resident on an SM divided by the largest number it can hold.",
            "Occupancy is a means of hiding latency.",
        ),
        ("grid", "Thread blocks are organized into a *grid*.", "Grids are far larger."),
        ("__syncthreads", "`__syncthreads()` is a barrier: no thread passes it alone.", "A `__syncthreads()` is slow."),
        ("SM", "It has 132 streaming multiprocessors, SMs for short.", "An SM is busy."),
        ("SMs", "A team runs on a streaming multiprocessor (SM).", "SMs are many."),
    ],
)
def test_what_says_more_defines_more(subject: str, full: str, short: str) -> None:
    assert definition_share(subject, full) == 1 > definition_share(subject, short) > 0
    assert rank_by_form("define", f"What is {subject}?", [short, full, "Warps wait."]) == [0.5, 1.0, 0.0]


GROUPS = "The threads of a block are executed in groups of 32 with consecutive linear numbers, called warps."


@pytest.mark.parametrize(
    "question",
    [
        "How many threads are in a warp?",
        "how many threads does one warp have",
        "How many threads make up a warp?",
        "how many threads per warp",
        "How many threads are in a warp? 32",
        "一个线程束包含多少线程？",
        "线程束有多少个线程？",
    ],
)
def test_parts_are_counted_by_what_defines_the_whole(question: str) -> None:
    english = prepare_query(question).english
    assert says_of_what(english, GROUPS)
    assert not says_of_what(english, "A block of 100 threads has four warps.")
    assert not says_of_what(
        english, "This is the reason for warps: one control unit for every lane would be too expensive."
    )
    assert not says_of_what(english, "If a warp is to hold its 32 threads, all must be started.")
    assert rank_by_form("number", english, ["A block of 32 threads has one warp.", GROUPS])[1] == 1.0


def test_what_is_not_counted_in_a_whole_is_left_to_its_form() -> None:
    assert not says_of_what("How many blocks are launched?", "A launch is 12 blocks.")
    assert not says_of_what("how many threads can a block have", "A block is a group of at most 1024 threads.")


def test_other_kinds_have_no_form() -> None:
    assert rank_by_form("why", "Why are atomics slow?", ["Atomics are slow because they wait."]) == [0.0]


@pytest.mark.parametrize(
    ("question", "steps"),
    [
        ("How do I create a stream?", True),
        ("how to allocate memory on the device", True),
        ("How does a barrier work?", False),
        ("How many warps are there?", False),
    ],
)
def test_who_asks_how_to_do_something_wants_code(question: str, steps: bool) -> None:
    assert wants_steps(question) is steps


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        ("example of cudaMemcpy", "code"),
        ("1D convolution code", "code"),
        ("What is the maximum grid size?", "number"),
        ("size of the L2 cache", "number"),
        ("What is occupancy?", "define"),
        ("What is block size?", "define"),
        ("can you tell me what a warp is", "define"),
        ("please explain coalescing to me", "define"),
        ("tell me what happens when a warp diverges", "fact"),
    ],
)
def test_the_kind_of_a_question_is_read_from_its_words(question: str, kind: str) -> None:
    assert question_kind(question) == kind
