"""Laws of reading a question: language, terms, filters written into it, and what came before."""

from __future__ import annotations

import pytest
from fakes import FakeLibrary, make_node

from indexes.types import Filters
from indexes.words import is_chinese
from rag.generators.protocol import Turn
from rag.question import refers_to_earlier
from rag.retrieval import prepare_query, split_inline_filters


@pytest.mark.parametrize(
    ("text", "chinese"),
    [
        ("什么是线程束？", True),
        ("cudaMemcpyAsync 需要锁页内存吗？", True),
        ("What is a warp?", False),
        ("What does 线程束 mean in the CUDA programming guide of today?", False),
        ("", False),
    ],
)
def test_the_script_decides_the_language(text: str, chinese: bool) -> None:
    assert is_chinese(text) is chinese


def test_synonyms_are_for_the_lexical_search_only() -> None:
    query = prepare_query("如何避免分支分化？")
    assert "prevent" in query.lexical and "prevent" not in query.dense


def test_every_embedder_is_asked_in_english() -> None:
    query = prepare_query("什么是线程束？")
    assert "warp" in query.dense and not is_chinese(query.dense)


def test_a_question_without_known_words_is_searched_for_as_it_stands() -> None:
    assert prepare_query("魑魅魍魉").dense == "魑魅魍魉"


@pytest.mark.parametrize(
    "text", ["Why?", "And how large is it?", "What about texture memory?", "为什么？", "它有多大？"]
)
def test_short_and_pointing_questions_refer_to_the_one_before(text: str) -> None:
    assert refers_to_earlier(text)


@pytest.mark.parametrize(
    "text",
    ["Write a kernel that adds two vectors", "Why does MPI need datatypes?", "Can two kernels run at the same time?"],
)
def test_words_that_point_inside_the_question_do_not_make_it_a_follow_up(text: str) -> None:
    assert not refers_to_earlier(text)


def test_a_self_contained_question_is_searched_for_alone() -> None:
    turns = (Turn("What is a warp?", "32 threads."),)
    assert prepare_query("How is constant memory declared in a CUDA program?", turns).dense.startswith(
        "How is constant"
    )
    assert "warp" in prepare_query("How large is it?", turns).dense
    assert prepare_query("How large is it?", turns).text == "How large is it?"


def test_in_a_follow_up_the_thing_asked_about_stands_in_place_of_it() -> None:
    turns = (Turn("What is occupancy?", ""),)
    assert prepare_query("and how do I improve it?", turns).standalone == "and how do I improve occupancy?"
    assert prepare_query("why should I care", turns).standalone == "why use occupancy"
    assert prepare_query("how do I improve it", (Turn("Is my code slow?", ""),)).standalone.startswith(
        "Is my code slow?"
    )


def test_show_me_the_code_is_about_the_question_before() -> None:
    turns = (Turn("How do I transpose a matrix?", ""),)
    assert prepare_query("show me the code", turns).standalone == "How do I transpose a matrix? show me the code"


LIBRARY = FakeLibrary(
    [
        make_node("a", 0, document_id="cuda", title="The CUDA Guide", heading_path=("Memory model", "x"), chapter=1),
        make_node("b", 1, document_id="cuda", title="The CUDA Guide", heading_path=("Streams",), chapter=2),
        make_node("c", 0, document_id="hip", title="HIP Handbook", heading_path=("Warps",), chapter=1),
    ]
)


@pytest.mark.parametrize(
    ("question", "rest", "filters"),
    [
        ("#cuda-guide what is a warp", "what is a warp", Filters(document_ids=("cuda",))),
        ("what is a stream #hip", "what is a stream", Filters(document_ids=("hip",))),
        ("@2 what is a stream", "what is a stream", Filters(chapters=(2,))),
        ('@"memory model" what is it', "what is it", Filters(chapters=("Memory model",))),
        ("#cuda @1 why", "why", Filters(document_ids=("cuda",), chapters=(1,))),
        ("what does #pragma unroll do", "what does #pragma unroll do", Filters()),
        ("what does @cuda.jit do", "what does @cuda.jit do", Filters()),
        ("a #nosuchbook question", "a #nosuchbook question", Filters()),
        ("C# and a@b.c", "C# and a@b.c", Filters()),
    ],
)
def test_filters_in_the_question_are_taken_out_only_when_they_name_something(question, rest, filters) -> None:
    assert split_inline_filters(question, Filters(), LIBRARY) == (rest, filters)


def test_a_question_of_filters_alone_stays_a_question() -> None:
    assert split_inline_filters("#hip", Filters(), LIBRARY)[0] == "#hip"


@pytest.mark.parametrize("tag", ["@²", "@" + "9" * 200, "@٣" * 3])
def test_digits_that_are_not_a_chapter_are_part_of_the_question(tag: str) -> None:
    assert split_inline_filters(f"{tag} what is a warp?", Filters(), LIBRARY)[1] == Filters()
