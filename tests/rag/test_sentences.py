"""Laws of cutting technical prose into units."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag.sentences import split_sentences, split_spans


def kinds(text: str) -> list[str]:
    return [span.kind for span in split_spans(text)]


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
        ("共享内存很快。寄存器更快！", 2),
        ("He used matrix A. Then B was added.", 2),
    ],
)
def test_sentences_end_where_a_reader_would_end_them(text: str, expected: int) -> None:
    assert len(split_sentences(text)) == expected


def test_a_listing_is_one_unit_with_its_fences() -> None:
    text = "Look:\n\n```cuda\nint a = 1;\n\nint b = 2; // done. Really.\n```\n\nThat was it."
    spans = split_spans(text)
    assert [span.kind for span in spans] == ["sentence", "code", "sentence"]
    assert text[spans[1].start : spans[1].end].startswith("```cuda")
    assert text[spans[1].start : spans[1].end].endswith("```")


def test_tables_headings_and_items_are_told_apart() -> None:
    text = "# Title\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n- one thing\n- another. With two sentences."
    assert kinds(text) == ["heading", "table", "item", "item", "item"]


def test_an_unclosed_listing_reaches_to_the_end() -> None:
    assert kinds("Text here.\n```\nint a;\n\nint b;") == ["sentence", "code"]


def test_soft_line_breaks_do_not_end_a_sentence() -> None:
    assert split_sentences("A warp is a\ngroup of threads.") == ("A warp is a\ngroup of threads.",)


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


def test_dots_within_braces_end_no_sentence() -> None:
    assert split_sentences('The source is wrapped in extern "C" { ... } to keep its names. Next.') == (
        'The source is wrapped in extern "C" { ... } to keep its names.',
        "Next.",
    )
