"""Laws of what is searched for: the books' words, filters in the question, and the question before it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fakes import section

from indexes.library import Library
from indexes.words import is_chinese
from rag.query import Query, understand
from rag.types import Turn
from rag.wording import correct

Asked = Callable[..., Query]


@pytest.fixture(scope="module")
def library(library_of: Callable[..., Library]) -> Library:
    return library_of(
        *(
            section(f"Memory coalescing needs aligned threads {n}; cudaMalloc allocates. Kokkos does.")
            for n in range(3)
        ),
        section("The base number of steps is small. Its size limits a prefix. Prefill it. sinf is polymorphic."),
        section("Values reside there."),
    )


@pytest.fixture(scope="module")
def asked(library: Library) -> Asked:
    """What a message is understood as after the questions of `before`."""
    return lambda text, *before: understand(text, library, turns=[Turn(question, "") for question in before])


def test_a_question_is_searched_for_by_its_own_words_and_loses_none(asked: Asked) -> None:
    text = "How many threads does memory need?"
    query = asked(text)
    assert query.text == query.standalone == query.dense == query.lexical == query.english == text
    assert (query.kind, query.chinese, query.notes, query.undone, query.options) == ("fact", False, (), (), ())
    assert asked("What is occupancy?").subject == "occupancy"


@pytest.mark.parametrize(
    ("chinese", "english", "kind", "subject"),
    [
        ("什么是占用率?", "what is occupancy", "define", "occupancy"),
        ("占用率是什么？", "what is occupancy", "define", "occupancy"),
        ("CPU和GPU的区别是什么？", "difference between CPU GPU", "fact", ""),
        ("魑魅魍魉", "魑魅魍魉", "fact", ""),
    ],
)
def test_a_chinese_question_is_put_into_english_for_meaning(
    asked: Asked, chinese: str, english: str, kind: str, subject: str
) -> None:
    query = asked(chinese)
    assert (query.english, query.dense, query.kind, query.subject) == (english, english, kind, subject)
    assert query.chinese and query.text == chinese in query.lexical


def test_synonyms_are_for_the_search_by_words_only(asked: Asked) -> None:
    query = asked("如何避免分支分化？")
    assert "prevent" in query.lexical and "prevent" not in query.dense and not is_chinese(query.dense)


@pytest.mark.parametrize(
    ("follow_up", "before", "searched"),
    [
        ("and how do I limit it?", ("What is occupancy?",), "and how do I limit occupancy?"),
        ("how do I limit it", ("Is my code slow?",), "Is my code slow? how do I limit it"),
        ("why?", ("What is occupancy?", "And what limits it?"), "What is occupancy? And what limits it? why?"),
        ("How is constant memory declared in a program?", ("What is a warp?",), ""),
        ("why?", (), ""),
    ],
)
def test_a_follow_up_is_searched_for_with_what_it_is_about(
    asked: Asked, follow_up: str, before: tuple[str, ...], searched: str
) -> None:
    query = asked(follow_up, *before)
    assert query.standalone == query.dense == (searched or follow_up)
    assert query.text == follow_up
    assert any(before[0] in note for note in query.notes) is bool(searched)
    assert query.asks_for_more is (bool(searched) and follow_up == "why?")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("coalesing", "coalescing"),
        ("thraeds", "threads"),
        ("setps", "steps"),
        ("prefil", "prefill"),
        ("kokos", "kokkos"),
        ("cudaMaloc", "cudaMalloc"),
        ("wich", "which"),
        ("alighned", "aligned"),
        ("polymorfic", "polymorphic"),
        *((name, name) for name in ("numba", "opengl", "turing", "sinh", "COALESING", "cudaMallocX", "sind", "cuda")),
        *((english, english) for english in ("weather", "bake", "resize")),
    ],
)
def test_a_misspelt_word_is_searched_for_as_the_library_has_it_and_a_note_says_so_unless_it_stops(
    asked: Asked, typed: str, meant: str
) -> None:
    query = asked(f"about {typed}?")
    assert query.lexical == query.dense == f"about {meant}?" and query.text == f"about {typed}?"
    assert any(meant in note for note in query.notes) is (meant not in (typed, "which"))


def test_a_misspelt_name_in_chinese_is_corrected_and_a_text_in_another_language_is_left_alone(library: Library) -> None:
    assert "coalescing" in correct("什么是coalesing呢", library).text
    text = "wie funktioniert das gemeinsame speichern von threds bei dieser grafikkarte eigentlich genau"
    assert correct(text, library).text == text


def test_code_and_options_are_not_searched_for_and_what_needs_a_model_is_said(asked: Asked) -> None:
    query = asked("Why is this slow?\nfloat* p;\ncudaMalloc(&p, myBytes(n));\n")
    assert query.standalone == "Why is this slow?" and len(query.undone) == 1
    assert "cudaMalloc" in asked("float* p;\ncudaMalloc(&p, myBytes(n));").standalone, "there is nothing else"
    pasted = asked("How many threads?\nA. 16\nB. 32")
    assert (pasted.standalone, pasted.options, pasted.undone) == ("How many threads?", ("16", "32"), ())
    several = asked("What is memory? What are threads?")
    assert len(several.undone) == 1 and "threads" in several.standalone
    assert asked("Several lines\r\nof prose\r\nare no code??").undone == ()


def test_of_a_very_long_text_the_beginning_is_searched_for(asked: Asked) -> None:
    query = asked("xqzv " * 4000)
    assert len(query.lexical) <= 2000 and len(query.notes) == 1
    after = asked("why?", "What makes memory slow? " + "xqzv " * 3990)
    assert after.standalone.startswith("What makes memory slow?")
    assert len(after.lexical) < 2100 and len(after.notes[0]) < 2100


# --- words for the same thing


@pytest.mark.parametrize(
    ("question", "searched"),
    [
        ("How large is the LDS?", "How large is the shared memory?"),
        ("How large is a wavefront?", "How large is a warp?"),
        ("How many work groups run?", "How many thread block run?"),
        *((same, same) for same in ("How large is a warp?", "What is the TLB?", "What does lds do?", "What is an SM?")),
    ],
)
def test_a_word_that_the_books_lack_is_searched_for_in_theirs(
    library_of: Callable[..., Library], question: str, searched: str
) -> None:
    library = library_of(
        section("Shared memory is on the chip. A warp has 32 threads."),
        section("A thread block runs on one streaming multiprocessor (SM). It has a size, and many run."),
    )
    query = understand(question, library)
    assert query.english == searched and query.text == question
    assert all(text.split()[-1].strip("?") in query.lexical for text in (question, searched))
    assert bool(query.notes) is (searched != question)


def test_a_chinese_question_is_searched_for_in_the_language_of_the_books_that_hold_more_of_it(
    library_of: Callable[..., Library],
) -> None:
    library = library_of(
        section("父网格在所有子网格完成之后才被视为完成。"),
        section("Occupancy is the share of warps that are resident."),
    )
    asked = "父网格什么时候才被视为完成？"
    query = understand(asked, library)
    assert query.english == query.dense == query.lexical == asked and query.chinese
    assert understand("什么是占用率？", library).english == "what is occupancy"


def test_a_word_of_two_parts_is_there_only_where_they_are_together(library_of: Callable[..., Library]) -> None:
    apart = library_of(section("The thread waits. The block is full."), section("A work-group waits."))
    assert understand("What is a thread block?", apart).english == "What is a work-group?"


def test_local_memory_is_looked_for_but_never_replaced(library_of: Callable[..., Library]) -> None:
    opencl = library_of(section("Local memory is of a work-group."))
    assert understand("What is LDS?", opencl).english == "What is local memory?"
    cuda = library_of(section("Shared memory is on the chip."))
    assert understand("What is local memory?", cuda).english == "What is local memory?"
