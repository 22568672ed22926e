"""Laws of cutting technical prose into units."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexes.sentences import fence_after, split_spans


def split_sentences(text: str) -> tuple[str, ...]:
    return tuple(text[s.start : s.end] for s in split_spans(text) if s.kind in ("sentence", "item"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A warp has 32 threads. It is small.", 2),
        ("See e.g. Volta and Fig. 3 for this. Done.", 2),
        ("Bandwidth is 1.5 TB/s on v11.8 of it. Then more.", 2),
        ("Call `a.b(). C` first. Then stop.", 2),
        ("Is it fast? Yes! It is.", 3),
        ("Use registers, caches, etc. They help.", 2),
        ("It returns at once. cudaMemcpyAsync does too.", 2),
        ("The value is approx. five of them.", 1),
        ("A copy takes 62 ms. The kernel takes 3 s. Both are fast.", 3),
        ("Ask Ms. Hopper for it. Then go.", 2),
        ("It runs slower (eg. 20 to 30 times), ie. too slow. Then go.", 2),
        ("共享内存很快。寄存器更快！", 2),
        ("He used matrix A. Then B was added.", 2),
        ("It was proved by A. Y. Jackson, J. E. H. MacDonald and William L. Briggs. They agree.", 2),
        ("D. Knuth says so of the set of clauses C. Instead, load it into R. We do.", 3),
        ("They write P(A|B) and P(B|A) for these. If M |= f, then |x| holds.", 2),
        ("Use e.g. the call. It moves 3.5 TB/s. See Fig. 3 for more! Is it `fast()`? Yes.", 5),
        ("线程束是32个线程。它们一起执行！对吗？", 3),
        ("A warp is a\ngroup of threads.", 1),
        ('The source is wrapped in extern "C" { ... } to keep its names. Next.', 2),
    ],
)
def test_sentences_end_where_a_reader_would_end_them(text: str, expected: int) -> None:
    assert len(split_sentences(text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Look:\n\n```cuda\nint a;\n\nint b; // done. Really.\n```\n\nThat was it.", "sentence code sentence"),
        ("Text here.\n```\nint a;\n\nint b;", "sentence code"),
        ("# T\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n- one thing\n- another. With two.", "heading table item item item"),
        (
            "The bandwidth is:\n\n$$\nB = n. X\n$$\n\nHere $$a. B$$ is in a line.\n$$ c. D $$.\nDone.",
            "sentence formula sentence formula sentence",
        ),
    ],
)
def test_listings_tables_headings_items_and_formulas_are_units(text: str, expected: str) -> None:
    spans = split_spans(text)
    assert " ".join(span.kind for span in spans) == expected
    for span in spans:
        if span.kind == "code":
            assert text[span.start : span.end].startswith("```"), "with its fences"


@pytest.mark.parametrize(
    ("text", "fence"),
    [
        ("a\n```c\nb", "```"),
        ("a\n```c\nb\n```\nc", ""),
        ("````\n```\n~~~", "````"),
        ("~~~\n```\n~~~~ ", ""),
        ("`a` and ```b``` in a line", ""),
    ],
)
def test_a_fence_is_closed_by_as_many_of_its_characters(text: str, fence: str) -> None:
    assert fence_after(text) == fence
    assert fence_after(text, "`````") == "`````"


@given(st.text(alphabet=st.sampled_from("ab. \n`|#-?!。1[]A:"), max_size=120))
def test_units_are_ordered_disjoint_and_lose_no_letter(text: str) -> None:
    spans = split_spans(text)
    position = 0
    for span in spans:
        assert position <= span.start < span.end <= len(text)
        assert text[span.start : span.end].strip() == text[span.start : span.end]
        lost = text[position : span.start]
        assert not any(character == "A" for character in lost)
        position = span.end
    assert "A" not in text[position:]


def test_a_paragraph_without_end_is_cut_in_linear_time() -> None:
    started = time.process_time()
    assert len(split_spans("a. b " * 10_000)) == 1
    assert len(split_spans("`a` b. C " * 5_000)) == 5_001
    split_spans("`" * 5_000 + "a" * 50_000)
    split_spans("y\n" + " " * 20_000 + "x")
    assert time.process_time() - started < 10
