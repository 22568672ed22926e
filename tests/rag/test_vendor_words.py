"""Laws of words for the same thing: when a question is put into the books' words, and when it is left alone."""

from __future__ import annotations

import pytest
from fakes import FakeLibrary, make_node

from indexes.types import Filters
from rag.retrieval import HybridRetriever
from rag.settings import RetrievalSettings
from rag.wording import OtherWords, _load_table, find_other_words, put_into_books_words

CUDA = FakeLibrary(
    [
        make_node("Shared memory is on the chip. A warp has 32 threads.", 0),
        make_node("Streams run kernels one after another.", 1),
        make_node("A thread block runs on one streaming multiprocessor (SM).", 2),
    ]
)


def other_words(question: str, library: FakeLibrary = CUDA) -> tuple[OtherWords, ...]:
    return find_other_words(question, library, Filters())


@pytest.mark.parametrize(
    ("question", "asked", "found"),
    [
        ("How large is the LDS?", "LDS", "shared memory"),
        ("How large is a wavefront?", "wavefront", "warp"),
        ("How many work groups run on a CU?", "work-group", "thread block"),
    ],
)
def test_a_word_that_the_books_lack_is_asked_for_in_theirs(question: str, asked: str, found: str) -> None:
    assert {other.asked: other.found[0] for other in other_words(question)}[asked] == found


@pytest.mark.parametrize(
    "question",
    ["How large is a warp?", "What is the TLB?", "What do streams run?", "What does lds do?", "What is an SM?", ""],
)
def test_words_that_the_books_have_or_have_nothing_for_are_left_alone(question: str) -> None:
    assert other_words(question) == ()


def test_a_word_of_two_parts_is_there_only_when_they_are_together() -> None:
    apart = FakeLibrary([make_node("The thread waits. The block is full.", 0), make_node("A work-group waits.", 1)])
    assert other_words("What is a thread block?", apart) == (OtherWords("thread block", ("work-group",)),)


def test_local_memory_is_looked_for_but_never_replaced() -> None:
    opencl = FakeLibrary([make_node("Local memory is shared by a work-group.", 0)])
    assert put_into_books_words("What is LDS?", other_words("What is LDS?", opencl)) == "What is local memory?"
    assert other_words("What is local memory?", CUDA) == ()


def test_the_search_says_so_and_keeps_the_readers_words() -> None:
    found = HybridRetriever(CUDA, RetrievalSettings()).search("How large is a wavefront?", Filters())
    assert found.query.text == "How large is a wavefront?"
    assert found.query.english == "How large is a warp?" and "wavefront" in found.query.lexical
    assert "wavefront" in " ".join(found.query.notes) and "warp" in " ".join(found.query.notes)
    assert found.hits[0].node.node_id == "book-0"


def test_no_word_stands_for_two_things() -> None:
    asked = [word.casefold() for words, _ in _load_table() for word in words]
    assert len(asked) == len(set(asked))
