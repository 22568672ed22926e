"""Laws of the correction of misspelt words."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fakes import HashEncoder

from indexes.library import Library, open_library
from indexes.settings import IndexSettings
from rag.query import understand
from rag.spelling import correct


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    folder = tmp_path_factory.mktemp("spelling")
    parts = (
        f"## Part {n}\n\nMemory coalescing; aligned threads; cudaMalloc allocates. Kokkos does.\n\n" for n in range(3)
    )
    base = "The base number of steps is small. A prefix helps. Prefill it. sinf is polymorphic. Values reside there."
    (folder / "book.md").write_text(f"# Memory\n\n{''.join(parts)}## Base\n\n{base}\n")
    library = open_library(IndexSettings(folder / "home"), embedder=HashEncoder())
    library.load()
    library.add(folder / "book.md")
    yield library
    library.close()


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
    ],
)
def test_a_misspelt_word_is_corrected_to_one_of_the_library(library: Library, typed: str, meant: str) -> None:
    assert correct(f"about {typed}?", library).text == f"about {meant}?"


@pytest.mark.parametrize(
    "word",
    ["numba", "opengl", "turing", "sinh", "COALESING", "cudaMallocX", "sind", "cuda", "weather", "bake", "resize"],
)
def test_other_names_and_english_words_stay(library: Library, word: str) -> None:
    assert correct(f"about {word}?", library).text == f"about {word}?"


def test_a_misspelt_name_in_chinese_is_corrected_without_spaces(library: Library) -> None:
    assert "coalescing" in correct("什么是coalesing呢", library).text


def test_a_text_in_another_language_is_left_alone(library: Library) -> None:
    text = "wie funktioniert das gemeinsame speichern von threds bei dieser grafikkarte eigentlich genau"
    assert correct(text, library).text == text


def test_the_note_names_corrections_except_of_stop_words(library: Library) -> None:
    query = understand("wich memory coalesing?", library)
    assert len(query.notes) == 1 and "coalescing" in query.notes[0] and "which" not in query.notes[0]
    assert query.text == "wich memory coalesing?"
    assert query.lexical == query.dense == "which memory coalescing?"
