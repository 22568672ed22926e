"""Matching texts without a model: key facts as whole words."""

from __future__ import annotations

import pytest

from evals.text_match import fact_met


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
