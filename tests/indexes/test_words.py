"""Terms find identifiers whole and by part."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexes.words import index_terms, query_terms, stem, terms_of


@pytest.mark.parametrize(
    ("identifier", "parts"),
    [
        ("cudaMemcpyAsync", {"cudamemcpyasync", "cuda", *index_terms("memcpy"), "async"}),
        ("__syncthreads", {"__syncthreads", *index_terms("syncthreads")}),
        ("threadIdx.x", {"threadidx_x", "threadidx", "thread", "idx"}),
        ("HIP_VISIBLE_DEVICES", {"hip_visible_devices", "hip", "visibl", "devic"}),
        ("std::vector", {"std_vector", "vector"}),
        ("__shfl_down_sync", {"__shfl_down_sync", "shfl", "sync"}),
        ("atomicAdd", {"atomicadd", "atomic", "add"}),
        ("sm_80", {"sm80", "sm"}),
        ("CO_2", {"co2", "co"}),
        ("CO2", {"co2", "co"}),
        ("@cuda.jit", {"..cuda.jit", "cuda_jit", "jit"}),
        ("--gpu-architecture=sm_80", {"._gpu_architecture", "gpu", "sm80"}),
    ],
)
def test_identifiers_are_kept_whole_and_by_part(identifier: str, parts: set[str]) -> None:
    assert parts <= set(index_terms(identifier))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("kernels", "kernel"), ("launching", "launched"), ("tiling", "tiles"), ("memories", "memory"),
        ("caches", "cache"), ("synchronized", "synchronizes"), ("WARPS", "warp"),
        ("addition", "adds"), ("reduction", "reduced"), ("allocation", "allocate"), ("multiplication", "multiplies"),
        ("creating", "creation"), ("partitioned", "partition"), ("execution", "executes"), ("floating", "float"),
    ],
)  # fmt: skip
def test_forms_of_a_word_share_a_term(one: str, other: str) -> None:
    assert index_terms(one) == index_terms(other)


@pytest.mark.parametrize(("one", "other"), [("contention", "contents"), ("partition", "part"), ("treated", "tree")])
def test_other_words_keep_terms_of_their_own(one: str, other: str) -> None:
    assert set(index_terms(one)).isdisjoint(index_terms(other))


@pytest.mark.parametrize(("one", "other"), [("this", "thi"), ("bus", "bu"), ("class", "clas"), ("ring", "r")])
def test_stems_are_not_cut_too_short(one: str, other: str) -> None:
    assert other not in index_terms(one)


@pytest.mark.parametrize(
    ("one", "other"), [("-E", "-e"), ("-a", "a"), ("@cuda", "cuda"), ("-x", "a-x"), ("@host", "user@host")]
)
def test_a_dash_or_an_at_sign_belongs_to_the_name_behind_it(one: str, other: str) -> None:
    assert set(query_terms(f"What does the `{one}` flag do?")) - set(query_terms(f"What does the {other} flag do?"))


def test_chinese_words_and_numbers_are_terms() -> None:
    assert {"线程束", "调度"} <= set(index_terms("线程束的调度与 warp 分歧"))
    assert "共享内存" in index_terms("共享内存有多大?")
    assert index_terms("65,536 registers, 3.35 TB/s, 0x1F") == ["65536", stem("register"), "3.35", "tb", "0x1f"]


def test_a_query_has_no_doubles_and_no_stop_words_unless_it_has_nothing_else() -> None:
    assert query_terms("What is a warp and what is the warp size?") == ["warp", *index_terms("size")]
    assert query_terms("what is it") != []
    assert query_terms("") == query_terms("?! \n") == []


@given(st.text(max_size=200))
def test_terms_never_hold_what_would_break_a_query(text: str) -> None:
    assert all(term and '"' not in term and not any(c.isspace() for c in term) for term in index_terms(text))


def test_terms_are_kept_of_sentences_and_not_of_whole_passages() -> None:
    sentence, passages = "A warp has 32 threads.", "A warp has 32 threads. " * 100
    assert terms_of(sentence) is terms_of(sentence)
    assert terms_of(passages) is not terms_of(passages)
    assert terms_of(passages) == terms_of(sentence)
