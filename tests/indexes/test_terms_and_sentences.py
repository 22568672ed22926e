"""Terms find identifiers whole and by part; sentences end where people end them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexes.sentences import fenced_spans, sentence_spans
from indexes.terms import query_terms, terms


@pytest.mark.parametrize(
    ("identifier", "parts"),
    [
        ("cudaMemcpyAsync", {"cudamemcpyasync", "cuda", "memcpy", "copy", "async"}),
        ("__syncthreads", {"__syncthreads", "syncthreads", "sync", "thread"}),
        ("threadIdx.x", {"threadidx_x", "threadidx", "thread", "index"}),
        ("HIP_VISIBLE_DEVICES", {"hip_visible_devices", "hip", "visibl", "devic"}),
        ("std::vector", {"std_vector", "vector"}),
        ("__shfl_down_sync", {"__shfl_down_sync", "shfl", "sync"}),
        ("atomicAdd", {"atomicadd", "atomic", "add"}),
        ("sm_80", {"sm_80", "sm"}),
    ],
)
def test_identifiers_are_kept_whole_and_by_part(identifier: str, parts: set[str]) -> None:
    assert parts <= set(terms(identifier))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("kernels", "kernel"), ("launching", "launched"), ("tiling", "tiles"), ("memories", "memory"),
        ("caches", "cache"), ("synchronized", "synchronizes"), ("WARPS", "warp"),
    ],
)  # fmt: skip
def test_forms_of_a_word_share_a_term(one: str, other: str) -> None:
    assert terms(one) == terms(other)


@pytest.mark.parametrize(("one", "other"), [("this", "thi"), ("bus", "bu"), ("class", "clas"), ("ring", "r")])
def test_stems_are_not_cut_too_short(one: str, other: str) -> None:
    assert other not in terms(one)


def test_chinese_is_cut_into_words() -> None:
    assert {"线程束", "调度"} <= set(terms("线程束的调度与 warp 分歧"))
    assert "共享内存" in terms("共享内存有多大?")


def test_numbers_are_terms() -> None:
    assert terms("65,536 registers, 3.35 TB/s, 0x1F") == ["65536", "register", "3.35", "tb", "0x1f"]


def test_a_query_has_no_doubles_and_no_stop_words_unless_it_has_nothing_else() -> None:
    assert query_terms("What is a warp and what is the warp size?") == ["warp", *terms("size")]
    assert query_terms("what is it") != []
    assert query_terms("") == query_terms("?! \n") == []


@given(st.text(max_size=200))
def test_terms_never_hold_what_would_break_a_query(text: str) -> None:
    assert all(term and '"' not in term and not any(c.isspace() for c in term) for term in terms(text))


def sentences(text: str) -> list[str]:
    return [text[start:end] for start, end in sentence_spans(text)]


def test_sentences_end_at_full_stops_but_not_at_abbreviations() -> None:
    text = "Use e.g. the call. It moves 3.5 TB/s. See Fig. 3 for more! Is it `fast()`? Yes."
    assert sentences(text) == [
        "Use e.g. the call.",
        "It moves 3.5 TB/s.",
        "See Fig. 3 for more!",
        "Is it `fast()`?",
        "Yes.",
    ]


def test_list_items_table_rows_and_listings_are_sentences() -> None:
    text = "- One. Two.\n1. Three.\n\n| a. B | c |\n\n```c\nint a. B;\n```\n\n$$\na. B\n$$"
    assert sentences(text) == ["- One.", "Two.", "1. Three.", "| a. B | c |", "```c\nint a. B;\n```", "$$\na. B\n$$"]


def test_chinese_sentences_need_no_space() -> None:
    assert sentences("线程束是32个线程。它们一起执行！对吗？") == ["线程束是32个线程。", "它们一起执行！", "对吗？"]


def test_an_unclosed_fence_reaches_to_the_end() -> None:
    assert fenced_spans("a\n```\nb\n\nc") == [(2, 10)]


@given(st.text(alphabet="aB.1 \n`$|-。", max_size=120))
def test_sentences_hold_every_word_once_and_in_order(text: str) -> None:
    assert "".join("".join(one.split()) for one in sentences(text)) == "".join(text.split())
