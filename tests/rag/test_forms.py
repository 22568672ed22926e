"""A listing and a definition are known by their form."""

from __future__ import annotations

import pytest
from fakes import make_node

from rag.forms import Listing, definition_share, listings_in, rank_listings

REDUCTION = "```cuda\n__global__ void reduceTree(const float* in, float* out) {}\n```"
HISTOGRAM = "```cuda\n__global__ void histogram(const int* data, int* bins) {}\n```"
PLAIN, OUTPUT = "```c++\nx[i] += y[i];\n```", "```none\nreduce: 4950\n```"
C, FORTRAN = "```c++\n#pragma omp target\n```", "```fortranfree\n!$omp target\n```"


@pytest.mark.parametrize(
    ("question", "best_first"),
    [
        ("Show me a reduction kernel", [Listing(REDUCTION, "Book"), Listing(OUTPUT, "Book"), Listing(HISTOGRAM, "")]),
        (
            "code for a stencil",
            [Listing(PLAIN, "Book", "The stencil is:"), Listing(PLAIN, "Stencils"), Listing(PLAIN, "Book")],
        ),
        ("openmp target example", [Listing(C, "Target"), Listing(FORTRAN, "Target")]),
        ("openmp target example in Fortran", [Listing(FORTRAN, "Target"), Listing(C, "Target")]),
    ],
    ids=["name of its function", "sentence before it, headings over it", "not Fortran", "Fortran where named"],
)
def test_a_listing_is_found_by_what_is_in_it_and_around_it(question: str, best_first: list[Listing]) -> None:
    scores = rank_listings(question, best_first)
    assert scores == sorted(scores, reverse=True) and len(set(scores)) == len(scores)


def test_a_node_that_begins_inside_a_listing_gives_its_code_and_no_prose() -> None:
    text = "    sum += x[i];\n}\n```\n\nThe loop adds all elements.\n\n```c++\nint main() {}\n```"
    inside, whole = listings_in(make_node(text))
    assert inside.text == "    sum += x[i];\n}\n"
    assert (whole.text, whole.before) == ("```c++\nint main() {}\n```", "The loop adds all elements.")


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
