"""Matching texts without a model: key facts as whole words, options named in words."""

from __future__ import annotations

import pytest

from evals.text_match import fact_met, parse_option


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


@pytest.mark.parametrize(
    ("text", "picked"),
    [
        ("B", 1), ("The answer is (C).", 2), ("答案:D", 3), ("**A**) because", 0), ("It is 64 threads.", 1),
        ("The answer is c.", 2), ("answer: (b)", 1), ("ANSWER: D", 3),
        ("A or B", None), ("Option A, or perhaps option B", None), ("I cannot say.", None),
        ("A kernel does that.", None), ("The answer is a warp, so none of these.", None),
    ],
)  # fmt: skip
def test_options_named_in_words_are_read_strictly(text: str, picked: int | None) -> None:
    assert parse_option(text, ["32 threads", "64 threads", "1024 threads", "8 threads"]) == picked
